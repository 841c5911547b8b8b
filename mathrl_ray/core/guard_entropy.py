"""The entropy guard: three ways in which the entropy of the policy tells of a collapse before the reward does.

Called by guard_signs.py. Pure. Why not a fixed level: with a good rate Qwen2.5-Math-1.5B goes from 0.63 to 0.04 nats on MATH while its
reward rises to 0.7, and the embedded task ends at 0.004 nats with reward 0.95. What counts is what the entropy was spent on, and how fast:
reward is bought with entropy, about R = b - a exp(H) over a run (Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for
Reasoning Language Models"), so entropy that is gone without a gain cannot be spent again.

How the limits were chosen, on the embedded task (GRPO; 9 healthy runs over 6 seeds at a rate of 5e-4, 3 runs at 2e-3, which collapse):
- fast: within 10 steps a healthy run keeps at least 0.42 of its entropy while it still has half of what it began with; the three bad ones
  fall to 0.18, 0.37 and 0.30. The limit is 0.3 (guards.entropy_fall = 0.7). MATH's healthy run keeps 0.87 on average.
- unpaid: gain over what is wanted is at least 1.30 in the healthy runs, and below 0.9 from step 8 and 10 on in two of the bad ones (the
  third learns fast before it collapses: the first rule is for that). What tells these from a task of which less than half can be solved
  is their haste: half of their entropy is gone at steps 8 and 5, in the healthy runs at step 12 or later. So a gain is asked for only of
  half that is gone within half a window. Of 1,650 simulated stages of 200 steps that come to rest at 0.3 to 0.9 right, from 0.03 or 0.3,
  half of their entropy gone at step 12, 39 or 78, 3 give an alarm (all guards: 7). Were it gone at step 8, most that rest below 0.5 would:
  they are as fast as these collapses, and gain as little.
- explosion: no healthy run ever rises above 0.81 of what it began with, or 1.21 of its running median.
"""

from statistics import median

from mathrl_ray.core.guard_series import ANSWER, ENTROPY, SHORT, History, Series
from mathrl_ray.core.guard_sign import Sign, worst
from mathrl_ray.guard_section import GuardsSection

LITTLE_SOLVED = 0.5
"""Share of right answers below which low entropy, or equal groups, are no sign of mastery."""
NEARLY_SOLVED = 0.9
"""From here on a policy may become certain as fast as it likes."""
FREE_FALL = 0.25
"""The first share of the entropy costs nothing: forms and phrases settle first, which is not yet rewarded."""
CLEARLY_PAID = 1.2
"""Gain over what is wanted from which there is no suspicion."""
LEAST_RISE_NATS = 0.1
"""A smaller rise is noise of a policy that is nearly certain."""


def entropy_sign(history: History, settings: GuardsSection) -> Sign | None:
    """Of rows that have the share of right answers too: an SFT step's entropy is of given tokens, and falls as it should."""
    if not history.has(ENTROPY, ANSWER) or len(history[ENTROPY]) < SHORT:
        return None
    entropy, solved = history[ENTROPY], history[ANSWER]
    unpaid = _unpaid(entropy, solved, settings) if history.compares_rewards else None
    signs = (_fast(entropy, solved, settings), unpaid, _explosion(entropy, settings))
    return worst([sign for sign in signs if sign is not None])


def _fast(entropy: Series, solved: Series, settings: GuardsSection) -> Sign | None:
    """Most of the entropy gone within half a window, from a level at which there was still something to choose."""
    num_steps = settings.window // 2
    top = max(entropy.last(num_steps))
    if top < entropy.first_peak / 2 or solved.short >= NEARLY_SOLVED:
        return None
    limit = (1 - settings.entropy_fall) * top
    return Sign(
        ENTROPY,
        entropy.newest,
        limit,
        is_bad=entropy.newest < limit,
        is_clear=entropy.newest >= (limit + top) / 2,
        seen=f"entropy fell from {top:.3g} to {entropy.newest:.3g} nats a token within {num_steps} steps, below the limit of {limit:.3g}",
        meaning="the policy changes too fast, as with a learning rate that is too high",
    )


def _unpaid(entropy: Series, solved: Series, settings: GuardsSection) -> Sign | None:
    """Entropy spent in a hurry, and without reward. With f = 1 - H / H_start the share that is gone and s the share of right answers (both
    short medians),

        wanted = s_start + (1 - s_start) entropy_gain (f - 1/4) / (3/4),

    looked at where H is below entropy_low of what it was within half a window (and the two steps that a short median lags by), and s < 1/2.
    """
    top = max(entropy.last(settings.window // 2 + SHORT // 2))
    if entropy.short >= settings.entropy_low * top or solved.short >= LITTLE_SOLVED:
        return None
    fall = 1 - entropy.short / entropy.first_peak if entropy.first_peak > 0 else 0.0
    wanted_gain = (1 - solved.start) * settings.entropy_gain * (fall - FREE_FALL) / (1 - FREE_FALL)
    gain = solved.short - solved.start
    limit = solved.start + wanted_gain
    return Sign(
        ANSWER,
        solved.short,
        limit,
        is_bad=gain < wanted_gain,
        is_clear=gain >= CLEARLY_PAID * wanted_gain,
        seen=(
            f"entropy fell from {entropy.first_peak:.3g} to {entropy.short:.3g} nats a token while the share of right answers only went "
            f"from {solved.start:.2f} to {solved.short:.2f}, below the limit of {limit:.2f}"
        ),
        meaning="the policy becomes certain of wrong answers, and will explore no more",
    )


def _explosion(entropy: Series, settings: GuardsSection) -> Sign:
    """Far above its running median, and above what the stage began with."""
    usual, value = median(entropy.before(settings.window)), entropy.newest
    limit = max(settings.entropy_rise * usual, entropy.first_peak, usual + LEAST_RISE_NATS)
    return Sign(
        ENTROPY,
        value,
        limit,
        is_bad=value > limit,
        is_clear=value <= (usual + limit) / 2,
        seen=f"entropy rose to {value:.3g} nats a token from a running median of {usual:.3g}, above the limit of {limit:.3g}",
        meaning="the policy falls apart into noise",
    )
