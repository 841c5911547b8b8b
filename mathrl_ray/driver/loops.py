"""What moves between the actors while a stage trains on rollouts: prompts out, graded groups back, weights across.

    prompt loop     one group of siblings a slot, to the generator with the least to do      waits for a free slot, and for room
      a group       sampled -> graded -> advantages -> buffered, by itself                   waits for its generator, then for a scorer
    training loop   a batch of buffered groups -> optimizer step -> published weights        waits for a batch, and for the update before
      an update     every generator applies the weights, slots fall free, the step is noted  waits for the generators
      validation    the same weights' accuracy, beside training; they stay pinned meanwhile  waits for its responses

A group holds one of (driver.max_staleness + 1) * grpo.prompts_per_step slots from its admission until the weights that were trained on it
are in every generator: core/staleness.py has the states, the formula and its proof. With max_staleness = 0 this is the plain loop: sample a
batch, train on it, publish, and again.

Called by the stages. Knows the actors' Protocols only; nothing here polls, and nothing waits without a limit.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count

from mathrl_ray.actors.interfaces import Generator
from mathrl_ray.core.groups import ZERO_VARIANCE, with_advantages
from mathrl_ray.core.sampling import batch_indices, epoch_order
from mathrl_ray.core.staleness import STALE, StalenessGate
from mathrl_ray.driver.canary import canary
from mathrl_ray.driver.evaluation import accuracy_text, is_validation_step, validate, validate_beside
from mathrl_ray.driver.replicas import GivenUpError, Replica
from mathrl_ray.driver.rollouts import Prompt, grade_group, sample_group
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.step_record import FAILED, StepRecord
from mathrl_ray.types import Problem, TrajectoryGroup, WeightManifest

FEWEST_FAILURES = 8
"""Prompts that may fail in a row, however small a batch is."""
AfterStep = Callable[[int, Sequence[TrajectoryGroup], dict[str, float]], None]


class PolicyLoops:
    """One stage's loops and what they share."""

    def __init__(self, run: Run, stage: str, num_steps: int, after_step: AfterStep) -> None:
        """
        Args:
            run: the run; the stage has begun.
            stage: its name.
            num_steps: batches to train on; fewer where grpo.num_epochs ends before.
            after_step: told of each step's groups and numbers, in order.
        """
        grpo, driver = run.recipe.grpo, run.recipe.driver
        self._run, self._stage, self._after_step = run, stage, after_step
        self._gate = StalenessGate(
            batch_groups=grpo.prompts_per_step,
            max_staleness=driver.max_staleness,
            on_stale=driver.on_stale,
            total_groups=None if grpo.num_epochs else num_steps * grpo.prompts_per_step,
        )
        self._buffered: dict[int, TrajectoryGroup] = {}
        self._record = StepRecord(run, stage)
        self._num_replaced = self._failed_in_a_row = 0
        self._num_taken = 0
        # Each piece of work has a limit of its own; this one names what stands still, should one not be kept.
        self._limit_s = sum((run.recipe.generator.limit_s, run.recipe.learner.limit_s, driver.sync_limit_s, driver.start_limit_s))

    async def train(self) -> int:
        """Run the loops until the last step is published and noted. Returns the number of steps.

        Raises:
            ActorError, CanaryError, StalenessError, WaitError, FloatingPointError, ValueError: the first that any loop met.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks:
                prompts = self._tasks.create_task(self._prompt_loop(), name="prompt loop")
                num_steps = await self._training_loop()
                prompts.cancel()
        except BaseExceptionGroup as group:  # a person is to read what went wrong, not that it went wrong in a group
            raise _first(group) from group
        return num_steps

    async def _prompt_loop(self) -> None:
        size = self._run.recipe.grpo.group_size
        for prompt in prompt_stream(self._run):
            await self._until(
                lambda: self._gate.can_admit and self._run.generators.least_loaded(size) is not None,
                "a slot and a generator with room",
            )
            replica = self._run.generators.least_loaded(size)
            self._tasks.create_task(self._group(self._gate.admit(), prompt, replica))
            await asyncio.sleep(0)  # the group's task takes its place on the replica before the next one is looked for
        self._gate.close()
        self._run.changes.ring()

    async def _group(self, number: int, prompt: Prompt, replica: Replica[Generator] | None) -> None:
        """One group's way from its prompt to the buffer."""
        group: TrajectoryGroup | None = None
        try:
            group = await sample_group(self._run, self._stage, prompt, replica)
            self._gate.generated(number, group.min_policy_version)
            self._record.sampled(number)
            group = await grade_group(self._run, group, prompt.problem, self._step_of_reward(prompt.step))
        except GivenUpError as error:
            self._give_up(number, prompt.problem, group, error)
        else:
            self._failed_in_a_row = 0
            self._buffer(number, self._with_advantages(group))
        self._run.changes.ring()

    def _step_of_reward(self, step: int) -> int:
        """The training step that a group admitted for `step` is paid as: where groups were replaced it is consumed before that."""
        return min(step, self._num_taken + 1 + self._run.recipe.driver.max_staleness)

    def _with_advantages(self, group: TrajectoryGroup) -> TrajectoryGroup:
        recipe = self._run.recipe
        return with_advantages(group, recipe.advantage, max_tokens=recipe.generator.max_tokens, function=self._run.advantage_function)

    def _buffer(self, number: int, group: TrajectoryGroup) -> None:
        grpo = self._run.recipe.grpo
        teaches_nothing = any(trajectory.drop_reason == ZERO_VARIANCE for trajectory in group.trajectories)
        if grpo.dynamic_sampling and teaches_nothing and self._num_replaced < grpo.max_replaced * grpo.prompts_per_step:
            self._num_replaced += 1
            self._gate.drop(number, ZERO_VARIANCE)
            self._record.dropped(number, group, ZERO_VARIANCE)
            return
        self._buffered[number] = group
        self._gate.scored(number)
        self._drop_stale()

    def _give_up(self, number: int, problem: Problem, group: TrajectoryGroup | None, error: GivenUpError) -> None:
        """Drop a prompt that always fails; another takes its slot.

        Raises:
            GivenUpError: a whole batch of prompts has failed in a row: it is not the prompts' fault.
        """
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= max(FEWEST_FAILURES, self._run.recipe.grpo.prompts_per_step):
            raise GivenUpError(f"{self._failed_in_a_row} prompts in a row failed, the last one ({problem.problem_id}): {error}") from error
        self._gate.drop(number, FAILED)
        self._record.dropped(number, group, FAILED)  # sampled to its end where only its grading failed
        self._run.console.say(f"warning: {problem.problem_id} is dropped: {error}")

    async def _training_loop(self) -> int:
        update: asyncio.Task[None] | None = None
        step = 0
        while True:
            await self._until(lambda: self._gate.batch_ready or self._gate.exhausted, "a batch of graded groups")
            if not self._gate.batch_ready:
                break
            step += 1
            groups = self._take(step)
            has_learned = await self._record.train(groups)
            self._gate.stepped(published=has_learned)
            self._run.changes.ring()
            if update is not None:
                await update
            manifest = await self._run.weights.publish(self._gate.learner_version) if has_learned else None
            update = self._tasks.create_task(self._update(step, manifest), name=f"update of step {step}")
            if self._joins(manifest):
                await update
        if update is not None:
            await update
        await self._record.close(step)
        return step

    def _take(self, step: int) -> list[TrajectoryGroup]:
        """The next batch, in the order of admission, which does not depend on who was fastest."""
        counts, numbers = self._gate.counts(), sorted(self._gate.take())
        self._num_taken = step
        self._drop_stale()
        self._num_replaced = 0
        groups = {number: self._buffered.pop(number) for number in numbers}
        self._record.begin(step, groups, self._gate.learner_version, counts)
        return list(groups.values())

    def _drop_stale(self) -> None:
        for number in self._gate.stale():
            self._record.dropped(number, self._buffered.pop(number), STALE)
            self._run.changes.ring()

    def _joins(self, manifest: WeightManifest | None) -> bool:
        """Whether the learner waits for the update: for a canary, which needs it unchanged; where it sends the weights itself, which it
        could only do after the next step; and where nothing is to overlap."""
        sends = manifest is not None and manifest.transport != "shared_memory"
        return self._run.recipe.driver.max_staleness == 0 or self._is_probed(manifest) or sends

    def _is_probed(self, manifest: WeightManifest | None) -> bool:
        """Whether the canary looks at this publication."""
        return manifest is not None and manifest.policy_version % self._run.recipe.driver.canary_every == 0

    async def _update(self, step: int, manifest: WeightManifest | None) -> None:
        """Bring what a step has published to the generators, free its slots, and note the step."""
        metrics: dict[str, float] = {}
        if manifest is not None:
            metrics |= await self._run.weights.apply(manifest)
            self._gate.applied()
            self._run.changes.ring()
            if self._is_probed(manifest):
                metrics["canary_max_logprob_diff"] = await canary(self._run)
        groups, metrics = await self._record.finish(step, metrics)
        self._after_step(step, groups, metrics)
        if is_validation_step(self._run, step):
            await self._validate(step)

    async def _validate(self, step: int) -> None:
        if self._run.recipe.driver.max_staleness == 0:
            figures = await validate(self._run, self._stage, step)
            self._run.console.say(f"{self._stage} step {step}: validation {accuracy_text(figures)}")
            return
        stack = AsyncExitStack()
        replica = await stack.enter_async_context(self._run.weights.pinned())  # before the next update can begin
        self._tasks.create_task(validate_beside(self._run, self._stage, step, replica, stack), name=f"validation of step {step}")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        keys = "generator.limit_s, learner.limit_s, driver.sync_limit_s and driver.start_limit_s together"
        await self._run.changes.until(holds, lambda: f"{what} ({keys}); groups: {self._gate.counts()}", self._limit_s)


def prompt_stream(run: Run) -> Iterator[Prompt]:
    """The prompts in the order of admission: shuffled epochs, endless or grpo.num_epochs of them."""
    grpo, problems, seed = run.recipe.grpo, run.train_problems, run.recipe.run.seed
    num_problems, size = len(problems), grpo.prompts_per_step
    for step in count(1):
        if grpo.num_epochs:
            places = range((step - 1) * size, min(step * size, num_problems * grpo.num_epochs))
            chosen = [epoch_order(num_problems, seed, place // num_problems)[place % num_problems] for place in places]
        else:
            chosen = batch_indices(num_problems, size, step - 1, seed)
        if not chosen:
            return
        for index, number in enumerate(chosen):
            yield Prompt(step, index, problems[number], repeat=chosen[:index].count(number))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person should read: the first error that was not caused by the end of the others."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
