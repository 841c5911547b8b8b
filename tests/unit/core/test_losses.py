from functools import partial
from math import inf, log, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.losses import (
    aggregate,
    cispo_loss,
    grpo_clip_loss,
    gspo_loss,
    policy_gradient_loss,
    reinforce_loss,
    response_only,
    sft_loss,
)

HOW = ["sequence", "token", "constant"]


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def log_of(*ratios):
    """[1, T] log-ratios."""
    return torch.tensor([[log(ratio) for ratio in ratios]], dtype=torch.float64)


def clip(log_ratio, advantage, low=0.2, high=0.2):
    advantages = torch.tensor([[advantage]], dtype=log_ratio.dtype)
    return grpo_clip_loss(log_ratio, torch.zeros_like(log_ratio), advantages, clip_low=low, clip_high=high)


# one token at a time


def test_supervised_loss_is_the_negative_log_prob():
    assert sft_loss(torch.tensor([[-0.5, -2.0]])).tolist() == [[0.5, 2.0]]


def test_reinforces_loss_is_minus_advantage_times_log_prob():
    assert reinforce_loss(torch.tensor([[-0.5, -2.0], [-1.0, 0.0]]), torch.tensor([[2.0], [-3.0]])).tolist() == [[1, 4], [-3, 0]]


def test_the_unclipped_loss_is_minus_ratio_times_advantage():
    # ratios 2 and 1/2; advantages 3 and -4 a row
    log_probs = torch.cat([log_of(2, 0.5), log_of(2, 0.5)])
    loss = policy_gradient_loss(log_probs, torch.zeros(2, 2), torch.tensor([[3.0], [-4.0]]))
    torch.testing.assert_close(loss, torch.tensor([[-6.0, -1.5], [8.0, 2.0]], dtype=torch.float64))


def test_on_policy_the_gradient_is_reinforces():
    log_probs = doubles(2, 3).requires_grad_()
    policy_gradient_loss(log_probs, log_probs.detach(), torch.tensor([[3.0], [-4.0]])).sum().backward()
    assert log_probs.grad.tolist() == [[-3.0] * 3, [4.0] * 3]


def test_a_good_token_is_clipped_above_and_only_there():
    # A = 1: min(0.5, 0.8), min(1.1, 1.1), min(1.5, 1.2)
    result = clip(log_of(0.5, 1.1, 1.5), 1.0)
    assert result.loss.tolist() == [pytest.approx([-0.5, -1.1, -1.2])]
    assert result.clipped.tolist() == [[False, False, True]]


def test_a_bad_token_is_clipped_below_and_only_there():
    # A = -2: min(-1, -1.6), min(-2.2, -2.2), min(-3, -2.4)
    result = clip(log_of(0.5, 1.1, 1.5), -2.0)
    assert result.loss.tolist() == [pytest.approx([1.6, 2.2, 3.0])]
    assert result.clipped.tolist() == [[True, False, False]]


def test_the_two_clips_have_limits_of_their_own():
    # A = 1, high 0.28: 1.25 stays, 1.3 becomes 1.28; A = -1, low 0.1: 0.95 stays, 0.85 becomes 0.9
    assert clip(log_of(1.25, 1.3), 1.0, 0.1, 0.28).loss.tolist() == [pytest.approx([-1.25, -1.28])]
    assert clip(log_of(0.95, 0.85), -1.0, 0.1, 0.28).loss.tolist() == [pytest.approx([0.95, 0.9])]


def test_an_advantage_of_zero_is_neither_loss_nor_clipped():
    result = clip(log_of(0.1, 10), 0.0)
    assert result.loss.tolist() == [[0, 0]]
    assert not result.clipped.any()


def test_a_ratio_of_one_is_not_clipped_even_by_limits_of_zero():
    # both terms are equal, so the clip does not decide
    assert not clip(log_of(1), 1.0, 0.0, 0.0).clipped.any()


def test_a_clipped_token_has_no_gradient_even_when_its_ratio_overflows():
    log_ratio = torch.tensor([[0.1, 1.0, 500.0]], requires_grad=True)  # exp(500) is inf in float32
    result = clip(log_ratio, 1.0)
    result.loss.sum().backward()
    assert result.loss.tolist() == [pytest.approx([-1.10517, -1.2, -1.2], abs=1e-5)]
    assert log_ratio.grad.tolist() == [pytest.approx([-1.10517, 0, 0], abs=1e-5)]


