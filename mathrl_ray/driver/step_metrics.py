"""The numbers that tell how a step of sampling went. Called by the stages; pure arithmetic on records."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import get_args

from mathrl_ray.driver.rows import own_parts
from mathrl_ray.types import UNGRADED, Outcome, Trajectory, TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Rewards, lengths and shares of one step's groups, dropped ones included; the mean of each part of a reward function too.

    num_quarantined counts the responses that were answered without grading, since the same answer had run into a limit before.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "reward_mean": fmean([trajectory.grade.reward for trajectory in trajectories]),
        "format_reward_mean": fmean([trajectory.grade.format_reward for trajectory in trajectories]),
        "answer_reward_mean": fmean([trajectory.grade.answer_reward for trajectory in trajectories]),
        **_part_means(trajectories),
        "response_tokens_mean": fmean([len(trajectory.completion.token_ids) for trajectory in trajectories]),
        "truncated_fraction": fmean([trajectory.completion.finish_reason == "length" for trajectory in trajectories]),
        "ungraded_fraction": fmean([trajectory.grade.outcome in UNGRADED for trajectory in trajectories]),
        "grader_timeout_fraction": fmean([trajectory.grade.outcome == "grader_timeout" for trajectory in trajectories]),
        **{f"outcome_{outcome}_fraction": count / len(trajectories) for outcome, count in _outcomes(trajectories).items()},
        "num_quarantined": sum(trajectory.grade.from_quarantine for trajectory in trajectories),
    }


def _outcomes(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many responses have each outcome; 0 is told too, since nothing would say that an error is over."""
    counts = Counter(trajectory.grade.outcome for trajectory in trajectories)
    return {outcome: counts[outcome] for outcome in get_args(Outcome)}


def _part_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """reward_<part>_mean of each part, over the responses for which the function gave it."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in own_parts(trajectory.grade).items():
            values[name].append(value)
    return {f"reward_{name}_mean": fmean(parts) for name, parts in sorted(values.items())}
