"""What summary.json and metrics.jsonl hold of an evaluation, from its rows.

Called by evaluation.py. Pure: rows in, plain values out. The statistics are in core/breakdown.py, core/intervals.py and
core/paired_evaluations.py. With one response a problem an interval is Wilson's, with several the bootstrap over problems; what could not
be graded is in no denominator. maj@k takes answers by their spelling; `python -m mathrl_ray analyse` asks the grader which are equal.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mathrl_ray.core.breakdown import Part, Row, Rows, by_level, by_outcome, by_subject, graded_by_problem, whole
from mathrl_ray.core.intervals import accuracy_estimate
from mathrl_ray.core.paired_evaluations import Evaluation, compare_evaluations
from mathrl_ray.core.paired_tests import holm
from mathrl_ray.recipe_checks import DEFAULT_GRADER
from mathrl_ray.types import UNGRADED

Figures = Mapping[str, Any]
"""A stage's entry of summary.json, or what an evaluation gives to it."""


def figures_of(rows: Rows, *, seed: int) -> dict[str, Any]:
    """The figures of one evaluation; those that are means over responses are of all of them, the accuracy of what could be graded.

    Args:
        rows: of one prompt and one version of weights; each problem has as many.
        seed: run.seed, of the bootstrap.

    Returns:
        accuracy, ci95, num_ungraded (responses), num_problems, num_graded_problems, num_samples (responses a problem), format_rate,
        mean_entropy_nats (over all tokens of all responses; None where the learner was not asked), mean_response_tokens,
        mean_right_tokens, mean_wrong_tokens (None without any), at_k, by_level, by_subject (only where known; num_problems is there what
        the accuracy rests on), outcomes (counts).
    """
    found = whole(rows, seed=seed)
    entropies = [row["mean_token_entropy_nats"] for row in rows]
    return {
        "accuracy": found.accuracy.value,
        "ci95": [found.accuracy.low, found.accuracy.high],
        "num_ungraded": found.num_ungraded,
        "num_problems": found.num_problems,
        "num_graded_problems": found.accuracy.num_problems,
        "num_samples": found.num_samples // found.num_problems,
        "format_rate": found.format_rate,
        "mean_entropy_nats": None if None in entropies else fmean(entropies, weights=[row["num_response_tokens"] for row in rows]),
        "mean_response_tokens": fmean(row["num_response_tokens"] for row in rows),
        "mean_right_tokens": found.mean_right_tokens,
        "mean_wrong_tokens": found.mean_wrong_tokens,
        "at_k": [
            {"k": each.k, "pass_at_k": each.pass_at_k, "maj_at_k": each.maj_at_k, "num_problems": each.num_problems} for each in found.at_k
        ],
        "by_level": _parts([row for row in rows if row["level"] is not None], by_level, seed),
        "by_subject": _parts([row for row in rows if row["subject"]], by_subject, seed),
        "outcomes": {each.outcome: each.num_samples for each in by_outcome(rows)},
    }


def _parts(rows: Rows, divided: Any, seed: int) -> list[dict[str, Any]]:
    parts: list[Part] = divided(rows, seed=seed, ks=()) if rows else []
    return [
        {
            "name": part.name,
            "accuracy": part.accuracy.value,
            "ci95": [part.accuracy.low, part.accuracy.high],
            "num_problems": part.accuracy.num_problems,
        }
        for part in parts
    ]


def flat_metrics(figures: Figures) -> dict[str, float]:
    """What a row of metrics.jsonl keeps of an evaluation: numbers only; pass@k and maj@k where there are several responses a problem."""
    names = ("accuracy", "format_rate", "num_problems", "num_ungraded", "num_graded_problems", "mean_response_tokens")
    numbers = {name: figures[name] for name in names}
    if figures["mean_entropy_nats"] is not None:
        numbers["entropy_nats"] = figures["mean_entropy_nats"]
    if figures["num_samples"] > 1:
        numbers["num_samples"] = figures["num_samples"]
        for each in figures["at_k"]:
            numbers |= {f"pass_at_{each['k']}": each["pass_at_k"], f"maj_at_{each['k']}": each["maj_at_k"]}
    return numbers


