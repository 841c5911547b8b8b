from math import inf, nan, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.gradient_comparison import cosine, cosines, dot, mean_cosines, norm

numbers = st.lists(st.floats(-100, 100, width=32), min_size=6, max_size=6)


def parts(values):
    """One gradient of two weights, [2, 2] and [2]."""
    return [torch.tensor(values[:4]).reshape(2, 2), torch.tensor(values[4:])]


def test_norm_and_cosine_are_those_of_the_whole_vector():
    first, second = parts([1, 2, 2, 0, 0, 4]), parts([0, 0, 3, 0, 4, 0])
    assert norm(first) == 5  # sqrt(1 + 4 + 4 + 16)
    assert dot(first, second) == 6
    assert cosine(first, second) == pytest.approx(6 / 25)  # norm of the second: 5


def test_opposite_gradients_have_the_cosine_minus_one_and_strangers_zero():
    up, down, across = ([torch.tensor(values)] for values in ([1.0, 2.0], [-2.0, -4.0], [2.0, -1.0]))
    assert cosine(up, down) == pytest.approx(-1)
    assert cosine(up, across) == 0


@given(numbers, numbers, st.floats(0.001, 1000))
def test_a_cosine_is_symmetric_between_minus_one_and_one_and_knows_no_length(first, second, factor):
    found = cosine(parts(first), parts(second))
    assert cosine(parts(second), parts(first)) == found
    if found is not None:
        assert -1 <= found <= 1
        longer = [part.double() * factor for part in parts(first)]
        assert cosine(longer, parts(second)) == pytest.approx(found, abs=1e-6)


@given(numbers)
def test_the_norm_is_that_of_a_loop_in_float64(values):
    assert norm(parts(values)) == pytest.approx(sqrt(sum(value * value for value in values)), rel=1e-12)


@pytest.mark.parametrize("values", [[0.0, 0.0], [nan, 1.0], [inf, 1.0]])
def test_a_gradient_without_a_direction_has_no_cosine(values):
    assert cosine([torch.tensor(values)], [torch.tensor([1.0, 1.0])]) is None


def test_the_table_is_symmetric_and_has_none_for_a_loss_without_rows():
    one, other = [torch.tensor([1.0, 0.0])], [torch.tensor([1.0, 1.0])]
    table = cosines([one, None, other])
    assert [table[0][0], table[1][1], table[1][2]] == [1, None, None]
    assert table[0][2] == table[2][0] == pytest.approx(sqrt(0.5))


def test_the_mean_over_updates_is_over_those_that_have_a_direction():
    assert mean_cosines([[[1.0, 0.5], [0.5, 1.0]], [[1.0, None], [None, None]]]) == [[1.0, 0.5], [0.5, 1.0]]


def test_gradients_of_other_weights_are_refused():
    with pytest.raises(ValueError, match="not of the same weights"):
        dot([torch.zeros(2)], [torch.zeros(3)])
