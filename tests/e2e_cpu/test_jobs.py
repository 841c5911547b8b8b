"""Whole jobs as a user starts them, on a Ray of their own, with the real engines and a small start model."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
SMALL = (
    "eval.num_problems=48", "sft.num_examples=40", "grpo.num_steps=2", "grpo.prompts_per_step=8", "grpo.group_size=4",
    "generator.kv_cache_gib=0.25", "learner.micro_batch_tokens=1024",
)  # fmt: skip

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
    job = run_job("study", root, start_model, "generator.temperature=1.2")
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    return root / "arithmetic_cpu", job, set(os.listdir("/dev/shm")) - shared_memory


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_run_directory_holds_what_design_fixes(study):
    folder, _, _ = study
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
        "recipe.toml", "environment.json", "metrics.jsonl", "evaluations", "trajectories", "checkpoints", "summary.json", "digests.json",
    }  # fmt: skip
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"sft-3", "grpo-2"}  # 40 examples in batches of 16: 3 steps
    assert {path.name for path in (folder / "trajectories").iterdir()} == {"grpo-1.parquet", "grpo-2.parquet"}
    assert {path.name.split("-v")[0] for path in (folder / "evaluations").iterdir()} == {"baseline", "sft", "grpo"}
    environment = json.loads((folder / "environment.json").read_text())
    assert {"versions", "commit", "hardware", "device", "seeds"} <= set(environment)


def test_the_summary_has_every_figure_of_every_stage(study):
    folder, _, _ = study
    stages = json.loads((folder / "summary.json").read_text())["stages"]
    assert [stage["name"] for stage in stages] == ["baseline", "sft", "grpo"]
    for stage in stages:
        assert set(stage) == {
            "name", "accuracy", "ci95", "num_problems", "num_ungraded", "format_rate", "mean_entropy_nats", "mean_response_tokens",
            "generated_tokens", "graded", "optimizer_steps", "wall_s", "device_s",
        }  # fmt: skip
        assert stage["ci95"][0] <= stage["accuracy"] <= stage["ci95"][1]
        assert stage["num_problems"] == 48
    assert [stage["optimizer_steps"] for stage in stages] == [0, 3, metrics(folder)[-1]["policy_version"]]


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
    assert len(syncs) == 3 + 1 + num_published  # each stage's start, sft's end, grpo's updates
    assert max(syncs) < 1e-3
    ratios = [row["importance_ratio_mean"] for row in rows if "importance_ratio_mean" in row]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-3)


def test_behaviour_31_the_settings_in_the_run_are_those_that_were_used(study):
    folder, _, _ = study
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert recipe["generator"]["temperature"] == 1.2
    rates = {row["learning_rate"] for row in metrics(folder) if "learning_rate" in row}
    assert rates == {recipe["grpo"]["learning_rate"]} == {recipe["sft"]["learning_rate"]}


def test_the_table_names_prompt_temperature_and_limit_beside_the_accuracies(study):
    _, job, _ = study
    assert all(text in job.stdout for text in ("baseline", "sft", "grpo", "Prompt r1_zero", "temperature 1", "at most 64 tokens", " 48 "))


def test_nothing_of_the_job_is_left_behind(study):
    folder, _, new_shared_memory = study
    assert not leftovers(str(folder.parent))
    left = {name for name in new_shared_memory & set(os.listdir("/dev/shm")) if name.startswith(("psm_", "mathrl-"))}
    # Tests in another process make some too: what is gone by now was theirs, and so is what names a process that still runs.
    assert not {name for name in left if not any(part.isdigit() and psutil.pid_exists(int(part)) for part in name.split("-")[2:3])}


def test_a_stage_that_fails_ends_the_job_with_status_1_and_keeps_what_was_written(start_model, tmp_path):
    job = run_job(
        "study", tmp_path, start_model, "study.stages=['baseline', 'grpo']", "grpo.learning_rate=1e30", "learner.max_grad_norm=1e30"
    )
    assert job.returncode == 1, job.stdout[-2000:]
    assert "error:" in job.stderr
    stages = json.loads((tmp_path / "arithmetic_cpu" / "summary.json").read_text())["stages"]
    assert [stage["name"] for stage in stages] == ["baseline"]
