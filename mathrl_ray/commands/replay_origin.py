"""What a step of a run was trained with: the settings in force, the weights before it, and its learning rates.

Called by replay.py. Knows files of a run directory; loads no weight. What they do not tell is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any

from mathrl_ray.commands.run_files import metrics_rows, recipe_of
from mathrl_ray.config import Recipe
from mathrl_ray.core.schedule import learning_rate_at
from mathrl_ray.data.tiny_model import base_model_folder
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.file_names import GUARDS_FILE
from mathrl_ray.sections import BUILTIN
from mathrl_ray.stages.inputs import BASE_MODEL_SEED, prepare_model


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the weights come from that a replay begins with.

    Example: Origin(Path("run/checkpoints/grpo-10"), 10, Path("run/checkpoints/grpo-10"))
    """

    folder: Path
    """The model that is opened; behind adapters the stage's start model, which they stand on."""
    step: int
    """After which step they are; 0: the stage's start model."""
    checkpoint: Path | None = None
    """Whose masters, moments and random state are put into it."""
    is_given: bool = False
    """Named by --weights: of no step of the run."""

    def text(self, step: int) -> str:
        """For a person; `step` is the one that is replayed."""
        if self.is_given:
            return f"{self.folder} (--weights)"
        where = f"checkpoint {self.checkpoint.name}" if self.checkpoint else "the stage's start model"
        missing = step - 1 - self.step
        if missing == 0:
            return f"those before step {step}: {where}"
        again = f"step {step - 1}" if missing == 1 else f"the {missing} steps {self.step + 1} to {step - 1}"
        return f"those before step {step}: {where}, and {again} done again from the saved batches"


def recipe_at(run: Path, stage: str, step: int) -> Recipe:
    """The settings that a step was trained with: the run's, and what its guards had changed by then (guards.jsonl).

    recipe.toml may or may not hold those changes: each changed key is looked up in guards.jsonl alone.

    Raises:
        ValueError: recipe.toml or guards.jsonl cannot be read.
    """
    recipe = recipe_of(run)
    changes = changes_at(_rollbacks(run, stage), step)
    if not changes:
        return recipe
    values = recipe.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = value
    try:
        return Recipe.model_validate(values)
    except ValueError as error:
        raise ValueError(f"{run / GUARDS_FILE}: its changes do not fit recipe.toml: {error}") from error


def _rollbacks(run: Path, stage: str) -> list[dict[str, Any]]:
    return [row for row in metrics_rows(run, GUARDS_FILE) if row.get("kind") == "rollback" and row["stage"] == stage]


def changes_at(rollbacks: Sequence[Mapping[str, Any]], step: int) -> dict[str, Any]:
    """Values of the keys that rollbacks have changed, as they were at a step that was not undone: the last of those before it, else what
    the first had found. Where a later rollback has gone further back, what the earlier ones had set holds from there.

    >>> rows = [{"to_step": 5, "changes": {"learner.learning_rate": [0.4, 0.1]}}]
    >>> changes_at(rows, 5), changes_at(rows, 6)
    ({'learner.learning_rate': 0.4}, {'learner.learning_rate': 0.1})
    """
    values: dict[str, Any] = {}
    for number, row in enumerate(rollbacks):
        done_anew_after = min(later["to_step"] for later in rollbacks[number:])
        for key, (old, new) in row.get("changes", {}).items():
            values.setdefault(key, old)
            if done_anew_after < step:
                values[key] = new
    return values


def origin_before(run: Path, stage: str, step: int, recipe: Recipe) -> Origin:
    """The nearest weights before a step that are kept.

    Raises:
        ValueError: they are the start model, and that is not to be had; or between them and the step the run went on from an average.
    """
    steps = {each.step: each.folder for each in whole_checkpoints(run) if each.stage == stage and each.step < step}
    _check_no_average(_rollbacks(run, stage), max(steps, default=0), step)
    if not steps:
        return Origin(start_model(run, recipe), 0)
    nearest = steps[max(steps)]
    needs_start = recipe.learner.lora_rank > 0  # the checkpoint's own model has the adapters merged into it
    return Origin(start_model(run, recipe) if needs_start else nearest, max(steps), nearest)


def _check_no_average(rollbacks: Sequence[Mapping[str, Any]], origin: int, step: int) -> None:
    """
    Raises:
        ValueError: steps would be done again across a rollback that took the mean of checkpoints, which are not kept; one that a later
            rollback has gone behind left nothing.
    """
    for number, row in enumerate(rollbacks):
        is_undone = any(later["to_step"] < row["to_step"] for later in rollbacks[number:])
        if row.get("remedy") == "average_checkpoints" and not is_undone and origin < row["to_step"] < step:
            raise ValueError(
                f"after step {row['to_step']} the run went on from a mean of checkpoints (average_checkpoints in {GUARDS_FILE}), which "
                f"steps done again do not give, and no checkpoint of steps {row['to_step']} to {step - 1} is kept: give --weights"
            )


def start_model(run: Path, recipe: Recipe) -> Path:
    """The folder of the stage's start model; a hub's is fetched, the built-in one is not made anew.

    Raises:
        ValueError: it is not there.
    """
    if recipe.model.path != BUILTIN:
        folder = prepare_model(recipe)
        if not folder.is_dir():
            raise ValueError(f"model.path = {folder}: the start model is not there any more; put it back, or give other weights: --weights")
        return folder
    folders = [base_model_folder(root / "cache", seed=BASE_MODEL_SEED) for root in (Path(recipe.run.root), run.resolve().parent)]
    if found := [folder for folder in folders if folder.is_dir()]:
        return found[0]
    raise ValueError(
        f"the built-in start model of this run is not in {folders[0]} (its run.root's cache): bring it there, or give others: --weights"
    )


def given_weights(folder: Path) -> Origin:
    """
    Raises:
        ValueError: no model folder.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"--weights {folder}: holds no config.json, so it is no model folder")
    return Origin(folder, 0, is_given=True)


def learning_rates(recipe: Recipe, logged: float | None, step: int, optimizer_step: int) -> list[float]:
    """The rate of each update of a step, which mean what was logged: a guard or a recipe of before may have had another peak.

    Args:
        recipe: of the step.
        logged: the step's learning_rate in metrics.jsonl; None where that has no such row.
        step: its number, for messages.
        optimizer_step: updates that the stage had applied before.

    Raises:
        ValueError: the files do not tell them.
    """
    grpo, learner = recipe.grpo, recipe.learner
    if logged is None:
        raise ValueError(f"metrics.jsonl has no learning_rate of step {step}, so its update cannot be done again: give --weights")
    if grpo.updates_per_step == 1:
        return [logged]
    if grpo.num_epochs and (learner.schedule != "constant" or learner.warmup_fraction):
        raise ValueError(
            f"the learning rates within step {step} follow from how many problems grpo.num_epochs went over, which the run does not keep: "
            "give --weights"
        )
    num_steps = grpo.num_steps * grpo.updates_per_step
    warmup = learner.warmup_steps or round(learner.warmup_fraction * num_steps)
    planned = [
        learning_rate_at(
            optimizer_step + number, peak=grpo.learning_rate, num_steps=num_steps, warmup_steps=warmup, schedule=learner.schedule
        )
        for number in range(grpo.updates_per_step)
    ]
    factor = logged / fmean(planned)
    return planned if isclose(factor, 1.0) else [factor * rate for rate in planned]


def resumed_with_other_settings(run: Path) -> bool:
    """Whether an earlier start had another recipe, which nothing in the files ties to steps."""
    return (run / "recipe-1.toml").exists()
