"""From graded siblings to advantages: which trajectories of a group are trained on, and with what weight.

Called by the driver with one group at a time. Pure: records in, records out.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from mathrl_ray.core.advantages import AdvantageFunction, RewardGroup, group_advantages, overlong_penalty
from mathrl_ray.sections import AdvantageSection
from mathrl_ray.types import UNGRADED, Trajectory, TrajectoryGroup

ZERO_VARIANCE = "zero_variance"
UNGRADED_SIBLING = "ungraded"
TOO_FEW_SIBLINGS = "too_few_siblings"


def with_advantages(
    group: TrajectoryGroup, settings: AdvantageSection, *, max_tokens: int, function: AdvantageFunction | None = None
) -> TrajectoryGroup:
    """The group with an advantage or a `drop_reason` on each trajectory.

    A sibling that could not be graded, or whose reward is no number, is left out and the rest is taken without it, as long as two are
    left. A group whose advantages are all 0 (equal rewards, with a baseline) teaches nothing and is dropped by name, so that it costs no
    training tokens. A dropped trajectory is in none of the counts that a loss divides by.

    Args:
        group: graded siblings.
        settings: baseline, normalisation and overlong shaping.
        max_tokens: the longest response that could be sampled, for overlong shaping.
        function: takes the baseline's place.
    """
    graded = [trajectory for trajectory in group.trajectories if _is_graded(trajectory)]
    if len(graded) < 2:
        return _replace(group, {}, otherwise=TOO_FEW_SIBLINGS)
    advantages = group_advantages(_reward_group(group.problem_id, graded, settings, max_tokens), settings, function)
    if not any(advantages):
        return _replace(group, {}, otherwise=ZERO_VARIANCE)
    return _replace(group, {trajectory.sample: value for trajectory, value in zip(graded, advantages, strict=True)})


def _is_graded(trajectory: Trajectory) -> bool:
    return trajectory.grade.outcome not in UNGRADED and isfinite(trajectory.grade.reward)


def _reward_group(problem_id: str, graded: Sequence[Trajectory], settings: AdvantageSection, max_tokens: int) -> RewardGroup:
    lengths = [len(trajectory.completion.token_ids) for trajectory in graded]
    penalties = [overlong_penalty(length, max_tokens, settings.overlong_fraction) for length in lengths]
    return RewardGroup(
        rewards=tuple(trajectory.grade.reward + penalty for trajectory, penalty in zip(graded, penalties, strict=True)),
        num_tokens=tuple(lengths),
        truncated=tuple(trajectory.completion.finish_reason == "length" for trajectory in graded),
        problem_id=problem_id,
    )


def _replace(group: TrajectoryGroup, advantages: dict[int, float], otherwise: str = "") -> TrajectoryGroup:
    def finished(trajectory: Trajectory) -> Trajectory:
        if trajectory.sample in advantages:
            return trajectory.judged(advantages[trajectory.sample], None)
        reason = otherwise if _is_graded(trajectory) else UNGRADED_SIBLING
        return trajectory.judged(0.0 if reason == ZERO_VARIANCE else None, reason)

    return replace(group, trajectories=tuple(finished(trajectory) for trajectory in group.trajectories))
