"""Whether a run that goes on has the recipe that it was saved with, and which keys differ.

Called by resume.py. Knows recipes as plain values. Keys that may differ are CHANGEABLE.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked
from mathrl_ray.driver.digests import masked_digests

CHANGEABLE = frozenset(
    {
        *(f"run.{key}" for key in ("name", "root", "commit", "mirror", "report", "resume", "resume_with_changes", "max_hours")),
        *(f"run.{key}" for key in ("checkpoint_every", "checkpoint_minutes", "keep_last", "keep_best")),
        *("generator.limit_s", "learner.limit_s", "driver.sync_limit_s", "driver.start_limit_s", "driver.max_restarts"),
        *(f"trackers.{key}" for key in ("wandb", "wandb_project", "num_samples")),
        "study.stages",  # further stages may follow; those before are looked at by name
    }
)
"""None of them changes what is learned. More steps do: the learning rate's schedule is as long as the stage."""


def check_recipe(recipe: Recipe, saved: Mapping[str, Any], saved_masked: Mapping[str, str], place: Path) -> None:
    """
    Args:
        recipe: of the job.
        saved: the recipe as it was written, secrets masked.
        saved_masked: `masked_digests` of what was masked there.
        place: where it was written.

    Raises:
        RecipeError: another one was saved, and run.resume_with_changes is not set.
    """
    if recipe.run.resume_with_changes:
        return
    now = recipe.model_dump(mode="json")
    differing = [f"  {key}: {before!r} was saved, {after!r} is given" for key, before, after in differences(_completed(saved), masked(now))]
    for key, digest in masked_digests(now).items():
        if key not in CHANGEABLE and saved_masked.get(key, digest) != digest:
            differing.append(f"  {key}: what is masked there is not what was saved")
    if differing:
        raise RecipeError(
            f"run.resume: the recipe is not the one of {place}:\n" + "\n".join(differing) + "\nPut these keys back, or set "
            'run.resume_with_changes = true to go on with them, or run.resume = "" to begin anew.'
        )


def _completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of an earlier version, where keys that there are now had no other value than their default."""
    defaults = Recipe().model_dump(mode="json")
    return {section: {**defaults.get(section, {}), **saved.get(section, {})} for section in defaults.keys() | saved.keys()}


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, saved, now) of each setting that is not the same, apart from those that may change; None where one has no such key.

    >>> list(differences({"grpo": {"num_steps": 5}, "run": {"max_hours": 1}}, {"grpo": {"num_steps": 6}, "run": {"max_hours": 2}}))
    [('grpo.num_steps', 5, 6)]
    """
    for section in sorted(saved.keys() | now.keys()):
        before, after = saved.get(section, {}), now.get(section, {})
        for name in sorted(before.keys() | after.keys()):
            key = f"{section}.{name}"
            if before.get(name) != after.get(name) and key not in CHANGEABLE:
                yield key, before.get(name), after.get(name)
