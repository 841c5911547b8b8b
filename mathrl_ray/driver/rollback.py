"""A rollback: a stage that a guard has set back goes to its last good checkpoint, or to its start, and tries a remedy from there.

    loops have ended -> remedy into the recipe -> rows, samples and validations of later steps aside -> learner, generators
                     -> a checkpoint of the step that it goes on after, with all that holds from there -> guards.jsonl

Called by a stage between two trainings of it. What was sampled and trained in vain stays counted: the ledger is not turned back, so that a
stage's tokens and seconds are what it has really cost. The later steps' rows go to superseded-<n>/ as after a resume (superseded.py), but
not their checkpoints, which are removed: the disk was planned for a few, and nobody wants a collapsed model. A kill before that
checkpoint is written undoes the rollback, and its guard fires again; after it the run goes on with the remedy, also where the stage began
anew (step 0).
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.core.remedies import RATE_KEYS, remedy_changes, value_of
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.checkpoint import Checkpoint, read_checkpoint, save_checkpoint, whole_checkpoints
from mathrl_ray.driver.guards import FURTHER_BACK, Setback
from mathrl_ray.driver.loop_state import LoopState
from mathrl_ray.driver.resume import go_on
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.superseded import Position, supersede
from mathrl_ray.driver.whole_folder import WRITING
from mathrl_ray.guard_section import Remedy
from mathrl_ray.sections import StageName

NO_REMEDY = "none"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is tried next."""

    checkpoint: Checkpoint | None
    """Where the stage goes back to; None: to its start."""
    remedy: Remedy | str
    changes: Mapping[str, Any] = field(default_factory=dict)
    averaged: Sequence[Checkpoint] = ()
    """Whose mean is gone on from; none: the checkpoint itself."""

    @property
    def to_step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0


Stand = Callable[[Checkpoint | None], tuple[LoopState | None, Mapping[str, Any]]]


async def go_back(run: Run, stage: StageName, stand: Stand, *, num_optimizer_steps: int) -> Checkpoint:
    """Take the stage back, and try the next of guards.remedies.

    Args:
        run: the run; its guards have a setback, and its loops have ended.
        stage: its present stage.
        stand: where the stage stands after a checkpoint, or with None at its start: state of its loops, and facts, as save_checkpoint
            takes them.
        num_optimizer_steps: the length of its learning-rate schedule.

    Returns:
        The checkpoint that the stage goes on from, of step 0 where it begins anew. Learner and generators hold its weights.

    Raises:
        RuntimeError: that checkpoint could not be written.
    """
    setback, run.save_now = run.guards.setback, None  # a job that is told to stop now goes on from the last checkpoint
    assert setback is not None, "no guard has asked for it"
    good = [each for each in whole_checkpoints(run.recorder.folder) if each.stage == stage and each.step <= setback.good_step]
    plan = _plan(run, stage, setback, good)
    lost_tokens = _lost_tokens(run, plan.checkpoint)
    before = {key: value_of(run.recipe, key) for key in plan.changes}
    run.change_recipe({**run.remedies, **plan.changes})
    _move_aside(run, stage, plan.checkpoint)
    await _take_up(run, stage, plan, num_optimizer_steps)
    run.guards.went_back(plan.to_step, plan.remedy, is_new=plan.remedy != FURTHER_BACK, lost_tokens=lost_tokens)
    folder = await _save(run, stage, plan, stand)
    changes = {key: [before[key], value] for key, value in plan.changes.items()}
    text = _text(setback, plan, changes)
    run.console.went_back(stage, plan.to_step, text)
    facts = {
        "to_step": plan.to_step,
        "remedy": plan.remedy,
        "changes": changes,
        "try": run.guards.num_rollbacks,
        "tokens_lost": lost_tokens,
    }
    run.recorder.guard_event("rollback", stage, setback.step, {**facts, "text": text})
    return read_checkpoint(folder)


def _lost_tokens(run: Run, checkpoint: Checkpoint | None) -> int:
    """Sampled since the checkpoint, or the stage's start, without what earlier rollbacks have told already. What lay there sampled and not
    trained on is lost too: it is sampled again."""
    if checkpoint is None:
        return run.ledger.counts.generated_tokens - run.guards.lost_tokens
    before = checkpoint.content["ledger"]["counts"]["generated_tokens"] - checkpoint.num_waiting_tokens
    told = run.guards.lost_tokens - checkpoint.guards.get("lost_tokens", 0)
    return int(run.ledger.counts.generated_tokens - before - told)


async def _save(run: Run, stage: StageName, plan: _Plan, stand: Stand) -> Path:
    """The checkpoint of the step that the stage goes on after, in the place of the one that it went back to.

    Raises:
        RuntimeError: it could not be written.
    """
    loops, facts = stand(plan.checkpoint)
    try:
        return await save_checkpoint(run, stage, plan.to_step, loops, facts=facts, replaces=True)
    except (OSError, ActorError) as error:
        raise RuntimeError(
            f"{stage}: the rollback to step {plan.to_step} could not be saved, without which a resumed run would not know of it: {error}. "
            'Free space in run.root and set run.resume = "auto"'
        ) from error


