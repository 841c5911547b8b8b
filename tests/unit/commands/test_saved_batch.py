"""Trajectories as they are saved give back the batch that the run trained on, and others' batches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import made_up_trajectories, recipe_for

from mathrl_ray.commands.saved_batch import key_of, saved_step, step_of_rows
from mathrl_ray.core.groups import with_advantages
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.methods import method_settings
from mathrl_ray.sections import AdvantageSection
from mathrl_ray.types import Grade, TrajectoryGroup

METHODS = ("reinforce", "reinforce_baseline", "rloo", "grpo", "dr_grpo", "dapo")
MAX_TOKENS = 40


def group(number, rewards, outcomes=()):
    """Siblings with these rewards, not judged yet; responses of 3 to 40 tokens."""
    made = made_up_trajectories(len(rewards), seed=number)
    outcomes = [*outcomes, *["wrong"] * (len(rewards) - len(outcomes))]
    grades = [Grade(1.0, reward, reward, outcome, None) for reward, outcome in zip(rewards, outcomes, strict=True)]
    siblings = (
        replace(each, group_id=f"grpo-1/{number}", sample=sample, problem_id=f"p{number}", grade=grade, advantage=None)
        for sample, (each, grade) in enumerate(zip(made, grades, strict=True))
    )
    return TrajectoryGroup(f"grpo-1/{number}", f"p{number}", tuple(siblings))


def rows_of(groups, step=1, learner_version=3):
    """As step_record.py writes them."""
    return [
        trajectory_row(
            each,
            None if each.drop_reason else tuple(value - 0.01 for value in each.completion.logprobs),
            consumed_step=step,
            staleness=learner_version - each.completion.min_policy_version,
        )
        for group in groups
        for each in group.trajectories
    ]


def settings_of(method):
    return AdvantageSection(**method_settings(method)["advantage"])


GROUPS = [group(0, [1.0, 0.0, 0.0, 0.5]), group(1, [1.0, 1.0, 1.0]), group(2, [0.0, 0.0]), group(3, [0.2, 0.9, 0.4], ["bad_gold"])]


@pytest.mark.parametrize("method", METHODS)
def test_advantages_taken_anew_from_the_saved_rewards_are_those_that_were_saved(method):
    judged = [with_advantages(each, settings_of(method), max_tokens=MAX_TOKENS) for each in GROUPS]
    step = step_of_rows(1, rows_of(judged))
    assert step.batch_of(settings_of(method), MAX_TOKENS) == step.trained
    assert [(key_of(each), each.advantage) for each in step.trained] == [
        (key_of(each), each.advantage) for one in judged for each in one.trajectories if each.drop_reason is None
    ]


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=5), min_size=1, max_size=4), st.sampled_from(METHODS))
def test_the_batch_of_a_method_does_not_depend_on_the_method_that_the_run_used(rewards, used):
    groups = [group(number, values) for number, values in enumerate(rewards)]
    step = step_of_rows(1, rows_of([with_advantages(each, settings_of(used), max_tokens=MAX_TOKENS) for each in groups]))
    for method in METHODS:
        expected = [with_advantages(each, settings_of(method), max_tokens=MAX_TOKENS) for each in groups]
        found = [(key_of(each), each.advantage) for each in step.batch_of(settings_of(method), MAX_TOKENS)]
        assert found == [(key_of(each), each.advantage) for one in expected for each in one.trajectories if each.drop_reason is None]


def test_another_baseline_trains_on_groups_that_the_run_has_dropped():
    step = step_of_rows(1, rows_of([with_advantages(each, settings_of("grpo"), max_tokens=MAX_TOKENS) for each in GROUPS]))
    assert {each.problem_id for each in step.trained} == {"p0", "p3"}
    assert {each.problem_id for each in step.batch_of(settings_of("reinforce"), MAX_TOKENS)} == {"p0", "p1", "p3"}  # p2 earned nothing
    assert sum(each.problem_id == "p3" for each in step.trained) == 2  # one could not be graded


def test_the_learners_version_and_log_probs_are_there():
    judged = [with_advantages(each, settings_of("grpo"), max_tokens=MAX_TOKENS) for each in GROUPS]
    step = step_of_rows(1, rows_of(judged, learner_version=3))
    assert step.learner_version == 3
    assert step.learner_logprobs.keys() == {key_of(each) for each in step.trained}
    assert step.num_responses == 12


@pytest.fixture
def run(tmp_path):
    """Step 1 has trained, step 2 on nothing; a dropped group stands in step 1's file that step 1 never took."""
    recorder = Recorder.create(recipe_for(tmp_path))
    judged = [with_advantages(each, settings_of("grpo"), max_tokens=MAX_TOKENS) for each in GROUPS]
    never = trajectory_row(GROUPS[0].with_drop_reason("stale").trajectories[0], None, consumed_step=None, staleness=9)
    recorder.trajectories("grpo", 1, [*rows_of(judged), never])
    recorder.trajectories("grpo", 2, rows_of([judged[1]], step=2))
    recorder.close()
    return recorder.folder


def test_a_step_is_read_from_the_run_without_what_it_never_took(run):
    step = saved_step(run, "grpo", 1)
    assert step.num_responses == 12
    assert {each.problem_id for each in step.trained} == {"p0", "p3"}


@pytest.mark.parametrize(
    ("stage", "step", "message"),
    [
        ("grpo", 3, "no trajectories of grpo step 3; it has those of 1, 2"),
        ("grpo", 2, r"trained on nothing \(zero_variance\)"),
        ("sft", 1, "holds no trajectories of sft"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run, stage, step, message):
    with pytest.raises(ValueError, match=message):
        saved_step(run, stage, step)
