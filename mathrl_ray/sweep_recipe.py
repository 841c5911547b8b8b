"""From a recipe with seeds or a [sweep] to the recipes of its variants.

Called by entry.py, for --check and for a job, and by commands/preflight. Reads recipes; starts nothing, and imports no engine.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.sweep import Variant, variants
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import check_local_paths, load_recipe
from mathrl_ray.sections import SweepSection

LONGEST_NAME = 100
"""Characters of a run.name (sections.py)."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One variant with its recipe."""

    variant: Variant
    recipe: Recipe
    """All settings as the variant has them; names no seeds and no sweep, so that its job is an ordinary one."""

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def setting(self) -> str:
        return self.variant.setting


def planned_runs(path: str | Path, overrides: Sequence[str], stages: Sequence[str]) -> tuple[list[PlannedRun], list[str]]:
    """Every run of a sweep, in the order of core/sweep.py, each checked as a job's own recipe is; and the remarks, each once.

    A variant's values are put on top of the file and of the command line, as if they were the last words there.

    Raises:
        RecipeError: a variant cannot run, or two are the same run; they are named.
    """
    recipe = load_recipe(path, overrides)
    seeds = recipe.study.seeds or recipe.sweep.seeds
    try:
        made = variants(recipe.sweep.lists, combine=recipe.sweep.combine, seeds=seeds)
    except ValueError as error:
        raise RecipeError(f"recipe {path}: {error}") from error
    runs, remarks, names = [], list[str](), dict[str, str]()
    for variant in made:
        try:
            of_variant = _alone(load_recipe(path, [*overrides, *variant.overrides()]))
            check_stage_settings(of_variant, stages)
            remarks += check_local_paths(of_variant, stages)
        except RecipeError as error:
            raise RecipeError(f"variant {variant.name}: {error}") from error
        if (same := names.setdefault(of_variant.model_dump_json(), variant.name)) != variant.name:  # 1 and 1.0, or a key twice
            raise RecipeError(f"variants {same} and {variant.name} are the same run: remove one of the values in [sweep]")
        runs.append(PlannedRun(variant, of_variant))
    return runs, list(dict.fromkeys(remarks))


def _alone(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"study": recipe.study.model_copy(update={"seeds": []}), "sweep": SweepSection()})


def count_text(runs: Sequence[PlannedRun]) -> str:
    """
    >>> count_text([PlannedRun(each, Recipe()) for each in variants({"grpo.loss": ["grpo", "dapo"]}, seeds=[0, 1, 2])])
    '6 runs (2 settings x 3 seeds)'
    """
    num_settings = len({run.setting for run in runs})
    num_seeds = len(runs) // num_settings
    parts = [f"{number} {what}" for number, what in ((num_settings, "settings"), (num_seeds, "seeds")) if number > 1]
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}" + (f" ({' x '.join(parts)})" if parts else "")


def run_name(sweep: str, variant: str) -> str:
    """The run.name of a variant: <the sweep's folder>-<variant>, cut to what a name may have and told apart by a hash.

    >>> run_name("rates-2", "learning_rate-0.001-seed-0")
    'rates-2-learning_rate-0.001-seed-0'
    """
    whole = f"{sweep}-{variant}"
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 9]}-{hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()}"
