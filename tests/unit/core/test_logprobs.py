import weakref
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.logprobs import adjust_logits, chunked_response_log_probs, selected_log_probs, token_entropy

INF = float("inf")


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# selected_log_probs


def test_a_label_gets_the_logarithm_of_its_share():
    # softmax of (0, ln 3) is (1/4, 3/4)
    logits = torch.tensor([[0.0, log(3)], [0.0, log(3)]])
    assert selected_log_probs(logits, torch.tensor([0, 1])).tolist() == pytest.approx([log(1 / 4), log(3 / 4)])


def test_any_leading_shape_is_kept():
    logits, labels = doubles(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    expected = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(selected_log_probs(logits, labels), expected, atol=1e-12, rtol=0)


def test_half_precision_is_computed_in_float32():
    # in bfloat16, whose step at 5 is 1/32, ln 100 = 4.60517 would come out as 4.59375
    values = selected_log_probs(torch.zeros(1, 100, dtype=torch.bfloat16), torch.tensor([7]))
    assert values.dtype == torch.float32
    assert values.item() == pytest.approx(-log(100), abs=1e-6)


def test_huge_logits_do_not_overflow():
    logits = torch.tensor([[30000.0, 29998.0], [-30000.0, -30000.0]])
    # 1 / (1 + e^-2) = 0.88080; the float32 step at 30,000 is 0.002
    assert selected_log_probs(logits, torch.tensor([0, 1])).tolist() == pytest.approx([log(0.88080), log(0.5)], abs=2e-3)


def test_the_gradient_of_selected_log_probs_is_that_of_finite_differences():
    labels = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda logits: selected_log_probs(logits, labels), doubles(3, 5).requires_grad_())


def test_a_forbidden_token_gets_no_gradient_and_spoils_no_other():
    logits = torch.tensor([[0.0, -INF, 0.0]], requires_grad=True)
    selected_log_probs(logits, torch.tensor([0])).sum().backward()
    assert logits.grad.tolist() == [[0.5, 0.0, -0.5]]  # onehot - (1/2, 0, 1/2)


# token_entropy


def test_entropy_of_hand_made_distributions():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, log(3), -INF, -INF], [0.0, 0.0, -INF, -INF], [0.0, -INF, -INF, -INF]])
    quarter = 0.25 * log(4) + 0.75 * log(4 / 3)  # 0.56234
    assert token_entropy(logits).tolist() == pytest.approx([log(4), quarter, log(2), 0.0], abs=1e-6)


def test_entropy_of_huge_logits_is_right():
    # gaps of 0 and 2: p = 0.88080, H = -(p ln p + q ln q) = 0.36533
    assert token_entropy(torch.tensor([30000.0, 29998.0])).item() == pytest.approx(0.36533, abs=1e-5)
    assert token_entropy(torch.tensor([3e38, -3e38])).item() == 0


def test_entropy_with_forbidden_tokens_has_the_gradient_of_the_allowed_ones():
    # of (0, ln 3): dH/dz_i = -p_i (ln p_i + H)
    logits = torch.tensor([0.0, -INF, log(3)], dtype=torch.float64, requires_grad=True)
    entropy = token_entropy(logits)
    (1e300 * entropy).backward()  # large, since 0 times a large number would show as NaN
    value = entropy.item()
    expected = [-0.25 * (log(0.25) + value), 0.0, -0.75 * (log(0.75) + value)]
    assert (logits.grad / 1e300).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_of_entropy_is_that_of_finite_differences():
    assert torch.autograd.gradcheck(token_entropy, doubles(3, 5).requires_grad_())


@given(st.lists(st.one_of(st.floats(-1e4, 1e4), st.just(-INF)), max_size=8), st.floats(-1e4, 1e4))
def test_entropy_lies_between_zero_and_the_logarithm_of_the_allowed_tokens(values, finite):
    logits = torch.tensor([finite, *values])
    allowed = logits.isfinite().sum().item()
    assert 0 <= token_entropy(logits).item() <= log(allowed) + 1e-5


# adjust_logits


