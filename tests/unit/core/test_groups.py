from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.advantages import RewardGroup
from mathrl_ray.core.groups import TOO_FEW_SIBLINGS, UNGRADED_SIBLING, ZERO_VARIANCE, with_advantages
from mathrl_ray.sections import AdvantageSection
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

BASELINES = ["group_mean", "leave_one_out"]
CENTRED = AdvantageSection(divide_by_std=False)


def group_of(*rewards: float | None, lengths: Sequence[int] = ()) -> TrajectoryGroup:
    """One sibling a reward; None is one that could not be graded. A response of 10 tokens was cut off."""
    trajectories = []
    for sample, reward in enumerate(rewards):
        length = lengths[sample] if lengths else 1
        completion = Completion("x", (1,) * length, (-0.5,) * length, ((0, length),), "length" if length == 10 else "stop")
        outcome = "grader_error" if reward is None else "correct" if reward else "wrong"
        grade = Grade(1.0, reward or 0.0, reward or 0.0, outcome, "x")
        trajectories.append(Trajectory("g", sample, "p", (7,), completion, grade))
    return TrajectoryGroup("g", "p", tuple(trajectories))


def advantages(group: TrajectoryGroup, settings: AdvantageSection = CENTRED, function: Any = None) -> list[float | None]:
    done = with_advantages(group, settings, max_tokens=10, function=function)
    return [trajectory.advantage for trajectory in done.trajectories]


def drop_reasons(group: TrajectoryGroup, settings: AdvantageSection = CENTRED, function: Any = None) -> list[str | None]:
    done = with_advantages(group, settings, max_tokens=10, function=function)
    return [trajectory.drop_reason for trajectory in done.trajectories]


def test_siblings_are_centred_on_their_mean():
    # mean 1/4
    assert advantages(group_of(1, 0, 0, 0)) == [0.75, -0.25, -0.25, -0.25]


def test_behaviour_12_an_ungraded_sibling_is_masked_alone():
    # the mean of the graded ones is 1/2
    assert advantages(group_of(1, None, 0)) == [0.5, None, -0.5]
    assert drop_reasons(group_of(1, None, 0)) == [None, UNGRADED_SIBLING, None]


def test_behaviour_12_a_group_of_equal_rewards_has_advantage_0_and_is_dropped_by_name():
    assert advantages(group_of(1, 1, 1)) == [0.0, 0.0, 0.0]
    assert drop_reasons(group_of(0, 0)) == [ZERO_VARIANCE, ZERO_VARIANCE]


def test_a_group_with_one_graded_sibling_has_no_baseline():
    assert drop_reasons(group_of(1, None, None)) == [TOO_FEW_SIBLINGS, UNGRADED_SIBLING, UNGRADED_SIBLING]


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=16), st.sampled_from(BASELINES), st.booleans())
def test_behaviour_11_what_is_trained_of_a_group_sums_to_zero_and_keeps_its_order(rewards, baseline, divide_by_std):
    group = group_of(*rewards)
    done = with_advantages(group, AdvantageSection(baseline=baseline, divide_by_std=divide_by_std), max_tokens=10)
    trained = [trajectory.advantage for trajectory in done.trajectories if trajectory.drop_reason is None]
    assert sum(trained) == pytest.approx(0, abs=1e-5)
    assert [trajectory.sample for trajectory in done.trajectories] == list(range(len(rewards)))
    assert all((trajectory.advantage is None) or trajectory.grade.outcome != "grader_error" for trajectory in done.trajectories)


def test_equal_rewards_are_dropped_under_every_baseline_but_none():
    # without a baseline a group that is all right still teaches its advantage of 1; one that is all wrong has nothing to say
    for baseline in BASELINES:
        assert drop_reasons(group_of(1, 1), AdvantageSection(baseline=baseline)) == [ZERO_VARIANCE] * 2
    no_baseline = AdvantageSection(baseline="none", divide_by_std=False)
    assert advantages(group_of(1, 1), no_baseline) == [1.0, 1.0]
    assert drop_reasons(group_of(1, 1), no_baseline) == [None, None]
    assert drop_reasons(group_of(0, 0), no_baseline) == [ZERO_VARIANCE] * 2


@pytest.mark.parametrize("reward", [nan, inf])
def test_a_reward_that_is_no_number_is_left_out_as_an_ungraded_sibling_is(reward):
    assert advantages(group_of(1, reward, 0)) == [0.5, None, -0.5]
    assert drop_reasons(group_of(1, reward, 0)) == [None, UNGRADED_SIBLING, None]


def test_the_overlong_penalty_is_part_of_the_reward_and_of_the_baseline():
    # the last half of 10 tokens is the buffer: 5, 7 and 10 tokens lose 0, 2/5 and 1; 1, 0.6 and 0 have the mean 1.6 / 3
    shaped = AdvantageSection(divide_by_std=False, overlong_fraction=0.5)
    mean = 1.6 / 3
    assert advantages(group_of(1, 1, 1, lengths=(5, 7, 10)), shaped) == pytest.approx([1 - mean, 0.6 - mean, -mean])
    assert drop_reasons(group_of(1, 1, 1, lengths=(5, 7, 10))) == [ZERO_VARIANCE] * 3


def test_a_function_of_ones_own_sees_the_graded_siblings_with_their_penalty():
    seen = []

    def halves(group):
        seen.append(group)
        return [reward / 2 for reward in group.rewards]

    settings = AdvantageSection(overlong_fraction=0.5)
    assert advantages(group_of(1, None, 1, lengths=(4, 4, 10)), settings, halves) == [0.5, None, 0.0]
    assert seen == [RewardGroup(rewards=(1.0, 0.0), num_tokens=(4, 10), truncated=(False, True), problem_id="p")]
    assert drop_reasons(group_of(1, 0), settings, lambda group: [0.0, 0.0]) == [ZERO_VARIANCE] * 2
