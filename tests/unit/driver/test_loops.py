import asyncio
import json

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from hypothesis import given
from hypothesis import strategies as st
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.driver.loops import CanaryError, begin_stage, generate, make_request, rollout, score, sync_weights
from mathrl_ray.driver.trajectory_buffer import TrajectoryBuffer
from mathrl_ray.stages.grpo import run_grpo
from mathrl_ray.stages.study import run_study


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def run_with(tmp_path, diary):
    def make(*, num_generators=1, num_scorers=1, gap_nats=0.0, **sections):
        actors = Actors(
            learner=FakeLearner(diary, gap_nats),
            generators=tuple(FakeGenerator(diary, f"generator-{index}") for index in range(num_generators)),
            scorers=tuple(FakeScorer(diary, f"scorer-{index}") for index in range(num_scorers)),
            stop_token_ids=(0,),
        )
        sections = {"eval": {"num_problems": 10}, "grpo": {"num_steps": 2, "prompts_per_step": 3, "group_size": 4}, **sections}
        return make_run(recipe_for(tmp_path, **sections), actors)

    return make


def test_a_publication_goes_publish_apply_version_canary(run_with, diary):
    run = run_with(num_generators=2)
    diary.entries.clear()
    asyncio.run(sync_weights(run, policy_version=5))
    assert [(actor, what) for actor, what, _ in diary.entries] == [
        ("learner-0", "publish"),
        ("generator-0", "apply_weights"),
        ("generator-1", "apply_weights"),
        ("generator-0", "generate"),
        ("learner-0", "response_statistics"),
        ("generator-1", "generate"),
        ("learner-0", "response_statistics"),
    ]
    assert run.policy_version == 5


def test_behaviour_17_a_canary_over_its_limit_ends_the_run_and_names_the_generator(run_with):
    run = run_with(gap_nats=0.01)
    with pytest.raises(CanaryError, match=r"generator-0 and the learner differ by 0\.01 nats .*driver\.canary_max_logprob_diff = 0\.001 "):
        asyncio.run(sync_weights(run, policy_version=1))


def test_behaviour_17_a_gap_of_precision_before_any_update_widens_the_limit_to_three_times_it(run_with):
    run = run_with(gap_nats=0.01)
    asyncio.run(begin_stage(run, "grpo", learning_rate=1e-3, num_optimizer_steps=1))
    run.actors.learner.gap_nats = 0.025
    asyncio.run(sync_weights(run, policy_version=1))
    run.actors.learner.gap_nats = 0.035
    with pytest.raises(CanaryError, match=r"differ by 0\.035 nats .* more than 0\.03 "):
        asyncio.run(sync_weights(run, policy_version=2))


def test_a_canary_that_is_not_a_number_ends_the_run(run_with):
    with pytest.raises(CanaryError):
        asyncio.run(sync_weights(run_with(gap_nats=float("nan")), policy_version=1))


@pytest.mark.parametrize("num_generators", [1, 2, 3])
def test_behaviour_11_responses_come_back_to_their_requests_from_any_number_of_generators(run_with, num_generators):
    run = run_with(num_generators=num_generators)
    sampling = run.training_sampling
    requests = [make_request(run, problem, f"g/{index}", 0, 0, sampling) for index, problem in enumerate(run.train_problems[:7])]
    completions = asyncio.run(generate(run, requests))
    assert [completion.token_ids[0] for completion in completions] == [request.seed % 10 for request in requests]
    assert run.ledger.generated_tokens == 7


@given(num_items=st.integers(0, 20), num_scorers=st.integers(1, 4))
def test_behaviour_4_grade_i_belongs_to_response_i(tmp_path_factory, num_items, num_scorers):
    diary = Diary()
    actors = Actors(FakeLearner(diary), (FakeGenerator(diary),), tuple(FakeScorer(diary) for _ in range(num_scorers)), (0,))
    run = make_run(recipe_for(tmp_path_factory.mktemp("runs"), eval={"num_problems": 1}), actors)
    requests = [make_request(run, run.train_problems[0], "g", 0, sample, run.training_sampling) for sample in range(num_items)]
    completions = asyncio.run(generate(run, requests))
    grades = asyncio.run(score(run, completions, ["3"] * num_items))
    assert [grade.extracted_answer for grade in grades] == [completion.text for completion in completions]


def test_behaviour_11_each_prompt_keeps_its_own_siblings(run_with):
    run = run_with(num_generators=2)
    problems = [run.train_problems[0], run.train_problems[1], run.train_problems[0]]  # the same problem twice
    groups = asyncio.run(rollout(run, "grpo", 3, problems))
    assert [group.group_id for group in groups] == ["grpo-3/0", "grpo-3/1", "grpo-3/2"]
    assert [[t.sample for t in group.trajectories] for group in groups] == [[0, 1, 2, 3]] * 3
    assert all(
        t.problem_id == group.problem_id == problem.problem_id
        for group, problem in zip(groups, problems, strict=True)
        for t in group.trajectories
    )


def test_a_request_depends_on_its_problem_step_and_sample_only(run_with):
    run = run_with()
    alone = asyncio.run(rollout(run, "grpo", 1, run.train_problems[:1]))
    beside = asyncio.run(rollout(run, "grpo", 1, run.train_problems[:3]))
    assert [t.completion for t in alone[0].trajectories] == [t.completion for t in beside[0].trajectories]


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
    run = run_with(grpo={"num_steps": 1, "prompts_per_step": 2, "group_size": 2})
    run.train_problems = run.train_problems[:2]
    impossible = [type(problem)(problem.problem_id, problem.problem, gold="no digit") for problem in run.train_problems]
    groups = asyncio.run(rollout(run, "grpo", 0, impossible))
    buffer = TrajectoryBuffer(capacity_groups=2, max_staleness=0)
    for group in groups:
        buffer.add(group)
    from mathrl_ray.driver.loops import train_on_buffer

    asyncio.run(train_on_buffer(run, buffer, "grpo", 0))
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


def test_each_stage_starts_from_the_start_model(run_with, diary):
    run = run_with()
    asyncio.run(begin_stage(run, "grpo", learning_rate=1e-3, num_optimizer_steps=1))
    assert diary.of("start_stage") == [("learner-0", "start_stage", "start")]
    assert run.policy_version == 0
