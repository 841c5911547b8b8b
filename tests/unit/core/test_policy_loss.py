"""The whole [loss] section: every method and variant by hand, against loops, and cut into micro-batches."""

import random
from dataclasses import replace
from math import log
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_samples import LOGPROB_FIELDS, cut, even_parts, loop_loss, ragged_mask, random_batch, with_leaves

from mathrl_ray.core.loss_batch import LossInput, metric_shares
from mathrl_ray.core.losses import policy_loss
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.sections import LossSection

METHODS = get_args(Method)
HOW = ("sequence", "token", "constant")
EXTRAS = {
    "alone": {},
    "truncated tokens, k3, entropy": {"correction": "truncated", "kl_coefficient": 0.3, "entropy_coefficient": 0.2},
    "masked sequences, k2": {
        "correction": "masked", "correction_level": "sequence", "correction_low": 0.3, "kl_coefficient": 0.3, "kl_estimator": "k2",
    },
    "truncated sequences, k1": {"correction": "truncated", "correction_level": "sequence", "kl_coefficient": 0.3, "kl_estimator": "k1"},
    "masked tokens": {"correction": "masked", "correction_low": 0.8, "correction_high": 1.3},
    "coupled": {"ratio": "coupled"},
}  # fmt: skip
LENGTHS = (3, 1, 6, 0, 2, 5, 6, 4)
RAGGED = ragged_mask(LENGTHS, 6)
SCATTERED = torch.rand(8, 6, generator=torch.Generator().manual_seed(1)) > 0.4
LN2 = log(2)


def settings_of(method: str = "grpo", **keys) -> LossSection:
    return LossSection(**{**method_settings(method)["loss"], **keys})


def small_batch() -> LossInput:
    """Two responses: A = 2 with probabilities 1/2, 1/4 that were 1/4, 1/2 (ratios 2, 1/2); A = -1 with 1/4 that was 1/2 (ratio 1/2).

    The generator had 1/16, 1/3 and 2, so that proximal / generator is 4, 3/2 and 1/4; the reference has 1/4 everywhere.
    """

    def logs(*rows):
        return torch.tensor(rows, dtype=torch.float64).log()

    return LossInput(
        learner_logprobs=logs([1 / 2, 1 / 4], [1 / 4, 1]),
        entropy=torch.tensor([[0.5, 0.25], [1.0, 9.0]], dtype=torch.float64),
        generator_logprobs=logs([1 / 16, 1 / 3], [2, 1]),
        proximal_logprobs=logs([1 / 4, 1 / 2], [1 / 2, 1]),
        reference_logprobs=logs([1 / 4, 1 / 4], [1 / 4, 1]),
        advantages=torch.tensor([[2.0], [-1.0]], dtype=torch.float64),
        mask=torch.tensor([[True, True], [True, False]]),
        policy_versions=torch.zeros(2, 2, dtype=torch.long),
        learner_version=1,
        num_sequences=2,
        num_tokens=3,
        max_tokens=5,
    )


def evaluated(batch: LossInput, settings: LossSection) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, float]]:
    """Loss, gradients of learner_logprobs and of entropy, logged metrics."""
    leaves = with_leaves(batch)
    result = policy_loss(leaves, settings)
    result.loss.backward()
    entropy = leaves.entropy.grad
    gradient = leaves.learner_logprobs.grad
    return result.loss.detach(), gradient, torch.zeros_like(gradient) if entropy is None else entropy, metric_shares(result.metrics, batch)


# by hand

BY_HAND = {
    # tokens 2 ln 2, 4 ln 2 | -2 ln 2: row means 3 ln 2 and -2 ln 2
    "reinforce": (LN2 / 2, 0),
    "reinforce_baseline": (LN2 / 2, 0),
    # the same tokens' sum, 4 ln 2, over 2 responses of at most 5 tokens
    "rloo": (4 * LN2 / 10, 0),
    # -2 x 2, -1/2 x 2 | 1/2: row means -5/2 and 1/2
    "grpo": (-1.0, 0),
    # 2 is clipped to 1.2, the bad 1/2 to 0.8: -2.4, -1 | 0.8: row means -1.7 and 0.8
    "grpo_clip": (-0.45, 2 / 3),
    "dr_grpo": ((-2.4 - 1 + 0.8) / 10, 2 / 3),
    # 2 is clipped to 1.28
    "dapo": ((-2.56 - 1 + 0.8) / 3, 2 / 3),
    # s = sqrt(2 x 1/2) = 1 and 1/2, the latter clipped to 0.9997: -2 and 0.9997
    "gspo": ((-2 + 0.9997) / 2, 1 / 3),
    # weights 2, 1/2 | 1/2, none above 5: 2 x 2 x ln 2, 1/2 x 2 x 2 ln 2 | -1/2 x 2 ln 2
    "cispo": (5 * LN2 / 3, 0),
}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_of_two_responses_by_hand(method):
    loss, clip_fraction = BY_HAND[method]
    value, _, _, metrics = evaluated(small_batch(), settings_of(method))
    assert value.item() == pytest.approx(loss, abs=1e-12)
    assert metrics == {"clip_fraction": pytest.approx(clip_fraction)}


