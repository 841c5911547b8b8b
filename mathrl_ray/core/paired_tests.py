"""Is one accuracy really above another on the same problems? Exact tests where they can be had, seeded chance else.

Called by paired_evaluations.py. Pure: numbers in, p-values out. All are two-sided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Literal

import numpy as np
from scipy.special import bdtr, gammaln

MOST_EXACT_SUMS = 2**18
"""Sign flips are enumerated up to this many sums that can be told apart."""
NUM_FLIPS = 20_000
_MOST_DRAWS = 4_000_000
_SAME = 1e-9
"""Sums this close, relative to the largest possible one, are equal but for rounding."""
TEST_NAMES = {
    "mcnemar_exact": "McNemar's exact test",
    "sign_flip_exact": "sign-flip test, all flips",
    "sign_flip_monte_carlo": "sign-flip test, drawn flips",
}
"""What a person calls each test of paired_evaluations.py."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """What `sign_flip_test` found."""

    p_value: float
    method: Literal["exact", "monte_carlo"]


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """McNemar's exact test (McNemar 1947): were the problems that only one of two solved as likely to be the one's as the other's?

    Without a difference each of the n = only_first + only_second falls to a side like a coin, so p = min(1, 2 P(Binomial(n, 1/2) <=
    min(only_first, only_second))). Problems that both or none solved say nothing about it.

    Args:
        only_first: problems that only the first solved.
        only_second: problems that only the second solved.

    Raises:
        ValueError: a negative count.

    >>> round(mcnemar_exact(1, 5), 5), mcnemar_exact(0, 0)
    (0.21875, 1.0)
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"counts ({only_first}, {only_second}) must not be negative")
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def sign_flip_test(differences: Sequence[float], *, seed: int, num_flips: int = NUM_FLIPS) -> SignFlip:
    """Sign-flip permutation test that the mean of paired differences is 0 (Fisher 1935, section 21).

    Without a difference each problem's d is as likely as -d, so |sum d| is held against the sums with all signs flipped at random:
    p = P(|sum s_i d_i| >= |sum d_i|). Differences of the same size need one binomial draw together. Where that leaves at most
    MOST_EXACT_SUMS sums, all are counted; else num_flips of them are drawn, and p = (1 + hits) / (1 + num_flips), so that it is never 0
    (Phipson and Smyth 2010). With differences of -1, 0 and 1 only it is McNemar's exact test.

    Args:
        differences: of each problem, mean of the second less mean of the first.
        seed: of the drawn signs; not used where all are counted.
        num_flips: how many are drawn.

    Raises:
        ValueError: a difference that is no finite number, or no flips.

    >>> sign_flip_test([0.5, 0.25, 0.25], seed=0)
    SignFlip(p_value=0.25, method='exact')
    """
    given = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(given).all():
        raise ValueError("differences must be finite numbers: leave out the problems without a graded sample on both sides")
    if num_flips < 1:
        raise ValueError(f"num_flips must be at least 1, got {num_flips}")
    # 1/3 - 1/4 and 2/3 - 7/12 are one size, but for rounding
    sizes, counts = np.unique(np.round(np.abs(given[given != 0]), 12), return_counts=True)
    limit = abs(float(given.sum())) - _SAME * max(float(sizes @ counts), 1e-300)
    if prod(int(count) + 1 for count in counts) <= MOST_EXACT_SUMS:
        return SignFlip(_share_of_all_sums(sizes, counts, limit), "exact")
    return SignFlip((1 + _num_drawn_beyond(sizes, counts, limit, seed, num_flips)) / (1 + num_flips), "monte_carlo")


def _share_of_all_sums(sizes: np.ndarray, counts: np.ndarray, limit: float) -> float:
    """P(|sum| >= limit) over all flips; of `count` differences of one size, k keep their sign with a binomial weight."""
    sums, weights = np.zeros(1), np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        kept = np.arange(count + 1)
        ways = np.exp(gammaln(count + 1) - gammaln(kept + 1) - gammaln(count - kept + 1) - count * log(2))
        sums = np.add.outer(sums, size * (2 * kept - count)).ravel()
        weights = np.multiply.outer(weights, ways).ravel()
    return min(1.0, float(weights[np.abs(sums) >= limit].sum()))


def _num_drawn_beyond(sizes: np.ndarray, counts: np.ndarray, limit: float, seed: int, num_flips: int) -> int:
    draw = np.random.default_rng(seed)
    block = max(1, _MOST_DRAWS // len(sizes))
    found = 0
    for start in range(0, num_flips, block):
        kept = draw.binomial(counts, 0.5, size=(min(block, num_flips - start), len(sizes)))
        found += int((np.abs((2 * kept - counts) @ sizes) >= limit).sum())
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests made at once, so that one of them is below 5 % by chance in 5 % of all tables only (Holm 1979).

    The smallest is multiplied by their number, the next by one less, and so on; none falls below a smaller one's, none exceeds 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def p_text(p_value: float) -> str:
    """A p-value as it is shown.

    >>> p_text(0.03124), p_text(3e-9)
    ('0.031', '< 0.001')
    """
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
