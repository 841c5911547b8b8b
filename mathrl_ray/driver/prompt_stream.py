"""Which problem comes when: the order in which groups are admitted, which follows from numbers, and with a filter from the memory too.

Called by loops.py. Knows the run's problems and settings. Group number n (from 0) belongs to step n // grpo.prompts_per_step + 1: that step
is what its id and seeds follow from, and where groups are replaced another step may train on it.

    without a filter    a group's problem follows from its number alone: shuffled passes, with curriculum.order = "level" easy ones first
    with a filter       a step's problems are chosen when its first group is admitted: the next ones of the same passes, without those that
                        `ProblemMemory.passed_over` names. As long as nothing is settled they are those that would come without it, but
                        that none comes twice in a step across the end of a pass

What is known at a choice: the attempts of the batches of steps <= s - 1 - S for step s, with S = driver.max_staleness. They are all there,
whatever driver.on_stale is: group n takes one of (S + 1) B slots, so that floor(n / B) - S batches have been consumed by then (core/
staleness.py). Later ones are left out although some may be there, for who was fastest must not decide what is asked. A group that was
dropped (dynamic_sampling, "stale", "failed") gives its slot to one of a higher number, so that fewer batches may be known than the rule
says: then all that are. With S = 0 that is still the same in every run; with more it depends on what came when, as do the drops themselves.

A run that goes on needs how many groups were admitted; with a filter also the choices that groups still hold, which are in the checkpoint
(`PromptState`), and the memory, which is in its folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from mathrl_ray.core.problem_memory import Attempt, ProblemMemory, easy_first, next_in_turn
from mathrl_ray.core.sampling import batch_indices, epoch_order
from mathrl_ray.driver.elite_rows import missing_attempts, read_attempts
from mathrl_ray.driver.rollouts import Prompt
from mathrl_ray.driver.run import Run


@dataclass(frozen=True, slots=True)
class Choice:
    """The problems of one step, as a filter chose them."""

    problem_ids: tuple[str, ...]
    num_skipped: int
    """How many of all train problems were passed over."""


@dataclass(frozen=True, slots=True)
class PromptState:
    """What the stream needs to go on elsewhere. Made by `PromptStream.state`, kept in checkpoints.

    Example: PromptState(place=6, choices={3: Choice(("p/4", "p/9"), num_skipped=2)})
    """

    place: int | None = None
    """How many turns of the passes are used up; None where no filter has chosen anything."""
    choices: Mapping[int, Choice] = field(default_factory=dict)
    """By step: those that groups hold which are alive or still to be admitted."""

    def plain(self) -> dict[str, Any]:
        return {"place": self.place, "choices": [[step, each.num_skipped, list(each.problem_ids)] for step, each in self.choices.items()]}


def prompt_state(plain: Mapping[str, Any]) -> PromptState:
    """What `PromptState.plain` was made of."""
    return PromptState(plain["place"], {step: Choice(tuple(ids), num_skipped) for step, num_skipped, ids in plain["choices"]})


class PromptStream:
    """The prompts of one stage, by the number of their group."""

    def __init__(self, run: Run, stage: str, state: PromptState | None = None, last_step: int = 0) -> None:
        """
        Args:
            run: the run.
            stage: its name; another stage's attempts are not looked at.
            state: of the stream that this one goes on from.
            last_step: the step that it goes on after; 0 for the beginning.
        """
        self._run, self._stage, self._curriculum = run, stage, run.recipe.curriculum
        self._size, self._num_steps_remembered = run.recipe.grpo.prompts_per_step, last_step
        self._passes: dict[int, list[int]] = {}
        self._choices: dict[int, Choice] = {}
        self._place: int | None = None
        self._memory = ProblemMemory(kept_groups=self._curriculum.skip_after)
        self._unread: dict[int, list[Attempt]] = {}
        """Attempts that are too new for any choice so far, by step."""
        if state is not None and self.is_filtered:
            known = self._by_id
            self._place = state.place  # a choice that names a problem which is gone is made anew
            self._choices = {step: each for step, each in state.choices.items() if all(name in known for name in each.problem_ids)}
        if last_step and self.is_filtered:
            self._read_memory(last_step)

    def _read_memory(self, last_step: int) -> None:
        if missing := missing_attempts(self._run.recorder.folder, self._stage, last_step):
            self._run.console.say(
                f"warning: problem_memory holds nothing of {len(missing)} of {last_step} steps of {self._stage}, the first {missing[0]}: "
                "the filter (curriculum.skip_after) takes up what is there"
            )
        known = last_step - self._run.recipe.driver.max_staleness  # to every choice that is still to be made
        attempts = read_attempts(self._run.recorder.folder, self._stage, last_step)
        for step, of_step in groupby(attempts, key=lambda each: each.step):
            if step <= known:
                self._memory.add(of_step)
            else:
                self._unread[step] = list(of_step)

    @property
    def is_filtered(self) -> bool:
        return self._curriculum.skip_after > 0

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {problem.problem_id: index for index, problem in enumerate(self._run.train_problems)}

    @property
    def num_prompts(self) -> int | None:
        """How many there are in all, with grpo.num_epochs; None for no end."""
        return self._run.recipe.grpo.num_epochs * len(self._run.train_problems) or None

    def at(self, number: int) -> Prompt:
        """The prompt of the group that is admitted as number `number`, from 0. With a filter the first of a step is asked for only when
        its group can be admitted."""
        step, index = number // self._size + 1, number % self._size
        chosen = self._chosen(step)
        return Prompt(step, index, self._run.train_problems[chosen[index]], repeat=chosen[:index].count(chosen[index]))

    def _chosen(self, step: int) -> Sequence[int]:
        """Indices of a step's problems, in order."""
        if self.is_filtered:
            return [self._by_id[problem_id] for problem_id in self._choice(step).problem_ids]
        grpo, seed, num_problems = self._run.recipe.grpo, self._run.recipe.run.seed, len(self._run.train_problems)
        if not grpo.num_epochs and self._curriculum.order == "shuffled":
            return _batch_indices(num_problems, self._size, step - 1, seed)
        places = range((step - 1) * self._size, min(step * self._size, self.num_prompts or step * self._size))
        return [self._pass(place // num_problems)[place % num_problems] for place in places]

    def _choice(self, step: int) -> Choice:
        if step not in self._choices:
            self._choices[step] = self._choose(step)
        return self._choices[step]

    def _choose(self, step: int) -> Choice:
        max_staleness, num_problems = self._run.recipe.driver.max_staleness, len(self._run.train_problems)
        known = min(step - 1 - max_staleness, self._num_steps_remembered)
        for each in sorted(each for each in self._unread if each <= known):
            self._memory.add(self._unread.pop(each))
        skipped = self._memory.passed_over(
            self._by_id, step=known + 1 + max_staleness, last_groups=self._curriculum.skip_after, retry_after=self._curriculum.retry_after
        )
        place = (step - 1) * self._size if self._place is None else self._place
        first, offset = divmod(place, num_problems)
        turns = [*self._pass(first)[offset:], *self._pass(first + 1)]  # every problem has at least one
        chosen, num_used = next_in_turn([self._run.train_problems[index].problem_id for index in turns], self._size, skipped)
        self._place = place + num_used
        return Choice(tuple(chosen), len(skipped))

    def _pass(self, number: int) -> list[int]:
        """All problems' indices in the order of one pass, from 0."""
        if number not in self._passes:
            problems = self._run.train_problems
            order = epoch_order(len(problems), self._run.recipe.run.seed, number)
            if self._curriculum.order == "level":
                order = easy_first(order, [problem.level for problem in problems], pass_length=len(problems))
            self._passes = {each: past for each, past in self._passes.items() if each >= number - 1} | {number: order}
        return self._passes[number]

    def remember(self, step: int, attempts: Iterable[Attempt]) -> None:
        """What a step's batch was taken with: the attempts of its groups, and of those that were dropped since the one before."""
        self._num_steps_remembered = step
        if self.is_filtered:
            self._unread[step] = list(attempts)

    def num_skipped(self, number: int) -> int:
        """How many of all train problems were passed over when the problem of this group was chosen; 0 without a filter."""
        return self._choice(number // self._size + 1).num_skipped if self.is_filtered else 0

    def forget_before(self, number: int) -> None:
        """No group of a lower number will be asked about again."""
        self._choices = {step: each for step, each in self._choices.items() if step > number // self._size}

    def state(self) -> PromptState:
        return PromptState(self._place, dict(self._choices))


_batch_indices = lru_cache(64)(batch_indices)
"""Groups are admitted one by one, and all of a step need the same order."""
