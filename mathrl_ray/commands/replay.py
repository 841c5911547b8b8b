"""The command `replay`: several losses on the batch of one training step, at the weights before it.

Called by __main__.py. Needs no cluster and starts no engine; torch is loaded when it runs. The step itself is in replayed_step.py, where
the weights come from in replay_origin.py. Nothing is guessed: the batch's log-probs are compared with those that the run saved, and where
they are too far from them, the weights are not those of the step, and it ends there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl_ray.commands.display import print_json, progress
from mathrl_ray.commands.named_losses import NamedLoss, named_losses
from mathrl_ray.commands.replay_origin import (
    Origin,
    given_weights,
    learning_rates,
    origin_before,
    recipe_at,
    resumed_with_other_settings,
    start_model,
)
from mathrl_ray.commands.replay_report import Replay, difference, report
from mathrl_ray.commands.run_files import check_run, step_rows
from mathrl_ray.commands.saved_batch import SavedStep, saved_step
from mathrl_ray.config import Recipe

if TYPE_CHECKING:
    from mathrl_ray.commands.replayed_step import Replayer

LARGEST_GAP_NATS = {"float32": 1e-3, "bfloat16": 0.25}
"""Between the batch's log-probs now and then: a larger one is of other weights, or of hardware that rounds far otherwise. A smaller one
does not prove that the weights are the same, since a step at a small rate may move them less: it is printed beside this limit."""
IN_THE_LOG = (
    *("loss", "grad_norm", "clip_fraction", "kl_nats", "entropy_nats", "correction_weight_mean", "importance_ratio_mean", "mismatch_kl"),
)
"""Figures of a step that are compared."""

OTHER_SETTINGS = "an earlier start of this run had other settings (recipe-1.toml), and those of recipe.toml were taken"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line says."""

    run: Path
    step: int
    losses: Sequence[str] = ()
    stage: str = ""
    weights: Path | None = None
    json: bool = False


def replay(options: ReplayOptions) -> int:
    """Run the command.

    Raises:
        ValueError: no such run, step or loss; or its weights are not to be had.
    """
    check_run(options.run)
    if options.stage not in ("", "grpo"):
        raise ValueError(f"--stage {options.stage}: replay takes batches of groups with advantages, which grpo alone has")
    found = replayed(options)
    if options.json:
        print_json(asdict(found))
    else:
        report(found)
    return 0


def replayed(options: ReplayOptions) -> Replay:
    """What the command prints.

    Raises:
        ValueError: as `replay`.
    """
    run, stage, number = options.run, options.stage or "grpo", options.step
    recipe, rows = recipe_at(run, stage, number), step_rows(run, stage)
    step, losses = saved_step(run, stage, number), named_losses(options.losses, recipe)
    for loss in losses:
        loss.function()  # a file that is not there is told before any step is done again
    given = options.weights is not None
    origin = given_weights(options.weights) if options.weights is not None else origin_before(run, stage, number, recipe)
    between = [] if given else list(_between(run, stage, origin, number, rows))
    replayer = _replayer(run, recipe, origin, [*losses, *(own for _, _, own in between)])
    redone = dict(_redo(replayer, between, rows))
    needed = [] if given or recipe.grpo.updates_per_step == 1 else _rates(replayer, recipe, rows, number)[:-1]
    result = replayer.replay(step, recipe, losses, needed, in_one=given)
    if not given:
        _check_gap(result.logprob_gap, recipe, origin, number)
    return Replay(
        run=run.resolve().name,
        stage=stage,
        step=number,
        weights=origin.text(number),
        are_of_the_step=not given,
        logprob_gap_nats=result.logprob_gap,
        largest_gap_nats=LARGEST_GAP_NATS[recipe.model.dtype],
        redone=redone,
        logged={name: rows[number][name] for name in IN_THE_LOG if name in rows.get(number, {})},
        replayed={name: value for name, value in {**result.figures[0], **result.batch}.items() if name in IN_THE_LOG},
        losses=[_figures(loss, figures) for loss, figures in zip(losses, result.figures, strict=True)],
        cosines=result.cosines,
        remarks=[OTHER_SETTINGS] if resumed_with_other_settings(run) else [],
    )


def _replayer(run: Path, recipe: Recipe, origin: Origin, losses: Sequence[NamedLoss]) -> "Replayer":
    from mathrl_ray.commands.replayed_step import Replayer

    needs_reference = any(each.loss.kl_coefficient > 0 for each in losses)
    return Replayer.begin(
        recipe,
        origin,
        reference=start_model(run, recipe) if needs_reference else None,
        entropy_gradient=any(each.needs_entropy_gradient for each in losses),
    )


def _between(
    run: Path, stage: str, origin: Origin, step: int, rows: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[SavedStep, Recipe, NamedLoss]]:
    """The steps that have to be done again, with their settings and their own loss; one that trained on nothing is none.

    Raises:
        ValueError: one of them is not in the run's files.
    """
    for number in range(origin.step + 1, step):
        if number not in rows:
            raise ValueError(f"metrics.jsonl has no row of {stage} step {number}, so the weights before step {step} cannot be made")
        if "grad_norm" in rows[number]:
            recipe = recipe_at(run, stage, number)
            yield saved_step(run, stage, number), recipe, named_losses([], recipe)[0]


def _redo(
    replayer: "Replayer", between: Sequence[tuple[SavedStep, Recipe, NamedLoss]], rows: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[int, dict[str, float]]]:
    """Do the updates of steps again. Gives each step's differences from the log."""
    if not between:
        return
    with progress("steps done again", len(between)) as advance:
        for step, recipe, own in between:
            result = replayer.replay(step, recipe, [own], _rates(replayer, recipe, rows, step.step))
            differences = {name: difference(rows[step.step][name], result.figures[0][name]) for name in ("loss", "grad_norm")}
            yield step.step, {**differences, "logprob_gap_nats": result.logprob_gap}
            advance(1)


def _rates(replayer: "Replayer", recipe: Recipe, rows: Mapping[int, Mapping[str, Any]], step: int) -> list[float]:
    return learning_rates(recipe, rows.get(step, {}).get("learning_rate"), step, replayer.num_updates)


def _check_gap(gap: float, recipe: Recipe, origin: Origin, step: int) -> None:
    limit = LARGEST_GAP_NATS[recipe.model.dtype]
    if not gap <= limit:
        raise ValueError(
            f"the weights that were found are not those before step {step} ({origin.text(step)}): the batch's log-probs differ from the "
            f"saved ones by up to {gap:.2g} nats, and the limit for {recipe.model.dtype} is {limit:g}. The settings have changed since, or "
            "the checkpoint is of another run. --weights FOLDER takes any model, and says that it is not the run's"
        )


def _figures(loss: NamedLoss, figures: Mapping[str, float]) -> dict[str, Any]:
    settings = (
        {} if loss.spec else {"loss": loss.loss.model_dump(), **({"advantage": loss.advantage.model_dump()} if loss.advantage else {})}
    )
    return {"name": loss.name, "figures": dict(figures), "settings": settings}
