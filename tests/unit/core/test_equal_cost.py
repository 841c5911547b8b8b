"""Curves at equal generated tokens."""

from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.equal_cost import EQUAL_WITHIN, CostPoint, are_equal, at_equal_cost


def curve(*tokens):
    return [CostPoint(cost, step, 0.0) for step, cost in enumerate(tokens, start=1)]


def steps(first, second):
    found = at_equal_cost(curve(*first), curve(*second))
    return found and tuple(point.step for point in found)


def test_the_shorter_curve_ends_the_budget_of_the_longer_one():
    assert steps([50, 100], [30, 60, 90, 120]) == (2, 3)
    assert steps([30, 60, 90, 120], [50, 100]) == (3, 2)


def test_a_validation_a_few_per_cent_beyond_the_budget_counts():
    assert steps([100], [50, 105]) == (1, 2)  # 100 / 0.95 = 105.26
    assert steps([100], [50, 106]) == (1, 1)


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
def test_neither_curve_is_read_beyond_the_shorter_ones_end(first, second):
    found = at_equal_cost(curve(*first), curve(*second))
    end = min(first[-1], second[-1]) / (1 - EQUAL_WITHIN)
    for one, tokens in zip(found or (), (first, second), strict=False):
        assert one.generated_tokens == max(cost for cost in tokens if cost <= end)
