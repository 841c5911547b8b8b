"""One training on traces: batches tokenised ahead, optimizer steps, validations on the way, the publication at the end.

Called by sft.py and sft_sweep.py. Knows nothing of where the traces come from.
"""

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from mathrl_ray.core.early_stopping import EarlyStopping
from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.core.tokenization import tokenize_apart
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.canary import begin_stage, sync_weights
from mathrl_ray.driver.checkpoint import Checkpoint, is_due, save_checkpoint, try_to_save
from mathrl_ray.driver.evaluation import accuracy_text, is_validation_step, validate
from mathrl_ray.driver.prefetch import Prefetch
from mathrl_ray.driver.resume import go_on
from mathrl_ray.driver.rollback import go_back
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageAverage, StageEnd, early_stopping, use_best
from mathrl_ray.recipe_checks import num_sft_steps
from mathrl_ray.sections import StageName
from mathrl_ray.types import SftExample


async def train_on(
    run: Run,
    stage: StageName,
    traces: Sequence[SftRow],
    *,
    part: str = "",
    facts: Mapping[str, float] | None = None,
    checkpoint: Checkpoint | None = None,
) -> StageEnd:
    """Train the start model on traces; afterwards learner and generators hold the result, whose step is returned.

    Args:
        run: the run.
        stage: its name.
        traces: what is learned, `sft.epochs` times.
        part: names one of several trainings of the stage; its caller validates the last step itself, and no checkpoint is written.
        facts: more numbers for every row of metrics, to tell such trainings apart there.
        checkpoint: of such a training, to go on from.
    """
    settings = run.recipe.sft
    num_steps = num_sft_steps(settings, len(traces))
    plan = f"{len(traces)} traces, {num_steps} steps of {settings.batch_size}"
    run.console.begin_stage(stage, f"{part}: {plan}" if part else plan)
    if checkpoint is None:
        await begin_stage(run, stage, learning_rate=settings.learning_rate, num_optimizer_steps=num_steps, part=part, facts=facts)
    else:
        await go_on(run, checkpoint, learning_rate=settings.learning_rate, num_optimizer_steps=num_steps)
    chosen = places_of(run.traces, traces)
    training = _training(run, stage, num_steps, part, facts or {}, chosen, checkpoint)
    await training.train(traces)
    while run.guards.setback is not None:
        checkpoint = await go_back(run, stage, training.stand, num_optimizer_steps=num_steps)
        training = _training(run, stage, num_steps, part, facts or {}, chosen, checkpoint)
        await training.train(traces)
    return await training.ended()


def _training(
    run: Run,
    stage: StageName,
    num_steps: int,
    part: str,
    facts: Mapping[str, float],
    chosen: list[int] | None,
    checkpoint: Checkpoint | None,
) -> "_Training":
    """At its beginning, or after a checkpoint that learner and generators hold."""
    average, early = StageAverage(run, stage, facts), EarlyStopping(0) if part else early_stopping(run, stage)
    training = _Training(run, stage, num_steps, part, facts, chosen, average, early)
    if checkpoint is not None:
        training.step = training.saved_step = checkpoint.step
        training.published_step = checkpoint.facts["published_step"]
        training.average = StageAverage.going_on(run, stage, checkpoint.facts)
    run.save_now = None if part else training.save
    return training


async def save_trained(run: Run, stage: str, end: StageEnd) -> None:
    """Save what learner and generators hold after trainings of which no checkpoint was written."""
    training = _Training(run, stage, end.step, "", {}, None, StageAverage(run, stage), EarlyStopping(0), end.facts)
    training.step = training.published_step = end.step
    await training.end()


