"""The guards, a short function each: what is bad, what is clear, and what it usually means.

Called by guard_rules.py with a stage's history after each row. Pure. A guard is silent (None) at a row without its numbers, so each is at
work in the stages whose rows have them:

    guard              reads                                        grpo   expert_iteration   sft, sft_filtered
    entropy            entropy_nats with answer_reward_mean         step   -                  -
    format_rate        format_reward_mean                           step   round              -
    reward             reward_mean                                  step   round              -
    reward_variance    zero_variance_fraction, answer_reward_mean   step   round              -
    response_length    response_tokens_mean, truncated_fraction     step   round              -
    importance_ratio   importance_ratio_mean, mismatch_kl           step   -                  -
    loss_spike         loss                                         step   optimizer step     step
    grad_norm_spike    grad_norm                                    step   optimizer step     step
    validation         validation accuracy (guard_validation.py)    yes    yes                yes

A stage of five rounds is too short for most of the round guards; the spikes and the validation are what guards expert iteration and SFT.
Limits that compare with the stage's own past need no setting for another model or task; how each was chosen stands with it. "Healthy runs"
are 9 of GRPO, 12 of expert iteration and 11 of SFT on the embedded task, over 6 seeds.
"""

from dataclasses import replace
from statistics import median

from mathrl_ray.core.guard_entropy import LITTLE_SOLVED, entropy_sign
from mathrl_ray.core.guard_series import (
    ANSWER,
    EQUAL_GROUPS,
    FORMAT,
    GRAD_NORM,
    LENGTH,
    LOSS,
    MISMATCH,
    RATIO,
    REWARD,
    SHORT,
    TRUNCATED,
    History,
    deviation,
)
from mathrl_ray.core.guard_sign import Sign, worst
from mathrl_ray.guard_section import GuardName, GuardsSection

LEAST_FORMAT = 0.1
"""A format rate that never was above this cannot fall."""
CLEARLY_BELOW = 0.2
"""By how much a stage's first share of equal groups must be under the limit, for a rise above it to say something at once."""
NOISE_DEVIATIONS = 3.0
"""A reward's fall counts from this many standard deviations of one step on."""
NOISE_WINDOWS = 5
"""Windows that they are taken over: over a single one of 20 steps they are wrong by a third now and then, and noise looks like a fall."""
LEAST_LOSS = 0.01
"""Rises of the loss below this are rounding: on policy the loss of GRPO is 0 but for 1e-8, whatever the policy does."""
START_FACTOR = 4.0
"""A gradient norm below this many times the stage's first ones is no spike: near the end of a stage nearly all gradients are 0."""


def read(guard: GuardName, history: History, settings: GuardsSection) -> Sign | None:
    """What a guard sees in the newest row; None where the row lacks its numbers or too few came before."""
    match guard:
        case "entropy":
            return entropy_sign(history, settings)
        case "format_rate":
            return _format_rate(history, settings)
        case "reward":
            return _reward(history, settings)
        case "reward_variance":
            return _reward_variance(history, settings)
        case "response_length":
            return _response_length(history, settings)
        case "importance_ratio":
            return _importance_ratio(history, settings)
        case "loss_spike":
            return _loss_spike(history, settings)
        case "grad_norm_spike":
            return _grad_norm_spike(history, settings)
        case "validation":  # has its own series (guard_validation.py)
            return None


def _format_rate(history: History, settings: GuardsSection) -> Sign | None:
    """Below its best short median by format_fall, or by half where it never was high. In healthy runs the largest fall is 0.02."""
    if not history.has(FORMAT) or len(history[FORMAT]) <= SHORT:
        return None
    rate = history[FORMAT]
    if rate.best < LEAST_FORMAT:
        return None
    limit = max(rate.best - settings.format_fall, rate.best / 2)
    return Sign(
        FORMAT,
        rate.newest,
        limit,
        is_bad=rate.newest < limit,
        is_clear=rate.newest >= (rate.best + limit) / 2,
        seen=f"format rate fell to {rate.newest:.2f} from a best running median of {rate.best:.2f}, below the limit of {limit:.2f}",
        meaning="the policy forgets the prompt's form, and with it all reward",
    )


def _reward(history: History, settings: GuardsSection) -> Sign | None:
    """Below its best short median by reward_fall of all that was won, and by more than noise.

    Scale-free, since a recipe's reward function may pay what it likes. Of simulated plateaus of 200 steps with 16, 64 or 256 responses
    each, about 1 in 100 gives an alarm; in healthy runs the reward is never below its best for three steps in a row.
    """
    if not history.has(REWARD) or len(history[REWARD]) <= SHORT:
        return None
    reward = history[REWARD]
    fall = max(settings.reward_fall * (reward.best - reward.lowest), NOISE_DEVIATIONS * reward.noise(NOISE_WINDOWS * settings.window))
    limit = reward.best - fall
    return Sign(
        REWARD,
        reward.newest,
        limit,
        is_bad=fall > 0 and reward.newest < limit,
        is_clear=reward.newest >= reward.best - fall / 2,
        seen=f"mean reward fell to {reward.newest:.3g} from a best running median of {reward.best:.3g}, below the limit of {limit:.3g}",
        meaning="what was learned is being unlearned",
    )


