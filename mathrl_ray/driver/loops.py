"""What moves between the actors while a stage trains on rollouts: prompts out, graded groups back, weights across.

    prompt loop     one group of siblings a slot, to the generator with the least to do      waits for a free slot, and for room
      a group       sampled -> graded -> advantages -> buffered, by itself                   waits for its generator, then for a scorer
    training loop   a batch of buffered groups -> optimizer step -> published weights        waits for a batch, and for the update before
      an update     every generator applies the weights, slots fall free, the step is noted  waits for the generators
      validation    the same weights' accuracy, beside training; they stay pinned meanwhile  waits for its responses
      checkpoint    all of this between two steps; the learner stands, the others go on      waits for the learner's step and its update
      a setback     a guard ends the loops; others go on from the last good step             waits for the update before

A group holds one of (driver.max_staleness + 1) * grpo.prompts_per_step slots from its admission until the weights that were trained on it
are in every generator: core/staleness.py has the states, the formula and its proof. With max_staleness = 0 this is the plain loop: sample a
batch, train on it, publish, and again.

Called by the stages. Knows the actors' Protocols only; nothing here polls, and nothing waits without a limit.
"""

import asyncio
from collections.abc import Callable, Sequence

from mathrl_ray.actors.interfaces import Generator
from mathrl_ray.config import RecipeError
from mathrl_ray.core.groups import ZERO_VARIANCE, with_advantages
from mathrl_ray.core.staleness import STALE, StalenessGate
from mathrl_ray.driver.canary import canary_metrics
from mathrl_ray.driver.checkpoint import is_due, save_checkpoint, try_to_save
from mathrl_ray.driver.evaluation import is_validation_step
from mathrl_ray.driver.loop_state import LoopState
from mathrl_ray.driver.prompt_stream import PromptStream
from mathrl_ray.driver.replicas import GivenUpError, Replica
from mathrl_ray.driver.rollouts import Prompt, grade_group, sample_group
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageAverage
from mathrl_ray.driver.step_record import FAILED, OTHER_PROBLEM, SET_BACK, STOPPED_EARLY, TIME_IS_UP, StepRecord
from mathrl_ray.driver.step_validations import StepValidations
from mathrl_ray.types import Problem, TrajectoryGroup, WeightManifest

MOST_SKIPPED = 0.5
"""The share of all train problems that a filter may pass over without a word."""
FEWEST_FAILURES = 8
"""Prompts that may fail in a row, however small a batch is."""
AfterStep = Callable[[int, Sequence[TrajectoryGroup], dict[str, float]], None]


