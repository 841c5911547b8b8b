"""A real collapse, of GRPO at a learning rate four times too high, on the real engines: caught, taken back, and trained to a good end. And
healthy runs, in which no guard fires. Minutes, so it is slow.

python -m pytest -m slow tests/e2e_cpu/test_guards.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = "jobs/recipes/arithmetic_cpu.toml"
RATE = 5e-4
"""The recipe's."""
GUARDED = ("guards.action=rollback", "run.checkpoint_every=5", "eval.validate_every=5", "eval.num_problems=500")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def run(root, name, *overrides, limit_s=900):
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    command = [sys.executable, "jobs/study.py", RECIPE, f"run.root={root}", f"run.name={name}", *GUARDED, *overrides]
    job = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=limit_s)
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    return root / name


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_rate_four_times_too_high_is_caught_within_15_steps_and_the_run_ends_above_the_baseline(tmp_path, seed):
    stages = 'study.stages=["baseline", "grpo"]'
    folder = run(tmp_path, "collapse", stages, f"grpo.learning_rate={4 * RATE}", f"run.seed={seed}")
    events = lines_of(folder / "guards.jsonl")
    back = next(event for event in events if event["kind"] == "rollback")
    assert back["step"] <= 15
    assert back["changes"] == {"grpo.learning_rate": [4 * RATE, RATE]}
    assert [event for event in events if event["kind"] == "outcome"][-1]["helped"]
    baseline, grpo = json.loads((folder / "summary.json").read_text())["stages"]
    assert baseline["ci95"][1] < grpo["ci95"][0]
    steps = [row["step"] for row in lines_of(folder / "metrics.jsonl") if row["stage"] == "grpo" and "reward_mean" in row]
    assert steps == list(range(1, 61))


def test_no_guard_fires_in_five_healthy_runs(tmp_path):
    folder = run(tmp_path, "healthy", 'study.stages=["grpo"]', "study.seeds=[0, 1, 2, 3, 4]", limit_s=3500)
    runs = [Path(variant["folder"]) for variant in json.loads((folder / "sweep.json").read_text())["variants"]]
    assert len(runs) == 5
    assert [event for each in runs for event in lines_of(tmp_path / each / "guards.jsonl")] == []