def _plan(run: Run, stage: StageName, setback: Setback, good: Sequence[Checkpoint]) -> _Plan:
    """Where to, and with what. A remedy that has not helped is first tried from further back, since the harm may have been done before
    there was a sign of it: from an older checkpoint, or, where that costs no more than guards.window steps, from the stage's start."""
    failed_from = setback.failed_from
    if failed_from:
        older = [each for each in good if each.step < failed_from]
        if older or failed_from <= run.recipe.guards.window:
            return _Plan(older[-1] if older else None, FURTHER_BACK)
    return _with_remedy(run, stage, good)


def _with_remedy(run: Run, stage: StageName, good: Sequence[Checkpoint]) -> _Plan:
    """The next remedy that changes anything here; after the last of guards.remedies that one again."""
    remedies, newest = run.recipe.guards.remedies, good[-1] if good else None
    trained = [each for each in good if each.step]
    for remedy in [*remedies[run.guards.num_remedies :], *reversed(remedies)]:
        if remedy == "average_checkpoints" and len(trained) > 1 and _may_average(run, stage):
            return _Plan(newest, remedy, averaged=trained)
        changes = remedy_changes(remedy, run.recipe, stage)
        if changes and _fits(run, changes):
            return _Plan(newest, remedy, changes)
        run.console.say(f"{stage}: the remedy {remedy} is left out: {_why_not(run, stage, remedy, changes)}")
    return _Plan(newest, NO_REMEDY)


def _may_average(run: Run, stage: StageName) -> bool:
    """Not in expert iteration, whose rounds begin from a folder of their own; and adapters belong to the start model, not to a mean."""
    return stage != "expert_iteration" and not run.recipe.learner.lora_rank


def _fits(run: Run, changes: Mapping[str, Any]) -> bool:
    before = dict(run.remedies)
    try:
        run.change_recipe({**before, **changes})
    except ValidationError:
        return False
    run.change_recipe(before)
    return True


def _why_not(run: Run, stage: StageName, remedy: Remedy, changes: Mapping[str, Any]) -> str:
    if remedy == "average_checkpoints" and not _may_average(run, stage):
        return "not in expert iteration, and not with learner.lora_rank"
    if remedy == "average_checkpoints":
        return "it takes two good checkpoints (run.checkpoint_every, run.keep_last)"
    if changes:
        return f"the recipe does not allow {', '.join(f'{key} = {value}' for key, value in changes.items())}"
    return "it changes nothing in this stage"


def _move_aside(run: Run, stage: str, checkpoint: Checkpoint | None) -> None:
    """Let every step be in the run's files once."""
    finished = [summary["name"] for summary in run.stages]
    position = Position(finished)
    if checkpoint is not None:
        position = Position(finished, stage, checkpoint.step, checkpoint.content["metrics_bytes"])
    with run.recorder.closed_metrics():
        aside = supersede(run.recorder.folder, position)
    if aside is not None:
        shutil.rmtree(aside / "checkpoints", ignore_errors=True)
    for of, step in [each for each in run.validated if each[0] == stage and each[1] > (checkpoint.step if checkpoint else 0)]:
        del run.validated[of, step]


async def _take_up(run: Run, stage: StageName, plan: _Plan, num_optimizer_steps: int) -> None:
    """Learner and generators as they were after the checkpoint's step, or as the stage began."""
    checkpoint, learning_rate = plan.checkpoint, value_of(run.recipe, RATE_KEYS[stage])
    if checkpoint is None:
        await begin_stage(run, stage, learning_rate=learning_rate, num_optimizer_steps=num_optimizer_steps)
        return
    folder = await asyncio.to_thread(_averaged, run, plan.averaged) if plan.averaged else ""
    await go_on(
        run,
        checkpoint,
        learning_rate=learning_rate,
        num_optimizer_steps=num_optimizer_steps,
        with_optimizer=not folder and stage != "expert_iteration",  # whose every round begins a new one
        model_folder=str(folder),
    )
    if folder:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _averaged(run: Run, checkpoints: Sequence[Checkpoint]) -> Path:
    """A model folder with their mean weights, for as long as the learner needs to open it."""
    from mathrl_ray.actors.weight_average import average_model_folders  # torch, which a stage that never goes back need not wait for

    output = run.recorder.folder / "checkpoints" / f".averaged.{WRITING}"  # which a resumed run removes
    shutil.rmtree(output, ignore_errors=True)
    average_model_folders([each.folder for each in checkpoints], output)
    return output


def _text(setback: Setback, plan: _Plan, changes: Mapping[str, list[Any]]) -> str:
    place = f"the checkpoint of step {plan.to_step}" if plan.to_step else "the stage's start"
    if plan.remedy == FURTHER_BACK:
        tried = f"further than before (step {setback.failed_from}), with the same remedies"
    elif plan.averaged:
        tried = f"with the average of the checkpoints of steps {', '.join(str(each.step) for each in plan.averaged)} and a new optimizer"
    elif changes:
        tried = f"with {plan.remedy}: {', '.join(f'{key} {old:g} to {new:g}' for key, (old, new) in changes.items())}"
    else:
        tried = "without a change (guards.remedies has none that changes anything here)"
    return f"back from step {setback.step} to {place}, {tried}"
