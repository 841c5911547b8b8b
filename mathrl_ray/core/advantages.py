"""Advantages: what a reward is worth beside its siblings.

Called by core/groups.py with one group at a time, and by cs336.py. Pure: floats in, floats out; knows no tensor and no engine, and of the
recipe its [advantage] section.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import assert_never

from mathrl_ray.config import RecipeError
from mathrl_ray.sections import AdvantageSection

LARGEST_REWARD = 1e300
"""Beyond it a difference of two rewards may be no float any more."""


def group_normalised(rewards: Sequence[float], *, divide_by_std: bool, epsilon: float = 1e-6) -> list[float]:
    """Advantage of each sibling of one prompt.

    A_i = r_i - mean(r), and with `divide_by_std` A_i / (std(r) + epsilon), where std is the sample standard deviation (n - 1).
    The first form is Dr. GRPO (Liu et al. 2025), the second GRPO (Shao et al. 2024, section 4.1.2).
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
    values = _checked(rewards)
    # fsum is exact before its one rounding, but n r / n may still not be r.
    baseline = values[0] if min(values) == max(values) else fsum(values) / len(values)
    centred = [value - baseline for value in values]
    return _divided(centred, values, epsilon) if divide_by_std else centred


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """A_i = r_i - mean of the other siblings' rewards, which is n / (n - 1) times the group-centred advantage.

    RLOO (Kool et al. 2019; Ahmadian et al. 2024). The baseline does not hold r_i, so the gradient stays unbiased.

    Raises:
        ValueError: as `group_normalised`.

    >>> leave_one_out([1.0, 0.0, 0.0])
    [1.0, -0.5, -0.5]
    """
    num = len(rewards)
    return [advantage * num / (num - 1) for advantage in group_normalised(rewards, divide_by_std=False)]


def overlong_penalty(num_tokens: int, max_tokens: int, fraction: float) -> float:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), in [-1, 0]: what is added to the reward of a long response.

    With a buffer of `fraction` of max_tokens: 0 up to max_tokens - buffer tokens, then falling linearly to -1 at max_tokens.

    >>> [overlong_penalty(num_tokens, 100, 0.2) for num_tokens in (80, 90, 100)]
    [0.0, -0.5, -1.0]
    """
    buffer = fraction * max_tokens
    excess = num_tokens - (max_tokens - buffer)
    return -min(1.0, excess / buffer) if buffer > 0 and excess > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RewardGroup:
    """The graded siblings of one prompt, as an advantage function of your own sees them.

    Example: RewardGroup(rewards=(1.0, 0.0), num_tokens=(12, 40), truncated=(False, True), problem_id="MATH/train/17")
    """

    rewards: tuple[float, ...]
    """What each earned, the overlong penalty included."""
    num_tokens: tuple[int, ...]
    truncated: tuple[bool, ...]
    """Whether generator.max_tokens cut it off."""
    problem_id: str


AdvantageFunction = Callable[[RewardGroup], Sequence[float]]


def group_advantages(group: RewardGroup, settings: AdvantageSection, function: AdvantageFunction | None = None) -> list[float]:
    """The advantages that the recipe's [advantage] section names: the one list of them; a function of your own takes their place.

    Raises:
        ValueError: fewer than two siblings, a reward that is no finite number, or a function that does not give a finite one a sibling.
    """
    if function is not None:
        return _from_function(function, group)
    match settings.baseline:
        case "none":
            advantages = _checked(group.rewards)
        case "group_mean":
            return group_normalised(group.rewards, divide_by_std=settings.divide_by_std, epsilon=settings.epsilon)
        case "leave_one_out":
            advantages = leave_one_out(group.rewards)
        case _:
            assert_never(settings.baseline)
    return _divided(advantages, group.rewards, settings.epsilon) if settings.divide_by_std else advantages


def _from_function(function: AdvantageFunction, group: RewardGroup) -> list[float]:
    try:
        advantages = [float(value) for value in function(group)]
    except Exception as error:  # whatever a stranger's function raises, the person must hear which function it was
        raise RecipeError(f"advantage.function raised {type(error).__name__} for {group}: {error}") from error
    if len(advantages) != len(group.rewards) or not all(abs(value) <= LARGEST_REWARD for value in advantages):
        raise RecipeError(
            f"advantage.function gave {advantages} for the rewards {list(group.rewards)} of {group.problem_id}: "
            "it must give one finite number a sibling, in their order"
        )
    return advantages


def _divided(advantages: Sequence[float], rewards: Sequence[float], epsilon: float) -> list[float]:
    baseline = fsum(rewards) / len(rewards)
    largest = max(abs(reward - baseline) for reward in rewards) or 1.0  # squares of what is left cannot overflow
    variance = fsum(((reward - baseline) / largest) ** 2 for reward in rewards) / (len(rewards) - 1)
    scale = largest * sqrt(variance) + epsilon
    return [advantage / scale for advantage in advantages]


def _checked(rewards: Sequence[float]) -> list[float]:
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least 2 rewards, got {len(rewards)}: raise grpo.group_size")
    values = [float(reward) for reward in rewards]
    for value in values:
        if not abs(value) <= LARGEST_REWARD:
            raise ValueError(f"a reward must be a finite number of at most {LARGEST_REWARD:g}, got {value}: check reward.function")
    return values
