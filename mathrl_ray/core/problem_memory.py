"""What became of every attempt at every problem: which problems still teach something, and which are hard.

Called by expert iteration and by driver/prompt_stream.py, which give it each step's graded groups; stored by driver/elite_rows.py. Pure:
records in, answers out, whatever the order in which the groups of a step come.

The filter: a problem whose last k groups were all solved, or all failed, by every response is settled and passed over. It looks at
outcomes, not at rewards: where only the answer is paid, such a group teaches nothing (its advantages are 0); where reward.format,
reward.length or a reward function pays too, it could still teach that, and is passed over all the same. It comes back after `retry_after`
steps, since the policy is another by then. Never are all passed over: where too few are left, those that were tried longest ago fill the
step.

A memory is one stage's. Another stage of the same run begins from its own start model, of which these attempts say nothing, so that it
begins with an empty memory; in a study GRPO does not pass over what expert iteration has solved.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mathrl_ray.types import UNGRADED, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Attempt:
    """One graded response to one problem.

    Example: Attempt("arithmetic/train/17", group_id="expert_iteration-2/5", step=2, sample=3, solved=True, num_tokens=17, policy_version=1)
    """

    problem_id: str
    group_id: str
    step: int
    """A round, in expert iteration."""
    sample: int
    solved: bool
    """Whether its outcome is correct, whatever it was paid."""
    num_tokens: int
    policy_version: int
    """Of the newest weights that sampled a token of it."""


def attempts_of(group: TrajectoryGroup, step: int) -> list[Attempt]:
    """The attempts that one graded group makes; a response that could not be graded is nobody's error, and none."""
    return [
        Attempt(
            problem_id=each.problem_id,
            group_id=each.group_id,
            step=step,
            sample=each.sample,
            solved=each.grade.outcome == "correct",
            num_tokens=len(each.completion.token_ids),
            policy_version=each.completion.max_policy_version,
        )
        for each in group.trajectories
        if each.grade.outcome not in UNGRADED
    ]