@pytest.mark.parametrize(
    ("keys", "loss", "weight_mean", "limit_fraction"),
    [
        # weights 4, 3/2 | 1/4 of the ratio's -4, -1 | 1/2
        ({"correction": "truncated"}, (-4 * 2 - 1.5 + 0.125) / 3, (2 + 1.5 + 0.25) / 3, 1 / 3),
        ({"correction": "masked"}, -1.5 / 3, 1.5 / 3, 2 / 3),
        # 4 x 3/2 = 6 and 1/4 for whole responses
        ({"correction": "truncated", "correction_level": "sequence"}, (-4 * 2 - 2 + 0.125) / 3, (2 + 2 + 0.25) / 3, 2 / 3),
        ({"correction": "masked", "correction_level": "sequence", "correction_low": 0.1}, 0.125 / 3, 0.25 / 3, 2 / 3),
    ],
)
def test_the_off_policy_correction_by_hand(keys, loss, weight_mean, limit_fraction):
    value, _, _, metrics = evaluated(small_batch(), settings_of("grpo", aggregation="token", **keys))
    assert value.item() == pytest.approx(loss)
    assert metrics["correction_weight_mean"] == pytest.approx(weight_mean)
    assert metrics["correction_limit_fraction"] == pytest.approx(limit_fraction)


def test_the_coupled_ratio_is_taken_against_the_generator():
    # 1/2 / 1/16 = 8, 1/4 / 1/3 = 3/4 | 1/4 / 2 = 1/8: -16, -3/2 | 1/8
    assert evaluated(small_batch(), settings_of("grpo", aggregation="token", ratio="coupled"))[0].item() == pytest.approx(
        (-17.5 + 0.125) / 3
    )


@pytest.mark.parametrize(("estimator", "kl"), [("k1", LN2 / 3), ("k2", LN2**2 / 6), ("k3", (0.5 - 1 + LN2) / 3)])
def test_kl_and_entropy_are_added_with_their_coefficients(estimator, kl):
    # only the first token has left the reference, by ln 2; entropies 0.5, 0.25 | 1
    alone = evaluated(small_batch(), settings_of("dapo"))[0].item()
    keys = {"kl_coefficient": 0.1, "kl_estimator": estimator, "entropy_coefficient": 0.01}
    value, _, entropy_gradient, metrics = evaluated(small_batch(), settings_of("dapo", **keys))
    assert value.item() == pytest.approx(alone + 0.1 * kl - 0.01 * 1.75 / 3)
    assert metrics["kl_nats"] == pytest.approx(kl)
    assert entropy_gradient.tolist() == [pytest.approx([-0.01 / 3] * 2), pytest.approx([-0.01 / 3, 0])]


def test_a_kl_without_a_reference_names_the_key():
    with pytest.raises(ValueError, match=r"loss\.kl_coefficient = 0\.1"):
        policy_loss(replace(small_batch(), reference_logprobs=None), settings_of(kl_coefficient=0.1))


# against loops


@pytest.mark.parametrize("mask", [RAGGED, SCATTERED], ids=["ragged", "scattered"])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("method", METHODS)
def test_value_and_gradient_are_those_of_loops_over_rows_and_tokens(method, how, extra, mask):
    settings, batch = settings_of(method, aggregation=how, **EXTRAS[extra]), random_batch(mask)
    loss, gradient, _, _ = evaluated(batch, settings)
    expected_loss, expected_gradient = loop_loss(batch, settings)
    assert loss.item() == pytest.approx(expected_loss, abs=1e-12)
    torch.testing.assert_close(gradient, torch.tensor(expected_gradient, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("method", [method for method in METHODS if method != "cispo"])  # CISPO's weight is detached
def test_gradients_are_those_of_finite_differences(method, extra):
    settings, batch = settings_of(method, **EXTRAS[extra]), random_batch(RAGGED)
    leaves = with_leaves(batch)

    def loss(log_probs, entropy):
        return policy_loss(replace(batch, learner_logprobs=log_probs, entropy=entropy), settings).loss

    assert torch.autograd.gradcheck(loss, (leaves.learner_logprobs, leaves.entropy))


# cut into micro-batches

ORDERS = {
    "as they are": list(range(8)),
    "sorted": sorted(range(8), key=LENGTHS.__getitem__),
    "shuffled": random.Random(0).sample(range(8), 8),
}


def summed(batch: LossInput, settings: LossSection, parts):
    """The sums over micro-batches, their gradients put back in place."""
    loss, totals = torch.zeros((), dtype=batch.learner_logprobs.dtype), {}
    gradients = [torch.zeros_like(batch.learner_logprobs) for _ in range(2)]
    for rows in parts:
        piece_loss, *piece_gradients, metrics = evaluated(cut(batch, rows), settings)
        loss = loss + piece_loss
        for gradient, piece in zip(gradients, piece_gradients, strict=True):
            gradient[list(rows), : piece.shape[1]] += piece
        totals = {name: totals.get(name, 0.0) + value for name, value in metrics.items()}
    return loss, *gradients, totals


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("method", METHODS)
def test_behaviour_14_the_sum_over_1_2_4_or_8_micro_batches_is_the_batch(method, how, extra):
    settings, batch = settings_of(method, aggregation=how, **EXTRAS[extra]), random_batch(RAGGED)
    whole = evaluated(batch, settings)
    for order in ORDERS.values():
        for num_parts in (1, 2, 4, 8):
            torch.testing.assert_close(summed(batch, settings, even_parts(order, num_parts)), whole, atol=1e-10, rtol=0)
    assert whole[1].norm() > 0


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("method", METHODS)
def test_behaviour_14_in_float32_the_gap_is_below_1e_5_of_the_gradient_norm(method, how):
    settings = settings_of(method, aggregation=how, **EXTRAS["truncated tokens, k3, entropy"])
    batch = random_batch(RAGGED, dtype=torch.float32)
    loss, gradient, *_ = evaluated(batch, settings)
    for order in ORDERS.values():
        for num_parts in (2, 4, 8):
            cut_loss, cut_gradient, *_ = summed(batch, settings, even_parts(order, num_parts))
            assert (cut_gradient - gradient).norm() <= 1e-5 * gradient.norm()
            assert (cut_loss - loss).abs() <= 1e-5 * loss.abs().clamp(min=1)


@st.composite
def cut_batches(draw):
    num_rows, num_columns = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.booleans(), min_size=num_rows * num_columns, max_size=num_rows * num_columns))
    rows = draw(st.permutations(range(num_rows)))
    batch = random_batch(torch.tensor(cells).view(num_rows, num_columns), seed=draw(st.integers(0, 1000)))
    return batch, list(even_parts(rows, draw(st.integers(1, num_rows))))


