"""What a loss gets and what it gives back: the two records that a loss of your own sees too.

Made by the learner for each micro-batch (and by check-loss), read by core/losses.py and by the function that `loss.function` names.
Log-probs are in nats, [B, T], aligned with the labels, 0 outside of the responses.

`python -m mathrl_ray check-loss --help` shows a loss of one's own in six lines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossInput:
    """One micro-batch of B responses with T columns, and counts of the whole batch that it was cut from.

    A batch is cut differently by each token budget and number of ranks, so a loss divides by the counts that stand here, never by what it
    finds in its own rows: then the sum over micro-batches is the batch's loss.
    """

    learner_logprobs: Tensor
    """[B, T] of the policy that is trained; the only field, with `entropy`, that carries a gradient."""
    entropy: Tensor
    """[B, T] of the full next-token distribution; carries a gradient for a bonus: where loss.entropy_coefficient is above 0 or
    loss.function is set."""
    generator_logprobs: Tensor
    """[B, T] as sampled."""
    proximal_logprobs: Tensor
    """[B, T] of the learner when the batch began; with one optimizer step a batch it is learner_logprobs, detached."""
    reference_logprobs: Tensor | None
    """[B, T] of the stage's start model; None where loss.kl_coefficient is 0, which saves a second model."""
    advantages: Tensor
    """[B, 1]"""
    mask: Tensor
    """[B, T] bool, true on response tokens."""
    policy_versions: Tensor
    """[B, T] long: the version whose weights sampled each token."""
    learner_version: int
    """The version that is trained now; minus policy_versions it is a token's age."""
    num_sequences: int
    """Rows of the whole batch, over all micro-batches and ranks."""
    num_tokens: int
    """Response tokens of the whole batch."""
    max_tokens: int
    """generator.max_tokens: the longest response there can be."""


@dataclass(frozen=True, slots=True, eq=False)
class LossResult:
    """What a loss gives back.

    Example: LossResult(loss, {"ratio_max": ratio.detach().amax(dim=-1)})
    """

    loss: Tensor
    """Scalar; its sum over the micro-batches is the batch's loss."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """What is logged beside it, by its shape: [B, T] as its mean over the batch's response tokens, [B] as its mean over the batch's
    responses, a scalar as its sum over the micro-batches."""


LossFunction = Callable[[LossInput], Tensor | LossResult]
"""What computes a loss; a bare tensor is a result without metrics."""


def as_result(returned: Tensor | LossResult) -> LossResult:
    return returned if isinstance(returned, LossResult) else LossResult(returned)


def result_fault(result: LossResult) -> str:
    """Why a result cannot be trained on, for the person who wrote the function; empty where it can."""
    loss = result.loss
    if not isinstance(loss, Tensor):
        return f"the function gave a {type(loss).__name__}: return the loss, a scalar tensor, or LossResult(loss, metrics)"
    if loss.ndim != 0:
        return f"the loss has the shape {tuple(loss.shape)}: return a scalar (aggregate() of core/losses.py makes one from [B, T])"
    if not loss.requires_grad:
        return "the loss carries no gradient: compute it from batch.learner_logprobs, undetached"
    return ""


def metric_shares(metrics: Mapping[str, Tensor], batch: LossInput) -> dict[str, float]:
    """What this micro-batch adds to each logged metric; the sum over micro-batches is the metric.

    Raises:
        ValueError: a metric that is no tensor, or of another shape than [B, T], [B] or a scalar.
    """
    return {name: _share(name, value, batch) for name, value in metrics.items()}


def _share(name: str, value: Tensor, batch: LossInput) -> float:
    if not isinstance(value, Tensor):
        raise ValueError(f"the loss's metric {name!r} is a {type(value).__name__}: give a tensor, detached or not")
    value = value.detach().to(torch.float64)
    num_rows, _ = batch.mask.shape
    if value.shape == batch.mask.shape:
        return torch.where(batch.mask, value, 0.0).sum().item() / batch.num_tokens
    if value.shape == (num_rows,):
        return value.sum().item() / batch.num_sequences
    if value.ndim == 0:
        return value.item()
    raise ValueError(  # [B, 1] too: in a micro-batch of one-token responses nothing would tell it from [B, T]
        f"the loss's metric {name!r} has the shape {tuple(value.shape)}: give [B, T] = {tuple(batch.mask.shape)} (a value a token), "
        f"[B] = {(num_rows,)} (a value a response) or a scalar"
    )