def adjusted(logits, **changes):
    settings = {"temperature": 1.0, "response_position": torch.zeros(logits.shape[:-1], dtype=torch.long), "min_tokens": 0}
    return adjust_logits(logits, **(settings | {"stop_token_ids": ()} | changes))


def test_early_positions_lose_the_stop_ids_and_all_are_divided_by_the_temperature():
    logits = torch.tensor([[2.0, 4.0, 6.0]]).repeat(4, 1)
    result = adjusted(logits, temperature=2.0, response_position=torch.tensor([-1, 0, 1, 2]), min_tokens=2, stop_token_ids=[2, 0])
    assert result.tolist() == [[1, 2, 3], [-INF, 2, -INF], [-INF, 2, -INF], [1, 2, 3]]
    assert logits.tolist() == [[2, 4, 6]] * 4  # the caller's own stay


def test_the_mass_of_forbidden_stop_ids_goes_to_the_others():
    # softmax of (0, 0, ln 2) is (1/4, 1/4, 1/2); without id 2 the first has 1/2
    logits, label = torch.tensor([[0.0, 0.0, log(2)]]), torch.tensor([0])
    free = selected_log_probs(adjusted(logits), label)
    masked = selected_log_probs(adjusted(logits, min_tokens=1, stop_token_ids=[2]), label)
    assert (free.item(), masked.item()) == pytest.approx((log(1 / 4), log(1 / 2)))


@pytest.mark.parametrize(("temperature", "divisor"), [(0.0, 1.0), (0.004, 0.01), (0.01, 0.01), (1.0, 1.0), (1.5, 1.5)])
def test_greedy_is_undivided_and_the_smallest_temperature_is_vllms(temperature, divisor):
    logits = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(adjusted(logits, temperature=temperature), logits / divisor)


def test_half_precision_logits_are_divided_in_float32():
    result = adjusted(torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16), temperature=3.0)
    assert result.dtype == torch.float32
    assert result.tolist() == [pytest.approx([1 / 3, 2 / 3], abs=1e-7)]


def test_masked_logits_get_no_gradient():
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    masked = adjusted(logits, temperature=2.0, min_tokens=1, stop_token_ids=[1])
    selected_log_probs(masked, torch.tensor([0])).sum().backward()
    share = 1 / (1 + 2.718281828)  # softmax of (0.5, 1.5)
    assert logits.grad.tolist() == [pytest.approx([(1 - share) / 2, 0, -(1 - share) / 2], abs=1e-6)]


@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_a_temperature_below_zero_is_refused_with_the_key(temperature):
    with pytest.raises(ValueError, match=r"at least 0.*generator\.temperature"):
        adjusted(torch.zeros(1, 2), temperature=temperature)


def test_a_stop_id_outside_of_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"\[-1, 2\] .* 2 ids"):
        adjusted(torch.zeros(1, 2), min_tokens=1, stop_token_ids=[-1, 0, 2])


# chunked_response_log_probs

NUM_TOKENS, WIDTH, VOCABULARY = 23, 5, 37
SAMPLING = {"temperature": 0.7, "min_tokens": 3, "stop_token_ids": (0, 36)}


def problem():
    """Hidden states, a head's weight, labels that are no stop id, and positions of responses of six tokens."""
    hidden, weight = doubles(NUM_TOKENS, WIDTH, seed=1), doubles(VOCABULARY, WIDTH, seed=2)
    labels = torch.randint(1, VOCABULARY - 1, (NUM_TOKENS,), generator=torch.Generator().manual_seed(3))
    return hidden.requires_grad_(), weight.requires_grad_(), labels, torch.arange(NUM_TOKENS) % 6


@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 22, 23, 100])
def test_chunks_give_the_values_and_gradients_of_the_whole(chunk_tokens):
    hidden, weight, labels, position = problem()
    logits = adjust_logits(hidden @ weight.T, response_position=position, **SAMPLING)
    expected = selected_log_probs(logits, labels)
    upstream = doubles(NUM_TOKENS, seed=4)
    expected_gradients = torch.autograd.grad(expected, (hidden, weight), upstream)

    log_probs, entropy = chunked_response_log_probs(
        hidden, lambda rows: rows @ weight.T, labels, position, chunk_tokens=chunk_tokens, with_entropy=True, **SAMPLING
    )
    gradients = torch.autograd.grad(log_probs, (hidden, weight), upstream)
    torch.testing.assert_close(log_probs, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy, token_entropy(logits).detach(), atol=1e-12, rtol=0)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)


