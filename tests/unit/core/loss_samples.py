"""Batches for the tests of losses, ways to cut them as the learner does, and the same losses as plain loops over rows and tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp

import torch
from torch import Tensor

from mathrl_ray.core.loss_batch import LossInput
from mathrl_ray.sections import LossSection

LOGPROB_FIELDS = ("learner_logprobs", "generator_logprobs", "proximal_logprobs", "reference_logprobs")
TOKEN_FIELDS = (*LOGPROB_FIELDS, "entropy", "mask", "policy_versions")


def random_batch(mask: Tensor, *, seed: int = 0, gap: float = 0.4, dtype: torch.dtype = torch.float64) -> LossInput:
    """Log-probs about -1.5 whose policies are `gap` nats apart, advantages about 1; numbers outside of the mask too."""
    draw = torch.Generator().manual_seed(seed)

    def noise(scale: float, *shape: int) -> Tensor:
        return scale * torch.randn(*(shape or mask.shape), dtype=torch.float64, generator=draw)

    generator = noise(0.5) - 1.5
    proximal = generator + noise(gap)
    fields = {
        "learner_logprobs": proximal + noise(gap),
        "entropy": noise(0.2).abs(),
        "generator_logprobs": generator,
        "proximal_logprobs": proximal,
        "reference_logprobs": proximal + noise(gap),
        "advantages": noise(1.0, len(mask), 1),
    }
    return LossInput(
        **{name: value.to(dtype) for name, value in fields.items()},
        mask=mask,
        policy_versions=torch.full(mask.shape, 3),
        learner_version=4,
        num_sequences=len(mask),
        num_tokens=max(1, int(mask.sum())),
        max_tokens=mask.shape[1] + 1,
    )


def ragged_mask(lengths: Sequence[int], num_columns: int) -> Tensor:
    return torch.arange(num_columns).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)


def with_leaves(batch: LossInput) -> LossInput:
    """The batch with learner_logprobs and entropy that carry a gradient."""
    return replace(batch, **{name: getattr(batch, name).clone().requires_grad_() for name in ("learner_logprobs", "entropy")})


def cut(batch: LossInput, rows: Sequence[int]) -> LossInput:
    """Some rows, padded to the longest of them."""
    columns = batch.mask[list(rows)].any(dim=0).nonzero()
    width = int(columns.max()) + 1 if len(columns) else 1
    chosen = {name: getattr(batch, name)[list(rows), :width] for name in TOKEN_FIELDS}
    return replace(batch, advantages=batch.advantages[list(rows)], **chosen)


def even_parts(rows: Sequence[int], num_parts: int) -> Iterator[Sequence[int]]:
    for part in range(num_parts):
        yield rows[part * len(rows) // num_parts : (part + 1) * len(rows) // num_parts]


# the losses again: floats and loops, from the papers' formulas


def loop_loss(batch: LossInput, settings: LossSection) -> tuple[float, list[list[float]]]:
    """The loss and its gradient [B, T] with respect to learner_logprobs."""
    loss, gradient = 0.0, [[0.0] * batch.mask.shape[1] for _ in batch.mask]
    for row in range(len(batch.mask)):
        tokens = [column for column, inside in enumerate(batch.mask[row].tolist()) if inside]
        share = _share(batch, settings, len(tokens))
        weights = _weights(batch, settings, row, tokens)
        for column, weight in zip(tokens, weights, strict=True):
            value, slope = _surrogate(batch, settings, row, column, tokens)
            kl, kl_slope = _kl(batch, settings, row, column)
            entropy = batch.entropy[row, column].item()
            loss += share * (weight * value + settings.kl_coefficient * kl - settings.entropy_coefficient * entropy)
            gradient[row][column] += share * settings.kl_coefficient * kl_slope
            for other in tokens if settings.surrogate == "gspo" else [column]:
                gradient[row][other] += share * weight * slope
    return loss, gradient


def _share(batch: LossInput, settings: LossSection, length: int) -> float:
    if settings.aggregation == "sequence":
        return 1 / (max(1, length) * batch.num_sequences)
    return 1 / (batch.num_tokens if settings.aggregation == "token" else batch.num_sequences * batch.max_tokens)


def _weights(batch: LossInput, settings: LossSection, row: int, tokens: Sequence[int]) -> list[float]:
    gaps = [batch.proximal_logprobs[row, column].item() - batch.generator_logprobs[row, column].item() for column in tokens]
    ratios = [exp(sum(gaps))] * len(gaps) if settings.correction_level == "sequence" else [exp(gap) for gap in gaps]
    if settings.correction == "truncated":
        return [min(ratio, settings.correction_high) for ratio in ratios]
    if settings.correction == "masked":
        return [ratio if settings.correction_low <= ratio <= settings.correction_high else 0.0 for ratio in ratios]
    return [1.0] * len(gaps)


def _surrogate(batch: LossInput, settings: LossSection, row: int, column: int, tokens: Sequence[int]) -> tuple[float, float]:
    """A token's loss, and its slope in each log-prob that it depends on."""
    older = batch.generator_logprobs if settings.ratio == "coupled" else batch.proximal_logprobs
    advantage, log_prob = batch.advantages[row, 0].item(), batch.learner_logprobs[row, column].item()
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    gaps = [batch.learner_logprobs[row, token].item() - older[row, token].item() for token in tokens]
    ratio = exp(gaps[tokens.index(column)])
    if settings.surrogate == "log_prob":
        return -advantage * log_prob, -advantage
    if settings.surrogate == "ratio":
        return -ratio * advantage, -ratio * advantage
    if settings.surrogate == "cispo":
        weight = min(max(ratio, low), high)
        return -weight * advantage * log_prob, -weight * advantage
    num_shared = 1
    if settings.surrogate == "gspo":
        num_shared = len(tokens)
        ratio = exp(sum(gaps) / num_shared)
    objective, bound = ratio * advantage, min(max(ratio, low), high) * advantage
    return -min(objective, bound), -objective / num_shared if objective <= bound else 0.0


def _kl(batch: LossInput, settings: LossSection, row: int, column: int) -> tuple[float, float]:
    gap = batch.learner_logprobs[row, column].item() - batch.reference_logprobs[row, column].item()
    if settings.kl_estimator == "k1":
        return gap, 1.0
    if settings.kl_estimator == "k2":
        return gap**2 / 2, gap
    return exp(-gap) - 1 + gap, 1 - exp(-gap)