def test_a_token_of_no_advantage_has_no_gradient_even_when_its_ratio_overflows():
    log_ratio = torch.tensor([[500.0]], requires_grad=True)
    loss = clip(log_ratio, 0.0).loss
    loss.sum().backward()
    assert (loss.tolist(), log_ratio.grad.tolist()) == ([[0]], [[0]])


def test_a_bad_token_whose_ratio_overflows_is_infinite_and_no_nan():
    # nothing bounds it in PPO either; the learner skips a step whose loss is not finite
    assert clip(torch.tensor([[500.0]]), -1.0).loss.tolist() == [[inf]]


def test_gspo_gives_every_token_the_clip_of_the_geometric_mean_ratio():
    # row 1, A = 3: sqrt(4 x 1/4) = 1, not clipped, though 4 and 1/4 would be; row 2, A = 1: its one token's 2, clipped to 1.5
    log_probs, mask = torch.cat([log_of(4, 0.25), log_of(2, 99)]), torch.tensor([[True, True], [True, False]])
    result = gspo_loss(log_probs, torch.zeros(2, 2), torch.tensor([[3.0], [1.0]]), mask, clip_low=0.5, clip_high=0.5)
    torch.testing.assert_close(result.loss, torch.tensor([[-3.0, -3.0], [-1.5, -1.5]], dtype=torch.float64))
    assert result.clipped.tolist() == [[False, False], [True, True]]


def test_gspos_gradient_is_the_ratio_times_the_advantage_shared_by_the_tokens():
    # s = sqrt(2 x 8) = 4, A = 3; the mean over the tokens of -s A has the gradient -s A / 2 in each
    log_probs = log_of(2, 8).requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    gspo_loss(log_probs, torch.zeros(1, 2), torch.tensor([[3.0]]), mask, clip_low=0.5, clip_high=9.0).loss.mean().backward()
    assert log_probs.grad.tolist() == [pytest.approx([-6.0, -6.0])]


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    # weights 0.5, 1.1 and 3 clipped to 0.8, 1.1 and 1.2, times A = 2; log p is the log-ratio here, as the proximal one is 0
    log_probs = log_of(0.5, 1.1, 3).requires_grad_()
    result = cispo_loss(log_probs, torch.zeros(1, 3), torch.tensor([[2.0]]), clip_low=0.2, clip_high=0.2)
    result.loss.sum().backward()
    assert result.loss.tolist() == [pytest.approx([-1.6 * log(0.5), -2.2 * log(1.1), -2.4 * log(3)])]
    assert log_probs.grad.tolist() == [pytest.approx([-1.6, -2.2, -2.4])]
    assert result.clipped.tolist() == [[True, False, True]]


@given(st.floats(-3, 3), st.floats(-2, 2), st.floats(0, 0.9), st.floats(0, 2))
def test_clipping_never_makes_the_loss_smaller(log_ratio, advantage, low, high):
    log_probs = torch.tensor([[log_ratio]], dtype=torch.float64)
    unclipped = policy_gradient_loss(log_probs, torch.zeros(1, 1), torch.tensor([[advantage]], dtype=torch.float64))
    result = clip(log_probs, advantage, low, high)
    assert torch.equal(result.clipped, result.loss > unclipped)
    assert (result.loss >= unclipped).all()


@pytest.mark.parametrize(
    "loss",
    [policy_gradient_loss, lambda *arguments: grpo_clip_loss(*arguments, clip_low=0.2, clip_high=0.3).loss],
    ids=["unclipped", "clipped"],
)
def test_gradients_of_token_losses_are_those_of_finite_differences(loss):
    proximal, advantages = doubles(4, 6, seed=1), doubles(4, 1, seed=2)
    assert torch.autograd.gradcheck(lambda log_probs: loss(log_probs, proximal, advantages), doubles(4, 6).requires_grad_())


# aggregation

