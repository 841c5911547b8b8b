"""Seeds and sweeps with real engines: two real runs, a kill between them, and what is put together. Slow: engines start three times.

python -m pytest -m slow tests/e2e_cpu/test_real_sweep.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = (
    "eval.num_problems=32", "grpo.num_steps=4", "grpo.prompts_per_step=8", "grpo.group_size=4", "eval.validate_every=0",
    "generator.kv_cache_gib=0.25", "learner.micro_batch_tokens=1024", "run.checkpoint_every=1",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


STARTED = []


@pytest.fixture(autouse=True)
def _nothing_goes_on():
    yield
    for job in STARTED:  # of a test that has failed; a sweep ends its runs
        if job.poll() is None:
            job.terminate()
            job.wait(60)


def start(root, model, *overrides):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [
        sys.executable,
        "jobs/grpo.py",
        "jobs/recipes/arithmetic_cpu.toml",
        f"run.root={root}",
        f"model.path={model}",
        "run.name=two",
    ]
    with (root / "job.log").open("a") as log:
        job = subprocess.Popen([*command, *SMALL, *overrides], cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
    STARTED.append(job)
    return job


def statuses(folder):
    path = folder / "sweep.json"
    return {each["name"]: each["status"] for each in json.loads(path.read_text())["variants"]} if path.exists() else {}


def wait_for(holds, job, limit_s=400.0):
    until = time.monotonic() + limit_s
    while not holds():
        assert job.poll() is None, "the sweep has ended before"
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)  # files of another process


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_sweep_killed_half_way_goes_on_and_repeats_nothing(start_model, tmp_path):
    seeds = "study.seeds=[0, 1]"
    first = start(tmp_path, start_model, seeds)
    folder, done, half = (tmp_path / name for name in ("two", "two-seed-0", "two-seed-1"))
    wait_for(lambda: (half / "checkpoints").is_dir() and list((half / "checkpoints").glob("grpo-*")), first)
    assert statuses(folder) == {"seed-0": "finished", "seed-1": "running"}
    family = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    _, alive = psutil.wait_procs(family, timeout=90)
    assert not alive, "processes outlive their sweep"
    before = (done / "metrics.jsonl").stat().st_mtime_ns
    second = start(tmp_path, start_model, seeds, "run.resume=auto")
    assert second.wait(400) == 0, (tmp_path / "job.log").read_text()[-3000:]
    assert (done / "metrics.jsonl").stat().st_mtime_ns == before
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"two", "two-seed-0", "two-seed-1"}
    for run in (done, half):
        assert [row["step"] for row in rows(run) if "reward_mean" in row] == [1, 2, 3, 4]  # none twice, none missing
    (stage,) = json.loads((folder / "summary.json").read_text())["stages"]
    own = [json.loads((run / "summary.json").read_text())["stages"][0]["accuracy"] for run in (done, half)]
    assert [run["accuracy"] for run in stage["per_seed"]] == own
    assert stage["accuracy"] == pytest.approx(sum(own) / 2)
    assert stage["ci95"][0] <= stage["accuracy"] <= stage["ci95"][1]
