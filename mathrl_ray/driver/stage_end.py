"""The model that a stage ends with: its last weights, their average (learner.average), or its best validated ones (eval.stop_after).

    training ends by itself           the average takes the weights' place, where there is one -> published -> last checkpoint -> evaluation
    eval.stop_after ends it           last checkpoint -> the best validated checkpoint's model is published -> evaluation
    run.max_hours ends it             last checkpoint -> evaluation: the last weights, from which the stage may go on

Called by the stages and the loops. Knows the run and its checkpoints; the rule of stopping is in core/early_stopping.py, the average in
actors/weight_average.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mathrl_ray.core.early_stopping import EarlyStopping, early_stopping_after
from mathrl_ray.driver.canary import stage_settings, sync_weights
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.run import Run

EARLY_STOPPING = "early stopping"
"""What summary.json says in ended_by."""


@dataclass(frozen=True, slots=True)
class StageEnd:
    """What a stage evaluates."""

    step: int
    """The training step whose weights, or the average until which, the generators hold."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For the stage's entry in summary.json."""


def early_stopping(run: Run, stage: str) -> EarlyStopping:
    """The rule as the recipe has it, after the validations that the run has of the stage: none, or those until where it goes on."""
    settings = run.recipe.eval
    return early_stopping_after(run.validations_of(stage), stop_after=settings.stop_after, margin=settings.stop_margin)


@dataclass
class StageAverage:
    """Where a stage is with its average. `taken` and `published` once each, also when the stage goes on from a checkpoint in between."""

    run: Run
    stage: str
    extra: Mapping[str, float] = field(default_factory=dict)
    """More numbers for the row of metrics."""
    figures: dict[str, float] | None = None
    """What the learner said; empty where it keeps none, None where it was not asked yet."""
    is_published: bool = False

    @classmethod
    def going_on(cls, run: Run, stage: str, facts: Mapping[str, Any]) -> "StageAverage":
        """From the facts of a checkpoint that were made by `facts`."""
        return cls(run, stage, figures=facts.get("average"), is_published=bool(facts.get("average_published", False)))

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"average": self.figures, "average_published": self.is_published}

    async def take(self) -> None:
        """Put the average into the learner. At a stage's end only, before its last checkpoint: nothing trains after it."""
        if self.figures is None:
            with self.run.ledger.work("learner-0", "use_average"):
                self.figures = await self.run.actors.learner.use_average()

    async def publish(self, step: int) -> None:
        """And give it to the generators, as one more policy_version, with a row of metrics.

        step: the last training step.
        """
        await self.take()
        if not self.figures or self.is_published:
            return
        sync = await sync_weights(self.run, policy_version=self.run.policy_version + 1)
        self.run.recorder.metrics(self.stage, step, self.run.policy_version, {**self.extra, **self.figures, **sync})
        self.is_published = True
        averaged, distance = self.figures["num_averaged"], self.figures["average_relative_distance"]
        self.run.console.say(
            f"{self.stage}: its model is the average of the weights of {averaged:g} updates (learner.average = "
            f'"{self.run.recipe.learner.average}"), {100 * distance:.2g} % of their norm away from the last ones'
        )

    def summary(self) -> dict[str, Any]:
        """For the stage's entry in summary.json: figures, and the last validation of the weights themselves, to compare with."""
        if not self.figures:
            return {}
        validations = {} if self.extra else self.run.validations_of(self.stage)  # of several trainings they cannot be told apart
        last = {"step": max(validations), "accuracy": validations[max(validations)]} if validations else None
        return {"average": {"kind": self.run.recipe.learner.average, **self.figures, "last_validation": last}}


async def use_best(run: Run, stage: str, early: EarlyStopping, *, step: int, is_saved: bool) -> StageEnd:
    """After early stopping: give learner and generators the best validated checkpoint's model, as the policy version that it was.

    Args:
        run: the run.
        stage: its present stage, whose training has ended.
        early: has stopped it.
        step: the last training step, whose weights the learner holds.
        is_saved: whether that step's checkpoint is written; where it is not, the learner keeps its weights, so that it can be tried again.

    Returns:
        What is to be evaluated: the best step, or the last where the best one's checkpoint is not there.
    """
    best = early.best_step
    assert best is not None, "it stopped after validations"
    checkpoint = next((each for each in whole_checkpoints(run.recorder.folder) if (each.stage, each.step) == (stage, best)), None)
    facts = {"ended_by": EARLY_STOPPING, "last_step": step, "best_step": best, "best_validation_accuracy": early.best_accuracy}
    told = f"{stage}: stopped early after step {step}: {early.num_without_improvement} validations in a row without a better one"
    if best != step and (checkpoint is None or not is_saved):
        run.console.say(f"warning: {told}; the best one's checkpoint, of step {best}, cannot be used, so the last weights are kept")
        return StageEnd(step, facts)
    if best != step and checkpoint is not None:
        settings = stage_settings(run, stage, learning_rate=run.recipe.learner.learning_rate, num_optimizer_steps=1)
        with run.ledger.work("learner-0", "start_stage"):
            await run.actors.learner.start_stage(replace(settings, model_path=str(checkpoint.folder)))
        await sync_weights(run, policy_version=checkpoint.content["policy_version"])  # no row: that step has one
    run.console.say(f"{told}; its model is that of step {best}, {100 * (early.best_accuracy or 0):.1f} % on validation")
    return StageEnd(best, facts)
