"""Remedies: what a guard's rollback changes in the recipe, so that the same steps do not end in the same place.

Called by driver/rollback.py, which also averages checkpoints. Pure. They are those of the course notes for a loss that swings and a
validation accuracy that falls: a lower rate, stronger clipping, a larger batch, more regularisation, an average of checkpoints, another
temperature.
"""

from collections.abc import Mapping
from typing import Any

from mathrl_ray.config import Recipe
from mathrl_ray.guard_section import Remedy
from mathrl_ray.sections import StageName

RATE_KEYS: Mapping[StageName, str] = {
    "sft": "sft.learning_rate",
    "sft_filtered": "sft.learning_rate",
    "expert_iteration": "expert_iteration.learning_rate",
    "grpo": "grpo.learning_rate",
}
POLICY_STAGES = ("grpo",)
"""Stages whose loss the keys of [loss] set."""


def remedy_changes(remedy: Remedy, recipe: Recipe, stage: StageName) -> dict[str, Any]:
    """The keys that a remedy sets, with their new values; none where it changes nothing in this stage.

    Args:
        remedy: its name.
        recipe: as the stage uses it now, earlier remedies included.
        stage: that is set back.

    >>> remedy_changes("lower_rate", Recipe(), "grpo")
    {'grpo.learning_rate': 0.000125}
    """
    wanted = _wanted(remedy, recipe, stage)
    return {key: value for key, value in wanted.items() if value != value_of(recipe, key)}


def _wanted(remedy: Remedy, recipe: Recipe, stage: StageName) -> dict[str, Any]:
    guards, loss, trains_policy = recipe.guards, recipe.loss, stage in POLICY_STAGES
    has_our_loss = trains_policy and not loss.function  # one of the user's own does not read the keys of [loss]
    match remedy:
        case "lower_rate":
            key = RATE_KEYS[stage]
            return {key: value_of(recipe, key) * guards.rate_factor}
        case "tighter_clip":
            ratios = {"loss.clip_low": loss.clip_low, "loss.clip_high": loss.clip_high} if has_our_loss else {}
            clips = {"learner.max_grad_norm": recipe.learner.max_grad_norm, **ratios}
            return {key: value * guards.clip_factor for key, value in clips.items()}
        case "larger_batch" if trains_policy:  # more siblings: groups keep their numbers, and with them their problems
            return {"grpo.group_size": recipe.grpo.group_size * guards.batch_factor}
        case "more_regularisation" if has_our_loss:
            return {
                "loss.kl_coefficient": max(loss.kl_coefficient, guards.kl_coefficient),
                "loss.entropy_coefficient": max(loss.entropy_coefficient, guards.entropy_coefficient),
            }
        case "temperature" if trains_policy:
            return {"generator.temperature": guards.temperature}
        case _:
            return {}


def value_of(recipe: Recipe, key: str) -> Any:
    """
    >>> value_of(Recipe(), "grpo.group_size")
    8
    """
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)
