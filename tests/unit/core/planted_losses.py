"""Losses of one's own for check-loss: right ones of unusual shapes, and wrong ones with one fault each."""

import torch

from mathrl_ray.core.loss_batch import LossResult


def token_mean(batch, per_token):
    return torch.where(batch.mask, per_token, 0.0).sum() / batch.num_tokens


def ratio_of(batch):
    return (batch.learner_logprobs - batch.proximal_logprobs).exp()


def clipped(batch, ratio):
    return -torch.minimum(ratio * batch.advantages, ratio.clamp(0.8, 1.2) * batch.advantages)


# right ones


def plain_clip(batch):
    return token_mean(batch, clipped(batch, ratio_of(batch)))


def plain_gspo(batch):
    gap = torch.where(batch.mask, batch.learner_logprobs - batch.proximal_logprobs, 0.0)
    ratio = (gap.sum(dim=1) / batch.mask.sum(dim=1).clamp(min=1)).exp()
    advantages = batch.advantages.squeeze(1)
    per_row = -torch.minimum(ratio * advantages, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantages)
    return LossResult(per_row.sum() / batch.num_sequences, {"ratio_mean": ratio})


def masked_correction(batch):
    weight = (batch.proximal_logprobs - batch.generator_logprobs).exp()
    kept = torch.where((weight > 0.5) & (weight < 2), weight, 0.0)
    return LossResult(token_mean(batch, kept * clipped(batch, ratio_of(batch))), {"kept_fraction": kept > 0})


def surprise_weighted(batch):
    """Tokens count by how unlikely they are, detached."""
    weight = 1 - batch.learner_logprobs.detach().exp()
    return token_mean(batch, -weight * batch.advantages * batch.learner_logprobs)


def top_entropy_only(batch):
    kept = batch.entropy > 0.55
    return token_mean(batch, torch.where(kept, clipped(batch, ratio_of(batch)), 0.0))


def with_k1(batch):
    kl = batch.learner_logprobs - batch.reference_logprobs
    return token_mean(batch, clipped(batch, ratio_of(batch)) + 0.1 * kl)


def with_k3_and_entropy(batch):
    gap = batch.reference_logprobs - batch.learner_logprobs
    return token_mean(batch, clipped(batch, ratio_of(batch)) + 0.1 * (gap.exp() - 1 - gap) - 0.01 * batch.entropy)


def self_ratio(batch):
    """REINFORCE as a ratio with the policy itself, the second one detached."""
    return token_mean(batch, -(batch.learner_logprobs - batch.learner_logprobs.detach()).exp() * batch.advantages)


def cispo_like(batch):
    weight = ratio_of(batch).detach().clamp(max=5)
    return token_mean(batch, -weight * batch.advantages * batch.learner_logprobs)


def response_product(batch):
    """The product of a response's ratios, clipped: the ratio of the response as one action."""
    gap = torch.where(batch.mask, batch.learner_logprobs - batch.proximal_logprobs, 0.0).sum(dim=1, keepdim=True)
    return clipped(batch, gap.clamp(-20, 20).exp()).sum() / batch.num_sequences


def with_a_heavy_k1(batch):
    """A penalty nearly as large as the smallest advantage: the gradient of those tokens nearly vanishes."""
    return token_mean(batch, clipped(batch, ratio_of(batch)) + 0.49 * (batch.learner_logprobs - batch.reference_logprobs))


def positive_only(batch):
    return token_mean(batch, -batch.advantages.clamp(min=0) * batch.learner_logprobs)


RIGHT = [
    plain_clip, plain_gspo, masked_correction, surprise_weighted, top_entropy_only, with_k1, with_k3_and_entropy, self_ratio, cispo_like,
    response_product, with_a_heavy_k1, positive_only,
]  # fmt: skip


# wrong ones


def wrong_sign(batch):
    return -plain_clip(batch)


def wrong_sign_of_log_prob(batch):
    return token_mean(batch, batch.advantages * batch.learner_logprobs)