class PolicyLoops:
    """One stage's loops and what they share."""

    def __init__(
        self,
        run: Run,
        stage: str,
        num_steps: int,
        after_step: AfterStep,
        state: LoopState | None = None,
        average: StageAverage | None = None,
    ) -> None:
        """
        Args:
            run: the run; the stage has begun.
            stage: its name.
            num_steps: batches to train on; fewer where grpo.num_epochs ends before.
            after_step: told of each step's groups and numbers, in order.
            state: of the loops that these go on from; learner and generators hold its weights.
            average: of these weights (learner.average), where the loops go on.

        Raises:
            RecipeError: the state is one of another grpo.prompts_per_step.
        """
        grpo, driver = run.recipe.grpo, run.recipe.driver
        self._run, self._stage, self._num_steps, self._after_step = run, stage, num_steps, after_step
        self.validations = StepValidations(run, stage)
        self.average = average or StageAverage(run, stage)
        self._record = StepRecord(run, stage)
        self._prompts = PromptStream(run, stage, state.prompts if state else None, state.step if state else 0)
        self._has_told_of_skipped = False
        self._resumed = state = self._fitting(state) if state else None
        self._gate = StalenessGate(
            batch_groups=grpo.prompts_per_step,
            max_staleness=driver.max_staleness,
            on_stale=driver.on_stale,
            total_groups=None if grpo.num_epochs else num_steps * grpo.prompts_per_step,
            state=state.gate if state else None,
        )
        self._groups: dict[int, asyncio.Task[None]] = {}
        """On their way to the buffer."""
        self._sampled: dict[int, TrajectoryGroup] = {}
        """Not graded yet."""
        self._buffered: dict[int, TrajectoryGroup] = {}
        self._num_replaced = self._failed_in_a_row = self._step = self._saved_step = 0
        self._is_saving = False
        if state is not None:
            self._restore(state)
        # Each piece of work has a limit of its own; this one names what stands still, should one not be kept.
        self._limit_s = sum((run.recipe.generator.limit_s, run.recipe.learner.limit_s, driver.sync_limit_s, driver.start_limit_s))

    async def train(self) -> int:
        """Run the loops until the last step is published and noted. Returns the number of steps.

        Raises:
            ActorError, CanaryError, StalenessError, WaitError, FloatingPointError, ValueError: the first that any loop met.
        """
        self._run.save_now = self._save_at_the_end
        try:
            async with asyncio.TaskGroup() as self._tasks:
                validation = self._go_on()
                prompts = self._tasks.create_task(self._prompt_loop(), name="prompt loop")
                num_steps = await self._training_loop(validation)
                prompts.cancel()
                self._drop_the_rest()
                await self._record.close(num_steps)
        except BaseExceptionGroup as group:  # a person is to read what went wrong, not that it went wrong in a group
            raise _first(group) from group
        return num_steps

    def _fitting(self, state: LoopState) -> LoopState:
        """The state as these data and this seed can go on from it: where another problem has the place of the one that was answered, the
        responses are dropped and that problem is sampled. Groups get their ids from grpo.prompts_per_step, which thus has to stay."""
        run, size = self._run, self._run.recipe.grpo.prompts_per_step
        if size != state.prompts_per_step:
            raise RecipeError(
                f"grpo.prompts_per_step: {state.prompts_per_step} was saved, {size} is given: groups are numbered by it, so that it cannot "
                f'change in the middle of a stage, also with run.resume_with_changes. Put it back, or set run.resume = "" to begin anew.'
            )
        self._record.restore(state.record)
        groups = {**state.sampled, **state.buffered}
        others = {number for number, group in groups.items() if group.problem_id != self._prompts.at(number).problem.problem_id}
        for number in sorted(others):
            self._record.dropped(number, groups[number], OTHER_PROBLEM)
        if others:
            run.console.say(f"warning: {len(others)} groups that were saved answer other problems than now have their places; dropped")
        return state.sampling_again(others)

    def _restore(self, state: LoopState) -> None:
        self._step = self._saved_step = state.step
        self._num_replaced, self._failed_in_a_row = state.num_replaced, state.failed_in_a_row
        self._sampled, self._buffered = dict(state.sampled), dict(state.buffered)
        self._drop_stale()

    def _go_on(self) -> asyncio.Task[None] | None:
        """Start what was going on when the state was saved: prompts in flight are sent again, with the same ids and seeds.

        Returns:
            The validation of the last step, where that has to be done again and its weights are still there, not their average in their
            place; no other weights may be applied before.
        """
        if self._resumed is None:
            return None
        for number, stage, _ in self._gate.state().alive:
            if stage != "buffered":
                self._start_group(number, self._prompts.at(number), None)
        step = self._resumed.step
        not_done = [each for each in self._resumed.validating if (self._stage, each) not in self._run.validated]
        for lost in (each for each in not_done if each < step):
            self._run.console.say(f"warning: no validation of {self._stage} step {lost}: it was cut off, and the weights are step {step}'s")
        if step in not_done and self.average.figures:
            self._run.console.say(f"warning: no validation of {self._stage} step {step}: it was cut off, and the average was saved")
        elif step in not_done:
            return self._tasks.create_task(
                self.validations.validate(step, self._record.totals, self._tasks), name=f"validation of step {step}"
            )
        return None

    def state(self) -> LoopState:
        """All of the stage that is not in the learner. Between batches only."""
        return LoopState(
            step=self._step,
            gate=self._gate.state(),
            num_replaced=self._num_replaced,
            failed_in_a_row=self._failed_in_a_row,
            sampled=dict(self._sampled),
            buffered=dict(self._buffered),
            record=self._record.state(),
            validating=sorted(self.validations.not_done),
            prompts_per_step=self._run.recipe.grpo.prompts_per_step,
            is_done=self._gate.exhausted,
            prompts=self._prompts.state(),
        )

    @property
    def is_saved(self) -> bool:
        """Whether the last step is in a checkpoint."""
        return self._saved_step == self._step

    async def _save_at_the_end(self) -> None:
        """Save when the job is told to stop. Validations, whose generation is aborted, would hold up the update of the last step by their
        pins: they are ended. That of the last step is done again at resume, others are named there."""
        self.validations.cancel()
        if self._is_set_back:
            self._run.console.say(f"{self._stage} step {self._step} is not saved: a guard has fired; the last checkpoint before stays")
        else:
            await self._save_now()

    async def _save_now(self) -> None:
        """Save what is not saved yet, as soon as the learner has ended its step; it begins no other meanwhile."""
        await self._until(lambda: not self._is_saving, "a checkpoint (learner.limit_s)")
        self._is_saving = True
        try:
            await self._until(lambda: self._is_between_steps, "the learner's step")
            if self._step > self._saved_step:
                if self._is_at_its_own_end:
                    await self.average.take()
                state = self.state()
                is_trained, facts = state.is_done or self.validations.early.has_stopped, self.average.facts()
                await save_checkpoint(self._run, self._stage, self._step, state, is_trained=is_trained, facts=facts)
                self._saved_step = self._step
        finally:
            self._is_saving = False
            self._run.changes.ring()

    @property
    def _is_between_steps(self) -> bool:
        return self._gate.is_between_batches and not self._record.is_open

    async def _prompt_loop(self) -> None:
        size = self._run.recipe.grpo.group_size
        while self._prompts.num_prompts is None or self._gate.num_admitted < self._prompts.num_prompts:
            await self._until(
                lambda: (
                    self._is_at_its_end
                    or (self._gate.can_admit and not self._is_full and self._run.generators.least_loaded(size) is not None)
                ),
                "a slot and a generator with room",
            )
            if self._is_at_its_end:
                break
            replica = self._run.generators.least_loaded(size)
            number = self._gate.admit()
            self._start_group(number, self._prompts.at(number), replica)  # chosen now, when all is known that a choice looks at
            await asyncio.sleep(0)  # the group's task takes its place on the replica before the next one is looked for
        self._gate.close()
        self._run.changes.ring()

    @property
    def _is_full(self) -> bool:
        """Whether the budget is spent, and all that was admitted makes whole batches. A group that is dropped then is still replaced."""
        if not self._run.is_budget_spent:
            return False
        counts = self._gate.counts()
        return (counts.consumed + counts.alive) % self._run.recipe.grpo.prompts_per_step == 0

    @property
    def _is_at_its_end(self) -> bool:
        """Whether the budget is spent, and the last batch is taken."""
        return self._is_full and (counts := self._gate.counts()).alive == counts.training

    def _start_group(self, number: int, prompt: Prompt, replica: Replica[Generator] | None) -> None:
        self._groups[number] = self._tasks.create_task(self._group(number, prompt, replica))
        self._groups[number].add_done_callback(lambda _: self._groups.pop(number))

    async def _group(self, number: int, prompt: Prompt, replica: Replica[Generator] | None) -> None:
        """One group's way from its prompt, or in a resumed run from its responses, to the buffer."""
        group = self._sampled.get(number)
        try:
            if group is None:
                group = await sample_group(self._run, self._stage, prompt, replica)
                self._gate.generated(number, group.min_policy_version)
                self._record.sampled(number)
                self._sampled[number] = group
            group = await grade_group(self._run, group, prompt.problem, self._step_of_reward(prompt.step))
        except GivenUpError as error:
            self._give_up(number, prompt.problem, group, error)
        else:
            self._failed_in_a_row = 0
            self._buffer(number, self._with_advantages(group))
        self._run.changes.ring()

    def _step_of_reward(self, step: int) -> int:
        """The training step that a group admitted for `step` is paid as: where groups were replaced it is consumed before that."""
        return min(step, self._step + 1 + self._run.recipe.driver.max_staleness)

    def _with_advantages(self, group: TrajectoryGroup) -> TrajectoryGroup:
        recipe = self._run.recipe
        return with_advantages(group, recipe.advantage, max_tokens=recipe.generator.max_tokens, function=self._run.advantage_function)

    def _buffer(self, number: int, group: TrajectoryGroup) -> None:
        grpo = self._run.recipe.grpo
        teaches_nothing = any(trajectory.drop_reason == ZERO_VARIANCE for trajectory in group.trajectories)
        self._sampled.pop(number)
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
        self._sampled.pop(number, None)
        if self._failed_in_a_row >= max(FEWEST_FAILURES, self._run.recipe.grpo.prompts_per_step):
            raise GivenUpError(f"{self._failed_in_a_row} prompts in a row failed, the last one ({problem.problem_id}): {error}") from error
        self._gate.drop(number, FAILED)
        self._record.dropped(number, group, FAILED)  # sampled to its end where only its grading failed
        self._run.console.say(f"warning: {problem.problem_id} is dropped: {error}")

    async def _training_loop(self, update: asyncio.Task[None] | None) -> int:
        step = self._step
        while True:
            await self._until(self._may_step, "a batch of graded groups")
            if self._ends_early or not self._gate.batch_ready or self._run.time_limit.is_up():
                break
            self._step = step = step + 1
            groups = self._take(step)
            has_learned = await self._record.train(groups)
            self._gate.stepped(published=has_learned)
            self._run.changes.ring()
            if update is not None:
                await update
            manifest = await self._run.weights.publish(self._gate.learner_version) if has_learned else None
            update = self._tasks.create_task(self._update(step, manifest), name=f"update of step {step}")
            if self._joins(manifest) or is_due(self._run, step):
                await update
            if is_due(self._run, step) and not self._is_set_back:  # asked again: the update takes a while
                await try_to_save(self._run, self._save_now())
        if update is not None:
            await update
        if self._is_set_back:  # by a guard: what would be saved is what the stage goes back from
            return step
        if self._is_at_its_own_end:
            await self.average.publish(step)
        self._run.guards.stage_ended(step)
        await try_to_save(self._run, self._save_now())  # again after the evaluation (study.py), which a full disk must not cost
        return step

    def _may_step(self) -> bool:
        return not self._is_saving and (self._gate.batch_ready or self._gate.exhausted or self._ends_early)

    @property
    def _is_set_back(self) -> bool:
        """Whether a guard wants the stage to go back: these loops end, and others go on from there (rollback.py)."""
        return self._run.guards.setback is not None

    @property
    def _ends_early(self) -> bool:
        return self._is_set_back or self.validations.early.has_stopped

    @property
    def _is_at_its_own_end(self) -> bool:
        """Whether no step is left: then, and not where something has cut the stage, it ends with its average."""
        return self._gate.exhausted and not self._ends_early

    def _drop_the_rest(self) -> None:
        """Where the loops were ended: groups that nobody will train on, and, on the way back, validations that nobody waits for."""
        reason = SET_BACK if self._is_set_back else STOPPED_EARLY if self.validations.early.has_stopped else TIME_IS_UP
        for number, task in self._groups.items():
            task.cancel()
            self._record.dropped(number, self._sampled.get(number), reason)
        for number, group in self._buffered.items():
            self._record.dropped(number, group, reason)
        if self._is_set_back:
            self.validations.cancel()

    def _take(self, step: int) -> list[TrajectoryGroup]:
        """The next batch, in the order of admission, which does not depend on who was fastest."""
        counts, numbers = self._gate.counts(), sorted(self._gate.take())
        self._drop_stale()
        self._num_replaced = 0
        groups = {number: self._buffered.pop(number) for number in numbers}
        self._prompts.remember(step, self._record.begin(step, groups, self._gate.learner_version, counts))
        if self._prompts.is_filtered:
            self._note_skipped(step, self._prompts.num_skipped(numbers[0]))
        self._prompts.forget_before(min([*self._groups, *self._buffered], default=self._gate.num_admitted))
        return list(groups.values())

    def _note_skipped(self, step: int, num_skipped: int) -> None:
        self._record.note({"num_skipped_problems": num_skipped})
        num_problems = len(self._run.train_problems)
        if self._has_told_of_skipped or num_skipped <= MOST_SKIPPED * num_problems:
            return
        self._has_told_of_skipped = True
        self._run.console.say(
            f"warning: {self._stage} step {step}: {num_skipped} of {num_problems} train problems are passed over, since their last "
            f"{self._run.recipe.curriculum.skip_after} groups were all solved or all failed: the model learns from the rest only. Give "
            "other problems in data.train, raise curriculum.skip_after or grpo.group_size, or set curriculum.retry_after"
        )

    def _drop_stale(self) -> None:
        for number in self._gate.stale():
            group = self._buffered.pop(number, None) or self._sampled.pop(number, None)
            self._record.dropped(number, group, STALE)
            self._run.changes.ring()

    def _joins(self, manifest: WeightManifest | None) -> bool:
        """Whether the learner waits for the update: for a canary, which needs it unchanged; where it sends the weights itself, which it
        could only do after the next step; and where nothing is to overlap."""
        sends = manifest is not None and manifest.is_for_all_at_once
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
                metrics |= await canary_metrics(self._run)
        groups, metrics = await self._record.finish(step, metrics)
        self._run.changes.ring()
        self._after_step(step, groups, metrics)
        self._run.guards.look(step, metrics)
        num_tokens = sum(len(trajectory.completion.token_ids) for group in groups for trajectory in group.trajectories)
        num_left = self._run.steps_left(step, self._num_steps, metrics["consumed_tokens_total"])
        self._run.step_measured(self._stage, metrics["step_s"], num_tokens, num_left)
        if is_validation_step(self._run, step) and not self._is_set_back:
            await self.validations.validate(step, metrics, self._tasks)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        keys = "generator.limit_s, learner.limit_s, driver.sync_limit_s and driver.start_limit_s together"
        await self._run.changes.until(holds, lambda: f"{what} ({keys}); groups: {self._gate.counts()}", self._limit_s)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person should read: the first error that was not caused by the end of the others."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
