"""Validations of a stage's steps: in turns with training or beside it, and whether they end it (eval.stop_after).

Called by loops.py when a step's weights are in the generators. Knows the run and asyncio; the validation itself is in evaluation.py, the
rule of stopping in core/early_stopping.py.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from mathrl_ray.driver.evaluation import accuracy_text, validate, validate_beside
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import early_stopping


class StepValidations:
    """Of one stage's loops."""

    def __init__(self, run: Run, stage: str) -> None:
        self._run, self._stage = run, stage
        self.early = early_stopping(run, stage)
        """Whether they have ended training, and which was best."""
        self.not_done: set[int] = set()
        """Steps whose validation has begun, and not ended."""
        self._beside: set[asyncio.Task[None]] = set()
        """Those that go on beside training."""

    async def validate(self, step: int, totals: Mapping[str, float], tasks: asyncio.TaskGroup) -> None:
        """Validate the weights that the generators hold; where training may go on meanwhile, only begin it.

        Args:
            step: whose weights they are.
            totals: of the ledger at that step's end.
            tasks: of the loops.
        """
        cost = {name: value for name, value in totals.items() if name == "consumed_tokens_total"}
        self.not_done.add(step)
        if self._run.recipe.driver.max_staleness == 0:
            figures = await validate(self._run, self._stage, step, facts=cost)
            self._run.console.say(f"{self._stage} step {step}: validation {accuracy_text(figures)}")
            self._ended(step)
            return
        stack = AsyncExitStack()
        replica = await stack.enter_async_context(self._run.weights.pinned())  # before the next update can begin
        validation = validate_beside(self._run, self._stage, step, replica, stack, cost)
        task = tasks.create_task(validation, name=f"validation of step {step}")
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        task.add_done_callback(lambda done: None if done.cancelled() else self._ended(step))

    def cancel(self) -> None:
        """End those beside training: their weights stay pinned, which would hold up an update."""
        for task in self._beside:
            task.cancel()

    def _ended(self, step: int) -> None:
        self.not_done.discard(step)
        if (accuracy := self._run.validated.get((self._stage, step))) is not None:  # None where it was given up
            self.early.seen(step, accuracy)
        self._run.changes.ring()