def mean_of_token_means(batch):
    return torch.where(batch.mask, clipped(batch, ratio_of(batch)), 0.0).sum() / batch.mask.sum()


def mean_of_sequence_means(batch):
    sums = torch.where(batch.mask, clipped(batch, ratio_of(batch)), 0.0).sum(dim=1)
    return (sums / batch.mask.sum(dim=1).clamp(min=1)).mean()


def undetached_cispo(batch):
    return token_mean(batch, -ratio_of(batch).clamp(max=5) * batch.advantages * batch.learner_logprobs)


def undetached_weight_of_log_prob(batch):
    weight = (batch.learner_logprobs - batch.generator_logprobs).exp()
    return token_mean(batch, -weight * batch.advantages * batch.learner_logprobs)


def undetached_weight_of_ratio(batch):
    weight = (batch.learner_logprobs - batch.generator_logprobs).exp().clamp(max=2)
    return token_mean(batch, weight * clipped(batch, ratio_of(batch)))


def undetached_surprise(batch):
    weight = 1 - batch.learner_logprobs.exp()
    return token_mean(batch, -weight * batch.advantages * batch.learner_logprobs)


def undetached_self_ratio(batch):
    return token_mean(batch, -(batch.learner_logprobs - batch.learner_logprobs).exp() * batch.advantages)


def renormalised(batch, epsilon=0.0):
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + epsilon)
    return token_mean(batch, -advantages * batch.learner_logprobs)


def normalised_by_largest(batch):
    return token_mean(batch, -batch.advantages / batch.advantages.abs().amax(dim=1, keepdim=True) * batch.learner_logprobs)


def row_means_of_nothing(batch):
    sums = torch.where(batch.mask, -batch.advantages * batch.learner_logprobs, 0.0).sum(dim=1)
    return (sums / batch.mask.sum(dim=1)).sum() / batch.num_sequences


def unbounded_power(batch):
    return token_mean(batch, -(ratio_of(batch).detach() ** 4) * batch.advantages * batch.learner_logprobs)


def unbounded_product(batch):
    gap = torch.where(batch.mask, batch.learner_logprobs - batch.proximal_logprobs, 0.0).sum(dim=1, keepdim=True)
    return clipped(batch, gap.exp()).sum() / batch.num_sequences


def sum_over_everything(batch):
    return clipped(batch, ratio_of(batch)).sum() / batch.num_tokens


def mean_over_everything(batch):
    return clipped(batch, ratio_of(batch)).mean()


def mean_that_counts_padding(batch):
    return (clipped(batch, ratio_of(batch)) * batch.mask).mean(dim=1).sum() / batch.num_sequences


def padding_in_a_detached_scale(batch):
    scale = batch.entropy.sum(dim=1, keepdim=True)
    return token_mean(batch, -scale * batch.advantages * batch.learner_logprobs)


WRONG = {
    wrong_sign: {"sign"},
    wrong_sign_of_log_prob: {"sign"},
    mean_of_token_means: {"micro-batches"},
    mean_of_sequence_means: {"micro-batches"},
    undetached_cispo: {"detach", "sign"},  # the gradient -A (log p + 1) has the wrong sign where p < 1/e
    undetached_weight_of_log_prob: {"detach", "sign"},
    undetached_weight_of_ratio: {"detach"},
    undetached_surprise: {"detach"},
    undetached_self_ratio: {"detach"},
    renormalised: {"NaN safety", "micro-batches"},
    normalised_by_largest: {"NaN safety"},
    row_means_of_nothing: {"NaN safety"},
    unbounded_power: {"NaN safety"},
    unbounded_product: {"NaN safety"},
    sum_over_everything: {"mask", "micro-batches"},  # each micro-batch has padding of its own
    mean_over_everything: {"mask", "micro-batches"},
    mean_that_counts_padding: {"mask", "micro-batches"},
    padding_in_a_detached_scale: {"mask", "micro-batches"},
}
"""The tries that each fails, and no other."""
