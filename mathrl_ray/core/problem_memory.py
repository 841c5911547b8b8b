"""What became of every attempt at every problem: which problems still teach something, and which are hard.

Called by the stages, which give it each step's graded groups; stored by driver/memory_rows.py. Pure: records in, answers out, whatever the
order in which the groups of a step come.

The filter: a problem whose last k groups were all solved, or all failed, by every response teaches nothing (its advantages are 0) and is
passed over. It comes back after `retry_after` steps, since the policy is another by then. Never are all passed over: where too few are
left, those that were tried longest ago fill the step.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    """All attempts so far, by problem."""

    def __init__(self, attempts: Iterable[Attempt] = ()) -> None:
        self._groups: dict[str, dict[tuple[int, str], list[Attempt]]] = defaultdict(lambda: defaultdict(list))
        self.add(attempts)

    def add(self, attempts: Iterable[Attempt]) -> None:
        for each in attempts:
            self._groups[each.problem_id][each.step, each.group_id].append(each)

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

    def is_skipped(problem_id: str) -> bool:
        rested = 0 < retry_after <= step - memory.last_step(problem_id)
        return last_groups > 0 and not rested and memory.is_settled(problem_id, last_groups)

    skipped = {problem_id: memory.last_step(problem_id) for problem_id in order if is_skipped(problem_id)}
    teaching = [problem_id for problem_id in order if problem_id not in skipped]
    return [*teaching, *sorted(skipped, key=skipped.__getitem__)][:num_wanted]  # sorted() keeps the order of equal ones


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
