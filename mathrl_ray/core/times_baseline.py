"""How many times the accuracy of a baseline, with an interval. Called by report/results.py. Pure: numbers in and out.

The ratio of two accuracies on the same problems: its interval must know that they are the same problems, and that a baseline of a few right
answers says little about a ratio.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

NUM_RESAMPLES = 10_000
FEWEST_RIGHT = 10.0
"""Right answers of the baseline, below which resamples of a ratio run off to infinity."""


def times_baseline(pairs: Sequence[tuple[float, float]], *, seed: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Percentile interval of mean(after) / mean(before) under resampling of problems (Efron and Tibshirani 1993, chapter 13).

    A problem is drawn as a pair, so that what makes it easy for both counts once. Only how often each pair of values is drawn matters, and
    those counts are multinomial.

    Args:
        pairs: of each problem the share of right samples, (baseline's, the other's).
        seed: the same seed gives the same interval.
        confidence: in (0, 1).

    Returns:
        None where the baseline solved fewer than FEWEST_RIGHT problems, counted by their shares.

    Raises:
        ValueError: a confidence outside of (0, 1).

    >>> low, high = times_baseline([(1.0, 1.0)] * 100 + [(0.0, 1.0)] * 200 + [(0.0, 0.0)] * 100, seed=0)
    >>> 2.5 < low < 2.6, 3.5 < high < 3.6
    (True, True)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if sum(before for before, _ in pairs) < FEWEST_RIGHT:
        return None
    counted = Counter(pairs)
    values, counts = np.array(list(counted)), np.array(list(counted.values()), dtype=np.float64)
    drawn = np.random.default_rng(seed).multinomial(len(pairs), counts / len(pairs), size=NUM_RESAMPLES) @ values
    before, after = drawn[:, 0], drawn[:, 1]
    ratios = after[before > 0] / before[before > 0]  # with 10 right answers a resample without any comes once in 20,000
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
