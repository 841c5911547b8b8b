"""Whole jobs as a user starts them, on a Ray of their own, with the real engines and a small start model."""

import json
import os
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
SMALL = (
    "eval.num_problems=48", "sft.num_examples=40", "expert_iteration.rounds=2", "expert_iteration.questions=8",
    "expert_iteration.threshold=0.1", "grpo.num_steps=2", "grpo.prompts_per_step=8", "grpo.group_size=4",
    "generator.kv_cache_gib=0.25", "learner.micro_batch_tokens=1024", "run.report=false",
)  # fmt: skip

STAGES = ("baseline", "sft", "sft_filtered", "expert_iteration", "grpo")

pytestmark = pytest.mark.timeout(280)


def run_job(stage: str, root: Path, model: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """One job in a process of its own; RAY_ADDRESS is taken away, so that it starts Ray itself."""
    command = [sys.executable, f"jobs/{stage}.py", str(RECIPE), f"run.root={root}", f"model.path={model}", *SMALL, *overrides]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=250)


def leftovers(marker: str) -> list[str]:
    """Command lines of processes that still run and name the run's folder."""
    return [line for process in psutil.process_iter(["cmdline"]) if marker in (line := " ".join(process.info["cmdline"] or []))]


@pytest.fixture(scope="module")
def study(start_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    shared_memory = set(os.listdir("/dev/shm"))
    job = run_job("study", root, start_model, "generator.temperature=1.2", "run.report=true")
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    return root / "arithmetic_cpu", job, set(os.listdir("/dev/shm")) - shared_memory


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_run_directory_holds_what_design_fixes(study):
    folder, _, _ = study
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "recipe.toml", "environment.json", "metrics.jsonl", "evaluations", "trajectories", "checkpoints", "summary.json", "digests.json",
        "elite_pool", "problem_memory", "tensorboard", "report.html",
    }  # fmt: skip
    checkpoints = {path.name for path in (folder / "checkpoints").iterdir()}
    assert {"sft-3", "grpo-2", "expert_iteration-1", "expert_iteration-2"} <= checkpoints  # 40 examples in batches of 16: 3 steps
    assert {name.rpartition("-")[0] for name in checkpoints} == set(STAGES[1:])
    steps = {f"{stage}-{step}.parquet" for stage in ("expert_iteration", "grpo") for step in (1, 2)}
    assert {path.name for path in (folder / "trajectories").iterdir()} == steps
    evaluated = {path.name.split("-v")[0] for path in (folder / "evaluations").iterdir()}
    assert evaluated == {*STAGES, "validation-expert_iteration-step1", "validation-expert_iteration-step2"}
    environment = json.loads((folder / "environment.json").read_text())
    assert {"versions", "commit", "hardware", "device", "seeds"} <= set(environment)


