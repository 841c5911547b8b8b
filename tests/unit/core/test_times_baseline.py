import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.times_baseline import times_baseline


def test_the_interval_is_that_of_the_delta_method_where_answers_are_many():
    # 400 problems: 100 both, 200 only the second, 20 only the first, 80 none: before 120, after 300, ratio 2.5.
    # Var(log ratio) of matched pairs (Nam and Blackwelder 2002): (20 + 200) / (120 * 300); 2.5 * exp(-+1.96 * 0.0782) = 2.145 and 2.914
    pairs = [(1.0, 1.0)] * 100 + [(0.0, 1.0)] * 200 + [(1.0, 0.0)] * 20 + [(0.0, 0.0)] * 80
    low, high = times_baseline(pairs, seed=1)
    half = 1.96 * math.sqrt(220 / (120 * 300))
    assert low == pytest.approx(2.5 * math.exp(-half), abs=0.04)
    assert high == pytest.approx(2.5 * math.exp(half), abs=0.05)


def test_a_baseline_of_few_right_answers_has_no_interval():
    assert times_baseline([(1.0, 1.0)] * 9 + [(0.0, 1.0)] * 91, seed=0) is None
    assert times_baseline([], seed=0) is None


def test_the_same_seed_gives_the_same_interval():
    pairs = [(1.0, 1.0)] * 30 + [(0.25, 0.75)] * 40 + [(0.0, 0.0)] * 30
    assert times_baseline(pairs, seed=5) == times_baseline(pairs, seed=5)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=30, max_size=60))
def test_the_interval_holds_the_ratio(pairs):
    interval = times_baseline(pairs, seed=0)
    before = sum(pair[0] for pair in pairs)
    if interval:
        assert interval[0] <= sum(pair[1] for pair in pairs) / before <= interval[1]


def test_where_both_solve_the_same_problems_the_ratio_is_one():
    assert times_baseline([(1.0, 1.0)] * 50 + [(0.0, 0.0)] * 50, seed=0) == (1.0, 1.0)


def test_a_confidence_outside_of_0_and_1_is_refused():
    with pytest.raises(ValueError, match="confidence"):
        times_baseline([(1.0, 1.0)] * 50, seed=0, confidence=1.0)