class ProblemMemory:
    """All attempts so far, by problem; or those of each problem's last groups, which are all that the filter asks about."""

    def __init__(self, attempts: Iterable[Attempt] = (), *, kept_groups: int = 0) -> None:
        """
        Args:
            attempts: as `add` takes them.
            kept_groups: how many of a problem's last groups are kept; 0: all. Thousands of steps fill gigabytes otherwise.
        """
        self._kept_groups = kept_groups
        self._groups: dict[str, dict[tuple[int, str], list[Attempt]]] = defaultdict(lambda: defaultdict(list))
        self.add(attempts)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Steps may come in any order; with `kept_groups` a group has to come whole, in one call."""
        tried = set()
        for each in attempts:
            self._groups[each.problem_id][each.step, each.group_id].append(each)
            tried.add(each.problem_id)
        for groups in (self._groups[problem_id] for problem_id in tried if self._kept_groups):
            for key in sorted(groups)[: -self._kept_groups]:
                del groups[key]

    @property
    def attempts(self) -> list[Attempt]:
        """By problem, step, group and sample."""
        everyone = (each for groups in self._groups.values() for group in groups.values() for each in group)
        return sorted(everyone, key=lambda each: (each.problem_id, each.step, each.group_id, each.sample))

    def solved_shares(self) -> dict[str, float]:
        """By problem_id, how much of all attempts was solved, in [0, 1]."""
        return {name: _solved_share(groups.values()) for name, groups in self._groups.items()}

    def is_settled(self, problem_id: str, last_groups: int) -> bool:
        """Whether all responses of the last `last_groups` groups were right, or all were wrong; not where there were fewer groups."""
        groups = self._groups.get(problem_id, {})
        if len(groups) < last_groups or last_groups < 1:
            return False
        last = [groups[key] for key in sorted(groups)[-last_groups:]]
        return _solved_share(last) in (0.0, 1.0)

    def last_step(self, problem_id: str) -> int:
        """When it was tried last; 0 for never."""
        return max((step for step, _ in self._groups.get(problem_id, {})), default=0)

    def passed_over(self, problem_ids: Iterable[str], *, step: int, last_groups: int, retry_after: int = 0) -> dict[str, int]:
        """Those of the problems that are settled and have not rested yet, in their order, and when each was tried last.

        Args:
            problem_ids: the problems.
            step: the present one, from 1.
            last_groups: the filter's k; 0 for no filter.
            retry_after: steps after which a settled problem counts as unsettled again; 0 for never.
        """
        settled = [problem_id for problem_id in problem_ids if last_groups and self.is_settled(problem_id, last_groups)]
        tried = {problem_id: self.last_step(problem_id) for problem_id in settled}
        return {problem_id: last for problem_id, last in tried.items() if not 0 < retry_after <= step - last}


def _solved_share(groups: Iterable[Sequence[Attempt]]) -> float:
    attempts = [each for group in groups for each in group]
    return sum(each.solved for each in attempts) / len(attempts)


def choose_problems(
    order: Sequence[str], num_wanted: int, memory: ProblemMemory, *, step: int, last_groups: int, retry_after: int = 0
) -> list[str]:
    """The first `num_wanted` problems of an order that still teach something, in its order.

    Where fewer do, settled ones fill up: those that were tried longest ago first, of equal ones the first in the order. So as many come
    as are wanted, whatever was settled, and without a filter just the first ones.

    Args:
        order: problem_ids, none twice.
        num_wanted: at most as many as there are.
        memory: of all attempts before this step.
        step: the present one, from 1.
        last_groups: the filter's k; 0 for no filter.
        retry_after: steps after which a settled problem counts as unsettled again; 0 for never.

    Raises:
        ValueError: more are wanted than there are, or a problem stands in the order twice.

    >>> choose_problems(["a", "b", "c"], 2, ProblemMemory(), step=1, last_groups=2)
    ['a', 'b']
    """
    if num_wanted > len(order) or len(set(order)) < len(order):
        raise ValueError(
            f"{num_wanted} problems are wanted of {len(set(order))} different ones: lower expert_iteration.questions (or "
            "grpo.prompts_per_step), or give more in data.train"
        )

    skipped = memory.passed_over(order, step=step, last_groups=last_groups, retry_after=retry_after)
    return _filled_up(order, num_wanted, skipped)


def _filled_up(order: Iterable[str], num_wanted: int, skipped: Mapping[str, int]) -> list[str]:
    teaching = [problem_id for problem_id in order if problem_id not in skipped]
    resting = [problem_id for problem_id in order if problem_id in skipped]
    return [*teaching, *sorted(resting, key=skipped.__getitem__)][:num_wanted]  # sorted() keeps the order of equal ones


def next_in_turn(turns: Sequence[str], num_wanted: int, skipped: Mapping[str, int]) -> tuple[list[str], int]:
    """The next problems of an order in which each comes again and again, and how many of its turns they use up.

    As `choose_problems`, of all that have a turn: none comes twice, and skipped ones fill up where too few others have one. A skipped
    problem's turn is lost, and the turn of one that was chosen just before, at the end of the last pass. What fills up uses no turn.

    Args:
        turns: problem_ids, each as often as it has a turn.
        num_wanted: at most as many as there are different ones.
        skipped: `ProblemMemory.passed_over`.

    >>> next_in_turn(["a", "b", "c", "a", "b", "c"], 2, skipped={"b": 1})
    (['a', 'c'], 3)
    >>> next_in_turn(["a", "b", "c", "a", "b", "c"], 3, skipped={"b": 2, "c": 1})
    (['a', 'c', 'b'], 1)
    """
    chosen: dict[str, None] = {}
    num_used = 0
    for turn, problem_id in enumerate(turns, start=1):
        if len(chosen) == num_wanted:
            break
        if problem_id not in skipped and problem_id not in chosen:
            chosen[problem_id], num_used = None, turn
    return (list(chosen) if len(chosen) == num_wanted else _filled_up(list(dict.fromkeys(turns)), num_wanted, skipped)), num_used


def easy_first(plan: Sequence[int], levels: Sequence[int | None], pass_length: int) -> list[int]:
    """A curriculum: the same problems in another order, easy ones first.

    Sorted is what the run will ask anyway, pass by pass over the data, so that a run shorter than a pass still sees every level, and none
    more often than it would have. Problems of one level stay in their order; those without a level come last of their pass.

    Args:
        plan: indices of problems, in the order in which they would be asked.
        levels: of the problems, by index.
        pass_length: how many of the plan are one pass over the data.

    >>> easy_first([2, 0, 1, 2], levels=[5, 1, 3], pass_length=3)
    [1, 2, 0, 2]
    """

    def difficulty(index: int) -> float:
        level = levels[index]
        return float("inf") if level is None else level

    passes = (plan[start : start + pass_length] for start in range(0, len(plan), pass_length))
    return [index for each in passes for index in sorted(each, key=difficulty)]
