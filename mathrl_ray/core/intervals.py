"""Intervals of accuracies, and of the difference between two accuracies on the same problems.

Called by breakdown.py and paired_evaluations.py, and by whoever shows an accuracy. Pure: numbers in and out; chance follows from `seed`.
A problem is one cluster: its samples resemble each other, so they are drawn together or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Literal

import numpy as np

from mathrl_ray.core.statistics import wilson_interval

NUM_RESAMPLES = 10_000
_MOST_DRAWS = 4_000_000
"""Numbers that one block of resamples may hold (32 MB)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An accuracy, never without its interval and what it rests on. All rates are fractions."""

    value: float
    low: float
    high: float
    method: Literal["wilson", "cluster_bootstrap"]
    num_problems: int
    num_samples: int


def accuracy_estimate(problems: Sequence[Sequence[bool]], *, seed: int, confidence: float = 0.95) -> Estimate:
    """Mean over problems of the share of right samples, with its interval; 0.0 (0.0 to 1.0) without any sample.

    Wilson's interval where no problem has more than one sample, else the bootstrap over problems, widened to Wilson's over all samples:
    near 0 and 1 few problems differ from the others, and resamples of them say too little (it would cover 87 % with 40 problems of 4
    samples and a rate of 2 %). Where all problems have the same share of right samples every resample is the same: then Wilson's interval
    as if each problem had one sample, which is too wide rather than too narrow.

    Args:
        problems: of each problem, which samples are right; those without a sample are left out. Where some have more samples than
            others, each problem still weighs the same.
        seed: of the resamples.
        confidence: in (0, 1).

    Raises:
        ValueError: a confidence outside of (0, 1).

    >>> estimate = accuracy_estimate([[True], [False], [True], [True]], seed=0)
    >>> estimate.value, round(estimate.low, 2), estimate.method
    (0.75, 0.3, 'wilson')
    """
    answered = [samples for samples in problems if samples]
    num_problems, num_samples = len(answered), sum(map(len, answered))
    means = [sum(samples) / len(samples) for samples in answered]
    value = sum(means) / num_problems if means else 0.0
    if num_samples == num_problems or len(set(means)) == 1:
        low, high = _wilson_of_rate(value, num_problems, confidence)
        return Estimate(value, low, high, "wilson", num_problems, num_samples)
    resampled = cluster_bootstrap_interval(means, seed=seed, confidence=confidence)
    independent = _wilson_of_rate(value, num_samples, confidence)
    low, high = min(resampled[0], independent[0]), max(resampled[1], independent[1])
    return Estimate(value, low, high, "cluster_bootstrap", num_problems, num_samples)


def _wilson_of_rate(rate: float, num_trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval around the nearest count; where the rate is no count (0.25 of 3 problems), of both counts beside it."""
    below, above = _counts_beside(rate * num_trials)
    return wilson_interval(below, num_trials, confidence)[0], wilson_interval(above, num_trials, confidence)[1]


def _counts_beside(number: float) -> tuple[int, int]:
    """
    >>> _counts_beside(1.5), _counts_beside(0.1 * 3 * 10)
    ((1, 2), (3, 3))
    """
    return floor(number + 1e-9), ceil(number - 1e-9)


