"""The learning rate of each optimizer step. Called by the learner; pure."""

import math
from typing import Literal


def learning_rate_at(
    step: int, *, peak: float, num_steps: int, warmup_steps: int, schedule: Literal["constant", "linear", "cosine"]
) -> float:
    """Learning rate of optimizer step `step` (the first is 0).

    It rises linearly over `warmup_steps`, reaching `peak` at step `warmup_steps - 1` (so the first step is never wasted at 0), then stays
    (constant) or falls to 0 behind the last step (linear, or half a cosine: Loshchilov & Hutter 2017, eq. 5).

    >>> [learning_rate_at(step, peak=1.0, num_steps=4, warmup_steps=2, schedule="constant") for step in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    return peak * (1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)
