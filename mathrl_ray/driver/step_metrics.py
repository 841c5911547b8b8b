"""The numbers that tell how a step of sampling went. Called by the stages; pure arithmetic on records."""

from collections.abc import Sequence
from statistics import fmean

from mathrl_ray.types import TrajectoryGroup


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Rewards, lengths and shares of one step's groups, dropped ones included."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "reward_mean": fmean(trajectory.grade.reward for trajectory in trajectories),
        "format_reward_mean": fmean(trajectory.grade.format_reward for trajectory in trajectories),
        "answer_reward_mean": fmean(trajectory.grade.answer_reward for trajectory in trajectories),
        "response_tokens_mean": fmean(len(trajectory.completion.token_ids) for trajectory in trajectories),
        "truncated_fraction": fmean(trajectory.completion.finish_reason == "length" for trajectory in trajectories),
    }
