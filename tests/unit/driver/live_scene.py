"""Rows of a made-up run for the live view's tests, which also processes of theirs import: nothing heavy."""

from typing import Any

STAGES = ["baseline", "sft", "grpo"]


def training_row(step: int, **numbers: Any) -> dict[str, Any]:
    """A step of GRPO whose reward rises by 0.02 and whose entropy is 1 / step; the roles worked for 75, 25 and 5 % of it."""
    work = {"step_s": 2.0, "generator_work_s": 1.5, "learner_work_s": 0.5, "scorer_work_s": 0.1}
    queue = {"groups_in_flight": 6, "groups_scoring": 1, "groups_buffered": 2, "groups_free": 3, "staleness_mean": 0.5, "staleness_max": 1}
    rewards = {"reward_mean": 0.02 * step, "format_reward_mean": 0.9, "entropy_nats": 1.0 / step, "response_tokens_mean": 20.5}
    return {"time_s": 2.0 * step, "stage": "grpo", "step": step, "policy_version": step, "loss": 0.1, **rewards, **work, **queue, **numbers}