LOSS = torch.tensor([[1.0, 3.0, 9.0], [5.0, 9.0, 9.0]])
MASK = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sequence", (2 + 5) / 2),  # row means 2 and 5
        ("token", (1 + 3 + 5) / 3),
        ("constant", (1 + 3 + 5) / (2 * 4)),
    ],
)
def test_the_three_ways_to_add_up_nine(how, expected):
    assert aggregate(LOSS, MASK, how=how, num_sequences=2, num_tokens=3, constant=4.0).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sequence", [[1 / 4, 1 / 4, 0], [1 / 2, 0, 0]]),
        ("token", [[1 / 3, 1 / 3, 0], [1 / 3, 0, 0]]),
        ("constant", [[1 / 8, 1 / 8, 0], [1 / 8, 0, 0]]),
    ],
)
def test_a_tokens_weight_under_each(how, expected):
    loss = LOSS.clone().requires_grad_()
    aggregate(loss, MASK, how=how, num_sequences=2, num_tokens=3, constant=4.0).backward()
    torch.testing.assert_close(loss.grad, torch.tensor(expected))


@pytest.mark.parametrize("how", HOW)
def test_a_row_without_response_tokens_adds_nothing(how):
    loss = torch.tensor([[1.0, 3.0], [nan, inf]], requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])
    value = aggregate(loss, mask, how=how, num_sequences=1, num_tokens=2, constant=2.0)
    value.backward()
    assert value.item() == pytest.approx(2.0)
    assert loss.grad.tolist() == [[0.5, 0.5], [0.0, 0.0]]


@st.composite
def cut_batches(draw):
    """A batch as (loss, mask), and its rows dealt to micro-batches."""
    num_rows, num_columns = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10**6))
    mask = doubles(num_rows, num_columns, seed=seed + 1) > draw(st.sampled_from([-1.0, 0.0, 1.0]))
    rows = draw(st.permutations(range(num_rows)))
    cuts = sorted(draw(st.sets(st.integers(1, num_rows - 1)))) if num_rows > 1 else []
    parts = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, num_rows], strict=True)]
    return doubles(num_rows, num_columns, seed=seed), mask, parts


@given(cut_batches(), st.sampled_from(HOW))
def test_micro_batches_add_up_to_the_batch_in_value_and_gradient(batch, how):
    loss, mask, parts = batch
    reduce = partial(aggregate, how=how, num_sequences=len(loss), num_tokens=max(1, mask.sum().item()), constant=7.0)
    whole, cut = loss.clone().requires_grad_(), loss.clone().requires_grad_()
    expected = reduce(whole, mask)
    expected.backward()
    values = [reduce(cut[part], mask[part]) for part in parts]
    for value in values:
        value.backward()
    assert sum(value.item() for value in values) == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(cut.grad, whole.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("how", HOW)
def test_what_stands_outside_of_the_mask_reaches_neither_loss_nor_gradient(how):
    # the same batch, once with junk where the mask is false
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    junk = torch.tensor([[0.0, 0.0, nan, inf], [0.0, -inf, 1e30, nan]], dtype=torch.float64)
    results = []
    for outside in (torch.zeros_like(junk), junk):
        log_probs = (doubles(2, 4) + outside).requires_grad_()
        token_loss = grpo_clip_loss(
            response_only(log_probs, mask), doubles(2, 4, seed=1) + outside, torch.tensor([[1.0], [-1.0]]), clip_low=0.2, clip_high=0.2
        ).loss
        value = aggregate(token_loss, mask, how=how, num_sequences=2, num_tokens=3, constant=4.0)
        value.backward()
        results.append((value.detach(), log_probs.grad))
    torch.testing.assert_close(results[0], results[1], atol=0, rtol=0)
    assert results[0][1][mask].abs().sum() > 0


@pytest.mark.parametrize("how", HOW)
def test_gradients_of_the_aggregate_are_those_of_finite_differences(how):
    mask = doubles(3, 4, seed=1) > 0
    reduce = partial(aggregate, how=how, num_sequences=3, num_tokens=5, constant=4.0)
    assert torch.autograd.gradcheck(lambda loss: reduce(loss, mask), doubles(3, 4).requires_grad_())


@pytest.mark.parametrize(
    ("how", "counts", "name"),
    [
        ("sequence", (0, 3, 1.0), "num_sequences = 0"),
        ("token", (2, 0, 1.0), "num_tokens = 0"),
        ("constant", (2, 3, 0.0), "constant = 0.0"),
        ("constant", (2, 3, nan), "constant = nan"),
    ],
)
def test_a_divisor_that_is_not_positive_is_refused_by_name(how, counts, name):
    num_sequences, num_tokens, constant = counts
    with pytest.raises(ValueError, match=name):
        aggregate(LOSS, MASK, how=how, num_sequences=num_sequences, num_tokens=num_tokens, constant=constant)
