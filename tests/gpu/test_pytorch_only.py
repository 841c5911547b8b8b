"""The script for a machine that has only PyTorch and transformers: every part of it on the CPU, where nothing else can be imported."""

import json
import subprocess
import sys
from pathlib import Path

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
    """(status, lines) of the script in a Python that has none of the other packages, from another folder."""
    done = subprocess.run([sys.executable, "-c", ALONE, *words], cwd="/", capture_output=True, text=True, timeout=120)
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
    assert figures["checkpointing: memory with and without"] == "not counted on a CPU"
    assert not any("FAILED" in line for line in lines)


def test_what_the_time_does_not_suffice_for_is_named_and_the_status_says_so():
    status, lines = run("--shapes", "tiny", "--device", "cpu", "--limit-s", "0")
    assert status == 1
    assert sum("left out" in line and "FAILED" in line for line in lines) >= 5


def test_without_a_gpu_it_says_skipped():
    import torch

    if torch.cuda.is_available():
        return  # then the full run is what a person starts
    assert run() == (0, ["skipped: PyTorch sees no GPU here", '{"name": "pytorch_only", "skipped": true}'])
