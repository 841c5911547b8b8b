import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.driver.trajectory_buffer import StalenessError, TrajectoryBuffer, staleness
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup


def group_at(*versions: int, name: str = "g") -> TrajectoryGroup:
    completion = Completion("x", tuple(versions), tuple(-1.0 for _ in versions), tuple((version, 1) for version in versions), "stop")
    trajectory = Trajectory(name, 0, "p", (1,), completion, Grade(1.0, 1.0, 1.0, "correct", "x"))
    return TrajectoryGroup(name, "p", (trajectory,))


def test_staleness_counts_from_the_oldest_token():
    assert staleness(group_at(4, 5, 6), policy_version=6) == 2


def test_a_group_that_is_too_old_raises_and_nothing_is_lost():
    buffer = TrajectoryBuffer(capacity_groups=2, max_staleness=0)
    buffer.add(group_at(3))
    with pytest.raises(StalenessError, match=r"version 3 .* consumed at 4.*driver\.max_staleness = 0"):
        buffer.take(1, policy_version=4)
    assert len(buffer.take(1, policy_version=3)) == 1


def test_a_full_buffer_refuses_more():
    buffer = TrajectoryBuffer(capacity_groups=1, max_staleness=0)
    buffer.add(group_at(0))
    with pytest.raises(OverflowError, match="holds 1 groups"):
        buffer.add(group_at(0))


def test_taking_more_than_there_is_raises():
    with pytest.raises(IndexError, match="2 groups asked for, 0 buffered"):
        TrajectoryBuffer(capacity_groups=4, max_staleness=0).take(2, policy_version=0)


@given(st.lists(st.integers(1, 3), max_size=12))
def test_every_group_is_taken_once_in_the_order_of_admission(sizes):
    buffer = TrajectoryBuffer(capacity_groups=3, max_staleness=0)
    added, taken = 0, []
    for size in sizes:
        for _ in range(size):
            buffer.add(group_at(0, name=str(added)))
            added += 1
        taken += [group.group_id for group in buffer.take(size, policy_version=0)]
    assert taken == [str(number) for number in range(added)]
    assert len(buffer) == 0