@given(cut_batches(), st.sampled_from(METHODS), st.sampled_from(HOW), st.sampled_from(list(EXTRAS)))
def test_behaviour_14_holds_for_any_mask_and_any_cut(cut_batch, method, how, extra):
    batch, parts = cut_batch
    settings = settings_of(method, aggregation=how, **EXTRAS[extra])
    torch.testing.assert_close(summed(batch, settings, parts), evaluated(batch, settings), atol=1e-10, rtol=0)


# what must not matter


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("junk", [1e4, -1e4, 1e30])
def test_no_finite_number_outside_of_the_mask_reaches_loss_or_gradient(method, extra, junk):
    # exp(1e4) is inf, and 0 * inf would be NaN; each field alone, and all of them
    settings, batch = settings_of(method, **EXTRAS[extra]), random_batch(RAGGED)
    clean = evaluated(batch, settings)
    fields = (*LOGPROB_FIELDS, "entropy")
    for names in (*((name,) for name in fields), fields):
        dirty = replace(batch, **{name: torch.where(batch.mask, getattr(batch, name), junk) for name in names})
        torch.testing.assert_close(evaluated(dirty, settings), clean, atol=0, rtol=0)
    assert (clean[1][~RAGGED] == 0).all()


@pytest.mark.parametrize("method", ["grpo_clip", "gspo"])
@pytest.mark.parametrize(("advantage", "gap"), [(1.0, 500.0), (0.0, 500.0), (-1.0, -500.0)])
def test_a_clipped_ratio_that_overflows_teaches_nothing_and_is_no_nan(method, advantage, gap):
    # exp(500) is inf in float32: a good token far above its clip, one of no advantage, and a bad one far below
    batch = random_batch(ragged_mask([2], 3), dtype=torch.float32)
    far = replace(batch, learner_logprobs=batch.proximal_logprobs + gap, advantages=torch.tensor([[advantage]]))
    loss, gradient, _, _ = evaluated(far, settings_of(method))
    assert loss.isfinite()
    assert gradient.tolist() == [[0, 0, 0]]


def test_cispo_still_teaches_where_its_weight_overflows():
    # the weight is clipped to 5, the gradient -5 A / 2 tokens
    batch = random_batch(ragged_mask([2], 3), dtype=torch.float32)
    far = replace(batch, learner_logprobs=batch.proximal_logprobs + 500, advantages=torch.tensor([[2.0]]))
    _, gradient, _, metrics = evaluated(far, settings_of("cispo"))
    assert gradient.tolist() == [[-5, -5, 0]]
    assert metrics == {"clip_fraction": 1.0}


def test_on_policy_every_method_has_reinforces_gradient():
    # ratio 1, weights 1: -A / (8 |y|) under the mean of each sequence, whatever the surrogate
    batch = random_batch(RAGGED)
    same = batch.learner_logprobs
    batch = replace(batch, proximal_logprobs=same, generator_logprobs=same)
    shares = torch.tensor([1 / (8 * max(1, length)) for length in LENGTHS], dtype=torch.float64).unsqueeze(1)
    for method in METHODS:
        gradient = evaluated(batch, settings_of(method, aggregation="sequence", correction="truncated"))[1]
        torch.testing.assert_close(gradient, torch.where(RAGGED, -batch.advantages * shares, 0.0), atol=1e-12, rtol=0)
