"""The script for a machine that has only PyTorch and transformers: every part of it on the CPU, where nothing else can be imported."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytorch_only
import torch

REPOSITORY = Path(__file__).parent.parent.parent
SCRIPT = REPOSITORY / "tests" / "gpu" / "pytorch_only.py"
REFUSED = ("ray", "vllm", "pydantic", "math_verify", "datasets", "tomli_w")
"""Not deepspeed, peft, psutil, rich and scipy: transformers imports these itself where they are installed."""
ALONE = f"""
import importlib.abc, runpy, sys

class Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {REFUSED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusal())
sys.argv = [{str(SCRIPT)!r}, *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words):
    """(status, lines) of the script in a Python that has none of the other packages and sees no GPU, from another folder."""
    without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", ALONE, *words], cwd="/", env=without_gpu, capture_output=True, text=True, timeout=120)
    assert not done.stderr.count("Traceback"), done.stderr
    return done.returncode, done.stdout.splitlines()


def test_every_part_works_and_holds_on_a_cpu_with_pytorch_and_transformers_alone():
    status, lines = run("--shapes", "tiny", "--device", "cpu")
    figures = json.loads(lines[-1])
    assert (status, figures["ok"], figures["device"]) == (0, True, "CPU")
    parts = {name.partition(":")[0] for name in figures if ":" in name}
    assert parts == {"chunked log-probs", "batching", "checkpointing", "attention", "precision", "training step"}
    padding, plain = (float(share.rstrip("%")) for share in figures["batching: padding, sorted and as they come"].split(" and "))
    assert 0 < padding < plain
    assert float(figures["attention: log-probs differ by, mean"].split()[0]) < 0.05
    assert " and " in figures["attention: time, sdpa and eager"]
    assert figures["checkpointing: memory with and without"] == "not counted on a CPU"
    assert not any("FAILED" in line for line in lines)


def test_what_the_time_does_not_suffice_for_is_named_and_the_status_says_so():
    status, lines = run("--shapes", "tiny", "--device", "cpu", "--limit-s", "0")
    assert status == 1
    assert sum("left out" in line and "FAILED" in line for line in lines) >= 5


def test_without_a_gpu_it_says_skipped():
    assert run() == (0, ["skipped: PyTorch sees no GPU here", '{"name": "pytorch_only", "skipped": true}'])


def test_a_part_that_is_at_work_when_the_time_is_over_is_given_up(monkeypatch):
    def endless(*_):
        try:
            time.sleep(60)
        except Exception:  # what a library might do
            time.sleep(60)

    def short(*_):
        return [pytorch_only.Row("short", "done", "1")]

    began = time.monotonic()
    monkeypatch.setattr(pytorch_only, "PARTS", (short, endless, short))
    rows = pytorch_only.run_parts(pytorch_only.Machine("cpu"), pytorch_only.SHAPES["tiny"], limit_s=0.3)
    assert time.monotonic() - began < 10
    assert [(row.part, row.what, row.holds) for row in rows] == [
        ("short", "done", True), ("endless", "given up", False), ("short", "left out", False)
    ]  # fmt: skip


def test_the_memory_of_a_model_is_free_after_its_block_though_the_module_is_held():
    with pytorch_only.model_of(pytorch_only.Machine("cpu"), pytorch_only.SHAPES["tiny"], torch.bfloat16) as policy:
        weights = [parameter.untyped_storage()._weak_ref() for parameter in policy.parameters()]
        assert not any(torch.UntypedStorage._expired(weight) for weight in weights)
    assert all(torch.UntypedStorage._expired(weight) for weight in weights)
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}


class H100(pytorch_only.Machine):
    """A step of a microsecond on a card whose peak is known: 989e12 operations a second."""

    name = "NVIDIA H100 80GB HBM3"

    def seconds(self, work, repeats):
        work()
        return 1e-6


def test_on_a_card_whose_peak_is_known_a_training_steps_share_of_it_is_told():
    rows = pytorch_only.utilisation(H100("cpu"), pytorch_only.SHAPES["tiny"])
    shares = {row.what: (row.figure, row.holds) for row in rows}
    # 4 x 63 tokens x 6 x (107,072 weights + 2 layers x 64 x 64) = 1.743e8 operations, of 9.89e8 in a microsecond
    assert shares["share of the peak rate (MFU)"] == ("17.6%", True)
    assert not any("no peak known" in row.what for row in rows)
