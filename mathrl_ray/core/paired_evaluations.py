"""Two evaluations, problem by problem: is one checkpoint better than the other on the same problems, by how much, and where?

Called by `python -m mathrl_ray compare` and by the report. Pure: rows in, a comparison out. It compares two checkpoints. What a method is
worth takes several seeds of each, since another seed of the same recipe gives another checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from mathrl_ray.core.breakdown import check_rows, graded_by_problem, is_right
from mathrl_ray.core.intervals import (
    Estimate,
    accuracy_estimate,
    cluster_bootstrap_interval,
    equal_differences_interval,
    paired_rates_interval,
)
from mathrl_ray.core.one_line import one_line
from mathrl_ray.core.paired_tests import mcnemar_exact, sign_flip_test

Row = Mapping[str, Any]
Test = Literal["mcnemar_exact", "sign_flip_exact", "sign_flip_monte_carlo"]
_MOST_IDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The rows of one file of a run's evaluations."""

    name: str
    """What a person calls it, as the command line or the run does."""
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second against first, over the problems that both have a graded sample of."""

    first: str
    second: str
    num_problems: int
    num_left_out: int
    """Problems that one side could not be graded on, or does not have."""
    first_accuracy: Estimate
    second_accuracy: Estimate
    difference: float
    """Second less first, as a fraction."""
    low: float
    high: float
    """95 % interval of the difference."""
    test: Test
    p_value: float
    """Two-sided, of no difference."""
    gained: tuple[str, ...]
    """Ids of problems that the second solves more often than the first."""
    lost: tuple[str, ...]
    warnings: tuple[str, ...]
    """What else differs than the checkpoints, so that the difference may come from it."""


def compare_evaluations(first: Evaluation, second: Evaluation, *, seed: int = 0, shared_only: bool = False) -> Comparison:
    """Pair two evaluations by problem_id.

    With one graded sample a problem on both sides: McNemar's exact test, and Newcombe's interval. With several: the sign-flip test and the
    bootstrap over problems, both of the differences between a problem's means; where all of these are equal, Newcombe's interval as if
    each problem had one sample, since a width of 0 would be a lie. Where the sides have different numbers of samples the
    sign-flip test holds for many problems only.

    Args:
        first: what is compared against.
        second: what is compared.
        seed: of the bootstrap and of drawn sign flips.
        shared_only: compare the problems that both have, where each has some of its own.

    Raises:
        ValueError: other problems, other golds under the same id, another grader; rows that are no single evaluation; nothing graded.
    """
    for evaluation in (first, second):
        try:
            check_rows(evaluation.rows)
        except ValueError as error:
            raise ValueError(f"{evaluation.name}: {error}") from error
    _check_graders(first, second)
    shared = _shared_problems(first, second, shared_only)
    ours, theirs = graded_by_problem(first.rows), graded_by_problem(second.rows)
    both = [problem_id for problem_id in shared if ours[problem_id] and theirs[problem_id]]
    if not both:
        raise ValueError(f"{first.name} and {second.name}: no problem has a graded sample in both, so there is nothing to compare")
    verdicts = [([is_right(row) for row in ours[each]], [is_right(row) for row in theirs[each]]) for each in both]
    differences = [fmean(after) - fmean(before) for before, after in verdicts]
    test, p_value, (low, high) = _tested(verdicts, differences, seed)
    return Comparison(
        first=first.name,
        second=second.name,
        num_problems=len(both),
        num_left_out=len(ours.keys() | theirs.keys()) - len(both),
        first_accuracy=accuracy_estimate([before for before, _ in verdicts], seed=seed),
        second_accuracy=accuracy_estimate([after for _, after in verdicts], seed=seed),
        difference=fmean(differences),
        low=low,
        high=high,
        test=test,
        p_value=p_value,
        gained=tuple(each for each, difference in zip(both, differences, strict=True) if difference > 0),
        lost=tuple(each for each, difference in zip(both, differences, strict=True) if difference < 0),
        warnings=tuple(protocol_differences(first, second)),
    )


def _tested(
    verdicts: Sequence[tuple[Sequence[bool], Sequence[bool]]], differences: Sequence[float], seed: int
) -> tuple[Test, float, tuple[float, float]]:
    """The test, its p-value and the interval of the difference."""
    if all(len(before) == len(after) == 1 for before, after in verdicts):
        pairs = [(before[0], after[0]) for before, after in verdicts]
        only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
        interval = paired_rates_interval(pairs.count((True, True)), only_first, only_second, pairs.count((False, False)))
        return "mcnemar_exact", mcnemar_exact(only_first, only_second), interval
    found = sign_flip_test(differences, seed=seed)
    if max(differences) - min(differences) < 1e-12:  # every resample would be the same
        interval = equal_differences_interval(fmean(fmean(before) for before, _ in verdicts), fmean(differences), len(differences))
    else:
        interval = cluster_bootstrap_interval(differences, seed=seed)
    return "sign_flip_exact" if found.method == "exact" else "sign_flip_monte_carlo", found.p_value, interval


def _check_graders(first: Evaluation, second: Evaluation) -> None:
    """The same response may be right for one grader and wrong for another, so verdicts of two graders are not compared at all."""
    if first.rows[0]["grader"] != second.rows[0]["grader"]:
        told = [f"{each.name} was graded by {each.rows[0]['grader']}" for each in (first, second)]
        raise ValueError(f"{' and '.join(told)}: verdicts of one grader are wanted. `python -m mathrl_ray grade` grades rows again")


def _shared_problems(first: Evaluation, second: Evaluation, shared_only: bool) -> list[str]:
    """The ids that both have, in the order of the first.

    Raises:
        ValueError: they do not have the same problems.
    """
    ours, theirs = ({row["problem_id"]: row for row in each.rows} for each in (first, second))
    shared = [problem_id for problem_id in ours if problem_id in theirs]
    own = [(each.name, [key for key in held if key not in other]) for each, held, other in ((first, ours, theirs), (second, theirs, ours))]
    if not shared or (any(ids for _, ids in own) and not shared_only):
        told = "; ".join(f"{name} has {len(ids)} that the other has not ({_few(ids)})" for name, ids in own if ids)
        advice = f"--shared compares the {len(shared)} that both have" if shared else "none is in both"
        raise ValueError(
            f"{first.name} and {second.name} are not about the same problems: {told}. {advice[0].upper()}{advice[1:]}; the same data.test, "
            "eval.num_problems and (for built-in problems) data.seed give the same problems"
        )
    for column in ("problem", "gold"):
        if differing := [each for each in shared if ours[each][column] != theirs[each][column]]:
            raise ValueError(
                f"{first.name} and {second.name}: the column {column} of {len(differing)} problems is not the same under the same id "
                f"({_few(differing)}), so they are different problems, or their golds were changed"
            )
    return shared


def protocol_differences(first: Evaluation, second: Evaluation) -> list[str]:
    """What differs beside the weights, a sentence each: the prompt (by its name, else by its text), temperature, top_p, max_tokens.

    These are no faults: comparing prompts is a use of it. But the difference is then not the checkpoints' alone, and readers must see so.
    """
    told = []
    for column in ("prompt_name", "temperature", "top_p", "max_tokens"):
        ours, theirs = first.rows[0][column], second.rows[0][column]
        if ours != theirs:
            told.append(f"{column} differs ({ours} and {theirs}), so the difference is not the checkpoints' alone")
    if not any(text.startswith("prompt_name") for text in told):
        prompts = [{row["problem_id"]: row["prompt"] for row in each.rows} for each in (first, second)]
        if num := sum(prompts[0][each] != prompts[1][each] for each in prompts[0].keys() & prompts[1].keys()):
            told.append(f"the prompt's text differs in {num} problems, under one name, so the difference is not the checkpoints' alone")
    numbers = [sorted({len(samples) for samples in graded_by_problem(each.rows).values() if samples}) for each in (first, second)]
    if numbers[0] != numbers[1] and max(map(len, numbers)) == 1:
        told.append(f"samples a problem differ ({numbers[0][0]} and {numbers[1][0]}): each problem still weighs the same")
    return told


def _few(ids: Sequence[str]) -> str:
    return ", ".join(map(one_line, ids[:_MOST_IDS_SHOWN])) + (", ..." if len(ids) > _MOST_IDS_SHOWN else "")
