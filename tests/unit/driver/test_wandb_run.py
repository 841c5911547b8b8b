"""Weights & Biases with its real package, offline, in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mathrl_ray.driver.wandb_run import has_wandb

REPOSITORY = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not has_wandb(), reason="the package wandb is not installed")

WANDB_CODE = """
import os, pathlib, sys, time
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.config import Recipe
from mathrl_ray.driver.trackers import tracking
recipe = Recipe.model_validate({"run": {"root": ROOT, "name": "told"},
    "reward": {"function": "here:there", "kwargs": {"api_key": "sesame-42-open"}}})
recorder = Recorder.create(recipe)
with tracking(recorder, recipe, lambda text: print(text, flush=True)):
    for step in range(1, 4):
        recorder.metrics("grpo", step, step, {"reward_mean": step / 10})
    while not list(recorder.folder.glob("wandb/*/*.wandb")):
        time.sleep(0.05)
    print("ready", flush=True)
    END
print("ended", flush=True)
sys.stdin.readline()
"""


def in_a_process(code):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes)


def helpers():
    return {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "wandb-core"}


def wait_until(holds, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("end", ["pass", "raise RuntimeError('failed')", "time.sleep(60)", "os._exit(1)"])
def test_weights_and_biases_leaves_files_no_secret_and_no_process_however_a_run_ends(tmp_path, end):
    before = helpers()
    process = in_a_process(WANDB_CODE.replace("ROOT", repr(str(tmp_path))).replace("END", end))
    seen = ""
    for line in process.stdout:
        seen += line
        if line == "ready\n":
            break
    assert "ready" in seen, seen
    if end.startswith("time"):
        assert helpers() - before
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not helpers() - before)  # also in a process that goes on after its run
    process.kill()
    process.wait(10)
    process.stdout.close()
    files = [path for path in (tmp_path / "told" / "wandb").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        content = path.read_bytes()
        assert b"sesame" not in content
        if path.suffix == ".wandb" and end == "pass":
            assert b"grpo/reward_mean" in content
