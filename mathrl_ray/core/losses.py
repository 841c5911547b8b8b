"""Losses: what each token costs, and how tokens add up to one number.

Called by the learner and by cs336.py. Pure: tensors in, tensors out; knows no model, no engine, no recipe.

A loss is made in two steps: a function that gives [B, T] values a token, then `aggregate`, the only place that reduces them. Log-probs are
in nats, [B, T], aligned with the labels; advantages are [B, 1] (one a sequence) or [B, T].
"""

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

Aggregation = Literal["sequence", "token", "constant"]
PolicyLoss = Literal["grpo", "grpo_clip"]


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


def policy_gradient_loss(log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """[B, T] unclipped surrogate: -r A with r = exp(log_probs - proximal_log_probs).

    With proximal_log_probs = log_probs.detach() r is 1 and the gradient is REINFORCE's, -A grad log p (Williams 1992); with older ones it
    is the importance-weighted gradient of GRPO-No-Clip (CS336 assignment 5).

    >>> policy_gradient_loss(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.tensor([[2.0]])).item()
    -2.0
    """
    return -(log_probs - proximal_log_probs).exp() * advantages


def grpo_clip_loss(log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(log_probs - proximal_log_probs).

    PPO's clip (Schulman et al. 2017, eq. 7) in GRPO's form (Shao et al. 2024, eq. 3); a clip_high above clip_low is DAPO's clip-higher
    (Yu et al. 2025, section 3.1). A clipped token has the gradient 0, however large its ratio is, infinity included.

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
    # Where the clip decides, exp is taken of 0 and not of the log-ratio: its gradient would be 0 * inf = NaN for a ratio that overflows.
    decided = torch.where(clipped, bounded, log_ratio.masked_fill(clipped, 0.0).exp())
    return TokenLoss(loss=-decided * advantages, clipped=clipped)


def policy_token_loss(
    name: PolicyLoss, log_probs: Tensor, proximal_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """The loss that grpo.loss names: the one list of them. "grpo" has an unclipped ratio, "grpo_clip" a clipped one."""
    match name:
        case "grpo":
            loss = policy_gradient_loss(log_probs, proximal_log_probs, advantages)
            return TokenLoss(loss=loss, clipped=torch.zeros_like(loss, dtype=torch.bool))
        case "grpo_clip":
            return grpo_clip_loss(log_probs, proximal_log_probs, advantages, clip_low=clip_low, clip_high=clip_high)
        case _:
            assert_never(name)


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
