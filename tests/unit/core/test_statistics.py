from math import e, inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mathrl_ray.core.statistics import max_abs_difference, mean_importance_ratio, mismatch_kl, wilson_interval

logprobs = st.floats(-30, 0)
pairs = st.lists(st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=5), min_size=1, max_size=5)


def sides(rows):
    return [[learner for learner, _ in row] for row in rows], [[generator for _, generator in row] for row in rows]


def test_five_of_ten_is_uncertain_by_a_quarter_each_way():
    # z 1.95996, z^2 3.84146: middle 0.5 + 3.84146/20 = 0.69207, half width 1.95996 sqrt(0.025 + 0.0096036) = 0.36460,
    # divisor 1.384146: 0.32748 / 1.384146 = 0.23659 and 1.05667 / 1.384146 = 0.76341
    assert wilson_interval(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)


@given(st.data(), st.integers(1, 5000), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_the_interval_is_scipys(data, num_trials, confidence):
    num_successes = data.draw(st.integers(0, num_trials))
    theirs = binomtest(num_successes, num_trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(num_successes, num_trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.data(), st.integers(1, 5000))
def test_the_interval_holds_the_rate_and_lies_in_zero_to_one(data, num_trials):
    num_successes = data.draw(st.integers(0, num_trials))
    low, high = wilson_interval(num_successes, num_trials)
    assert 0 <= low <= num_successes / num_trials <= high <= 1


def test_nothing_tried_says_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_ends_at_none_and_at_all_are_exact():
    assert wilson_interval(0, 3)[0] == 0.0
    assert wilson_interval(3, 3)[1] == 1.0


@pytest.mark.parametrize(("num_successes", "num_trials"), [(-1, 3), (4, 3), (0, -1)])
def test_counts_that_cannot_be_are_refused(num_successes, num_trials):
    with pytest.raises(ValueError, match="num_successes <= num_trials"):
        wilson_interval(num_successes, num_trials)


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_a_confidence_in_per_cent_is_refused(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson_interval(1, 2, confidence)


def test_the_three_figures_of_one_small_batch():
    # d = 1, 0 and -1: exp 2.71828, 1, 0.36788
    learner, generator = [[-1.0, -2.0], [-3.0]], [[-2.0, -2.0], [-2.0]]
    assert mismatch_kl(learner, generator) == pytest.approx((e - 2 + 0 + 1 / e) / 3)
    assert mean_importance_ratio(learner, generator) == pytest.approx((e + 1 + 1 / e) / 3)
    assert max_abs_difference(learner, generator) == 1.0


def test_the_mean_is_over_tokens_and_not_over_rows():
    # d = 1 on one token of four: over tokens (e + 3) / 4, over rows it would be (e + 1) / 2
    assert mean_importance_ratio([[-1.0], [-1.0, -1.0, -1.0]], [[-2.0], [-1.0, -1.0, -1.0]]) == pytest.approx((e + 3) / 4)


@given(pairs)
def test_the_mismatch_is_never_negative_and_zero_for_the_same_policy(rows):
    learner, generator = sides(rows)
    assert mismatch_kl(learner, generator) >= 0
    assert (mismatch_kl(learner, learner), mean_importance_ratio(learner, learner), max_abs_difference(learner, learner)) == (0, 1, 0)


def test_a_small_gap_keeps_its_digits():
    # d = 1e-7: d^2 / 2 = 5e-15; exp(d) - 1 - d in floats would give 0 or 1e-16 times something
    assert mismatch_kl([[-1.0]], [[-1.0 - 1e-7]]) == pytest.approx(5e-15, rel=1e-2)


@given(pairs)
def test_swapping_the_sides_keeps_the_largest_gap(rows):
    learner, generator = sides(rows)
    assert max_abs_difference(learner, generator) == max_abs_difference(generator, learner)


def test_a_token_that_the_learner_excludes_shows_as_infinite():
    assert mismatch_kl([[-inf]], [[-1.0]]) == inf
    assert max_abs_difference([[-inf]], [[-1.0]]) == inf
    assert mean_importance_ratio([[0.0]], [[-800.0]]) == inf  # exp(800) is beyond the floats


@pytest.mark.parametrize("figure", [mismatch_kl, mean_importance_ratio, max_abs_difference])
def test_without_a_token_there_is_no_figure(figure):
    assert isnan(figure([], []))
    assert isnan(figure([[]], [[]]))


@pytest.mark.parametrize("figure", [mismatch_kl, mean_importance_ratio, max_abs_difference])
def test_rows_of_different_lengths_are_refused_by_name(figure):
    # the same number of tokens in all: only the rows tell
    with pytest.raises(ValueError, match=r"row 1: 2 .* 1 "):
        figure([[0.0], [0.0, 0.0], [0.0]], [[0.0], [0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"2 rows .* 1 "):
        figure([[0.0], [0.0]], [[0.0]])
