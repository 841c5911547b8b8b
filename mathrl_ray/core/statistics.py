"""Figures about accuracies and about the gap between learner and generator.

Called by the stages (intervals), the driver (metrics of a step) and the report. Pure: numbers in, numbers out; knows no tensor, no file.
d stands for learner minus generator log-probability of a sampled token, in nats.
"""

from collections.abc import Sequence
from math import nan, sqrt

import numpy as np
from scipy.special import ndtri

Rows = Sequence[Sequence[float]]
"""One row a response, one number a token."""


def wilson_interval(num_successes: int, num_trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927), as fractions; (0.0, 1.0) where nothing was tried.

    With z the normal quantile of (1 + confidence) / 2, p = k / n: (p + z^2/2n -+ z sqrt(p (1-p) / n + z^2/4n^2)) / (1 + z^2/n).
    Unlike p -+ z sqrt(p (1-p) / n) it stays in [0, 1] and has a width at 0 and at n successes.

    Raises:
        ValueError: counts that are not 0 <= num_successes <= num_trials, or a confidence outside of (0, 1).

    >>> [round(end, 4) for end in wilson_interval(5, 10)]
    [0.2366, 0.7634]
    """
    if not 0 <= num_successes <= num_trials:
        raise ValueError(f"{num_successes} successes in {num_trials} trials: need 0 <= num_successes <= num_trials")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if num_trials == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + confidence) / 2))
    rate = num_successes / num_trials
    middle = rate + z * z / (2 * num_trials)
    half_width = z * sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials * num_trials))
    shrink = 1 + z * z / num_trials
    # The ends at 0 and at n successes are 0 and 1 exactly; rounding would leave them a hair off.
    low = 0.0 if num_successes == 0 else (middle - half_width) / shrink
    high = 1.0 if num_successes == num_trials else (middle + half_width) / shrink
    return low, high


def mismatch_kl(learner_logprobs: Rows, generator_logprobs: Rows) -> float:
    """Mean over all tokens of exp(d) - 1 - d, in nats: an estimate of KL(generator || learner) that is never negative.

    Schulman's k3 ("Approximating KL divergence", 2020), for tokens that the generator sampled. 0 exactly where both agree; inf where the
    learner gives a sampled token the probability 0; NaN without any token.

    Raises:
        ValueError: the rows do not have the same lengths; it names the row.

    >>> round(mismatch_kl([[0.0]], [[-1.0]]), 4)
    0.7183
    """
    difference = _differences(learner_logprobs, generator_logprobs)
    # expm1, because exp(d) - 1 loses all digits at the small gaps that matter here.
    with np.errstate(over="ignore"):  # a gap beyond the floats gives inf, and inf is what the metric should say
        return _mean(np.expm1(difference) - difference)


def mean_importance_ratio(learner_logprobs: Rows, generator_logprobs: Rows) -> float:
    """Mean over all tokens of exp(d): 1 on average where both policies are the same; NaN without any token.

    Raises:
        ValueError: the rows do not have the same lengths; it names the row.
    """
    difference = _differences(learner_logprobs, generator_logprobs)
    with np.errstate(over="ignore"):  # as above
        return _mean(np.exp(difference))


def max_abs_difference(learner_logprobs: Rows, generator_logprobs: Rows) -> float:
    """Largest |d| over all tokens, in nats; NaN without any token.

    Raises:
        ValueError: the rows do not have the same lengths; it names the row.
    """
    difference = _differences(learner_logprobs, generator_logprobs)
    return float(np.abs(difference).max()) if difference.size else nan


def _differences(learner_logprobs: Rows, generator_logprobs: Rows) -> np.ndarray:
    """[number of all tokens] learner minus generator."""
    if len(learner_logprobs) != len(generator_logprobs):
        raise ValueError(f"{len(learner_logprobs)} rows of the learner beside {len(generator_logprobs)} of the generator")
    for row, (learner, generator) in enumerate(zip(learner_logprobs, generator_logprobs, strict=True)):
        if len(learner) != len(generator):
            raise ValueError(f"row {row}: {len(learner)} log-probs of the learner beside {len(generator)} of the generator")
    return _flat(learner_logprobs) - _flat(generator_logprobs)


def _flat(rows: Rows) -> np.ndarray:
    return np.array([value for row in rows for value in row], dtype=np.float64)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else nan