def cluster_bootstrap_interval(
    means: Sequence[float], *, seed: int, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> tuple[float, float]:
    """Percentile interval of the mean of `means` under resampling of problems (Efron and Tibshirani 1993, chapter 13).

    One mean a problem, drawn with replacement as a whole, so that what the samples of a problem share counts once. Only how often each
    value is drawn matters, and those counts are multinomial: a resample costs as many draws as there are different values, not problems.
    Too narrow with fewer than some 30 problems, and with any number where nearly all have the same value: see accuracy_estimate.

    Args:
        means: one number a problem: a share of right samples, or a difference of two.
        seed: the same seed gives the same interval.
        confidence: in (0, 1).
        num_resamples: of all problems each.

    Raises:
        ValueError: no problem, a confidence outside of (0, 1), or fewer than 100 resamples.

    >>> low, high = cluster_bootstrap_interval([0.0, 0.5, 1.0, 0.5] * 50, seed=0)
    >>> 0.44 < low < 0.46, 0.54 < high < 0.56
    (True, True)
    """
    if not len(means):
        raise ValueError("an interval needs at least 1 problem with a graded sample, got none")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if num_resamples < 100:
        raise ValueError(f"num_resamples = {num_resamples}: the ends of an interval need at least 100")
    values, counts = np.unique(np.asarray(means, dtype=np.float64), return_counts=True)
    draw = np.random.default_rng(seed)
    block = max(1, _MOST_DRAWS // len(values))
    sizes = [min(block, num_resamples - start) for start in range(0, num_resamples, block)]
    drawn = [draw.multinomial(len(means), counts / len(means), size=size) @ values for size in sizes]
    low, high = np.quantile(np.concatenate(drawn) / len(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def paired_rates_interval(both: int, only_first: int, only_second: int, neither: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of (rate of the second - rate of the first) on the same problems, one sample each.

    Newcombe 1998 (Statistics in Medicine 17, 2635), method 10: the distances of the two Wilson intervals, added as squares, less twice
    their product times the correlation phi of the two verdicts (whose numerator loses n / 2 where it is positive, down to 0). Unlike the
    bootstrap it has a width where no problem changed sides.

    Args:
        both: problems that both solved.
        only_first: that only the first solved.
        only_second: that only the second solved.
        neither: that none solved.
        confidence: in (0, 1).

    Raises:
        ValueError: a negative count, no problem, or a confidence outside of (0, 1).

    >>> [round(end, 3) for end in paired_rates_interval(both=40, only_first=5, only_second=15, neither=40)]
    [0.012, 0.184]
    """
    num = both + only_first + only_second + neither
    if num < 1 or min(both, only_first, only_second, neither) < 0:
        raise ValueError(f"counts ({both}, {only_first}, {only_second}, {neither}): none may be negative, and together at least 1")
    num_first, num_second = both + only_first, both + only_second
    first, second = num_first / num, num_second / num
    first_low, first_high = wilson_interval(num_first, num, confidence)
    second_low, second_high = wilson_interval(num_second, num, confidence)
    phi = _correlation(both, only_first, only_second, neither)
    below = _square_and_add(second - second_low, first_high - first, phi)
    above = _square_and_add(second_high - second, first - first_low, phi)
    difference = (only_second - only_first) / num
    return difference - below, difference + above


def equal_differences_interval(first: float, difference: float, num_problems: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a difference that is the same in every problem, where resamples have no width: as if each problem had one sample.

    It is paired_rates_interval with the nearest counts; where the difference is no count (0.25 of 3 problems), of both counts beside it.

    Args:
        first: rate of the first, over all problems.
        difference: of the second less the first.
        num_problems: at least 1.
        confidence: in (0, 1).

    >>> [round(end, 3) for end in equal_differences_interval(first=0.0, difference=1.0, num_problems=2)]
    [0.07, 1.0]
    """
    if difference < 0:
        low, high = equal_differences_interval(first + difference, -difference, num_problems, confidence)
        return -high, -low
    ends = []
    for gained in _counts_beside(difference * num_problems):
        both = min(round(first * num_problems), num_problems - gained)
        ends.append(paired_rates_interval(both, 0, gained, num_problems - both - gained, confidence))
    return ends[0][0], ends[1][1]


def _correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    """Phi of the 2 x 2 table, shrunk as Newcombe's method 10 does; 0 where one side solved all or none."""
    num = both + only_first + only_second + neither
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    product = both * neither - only_first * only_second
    if product > 0:
        return max(product - num / 2, 0.0) / sqrt(margins)
    return product / sqrt(margins) if margins else 0.0


def _square_and_add(one: float, other: float, phi: float) -> float:
    # never below 0 but for rounding: it is at least (one - other) ** 2
    return sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))
