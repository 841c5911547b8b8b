from math import nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_samples import cut, even_parts, ragged_mask, random_batch

from mathrl_ray.core.loss_batch import LossResult, metric_shares

MASK = ragged_mask([2, 1], 3)


def test_each_shape_of_metric_is_averaged_over_what_it_counts():
    # tokens (1 + 2 + 4) / 3, responses (3 + 5) / 2, a scalar as it is
    metrics = {
        "token": torch.tensor([[1.0, 2.0, nan], [4.0, nan, 100.0]]),
        "clipped": torch.tensor([[True, False, True], [True, True, True]]),
        "response": torch.tensor([3.0, 5.0]),
        "scalar": torch.tensor(7.0, requires_grad=True),
    }
    assert metric_shares(metrics, random_batch(MASK)) == pytest.approx({"token": 7 / 3, "clipped": 2 / 3, "response": 4.0, "scalar": 7.0})


def test_a_loss_alone_has_no_metrics():
    assert metric_shares(LossResult(torch.tensor(1.0)).metrics, random_batch(MASK)) == {}


@pytest.mark.parametrize("shape", [(2, 2), (3,), (1,), (2, 1), (2, 3, 1)])
def test_a_metric_of_another_shape_is_refused_with_the_shapes_that_are_allowed(shape):
    with pytest.raises(ValueError, match=r"'odd' has the shape .*\[B, T\] = \(2, 3\).*\[B\] = \(2,\).*scalar"):
        metric_shares({"odd": torch.zeros(shape)}, random_batch(MASK))


def test_a_metric_that_is_no_tensor_is_refused_by_name():
    with pytest.raises(ValueError, match="'ratio_max' is a float: give a tensor"):
        metric_shares({"ratio_max": 1.0}, random_batch(MASK))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_shares_add_up_to_the_batchs_metric_however_it_is_cut(lengths, data):
    batch = random_batch(ragged_mask(lengths, 5))
    rows = data.draw(st.permutations(range(len(lengths))))
    parts = list(even_parts(rows, data.draw(st.integers(1, len(lengths)))))

    def shares(piece):
        ratio = (piece.learner_logprobs - piece.generator_logprobs).exp()
        return metric_shares({"token": ratio, "response": torch.where(piece.mask, ratio, 0.0).amax(dim=-1)}, piece)

    pieces = [shares(cut(batch, part)) for part in parts]
    assert {name: sum(piece[name] for piece in pieces) for name in pieces[0]} == pytest.approx(shares(batch), abs=1e-12)