def figures_by_grader(rows: Rows, graders: Sequence[str], *, seed: int) -> dict[str, dict[str, Any]]:
    """Each grader's accuracy with its interval over what it could grade; a response is right where its outcome is correct."""
    outcomes = {name: [_outcome(row, name) for row in rows] for name in graders}
    return {name: _accuracy(rows, given, seed) for name, given in outcomes.items()}


def _outcome(row: Row, grader: str) -> str:
    if grader == DEFAULT_GRADER:
        return str(row["outcome"])
    return next(str(other["outcome"]) for other in row["graders"] if other["grader"] == grader)


def _accuracy(rows: Rows, outcomes: Sequence[str], seed: int) -> dict[str, Any]:
    problems: dict[str, list[bool]] = {}
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome not in UNGRADED:
            problems.setdefault(row["problem_id"], []).append(outcome == "correct")
    found = accuracy_estimate(list(problems.values()), seed=seed)
    return {
        "accuracy": found.value,
        "ci95": [found.low, found.high],
        "num_ungraded": len(rows) - found.num_samples,
        "num_graded_problems": found.num_problems,
    }


def compared_prompts(evaluations: Sequence[Evaluation], *, seed: int) -> list[dict[str, Any]]:
    """One evaluation a prompt, named by it: its figures, and for all but the first `difference`, itself less the first, problem by problem.

    p_value_holm is adjusted for as many tests as there are other prompts. `difference` is None where no problem could be graded with both.
    """
    first, *others = evaluations
    found = [compare_evaluations(first, each, seed=seed) if _share_a_problem(first, each) else None for each in others]
    adjusted = iter(holm([each.p_value for each in found if each]))
    differences = [
        None
        if each is None
        else {
            "value": each.difference,
            "ci95": [each.low, each.high],
            "test": each.test,
            "p_value": each.p_value,
            "p_value_holm": next(adjusted),
            "num_problems": each.num_problems,
            "num_gained": len(each.gained),
            "num_lost": len(each.lost),
        }
        for each in found
    ]
    kept = ("accuracy", "ci95", "num_ungraded", "num_problems", "num_graded_problems", "num_samples", "format_rate", "mean_response_tokens")
    entries = []
    for evaluation, difference in zip(evaluations, [None, *differences], strict=True):
        figures = figures_of(evaluation.rows, seed=seed)
        entries.append({"name": evaluation.name, **{name: figures[name] for name in kept}, "difference": difference})
    return entries


def _share_a_problem(first: Evaluation, second: Evaluation) -> bool:
    graded = [{key for key, held in graded_by_problem(each.rows).items() if held} for each in (first, second)]
    return bool(graded[0] & graded[1])


def shown_problems(figures: Figures) -> str:
    """How many problems an accuracy rests on, as it is shown; of an older summary too.

    >>> shown_problems({"num_problems": 100, "num_ungraded": 3})
    '97'
    >>> shown_problems({"num_problems": 100, "num_ungraded": 3, "num_graded_problems": 99, "num_samples": 4})
    '99 x 4'
    """
    num_samples = figures.get("num_samples", 1)
    if num_samples == 1:
        return str(figures["num_problems"] - figures["num_ungraded"])
    return f"{figures['num_graded_problems']} x {num_samples}"


def accuracy_text(figures: Figures) -> str:
    """An accuracy as it may be shown: with its interval and its number of problems.

    >>> accuracy_text({"accuracy": 0.5, "ci95": [0.4, 0.6], "num_problems": 100, "num_ungraded": 3})
    'accuracy 50.0 % (40.0 to 60.0) of 97'
    """
    return f"accuracy {percent_text(figures)} of {shown_problems(figures)}"


def percent_text(figures: Figures) -> str:
    """
    >>> percent_text({"accuracy": 0.5, "ci95": [0.4, 0.6]})
    '50.0 % (40.0 to 60.0)'
    """
    low, high = figures["ci95"]
    return f"{100 * figures['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
