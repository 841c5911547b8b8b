"""Advantages: what a reward is worth beside its siblings.

Called by the training loop with one group at a time, and by cs336.py. Pure: floats in, floats out; knows no tensor, no engine, no recipe.
"""

from collections.abc import Sequence
from statistics import mean, stdev

LARGEST_REWARD = 1e300
"""Beyond it a difference of two rewards may be no float any more."""


def group_normalised(rewards: Sequence[float], *, divide_by_std: bool, epsilon: float = 1e-6) -> list[float]:
    """Advantage of each sibling of one prompt.

    A_i = r_i - mean(r), and with `divide_by_std` A_i / (std(r) + epsilon), where std is the sample standard deviation (n - 1).
    The first form is Dr. GRPO (Liu et al. 2025, eq. 4), the second GRPO (Shao et al. 2024, section 4.1.2).
    Equal rewards give exactly 0, and every result is finite.

    Args:
        rewards: one reward a sibling, at least two.
        divide_by_std: GRPO's normalisation; it gives easy and hard prompts more weight.
        epsilon: keeps the quotient finite where all rewards are equal.

    Raises:
        ValueError: fewer than two siblings, from which no baseline can be taken; a reward that is no finite number up to 1e300.

    >>> group_normalised([1.0, 0.0, 0.0, 1.0], divide_by_std=False)
    [0.5, -0.5, -0.5, 0.5]
    """
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least 2 rewards, got {len(rewards)}: raise grpo.group_size")
    values = [float(reward) for reward in rewards]
    for value in values:
        if not abs(value) <= LARGEST_REWARD:
            raise ValueError(f"a reward must be a finite number of at most {LARGEST_REWARD:g}, got {value}: check reward.function")
    # statistics.mean is exact before its one rounding (fmean is not), so the mean of equal rewards is that reward.
    baseline = mean(values)
    centred = [value - baseline for value in values]
    if not divide_by_std:
        return centred
    scale = stdev(values) + epsilon
    return [advantage / scale for advantage in centred]