@dataclass
class _Training:
    """Where one training is."""

    run: Run
    stage: str
    num_steps: int
    part: str
    facts: Mapping[str, float]
    chosen: list[int] | None
    """Places of its traces among the run's; None for all of them."""
    average: StageAverage
    early: EarlyStopping
    summary: Mapping[str, Any] = field(default_factory=dict)
    """What the trainings before have found out for summary.json."""
    step: int = 0
    published_step: int = 0
    saved_step: int = 0
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the learner makes a step, publishes it, or is saved."""

    async def train(self, traces: Sequence[SftRow]) -> None:
        if self._is_to_be_validated and (self.stage, self.step) not in self.run.validated:  # it was saved just before
            await self._validate_again()
        if not self.early.has_stopped:
            await self._take_batches(traces)
        if self.run.guards.setback is not None:
            return
        if self._is_at_its_own_end:
            async with self.stepping:
                await self.average.publish(self.step)
        if not self.average.is_published:
            await self._publish()
        if not self.part:
            self.run.guards.stage_ended(self.step)
            await self.end()

    async def _take_batches(self, traces: Sequence[SftRow]) -> None:
        with prefetched(self.run, sft_batches(self.run, traces, first=self.step)) as batches:
            async for batch in batches:
                if self.run.time_limit.is_up():
                    limit = f"run.max_hours = {self.run.recipe.run.max_hours:g}"
                    self.run.console.say(f"{self.stage}: {limit} leaves room for {self.step} of {self.num_steps} steps")
                    break
                async with self.stepping:
                    await self._step(batch, batches.last_wait_s)
                if self._is_to_be_validated and self.run.guards.setback is None:
                    await self._validate()
                if self.early.has_stopped or self.run.guards.setback is not None:
                    break
                if not self.part and self.step < self.num_steps and (self._is_best or is_due(self.run, self.step)):
                    await try_to_save(self.run, self.save())

    @property
    def _is_best(self) -> bool:
        """Whether early stopping would take this step's weights for the stage's."""
        return self.early.stop_after > 0 and self.early.best_step == self.step

    @property
    def _is_at_its_own_end(self) -> bool:
        """Whether all steps are done: neither early stopping nor run.max_hours has ended it, so that it ends with its average."""
        return self.step == self.num_steps and not self.early.has_stopped

    async def ended(self) -> StageEnd:
        """What it ended with; after early stopping learner and generators get the best validated weights."""
        if self.early.has_stopped:
            return await use_best(self.run, self.stage, self.early, step=self.step, is_saved=self.saved_step == self.step)
        return StageEnd(self.step, self.average.summary())

    async def end(self) -> None:
        """Save for the last time; once more after the evaluation where that fails (study.py), which a full disk must not cost."""
        self.run.save_now = self.save
        await try_to_save(self.run, self.save())

    async def _step(self, batch: list[SftExample], data_wait_s: float) -> None:
        run = self.run
        with run.ledger.work("learner-0", "train_sft"):
            metrics = await run.actors.learner.train_sft(batch)
        self.step += 1
        run.ledger.counts.optimizer_steps += 1 - int(metrics.get("skipped_updates", 0))
        times = {"data_wait_s": data_wait_s, **run.ledger.lap()}
        run.recorder.metrics(
            self.stage, self.step, run.policy_version, {**self.facts, **metrics, **times, "spans": run.ledger.take_spans()}
        )
        if not self.part:  # each of several trainings has a series of its own, and no checkpoint to go back to
            run.guards.look(self.step, metrics)
        run.console.step(self.stage, self.step, self.num_steps, {"loss": metrics["loss"], "entropy": metrics["entropy_nats"]})
        run.step_measured(self.stage, times["step_s"], num_left=None if self.part else self.num_steps - self.step)

    @property
    def _is_to_be_validated(self) -> bool:
        return self.step > 0 and is_validation_step(self.run, self.step) and not (self.part and self.step == self.num_steps)

    async def _validate(self) -> None:
        await self._publish()
        figures = await validate(self.run, self.stage, self.step, part=self.part, facts=self.facts)
        self.early.seen(self.step, figures["accuracy"])
        self.run.console.say(f"{self.stage} step {self.step}: validation {accuracy_text(figures)}")

    async def _validate_again(self) -> None:
        """The validation of the step that the training goes on from, which was not done when the job ended."""
        if self.average.figures:
            self.run.console.say(f"warning: no validation of {self.stage} step {self.step}: it was cut off, and the average was saved")
        else:
            await self._validate()

    async def _publish(self) -> None:
        """Give the generators the present weights, where they do not hold them."""
        if self.published_step == self.step:
            return
        async with self.stepping:  # no checkpoint between the publication and its row
            sync = await sync_weights(self.run, policy_version=self.run.policy_version + 1)
            self.run.recorder.metrics(self.stage, self.step, self.run.policy_version, {**self.facts, **sync})
            self.published_step = self.step

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        kept = {"published_step": self.published_step, "traces": self.chosen, "summary": dict(self.summary)}
        return {**kept, **self.average.facts()}

    def stand(self, at: Checkpoint | None) -> tuple[None, Mapping[str, Any]]:
        """Where it goes back to, for a rollback."""
        return None, at.facts if at else {**self._facts(), "published_step": 0}

    async def save(self) -> None:
        """Once the learner has ended its step; it begins no other meanwhile."""
        async with self.stepping:
            if self.step > self.saved_step:
                if self._is_at_its_own_end:
                    await self.average.take()
                is_trained = self.step == self.num_steps or self.early.has_stopped
                await save_checkpoint(self.run, self.stage, self.step, is_trained=is_trained, facts=self._facts())
                self.saved_step = self.step


def places_of(all_traces: Sequence[SftRow], traces: Sequence[SftRow]) -> list[int] | None:
    """Where the chosen ones are among all; None for all, in their order."""
    places = {id(trace): place for place, trace in enumerate(all_traces)}
    chosen = [places[id(trace)] for trace in traces if id(trace) in places]
    return None if chosen == list(range(len(all_traces))) else chosen


def sft_batches(run: Run, traces: Sequence[SftRow], first: int = 0) -> Iterator[list[SftExample]]:
    """The batches of all epochs, tokenised as they are asked for; an epoch's last one may be smaller. The `first` ones are left out."""
    settings, tokenizer = run.recipe.sft, own_tokenizer(run)
    first_epoch, first = divmod(first, ceil(len(traces) / settings.batch_size))
    for epoch in range(first_epoch, settings.epochs):
        order = epoch_order(len(traces), run.recipe.run.seed, epoch)
        start = first * settings.batch_size if epoch == first_epoch else 0
        yield from examples_in_batches([traces[index] for index in order[start:]], tokenizer, settings.batch_size)


def examples_in_batches(traces: Sequence[SftRow], tokenizer: Any, size: int) -> Iterator[list[SftExample]]:
    """Token ids of traces, in their order. Each ends with EOS, so that the model also stops where no stop string is looked for."""
    for start in range(0, len(traces), size):
        yield [tokenize_apart(tokenizer, trace.prompt, trace.response, append_eos=True) for trace in traces[start : start + size]]


def prefetched(run: Run, batches: Iterator[list[SftExample]]) -> Prefetch[list[SftExample]]:
    return Prefetch(batches, what="batch of tokenised traces (learner.limit_s)", limit_s=run.recipe.learner.limit_s)


def own_tokenizer(run: Run) -> Any:
    """A copy for the thread that tokenises: transformers' fast tokenizers may not be used by two threads at a time."""
    return copy.deepcopy(run.tokenizer)
