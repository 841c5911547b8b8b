import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.groups import TOO_FEW_SIBLINGS, UNGRADED_SIBLING, ZERO_VARIANCE, with_advantages
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup


def group_of(*rewards: float | None) -> TrajectoryGroup:
    """One sibling a reward; None is one that could not be graded."""
    completion = Completion("x", (1,), (-0.5,), ((0, 1),), "stop")
    trajectories = []
    for sample, reward in enumerate(rewards):
        outcome = "grader_error" if reward is None else "correct" if reward else "wrong"
        grade = Grade(1.0, reward or 0.0, reward or 0.0, outcome, "x")
        trajectories.append(Trajectory("g", sample, "p", (7,), completion, grade))
    return TrajectoryGroup("g", "p", tuple(trajectories))


def advantages(group: TrajectoryGroup, divide_by_std: bool = False) -> list[float | None]:
    done = with_advantages(group, divide_by_std=divide_by_std, epsilon=1e-6)
    return [trajectory.advantage for trajectory in done.trajectories]


def drop_reasons(group: TrajectoryGroup) -> list[str | None]:
    return [trajectory.drop_reason for trajectory in with_advantages(group, divide_by_std=True, epsilon=1e-6).trajectories]


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


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=16), st.booleans())
def test_behaviour_11_what_is_trained_of_a_group_sums_to_zero_and_keeps_its_order(rewards, divide_by_std):
    group = group_of(*rewards)
    done = with_advantages(group, divide_by_std=divide_by_std, epsilon=1e-6)
    trained = [trajectory.advantage for trajectory in done.trajectories if trajectory.drop_reason is None]
    assert sum(trained) == pytest.approx(0, abs=1e-6)
    assert [trajectory.sample for trajectory in done.trajectories] == list(range(len(rewards)))
    assert all((trajectory.advantage is None) or trajectory.grade.outcome != "grader_error" for trajectory in done.trajectories)
