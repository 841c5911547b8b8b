"""Curves at equal generated tokens."""

from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.equal_cost import EQUAL_WITHIN, CostPoint, are_equal, at_equal_cost


def curve(*tokens):
    return [CostPoint(cost, step, 0.0) for step, cost in enumerate(tokens, start=1)]


def steps(first, second):
    found = at_equal_cost(curve(*first), curve(*second))
    return found and tuple(point.step for point in found)


def test_the_dearest_pair_that_costs_the_same_is_taken():
    assert steps([50, 100], [30, 60, 98, 120]) == (2, 3)
    assert steps([30, 60, 98, 120], [50, 100]) == (3, 2)


def test_a_longer_curve_does_not_hide_an_equal_pair_further_down():
    # nothing equals 150 or 130; read up to the shorter one's end, 130 would stand beside 100
    assert steps([50, 100, 150], [98, 130]) == (2, 1)


def test_of_two_pairs_that_cost_as_much_the_nearer_is_taken():
    assert steps([100, 104], [100, 104]) == (2, 2)
    assert steps([100], [96, 99, 103]) == (1, 3)
    assert steps([98, 102], [99, 101]) == (2, 2)


def test_costs_a_twentieth_apart_are_a_pair_and_further_ones_are_none():
    assert steps([100], [50, 105]) == (1, 2)  # 5 / 105 = 0.048
    assert steps([100], [50, 106]) is None  # 6 / 106 = 0.057


def test_a_curve_that_begins_too_late_has_no_equal():
    assert steps([100], [200]) is None
    assert steps([], [200]) is None


def test_costs_are_equal_within_a_twentieth_of_the_larger():
    assert are_equal(95, 100)
    assert are_equal(100, 95)
    assert not are_equal(94, 100)
    assert are_equal(0, 0)


costs = st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True).map(sorted)


@given(costs, costs)
def test_a_pair_is_equal_and_no_other_equal_pair_cost_more(first, second):
    found = at_equal_cost(curve(*first), curve(*second))
    sums = [one + other for one in first for other in second if abs(one - other) <= EQUAL_WITHIN * max(one, other)]
    assert (found is None) == (not sums)
    if found:
        assert are_equal(*(point.generated_tokens for point in found))
        assert sum(point.generated_tokens for point in found) == max(sums)