def test_the_entropy_is_a_measurement_without_gradient():
    hidden, weight, labels, position = problem()
    _, entropy = chunked_response_log_probs(
        hidden, lambda rows: rows @ weight.T, labels, position, chunk_tokens=4, with_entropy=True, **SAMPLING
    )
    assert not entropy.requires_grad


def test_no_entropy_is_returned_unless_asked_for():
    hidden, weight, labels, position = problem()
    _, entropy = chunked_response_log_probs(
        hidden, lambda rows: rows @ weight.T, labels, position, chunk_tokens=4, with_entropy=False, **SAMPLING
    )
    assert entropy is None


@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_logits_of_one_chunk_only_are_alive(with_gradient):
    hidden, weight, labels, position = problem()
    made, alive_beside = [], []

    def head(rows):
        logits = rows @ weight.T
        alive_beside.append(sum(reference() is not None for reference in made))
        made.append(weakref.ref(logits))
        assert len(rows) <= 4
        return logits

    with torch.set_grad_enabled(with_gradient):
        log_probs, _ = chunked_response_log_probs(hidden, head, labels, position, chunk_tokens=4, with_entropy=True, **SAMPLING)
    if with_gradient:
        log_probs.sum().backward()
    # 23 rows in chunks of 4 are 6 chunks, each run once more in the backward pass
    assert alive_beside == [0] * (12 if with_gradient else 6)


def test_no_token_at_all_is_allowed():
    log_probs, entropy = chunked_response_log_probs(
        torch.zeros(0, WIDTH),
        torch.nn.Linear(WIDTH, VOCABULARY),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
        chunk_tokens=4,
        with_entropy=True,
        **SAMPLING,
    )
    assert log_probs.shape == entropy.shape == (0,)


def test_an_empty_chunk_size_is_refused():
    hidden, weight, labels, position = problem()
    with pytest.raises(ValueError, match="at least 1, got 0"):
        chunked_response_log_probs(hidden, lambda rows: rows @ weight.T, labels, position, chunk_tokens=0, with_entropy=False, **SAMPLING)


@pytest.mark.parametrize("num_chunks", [1, 3, 30])
def test_a_number_of_chunks_is_kept_exactly_with_empty_ones_where_tokens_run_out(num_chunks):
    hidden, weight, labels, position = problem()
    sizes = []

    def head(rows):
        sizes.append(len(rows))
        return rows @ weight.T

    log_probs, _ = chunked_response_log_probs(
        hidden, head, labels, position, chunk_tokens=4, with_entropy=True, num_chunks=num_chunks, **SAMPLING
    )
    forward = list(sizes)
    log_probs.sum().backward()
    assert len(forward) == num_chunks
    assert len(sizes) == 2 * num_chunks  # and as many in the backward pass, which other ranks count on
    assert sum(forward) == NUM_TOKENS
    expected = selected_log_probs(adjust_logits(hidden @ weight.T, response_position=position, **SAMPLING), labels)
    torch.testing.assert_close(log_probs, expected, atol=1e-12, rtol=0)


def test_for_a_bonus_the_entropy_carries_the_gradient_of_the_whole():
    hidden, weight, labels, position = problem()
    whole = token_entropy(adjust_logits(hidden @ weight.T, response_position=position, **SAMPLING))
    expected = torch.autograd.grad(whole.sum(), (hidden, weight))
    _, entropy = chunked_response_log_probs(
        hidden, lambda rows: rows @ weight.T, labels, position, chunk_tokens=4, with_entropy=True, entropy_gradient=True, **SAMPLING
    )
    for gradient, expected_gradient in zip(torch.autograd.grad(entropy.sum(), (hidden, weight)), expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)
