"""How far the policy has moved: importance weights against the generator, and the KL to a reference model.

Called by core/losses.py. Pure: tensors in, tensors out. Log-probs are in nats, [B, T], 0 outside of the mask.
"""

from typing import Literal, assert_never

import torch
from torch import Tensor

Correction = Literal["none", "truncated", "masked"]
KlEstimator = Literal["k1", "k2", "k3"]


def importance_weights(
    proximal_logprobs: Tensor, generator_logprobs: Tensor, mask: Tensor, *, correction: Correction, level: str, low: float, high: float
) -> Tensor:
    """[B, T] weights w = exp(proximal - generator), detached: what a token sampled by an older or less exact policy counts.

    none:       1 everywhere.
    truncated:  min(w, high) (Espeholt et al. 2018, rho of V-trace; decoupled from the clip as in Hilton et al. 2022).
    masked:     w where low <= w <= high, else 0 (as in IcePop, Ling Team 2025).

    At level "sequence" w is the product over the response, the likelihood ratio of the whole response; a row without any token has 1.
    A ratio that overflows is above every limit: its weight is `high` or 0, never infinite.

    Args:
        proximal_logprobs, generator_logprobs: [B, T].
        mask: [B, T] bool.
        correction: one of the three.
        level: "token" or "sequence".
        low, high: the limits.

    >>> far, here, one = torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.ones(1, 1, dtype=torch.bool)
    >>> importance_weights(far, here, one, correction="truncated", level="token", low=0.5, high=3.0).item()
    3.0
    """
    if correction == "none":
        return torch.ones_like(generator_logprobs)
    difference = torch.where(mask, proximal_logprobs.detach() - generator_logprobs, 0.0)
    if level == "sequence":
        difference = difference.sum(dim=-1, keepdim=True).expand_as(difference)
    weights = difference.exp()
    match correction:
        case "truncated":
            return weights.clamp(max=high)
        case "masked":
            return torch.where((weights >= low) & (weights <= high), weights, 0.0)
        case _:
            assert_never(correction)


def kl_estimate(log_probs: Tensor, reference_log_probs: Tensor, estimator: KlEstimator) -> Tensor:
    """[B, T] one-sample estimates of KL(policy || reference) at tokens that the policy sampled, with d = log_probs - reference.

    k1: d, unbiased. k2: d^2 / 2. k3: exp(-d) - 1 + d, unbiased and never negative (Schulman, "Approximating KL divergence", 2020); k3 is
    GRPO's (Shao et al. 2024, eq. 4). As a loss, what teaches is the gradient, and its mean over sampled tokens is 0 for k1 (it adds noise
    only), KL(policy || reference)'s own for k2, and for k3 that of KL(reference || policy).

    >>> [round(kl_estimate(torch.tensor(0.0), torch.tensor(-1.0), k).item(), 4) for k in ("k1", "k2", "k3")]
    [1.0, 0.5, 0.3679]
    """
    difference = log_probs - reference_log_probs
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return torch.expm1(-difference) + difference
        case _:
            assert_never(estimator)
