"""What one guard reads from a stage's newest numbers. Made by guard_signs.py and guard_entropy.py, counted by guard_rules.py. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sign:
    """A number against its limit. One bad sign is no alarm yet: how many are, guard_rules.py says.

    Example: Sign("format_reward_mean", 0.46, 0.58, is_bad=True, is_clear=False, seen="format rate fell ...", meaning="...")
    """

    metric: str
    value: float
    limit: float
    is_bad: bool
    is_clear: bool
    """Far enough from the limit that the weights behind it are good to go back to. Neither bad nor clear: a suspicion."""
    seen: str
    """What was seen against what, for a person."""
    meaning: str
    """What that usually is."""


def worst(signs: Sequence[Sign]) -> Sign | None:
    """The first bad one, else the first that is not clear, else the first; None of none."""
    return min(signs, key=lambda sign: (not sign.is_bad, sign.is_clear), default=None)
