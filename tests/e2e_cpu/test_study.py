"""The whole study as the recipe has it, with the real engines: minutes, so it is slow. What it finds is what README shows.

python -m pytest -m slow tests/e2e_cpu/test_study.py
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = "jobs/recipes/arithmetic_cpu.toml"
STAGES = ("baseline", "sft", "sft_filtered", "expert_iteration", "grpo")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "jobs/study.py", RECIPE, f"run.root={root}"]
    job = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1700)
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    return root / "arithmetic_cpu", job.stdout


@pytest.fixture
def stages(study):
    folder, _ = study
    return {stage["name"]: stage for stage in json.loads((folder / "summary.json").read_text())["stages"]}


def rounds(folder, key):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row[key] for row in sorted(rows, key=lambda row: row["step"]) if row["stage"] == "expert_iteration" and key in row]


def test_each_stage_is_above_the_one_before_and_the_two_that_sample_above_all(stages):
    assert tuple(stages) == STAGES
    for before, after in pairwise(STAGES[:3]):
        assert stages[before]["ci95"][1] < stages[after]["ci95"][0]
    for stage in ("expert_iteration", "grpo"):
        assert stages["sft_filtered"]["ci95"][1] < stages[stage]["ci95"][0]


def test_expert_iteration_and_grpo_cost_the_same_and_it_says_which_is_ahead(study, stages):
    folder, said = study
    tokens = [stages[stage]["generated_tokens"] for stage in ("expert_iteration", "grpo")]
    assert max(tokens) <= 1.05 * min(tokens)
    equal = json.loads((folder / "summary.json").read_text())["comparisons"]["equal_tokens"]
    assert equal["difference"] == pytest.approx(stages["grpo"]["accuracy"] - stages["expert_iteration"]["accuracy"])
    assert equal["text"] in said


def test_five_rounds_show_accuracy_rising_and_entropy_falling(study):
    folder, _ = study
    accuracies, entropies = rounds(folder, "validation_accuracy"), rounds(folder, "response_entropy_nats")
    assert len(accuracies) == len(entropies) == 5
    assert entropies == sorted(entropies, reverse=True)
    assert all(later > first for first, later in pairwise(accuracies) if first < 0.95)
    assert accuracies[-1] > 0.95


def test_the_pool_keeps_its_limits_and_its_threshold_never_falls(study):
    folder, _ = study
    thresholds = rounds(folder, "pool_threshold")
    assert thresholds == sorted(thresholds)
    for number in range(1, 6):
        members = pq.read_table(folder / "elite_pool" / f"expert_iteration-{number}.parquet").to_pylist()
        shares = [sum(other["problem_id"] == each["problem_id"] for other in members) for each in members[:200]]
        assert len(members) <= 2000
        assert max(shares) <= 4
        assert all(member["round"] <= number and member["policy_version"] == member["round"] - 1 for member in members)
        assert all(member["quality"] >= thresholds[number - 1] for member in members)
