from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.off_policy import importance_weights, kl_estimate

MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
# proximal / generator: 4 and 3/2 | 1/4 | no token; 1000 nats of junk outside
GAPS = torch.tensor([[log(4), log(1.5), 1000.0], [log(0.25), -1000.0, 1000.0], [1000.0, 1000.0, 1000.0]], dtype=torch.float64)


def weights(gaps, mask=MASK, *, correction, level="token", low=0.5, high=2.0):
    generator = torch.full_like(gaps, -3.0)
    return importance_weights(gaps - 3.0, generator, mask, correction=correction, level=level, low=low, high=high)


def rows(tensor, mask=MASK):
    """The values inside of the mask, a list a row."""
    return [[round(value, 9) for value in row[inside].tolist()] for row, inside in zip(tensor, mask, strict=True)]


@pytest.mark.parametrize(
    ("correction", "level", "expected"),
    [
        ("none", "token", [[1, 1], [1], []]),
        ("none", "sequence", [[1, 1], [1], []]),
        ("truncated", "token", [[2, 1.5], [0.25], []]),
        ("masked", "token", [[0, 1.5], [0], []]),
        # whole responses: 4 x 3/2 = 6, and 1/4
        ("truncated", "sequence", [[2, 2], [0.25], []]),
        ("masked", "sequence", [[0, 0], [0], []]),
    ],
)
def test_weights_by_hand(correction, level, expected):
    assert rows(weights(GAPS, correction=correction, level=level)) == expected


def test_the_limits_are_the_recipes_own_and_belong_to_what_is_kept():
    # 6 and 1/4 lie within [0.2, 6.5]; a weight of 1 is kept by limits of 1
    one = torch.tensor([[0.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert rows(weights(GAPS, correction="masked", level="sequence", low=0.2, high=6.5)) == [[6, 6], [0.25], []]
    assert weights(one, mask, correction="masked", low=1.0, high=1.0).item() == 1
    assert weights(one, mask, correction="truncated", high=1.0).item() == 1


def test_a_row_without_tokens_has_weight_1_and_nothing_is_infinite():
    for correction in ("truncated", "masked"):
        result = weights(GAPS, correction=correction, level="sequence", low=0.1, high=9.0)
        assert result[2].tolist() == [1, 1, 1]
        assert result.isfinite().all()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_ratio_that_overflows_is_truncated_or_masked(level):
    # exp(200) is inf in float32
    gaps, mask = torch.tensor([[200.0, 200.0]]), torch.ones(1, 2, dtype=torch.bool)
    assert weights(gaps, mask, correction="truncated", level=level).tolist() == [[2, 2]]
    assert weights(gaps, mask, correction="masked", level=level).tolist() == [[0, 0]]
    assert weights(-gaps, mask, correction="masked", level=level).tolist() == [[0, 0]]


def test_weights_carry_no_gradient():
    proximal = GAPS.clone().requires_grad_()
    for correction in ("none", "truncated", "masked"):
        result = importance_weights(proximal, torch.zeros_like(GAPS), MASK, correction=correction, level="token", low=0.5, high=2.0)
        assert not result.requires_grad


@given(
    st.lists(st.floats(-800, 800), min_size=1, max_size=6),
    st.sampled_from(["truncated", "masked"]),
    st.sampled_from(["token", "sequence"]),
    st.floats(0, 0.99),
    st.floats(1.01, 10),
)
def test_no_weight_is_above_the_upper_limit_nor_a_kept_one_below_the_lower(gaps, correction, level, low, high):
    gaps = torch.tensor([gaps], dtype=torch.float64)
    result = weights(gaps, torch.ones_like(gaps, dtype=torch.bool), correction=correction, level=level, low=low, high=high)
    assert ((result >= 0) & (result <= high)).all()
    if correction == "masked":
        assert ((result == 0) | (result >= low)).all()


# KL


@pytest.mark.parametrize(
    ("gap", "k1", "k2", "k3"),
    [
        (0.0, 0.0, 0.0, 0.0),
        (log(2), log(2), log(2) ** 2 / 2, 0.5 - 1 + log(2)),
        (-log(2), -log(2), log(2) ** 2 / 2, 2 - 1 - log(2)),
        (1e-9, 1e-9, 5e-19, 5e-19),  # a difference of ones would be 0 here
    ],
)
def test_estimates_by_hand(gap, k1, k2, k3):
    log_prob, reference = torch.tensor(gap, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    assert kl_estimate(log_prob, reference, "k1").item() == k1
    assert kl_estimate(log_prob, reference, "k2").item() == pytest.approx(k2, rel=1e-12)
    assert kl_estimate(log_prob, reference, "k3").item() == pytest.approx(k3, abs=1e-15)


@given(st.floats(-50, 50))
def test_k2_and_k3_are_never_negative(gap):
    for estimator in ("k2", "k3"):
        assert kl_estimate(torch.tensor(gap, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64), estimator).item() >= 0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradients_of_the_estimates_are_those_of_finite_differences(estimator):
    log_probs = torch.tensor([-0.5, -1.0, -3.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -1.0, -0.2], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, reference, estimator), log_probs)


# over all actions of a small softmax: no sampling noise

LOGITS = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.5, -0.2, 0.1, -0.9], dtype=torch.float64).log_softmax(dim=-1)


def divergence(left, right):
    return (left.exp() * (left - right)).sum()


def gradient_of(scalar_of_log_probs):
    logits = LOGITS.clone().requires_grad_()
    scalar_of_log_probs(logits.log_softmax(dim=-1)).backward()
    return logits.grad


def expected_gradient(estimator):
    """Mean over actions that the policy samples of the gradient of the estimate at that action."""
    probabilities = LOGITS.softmax(dim=-1)
    return gradient_of(lambda log_probs: (probabilities * kl_estimate(log_probs, REFERENCE, estimator)).sum())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator):
    log_probs = LOGITS.log_softmax(dim=-1)
    mean = (log_probs.exp() * kl_estimate(log_probs, REFERENCE, estimator)).sum()
    torch.testing.assert_close(mean, divergence(log_probs, REFERENCE), atol=1e-14, rtol=0)


def test_the_mean_gradient_of_k1_is_0():
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(4, dtype=torch.float64), atol=1e-14, rtol=0)


def test_the_mean_gradient_of_k2_is_that_of_the_kl_to_the_reference():
    expected = gradient_of(lambda log_probs: divergence(log_probs, REFERENCE))
    torch.testing.assert_close(expected_gradient("k2"), expected, atol=1e-14, rtol=0)
    assert expected.norm() > 0.1


def test_the_mean_gradient_of_k3_is_that_of_the_kl_from_the_reference():
    expected = gradient_of(lambda log_probs: divergence(REFERENCE, log_probs))
    torch.testing.assert_close(expected_gradient("k3"), expected, atol=1e-14, rtol=0)
    assert (expected - expected_gradient("k2")).norm() > 0.01  # the two directions differ here


def test_estimates_hold_no_infinity_for_log_probs_far_apart():
    # exp(-d) of the largest gap that a float32 holds is inf only beyond 88 nats
    for estimator in ("k1", "k2", "k3"):
        assert kl_estimate(torch.tensor(-80.0), torch.tensor(0.0), estimator).item() < inf
    assert kl_estimate(torch.tensor(-80.0), torch.tensor(0.0), "k3").item() == pytest.approx(exp(80) - 81, rel=1e-5)
