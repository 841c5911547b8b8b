"""Figures of one stage over several seeds: means with a t interval, and whether the intervals of two lie apart.

Called by sweep_job.py for the summary of a sweep, and by driver/sweep_table.py. Pure: numbers and plain values in and out.

The interval over seeds says how far the mean over many seeds, on the same test problems, may lie from the mean of these. One more seed's
accuracy may lie farther out, and that other problems would give other accuracies is not in it. A seed's own interval (Wilson's, or the
bootstrap over problems) is about other problems, and not about other seeds.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

Figures = Mapping[str, Any]
"""A stage's entry of summary.json."""


def seed_interval(accuracies: Sequence[float], confidence: float = 0.95, bounds: tuple[float, float] = (0.0, 1.0)) -> tuple[float, float]:
    """Student's interval of the mean of rates, or of their differences, one a seed: mean -+ t s / sqrt(n), cut to the bounds.

    s is the sample standard deviation and t the quantile (1 + confidence) / 2 with n - 1 degrees of freedom (Student 1908): with 3 seeds
    4.30, so that few seeds that differ say little.

    Args:
        accuracies: as fractions, at least two; or differences of such.
        confidence: in (0, 1).
        bounds: that no mean can leave: (-1, 1) for differences.

    Raises:
        ValueError: fewer than two, or a confidence outside of (0, 1).

    >>> [round(end, 4) for end in seed_interval([0.4, 0.5, 0.6])]
    [0.2516, 0.7484]
    """
    if len(accuracies) < 2:
        raise ValueError(f"an interval over seeds needs at least 2 of them, got {len(accuracies)}: name more in study.seeds")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    quantile = float(stdtrit(len(accuracies) - 1, (1 + confidence) / 2))
    half_width = quantile * stdev(accuracies) / sqrt(len(accuracies))
    return max(bounds[0], fmean(accuracies) - half_width), min(bounds[1], fmean(accuracies) + half_width)


def over_seeds(name: str, runs: Sequence[Figures]) -> dict[str, Any]:
    """A stage's figures over seeds: each number the mean of the runs' numbers, `ci95` over the seeds, and all runs in `per_seed`.

    So every number, generated tokens and seconds too, is that of one run, and can be set beside the summary of a single run. What only
    some runs have, or what is no number (or a mapping of numbers), is in `per_seed` alone. For one seed `ci95` is that seed's own; where
    all seeds have the same accuracy, whose interval's width of 0 would be a lie, it reaches as far as the seeds' own do.

    Args:
        name: of the stage.
        runs: its entry in each run's summary, with `seed` beside it.

    Raises:
        ValueError: no run.

    >>> block = over_seeds("grpo", [{"seed": 0, "accuracy": 0.4, "ci95": [0.3, 0.5]}, {"seed": 1, "accuracy": 0.6, "ci95": [0.5, 0.7]}])
    >>> block["accuracy"], [round(end, 2) for end in block["ci95"]], len(block["per_seed"])
    (0.5, [0.0, 1.0], 2)
    """
    if not runs:
        raise ValueError(f"{name}: no run has finished it, so there is nothing to take a mean of")
    kept = [{key: value for key, value in run.items() if key not in ("name", "per_seed")} for run in runs]
    means = _means([{key: value for key, value in run.items() if key not in ("seed", "ci95")} for run in kept])
    low, high = mean_interval([run["accuracy"] for run in runs], [run["ci95"] for run in runs])
    return {"name": name, **means, "ci95": [low, high], "per_seed": kept}


def mean_interval(accuracies: Sequence[float], own: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Interval of the mean over seeds; where they do not differ, as far as their own intervals (low, high) reach.

    >>> mean_interval([0.5, 0.5], [(0.4, 0.55), (0.45, 0.6)])
    (0.4, 0.6)
    """
    if max(accuracies) - min(accuracies) > 1e-12:
        return seed_interval(accuracies)
    return min(low for low, _ in own), max(high for _, high in own)


def _means(values: Sequence[Figures]) -> dict[str, Any]:
    """Of the keys that all have as numbers, or as mappings of numbers; a mean of whole numbers that is whole stays one."""
    means: dict[str, Any] = {}
    for key in values[0]:
        found = [value.get(key) for value in values]
        if all(isinstance(each, Mapping) for each in found):
            if inner := _means([each for each in found if isinstance(each, Mapping)]):
                means[key] = inner
        elif all(isinstance(each, int | float) and not isinstance(each, bool) for each in found):
            means[key] = _mean([each for each in found if isinstance(each, int | float)])
    return means


def _mean(values: Sequence[float]) -> float:
    if all(isinstance(value, int) for value in values) and sum(values) % len(values) == 0:
        return sum(values) // len(values)
    return fmean(values)


def neighbours(blocks: Sequence[tuple[str, Figures]]) -> list[str]:
    """One sentence for each two that follow each other by accuracy: how far apart, and whether their intervals overlap.

    Args:
        blocks: names with figures that hold `accuracy` and `ci95`.

    >>> neighbours([("sft", {"accuracy": 0.30, "ci95": [0.28, 0.32]}), ("sft_filtered", {"accuracy": 0.381, "ci95": [0.36, 0.40]})])
    ['sft_filtered is above sft by 8.1 points; their intervals do not overlap']
    """
    ranked = sorted(blocks, key=lambda block: block[1]["accuracy"])  # equal ones in their order
    return [_sentence(*better, *worse) for worse, better in pairwise(ranked)]


def _sentence(better: str, of_better: Figures, worse: str, of_worse: Figures) -> str:
    points = round(100 * (of_better["accuracy"] - of_worse["accuracy"]), 1)
    apart = of_better["ci95"][0] > of_worse["ci95"][1]
    how = f"is above {worse} by {points:.1f} points" if points else f"and {worse} are equal to 0.1 points"
    return f"{better} {how}; their intervals {'do not overlap' if apart else 'overlap'}"
