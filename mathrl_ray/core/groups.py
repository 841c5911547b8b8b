"""From graded siblings to advantages: which trajectories of a group are trained on, and with what weight.

Called by the driver with one group at a time. Pure: records in, records out.
"""

from dataclasses import replace

from mathrl_ray.core.advantages import group_normalised
from mathrl_ray.types import UNGRADED, Trajectory, TrajectoryGroup

ZERO_VARIANCE = "zero_variance"
UNGRADED_SIBLING = "ungraded"
TOO_FEW_SIBLINGS = "too_few_siblings"


def with_advantages(group: TrajectoryGroup, *, divide_by_std: bool, epsilon: float) -> TrajectoryGroup:
    """The group with an advantage or a `drop_reason` on each trajectory.

    A sibling that could not be graded is left out and the rest is normalised without it, as long as two are left. A group whose rewards
    are all equal teaches nothing: its advantages are 0 and it is dropped by name, so that it costs no training tokens.
    """
    graded = [trajectory for trajectory in group.trajectories if trajectory.grade.outcome not in UNGRADED]
    if len(graded) < 2:
        return _replace(group, {}, otherwise=TOO_FEW_SIBLINGS)
    rewards = [trajectory.grade.reward for trajectory in graded]
    if len(set(rewards)) == 1:
        return _replace(group, {}, otherwise=ZERO_VARIANCE)
    advantages = group_normalised(rewards, divide_by_std=divide_by_std, epsilon=epsilon)
    return _replace(group, {trajectory.sample: value for trajectory, value in zip(graded, advantages, strict=True)})


def _replace(group: TrajectoryGroup, advantages: dict[int, float], otherwise: str = "") -> TrajectoryGroup:
    def finished(trajectory: Trajectory) -> Trajectory:
        if trajectory.sample in advantages:
            return replace(trajectory, advantage=advantages[trajectory.sample], drop_reason=None)
        reason = UNGRADED_SIBLING if trajectory.grade.outcome in UNGRADED else otherwise
        return replace(trajectory, advantage=0.0 if reason == ZERO_VARIANCE else None, drop_reason=reason)

    return replace(group, trajectories=tuple(finished(trajectory) for trajectory in group.trajectories))