def _reward_variance(history: History, settings: GuardsSection) -> Sign | None:
    """Nearly all groups alike (short median) while little is solved.

    With 3 % right at first, as on MATH, a healthy run may begin with 0.95 of its groups alike, all wrong: so a stage that did not begin
    clearly below the limit has a window's time to get there. In healthy runs it is at most 0.38 while less than half is solved.
    """
    if not history.has(EQUAL_GROUPS, ANSWER) or len(history[EQUAL_GROUPS]) <= SHORT:
        return None
    share, limit, solved = history[EQUAL_GROUPS], settings.equal_groups, history[ANSWER].short
    may_judge = share.start <= limit - CLEARLY_BELOW or len(share) > settings.window
    is_bad = may_judge and share.short > limit and solved < LITTLE_SOLVED
    return Sign(
        EQUAL_GROUPS,
        share.short,
        limit,
        is_bad=is_bad,
        is_clear=not is_bad,
        seen=f"{share.short:.0%} of the groups have equal rewards, above the limit of {limit:.0%}, with {solved:.0%} right",
        meaning="hardly anything is left to learn from, since siblings all fail alike",
    )


def _response_length(history: History, settings: GuardsSection) -> Sign | None:
    """Far from its running median, or cut off far more often, while the reward does not rise: longer thoughts that pay are welcome, and
    so is a base model that learns to come to an end. Healthy runs stay within 0.81 and 1.17 of their running median, and cut off 1 %."""
    if not history.has(LENGTH, REWARD) or len(history[LENGTH]) <= SHORT:
        return None
    reward = history[REWARD]
    signs = [sign for sign in (_jump(history, settings), _truncation(history, settings)) if sign is not None]
    if reward.short > median(reward.before(settings.window)):
        return replace(signs[0], is_bad=False, is_clear=True)
    return worst(signs)


def _jump(history: History, settings: GuardsSection) -> Sign:
    length = history[LENGTH]
    usual, value = median(length.before(settings.window)), length.newest
    low, high = settings.length_fall * usual, settings.length_rise * usual
    limit = high if value > usual else low
    return Sign(
        LENGTH,
        value,
        limit,
        is_bad=not low <= value <= high,
        is_clear=(low + usual) / 2 <= value <= (usual + high) / 2,
        seen=f"responses have {value:.3g} tokens on average, usual are {usual:.3g}, beyond the limit of {limit:.3g}, for no more reward",
        meaning="the policy rambles without an end" if value > usual else "the policy answers without working",
    )


def _truncation(history: History, settings: GuardsSection) -> Sign | None:
    if not history.has(TRUNCATED) or len(history[TRUNCATED]) <= SHORT:
        return None
    share = history[TRUNCATED]
    limit = median(share.before(settings.window)) + settings.truncated_rise
    return Sign(
        TRUNCATED,
        share.newest,
        limit,
        is_bad=share.newest > limit,
        is_clear=share.newest <= limit - settings.truncated_rise / 2,
        seen=f"{share.newest:.0%} of the responses are cut off, above the limit of {limit:.0%}, for no more reward",
        meaning="the policy rambles without an end",
    )


def _importance_ratio(history: History, settings: GuardsSection) -> Sign | None:
    """Learner and generator far apart. In healthy runs in turns mismatch_kl is 1e-12, rounding of float32, and at most 0.024 with stale
    responses. The limit of four times that is a judgement: no collapse of this kind was at hand."""
    signs = []
    if history.has(MISMATCH):
        value, limit = history[MISMATCH].newest, settings.mismatch_kl_nats
        seen = f"learner and generator differ by {value:.3g} nats a token, above the limit of {limit:.3g}"
        signs.append(Sign(MISMATCH, value, limit, value > limit, value <= limit / 2, seen, _APART))
    if history.has(RATIO):
        value, high = history[RATIO].newest, settings.importance_ratio
        limit = high if value > 1 else 1 / high
        is_bad = not 1 / high <= value <= high
        seen = f"the importance ratio is {value:.3g} on average, beyond the limit of {limit:.3g}"
        signs.append(Sign(RATIO, value, limit, is_bad, not is_bad, seen, _APART))
    return worst(signs)


_APART = "the responses are no longer the policy's: too stale, or the engines disagree"


def _loss_spike(history: History, settings: GuardsSection) -> Sign | None:
    """Above running median + loss_spike_deviations robust standard deviations, and above the stage's first losses. Healthy runs have at
    most one such step within ten, where a round of expert iteration begins with new responses."""
    if not history.has(LOSS) or len(history[LOSS]) <= SHORT:
        return None
    loss = history[LOSS]
    before = loss.before(settings.window)
    usual = median(before)
    rise = max(settings.loss_spike_deviations * deviation(before), LEAST_LOSS)
    limit = max(usual + rise, loss.start)
    return Sign(
        LOSS,
        loss.newest,
        limit,
        is_bad=loss.newest > limit,
        is_clear=loss.newest <= limit,
        seen=f"loss spikes to {loss.newest:.3g} from a running median of {usual:.3g}, above the limit of {limit:.3g}",
        meaning="single batches throw the weights far, as with a learning rate that is too high",
    )


def _grad_norm_spike(history: History, settings: GuardsSection) -> Sign | None:
    """Above grad_norm_factor times its running median and START_FACTOR times the stage's first norms.

    A gradient norm has heavy tails where most is solved: in healthy expert iteration nine steps within ten can be above 5 times the median.
    With both factors at most 2 within ten are in any healthy run, and `patience` (3) make an alarm.
    """
    if not history.has(GRAD_NORM) or len(history[GRAD_NORM]) <= SHORT:
        return None
    norm = history[GRAD_NORM]
    usual = median(norm.before(settings.window))
    limit = max(settings.grad_norm_factor * usual, START_FACTOR * norm.start)
    return Sign(
        GRAD_NORM,
        norm.newest,
        limit,
        is_bad=norm.newest > limit,
        is_clear=norm.newest <= limit,
        seen=f"gradient norm spikes to {norm.newest:.3g} from a running median of {usual:.3g}, above the limit of {limit:.3g}",
        meaning="the weights are thrown about, as with a learning rate that is too high",
    )
