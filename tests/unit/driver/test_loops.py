import asyncio
import json

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.stages.grpo import run_grpo
from mathrl_ray.stages.study import run_study


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def run_with(tmp_path, diary):
    def make(*, num_generators=1, num_scorers=1, **sections):
        actors = Actors(
            learner=FakeLearner(diary),
            generators=tuple(FakeGenerator(diary, f"generator-{index}") for index in range(num_generators)),
            scorers=tuple(FakeScorer(diary, f"scorer-{index}") for index in range(num_scorers)),
            stop_token_ids=(0,),
        )
        sections = {"eval": {"num_problems": 10}, "grpo": {"num_steps": 2, "prompts_per_step": 3, "group_size": 4}, **sections}
        return make_run(recipe_for(tmp_path, **sections), actors)

    return make


def test_grpo_trains_only_on_siblings_that_differ_and_writes_down_the_rest(run_with, diary):
    run = run_with()
    asyncio.run(run_grpo(run))
    trained = [(group_id, sample) for _, _, batch in diary.of("train_policy") for group_id, sample, _ in batch]
    rows = [row for step in (1, 2) for row in pq.read_table(run.recorder.folder / "trajectories" / f"grpo-{step}.parquet").to_pylist()]
    assert len(rows) == 2 * 3 * 4
    assert sorted(trained) == sorted((row["group_id"], row["sample"]) for row in rows if row["drop_reason"] is None)
    assert all((row["learner_logprobs"] is not None) == (row["drop_reason"] is None) for row in rows)
    assert {row["staleness"] for row in rows} == {0}


def test_every_policy_version_is_one_publication_and_starts_at_0(run_with, diary):
    run = run_with()
    asyncio.run(run_grpo(run))
    published = [version for _, _, version in diary.of("publish")]
    assert published == list(range(len(diary.of("train_policy")) + 1))


def test_a_step_without_any_contrast_updates_and_publishes_nothing(run_with, diary):
    run = run_with(grpo={"num_steps": 3, "prompts_per_step": 2, "group_size": 2})
    run.train_problems = [type(problem)(problem.problem_id, problem.problem, gold="no digit") for problem in run.train_problems]
    assert asyncio.run(PolicyLoops(run, "grpo", 3, lambda *_: None).train()) == 3
    assert not diary.of("train_policy", "publish", "apply_weights")
    assert run.policy_version == 0


def test_behaviour_34_every_metric_row_has_its_own_step_and_the_summary_is_written_after_each_stage(run_with):
    run = run_with(study={"stages": ["baseline", "grpo"]})
    asyncio.run(run_study(run, ["baseline", "grpo"]))
    rows = [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in rows] == [
        ("baseline", 0),  # the sync of the start model
        ("baseline", 0),  # its evaluation
        ("grpo", 0),
        ("grpo", 1),
        ("grpo", 2),
        ("grpo", 2),  # its checkpoint
        ("grpo", 2),  # the evaluation behind the last step
    ]
    assert all({"stage", "step", "policy_version", "time_s"} <= set(row) for row in rows)
    summary = json.loads((run.recorder.folder / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["baseline", "grpo"]
    assert summary["stages"][1]["generated_tokens"] == 2 * 3 * 4  # one token a response, evaluation and canary not counted


def test_what_cannot_be_graded_is_not_in_an_accuracys_denominator(run_with):
    run = run_with(eval={"num_problems": 40})
    asyncio.run(run_study(run, ["baseline"]))
    stage = run.stages[0]
    rows = pq.read_table(run.recorder.folder / "evaluations" / "baseline-v0.parquet").to_pylist()
    num_correct = sum(row["outcome"] == "correct" for row in rows)
    assert stage["num_ungraded"] == sum(row["outcome"] == "grader_error" for row in rows) > 0
    assert stage["accuracy"] == num_correct / (40 - stage["num_ungraded"])
