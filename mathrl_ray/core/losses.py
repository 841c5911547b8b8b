"""Losses: what each token costs, and how tokens add up to one number.

Called by the learner and by cs336.py. Pure: tensors in, tensors out; knows no model, no engine, no recipe beyond its [loss] section.

A loss is made in three steps: a surrogate that gives [B, T] values a token, what is added to it (importance weight, KL, entropy), then
`aggregate`, the only place that reduces them. Log-probs are in nats, [B, T], aligned with the labels; advantages are [B, 1] (one a
sequence) or [B, T]. `policy_loss` at the end puts the steps together and lists the variants.
"""

from dataclasses import dataclass, replace
from typing import Literal, assert_never

import torch
from torch import Tensor

from mathrl_ray.core.loss_batch import LossInput, LossResult
from mathrl_ray.core.off_policy import importance_weights, kl_estimate
from mathrl_ray.sections import LossSection

Aggregation = Literal["sequence", "token", "constant"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """A clipped loss and where the clip decided it."""

    loss: Tensor
    """[B, T]"""
    clipped: Tensor
    """[B, T] bool; true where the clipped term is strictly the smaller one, so that the token gets no gradient."""


def sft_loss(log_probs: Tensor) -> Tensor:
    """[B, T] cross-entropy of each label: -log p."""
    return -log_probs


def reinforce_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """[B, T] -A log p: REINFORCE (Williams 1992), whoever sampled the token.

    >>> reinforce_loss(torch.tensor([[-0.5]]), torch.tensor([[2.0]])).item()
    1.0
    """
    return -log_probs * advantages


def policy_gradient_loss(log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """[B, T] unclipped surrogate: -r A with r = exp(log_probs - proximal_log_probs).

    With proximal_log_probs = log_probs.detach() r is 1 and the gradient is REINFORCE's, -A grad log p (Williams 1992); with older ones it
    is the importance-weighted gradient of GRPO-No-Clip (CS336 assignment 5).

    >>> policy_gradient_loss(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[2.0]])).item()
    -2.0
    """
    log_ratio = log_probs - proximal_log_probs
    # An advantage of 0 is worth 0, whatever the ratio; 0 times one that overflows would be NaN.
    return -log_ratio.masked_fill(advantages == 0, 0.0).exp() * advantages


def grpo_clip_loss(log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(log_probs - proximal_log_probs).

    PPO's clip (Schulman et al. 2017, eq. 7) in GRPO's form (Shao et al. 2024, eq. 3); a clip_high above clip_low is DAPO's clip-higher
    (Yu et al. 2025, section 3.1). A clipped token, and one whose advantage is 0, has the gradient 0, however large its ratio is, infinity
    included; an unclipped ratio that overflows (a bad token that got far likelier) makes the loss infinite, and the learner skips the step.

    Args:
        log_probs: [B, T] of the policy that is trained.
        proximal_log_probs: [B, T], detached.
        advantages: [B, 1] or [B, T].
        clip_low: how far the ratio may fall below 1 before a negative advantage stops teaching.
        clip_high: how far it may rise above 1 before a positive one does.

    >>> grpo_clip_loss(torch.tensor([[0.0]]), torch.tensor([[-1.0]]), torch.tensor([[2.0]]), clip_low=0.2, clip_high=0.25).loss.item()
    -2.5
    """
    log_ratio = log_probs - proximal_log_probs
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = bounded * advantages < ratio * advantages
    # Where the ratio does not matter, exp is taken of 0 and not of the log-ratio: 0 * inf = NaN for a ratio that overflows.
    decided = torch.where(clipped, bounded, log_ratio.masked_fill(clipped | (advantages == 0), 0.0).exp())
    return TokenLoss(loss=-decided * advantages, clipped=clipped)


def gspo_loss(
    log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """The clip with one ratio a response, s = exp(mean over its tokens of log_probs - proximal_log_probs), at each of its tokens.

    GSPO (Zheng et al. 2025, eq. 5 and 7). s is the geometric mean of the token ratios, so its clip limits are small (3e-4, 4e-4). The mean
    over a response of these equal values is the response's loss, with the gradient -s A mean(grad log p), and 0 where s is clipped.
    """
    log_ratio = torch.where(mask, log_probs - proximal_log_probs, 0.0)
    mean = log_ratio.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return grpo_clip_loss(mean.expand_as(log_ratio), torch.zeros_like(log_ratio), advantages, clip_low=clip_low, clip_high=clip_high)


def cispo_loss(log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> TokenLoss:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p: the weight is clipped, and no token loses its gradient.

    CISPO (MiniMax-M1 2025, eq. 4), with sg the stop-gradient; the paper has no lower bound, which is clip_low = 1. `clipped` is true where
    the weight was. The value is no objective (it moves with the level of log p); the gradient is -weight A grad log p.
    """
    ratio = (log_probs - proximal_log_probs).detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(loss=-weight * advantages * log_probs, clipped=weight != ratio)


def response_only(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] with 0 outside of the responses, in value and in gradient, whatever stands there.

    Apply it to log-probs that may hold inf or NaN outside of responses, before a loss: `aggregate` alone sends the gradient 0 back, and
    the exp of a ratio would turn that into 0 * NaN.
    """
    return torch.where(mask, values, 0.0)


def aggregate(token_loss: Tensor, mask: Tensor, *, how: Aggregation, num_sequences: int, num_tokens: int, constant: float) -> Tensor:
    """One number from [B, T], divided by counts of the whole batch, so that the sum over micro-batches (and ranks) is the batch's loss.

    sequence: sum over rows of the row's mean over its response tokens, / num_sequences (GRPO, Shao et al. 2024, eq. 3).
    token:    sum over response tokens / num_tokens (DAPO, Yu et al. 2025, section 3.3): long responses weigh more.
    constant: sum over response tokens / (num_sequences * constant) (Dr. GRPO, Liu et al. 2025): no length in the divisor.

    Args:
        token_loss: [B, T] of one micro-batch; outside of the mask it may hold anything, inf and NaN included.
        mask: [B, T] bool, true on response tokens; a row without any adds 0.
        how: one of the three.
        num_sequences: rows of the whole batch, over all micro-batches and ranks.
        num_tokens: true entries of the whole batch's mask.
        constant: tokens, for "constant" only; usually the largest response length.

    Raises:
        ValueError: a divisor that is not positive.

    >>> loss, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [True, False]])
    >>> [aggregate(loss, mask, how=how, num_sequences=2, num_tokens=3, constant=2.0).item() for how in ("sequence", "token", "constant")]
    [3.5, 3.0, 2.25]
    """
    sums = response_only(token_loss, mask).sum(dim=-1)
    match how:
        case "sequence":
            return (sums / mask.sum(dim=-1).clamp(min=1)).sum() / _positive("num_sequences", num_sequences)
        case "token":
            return sums.sum() / _positive("num_tokens", num_tokens)
        case "constant":
            return sums.sum() / (_positive("num_sequences", num_sequences) * _positive("constant", constant))
        case _:
            assert_never(how)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"a loss cannot be divided by {name} = {value}: it counts the whole batch and must be above 0")
    return value


def surrogate_loss(batch: LossInput, settings: LossSection) -> TokenLoss:
    """The [B, T] surrogate that loss.surrogate names: the one list of them."""
    log_probs, advantages = batch.learner_logprobs, batch.advantages
    proximal = batch.generator_logprobs if settings.ratio == "coupled" else batch.proximal_logprobs
    clip_low, clip_high = settings.clip_low, settings.clip_high
    match settings.surrogate:
        case "log_prob":
            return _never_clipped(reinforce_loss(log_probs, advantages))
        case "ratio":
            return _never_clipped(policy_gradient_loss(log_probs, proximal, advantages))
        case "clip":
            return grpo_clip_loss(log_probs, proximal, advantages, clip_low=clip_low, clip_high=clip_high)
        case "gspo":
            return gspo_loss(log_probs, proximal, advantages, batch.mask, clip_low=clip_low, clip_high=clip_high)
        case "cispo":
            return cispo_loss(log_probs, proximal, advantages, clip_low=clip_low, clip_high=clip_high)
        case _:
            assert_never(settings.surrogate)


def policy_loss(batch: LossInput, settings: LossSection) -> LossResult:
    """The loss of the recipe's [loss] section: aggregate of w * surrogate + kl_coefficient * KL - entropy_coefficient * H.

    w are the importance weights of the off-policy correction (1 without one; with loss.ratio = "coupled" the surrogate's own ratio holds
    the gap to the generator). KL and entropy are weighted and aggregated as the surrogate is.

    Raises:
        ValueError: a KL without reference_logprobs.
    """
    batch = _response_only(batch)
    token_loss = surrogate_loss(batch, settings)
    weights = importance_weights(
        batch.proximal_logprobs,
        batch.generator_logprobs,
        batch.mask,
        correction=settings.correction,
        level=settings.correction_level,
        low=settings.correction_low,
        high=settings.correction_high,
    )
    per_token = token_loss.loss * weights
    metrics = {"clip_fraction": token_loss.clipped}
    if settings.correction != "none":
        limit = settings.correction_high if settings.correction == "truncated" else 0.0
        metrics |= {"correction_weight_mean": weights, "correction_limit_fraction": weights == limit}
    if settings.kl_coefficient:
        if batch.reference_logprobs is None:
            raise ValueError(f"loss.kl_coefficient = {settings.kl_coefficient} needs reference_logprobs, but the batch has none")
        kl = kl_estimate(batch.learner_logprobs, batch.reference_logprobs, settings.kl_estimator)
        per_token, metrics["kl_nats"] = per_token + settings.kl_coefficient * kl, kl
    if settings.entropy_coefficient:
        per_token = per_token - settings.entropy_coefficient * batch.entropy
    loss = aggregate(
        per_token,
        batch.mask,
        how=settings.aggregation,
        num_sequences=batch.num_sequences,
        num_tokens=batch.num_tokens,
        constant=float(batch.max_tokens),
    )
    return LossResult(loss, metrics)


def _response_only(batch: LossInput) -> LossInput:
    """Log-probs that are 0 outside of the responses: a finite value may stand there whose exp is not, and 0 * inf is NaN."""
    reference = batch.reference_logprobs
    return replace(
        batch,
        learner_logprobs=response_only(batch.learner_logprobs, batch.mask),
        generator_logprobs=response_only(batch.generator_logprobs, batch.mask),
        proximal_logprobs=response_only(batch.proximal_logprobs, batch.mask),
        reference_logprobs=None if reference is None else response_only(reference, batch.mask),
    )


def _never_clipped(loss: Tensor) -> TokenLoss:
    return TokenLoss(loss=loss, clipped=torch.zeros_like(loss, dtype=torch.bool))
