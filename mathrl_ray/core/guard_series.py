"""The numbers that the guards read, as running series. Filled by guard_rules.py, read by guard_signs.py and guard_entropy.py. Pure.

A stage's rows do not all hold the same numbers (an SFT step has no reward, a round of expert iteration no loss), so each number is a series
of its own, as long as the rows that had it.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isfinite, pi, sqrt
from statistics import fmean, median

ENTROPY, ANSWER, FORMAT, REWARD = "entropy_nats", "answer_reward_mean", "format_reward_mean", "reward_mean"
EQUAL_GROUPS, LENGTH, TRUNCATED = "zero_variance_fraction", "response_tokens_mean", "truncated_fraction"
RATIO, MISMATCH, LOSS, GRAD_NORM = "importance_ratio_mean", "mismatch_kl", "loss", "grad_norm"
READ = (ENTROPY, ANSWER, FORMAT, REWARD, EQUAL_GROUPS, LENGTH, TRUNCATED, RATIO, MISMATCH, LOSS, GRAD_NORM)
"""What is kept of a row."""
SHORT = 5
"""Values of a short running median: a noisy step or two do not move it, and it lags by two steps only."""
NUM_FIRST = 3
"""Values at a stage's start that say what it began from: under a good rate they are alike, under a bad one the fourth is not."""


class Series:
    """One number over a stage's rows."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self.short = 0.0
        """Median of the last SHORT values."""
        self.best = self.lowest = 0.0
        """The largest and the smallest short median so far, from the NUM_FIRST-th value on."""

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        self._values.append(value)
        self.short = median(self._values[-SHORT:])
        if len(self) <= NUM_FIRST:
            self.best = self.lowest = self.short
        self.best, self.lowest = max(self.best, self.short), min(self.lowest, self.short)

    @property
    def newest(self) -> float:
        return self._values[-1]

    @property
    def start(self) -> float:
        """Median of the stage's first values."""
        return median(self._values[:NUM_FIRST])

    @property
    def first_peak(self) -> float:
        """The largest of the stage's first values: where what can only fall began, though one step in has halved it."""
        return max(self._values[:NUM_FIRST])

    def last(self, num: int) -> list[float]:
        """The newest values, the newest one last."""
        return self._values[-num:]

    def before(self, num: int) -> list[float]:
        """The values just before the newest one, at most so many."""
        return self._values[-num - 1 : -1]

    def noise(self, num: int) -> float:
        """Standard deviation of one value around its trend, from how successive ones of the last `num` differ.

        sqrt(pi) / 2 mean |x_t - x_{t-1}| (1 + 2 / sqrt(n)) with n differences: that of two values has twice the variance of one, a normal's
        mean distance from 0 is sqrt(2 / pi) of its deviation, and the last factor is about two errors of the mean, so that it is rather too
        much than too little. A median would be 0 now and then where a step has few responses, whose mean reward is often the same twice.
        """
        values = self.last(num + 1)
        steps = [abs(after - before) for before, after in pairwise(values)]
        return sqrt(pi) / 2 * fmean(steps) * (1 + 2 / sqrt(len(steps))) if steps else 0.0


class History:
    """A stage's series, and which numbers its newest row had."""

    def __init__(self, *, compares_rewards: bool = True) -> None:
        self.compares_rewards = compares_rewards
        """Whether the problems of all steps are about as hard, so that a reward that does not rise says something."""
        self._series = {key: Series() for key in READ}
        self._in_newest: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> Series:
        return self._series[key]

    def add(self, row: Mapping[str, float]) -> None:
        """The numbers of a row that are read (`kept`)."""
        for key, value in row.items():
            self._series[key].append(value)
        self._in_newest = frozenset(row)

    def has(self, *keys: str) -> bool:
        """Whether the newest row held all of them."""
        return self._in_newest.issuperset(keys)


def kept(metrics: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a row that guards read; one that is not finite is left out, since the learner skips such a step itself.

    >>> kept({"loss": 0.5, "grad_norm": float("nan"), "step_s": 3.0})
    {'loss': 0.5}
    """
    return dict(_finite(metrics))


def _finite(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for key in READ:
        value = metrics.get(key)
        if value is not None and isfinite(value):
            yield key, float(value)


def deviation(values: list[float]) -> float:
    """Robust standard deviation: 1.4826 times the median distance to the median.

    >>> round(deviation([1.0, 2.0, 3.0, 4.0, 100.0]), 4)
    1.4826
    """
    centre = median(values)
    return 1.4826 * median([abs(value - centre) for value in values])