def test_the_summary_has_every_figure_of_every_stage(study):
    folder, _, _ = study
    stages = json.loads((folder / "summary.json").read_text())["stages"]
    assert [stage["name"] for stage in stages] == list(STAGES)
    for stage in stages:
        assert set(stage) >= {
            "name", "accuracy", "ci95", "num_problems", "num_ungraded", "format_rate", "mean_entropy_nats", "mean_response_tokens",
            "generated_tokens", "graded", "optimizer_steps", "wall_s", "device_s", "policy_version", "trained_tokens", "dropped_tokens",
            "redone",
        }  # fmt: skip
        assert stage["ci95"][0] <= stage["accuracy"] <= stage["ci95"][1]
        assert stage["num_problems"] == 48
    by_name = {stage["name"]: stage["optimizer_steps"] for stage in stages}
    assert (by_name["baseline"], by_name["sft"]) == (0, 3)
    assert by_name["grpo"] == metrics(folder)[-1]["policy_version"]
    rounds = [row for row in metrics(folder) if "pool_size" in row]
    assert by_name["expert_iteration"] == sum(-(-row["pool_size"] // 16) for row in rounds if row["num_accepted"])


def test_the_summary_says_how_the_stages_compare_and_whether_chance_explains_it(study):
    folder, job, _ = study
    summary = json.loads((folder / "summary.json").read_text())
    comparisons, accuracies = summary["comparisons"], [stage["accuracy"] for stage in summary["stages"]]
    assert [(each["first"], each["second"]) for each in comparisons["neighbours"]] == list(pairwise(STAGES))
    for each, (before, after) in zip(comparisons["neighbours"], pairwise(accuracies), strict=True):
        assert each["difference"] == pytest.approx(after - before)
        assert each["text"] in job.stdout
    assert comparisons["equal_tokens"]["text"] in job.stdout


def test_the_pool_of_each_round_holds_ids_that_were_sampled_in_it_or_before(study):
    folder, _, _ = study
    sampled = {}
    for number in (1, 2):
        rows = pq.read_table(folder / "trajectories" / f"expert_iteration-{number}.parquet").to_pylist()
        assert len(rows) == 8 * 8
        sampled |= {(row["group_id"], row["sample"]): row["response_ids"] for row in rows}
        members = pq.read_table(folder / "elite_pool" / f"expert_iteration-{number}.parquet").to_pylist()
        (logged,) = [row["pool_size"] for row in metrics(folder) if row["step"] == number and "pool_size" in row]
        assert len(members) == logged
        assert all(sampled[member["group_id"], member["sample"]] == member["response_ids"] for member in members)


def test_behaviour_34_an_accuracy_recomputed_from_the_rows_is_the_one_that_was_reported(study):
    folder, _, _ = study
    for stage in json.loads((folder / "summary.json").read_text())["stages"]:
        (file,) = (folder / "evaluations").glob(f"{stage['name']}-v*.parquet")
        rows = pq.read_table(file).to_pylist()
        assert sum(row["reward"] for row in rows) / len(rows) == pytest.approx(stage["accuracy"])
        assert {row["policy_version"] for row in rows} == {int(file.stem.rpartition("-v")[2])}


def test_behaviour_34_metrics_recomputed_from_the_trajectories_are_those_that_were_logged(study):
    folder, _, _ = study
    for row in metrics(folder):
        if row["stage"] == "grpo" and "reward_mean" in row:
            trajectories = pq.read_table(folder / "trajectories" / f"grpo-{row['step']}.parquet").to_pylist()
            assert len(trajectories) == 8 * 4
            assert sum(t["reward"] for t in trajectories) / 32 == pytest.approx(row["reward_mean"])
            assert sum(len(t["response_ids"]) for t in trajectories) / 32 == pytest.approx(row["response_tokens_mean"])


def test_behaviour_16_each_step_logs_what_tells_how_training_goes(study):
    folder, _, _ = study
    steps = [row for row in metrics(folder) if row["stage"] == "grpo" and "reward_mean" in row]
    assert [row["step"] for row in steps] == [1, 2]
    always = {
        "reward_mean", "format_reward_mean", "answer_reward_mean", "response_tokens_mean", "truncated_fraction", "zero_variance_fraction",
        "staleness_mean", "staleness_max",
    }  # fmt: skip
    where_trained = {"loss", "grad_norm", "learning_rate", "entropy_nats", "clip_fraction", "importance_ratio_mean", "mismatch_kl"}
    for row in steps:
        trajectories = pq.read_table(folder / "trajectories" / f"grpo-{row['step']}.parquet").to_pylist()
        dropped = {t["group_id"] for t in trajectories if t["drop_reason"] == "zero_variance"}
        assert always <= row.keys()
        assert row["zero_variance_fraction"] == pytest.approx(len(dropped) / 8)
        assert row["truncated_fraction"] == pytest.approx(sum(t["finish_reason"] == "length" for t in trajectories) / 32)
        assert (where_trained <= row.keys()) == (len(dropped) < 8)


def test_generator_and_learner_agree_after_every_sync_of_the_run(study):
    folder, _, _ = study
    rows = metrics(folder)
    syncs = [row["canary_max_logprob_diff"] for row in rows if "canary_max_logprob_diff" in row]
    num_published = sum("grad_norm" in row for row in rows if row["stage"] == "grpo")
    num_rounds = sum(row.get("num_accepted", 0) > 0 for row in rows)
    assert len(syncs) == 5 + 2 + num_rounds + num_published  # each stage's start, the ends of both SFTs, rounds that learned, updates
    assert max(syncs) < 1e-3
    ratios = [row["importance_ratio_mean"] for row in rows if "importance_ratio_mean" in row]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-3)


def test_behaviour_31_the_settings_in_the_run_are_those_that_were_used(study):
    folder, _, _ = study
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert recipe["generator"]["temperature"] == 1.2
    rates = {row["learning_rate"] for row in metrics(folder) if "learning_rate" in row}
    assert rates == {recipe["grpo"]["learning_rate"]} == {recipe["sft"]["learning_rate"]}


def test_tensorboard_got_each_reward_that_the_run_wrote(study):
    folder, _, _ = study
    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    for stage in ("expert_iteration", "grpo"):
        rewards = [(row["step"], row["reward_mean"]) for row in metrics(folder) if row["stage"] == stage and "reward_mean" in row]
        shown = [(event.step, event.value) for event in reader.Scalars(f"{stage}/reward_mean")]
        assert [step for step, _ in shown] == [step for step, _ in rewards] == [1, 2]
        assert [reward for _, reward in shown] == pytest.approx([reward for _, reward in rewards])  # float32 there


def test_the_table_names_prompt_temperature_and_limit_beside_the_accuracies(study):
    _, job, _ = study
    assert all(text in job.stdout for text in ("baseline", "sft", "grpo", "Prompt r1_zero", "temperature 1", "at most 64 tokens", " 48 "))


def test_nothing_of_the_job_is_left_behind(study):
    folder, _, new_shared_memory = study
    assert not leftovers(str(folder.parent))
    left = {name for name in new_shared_memory & set(os.listdir("/dev/shm")) if name.startswith(("psm_", "mathrl-"))}
    # Tests in another process make some too: what is gone by now was theirs, and so is what names a process that still runs.
    assert not {name for name in left if not any(part.isdigit() and psutil.pid_exists(int(part)) for part in name.split("-")[2:3])}


@pytest.mark.slow  # a second job, whose engines start for it alone: python -m pytest -m slow tests/e2e_cpu/test_jobs.py
def test_a_stage_that_fails_ends_the_job_with_status_1_and_keeps_what_was_written(start_model, tmp_path):
    job = run_job(
        "study", tmp_path, start_model, "study.stages=['baseline', 'grpo']", "grpo.learning_rate=1e30", "learner.max_grad_norm=1e30"
    )
    assert job.returncode == 1, job.stdout[-2000:]
    assert "error:" in job.stderr
    stages = json.loads((tmp_path / "arithmetic_cpu" / "summary.json").read_text())["stages"]
    assert [stage["name"] for stage in stages] == ["baseline"]
