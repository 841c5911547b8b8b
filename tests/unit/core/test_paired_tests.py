from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, permutation_test

from mathrl_ray.core.paired_tests import holm, mcnemar_exact, sign_flip_test

quarters = st.lists(st.integers(-4, 4).map(lambda count: count / 4), max_size=10)


def by_enumeration(differences):
    """p over all 2^n flips, one by one."""
    observed = abs(sum(differences))
    flips = product((1, -1), repeat=len(differences))
    sums = [abs(sum(sign * each for sign, each in zip(signs, differences, strict=True))) for signs in flips]
    return sum(each >= observed - 1e-9 for each in sums) / len(sums)


# McNemar's exact test


def test_one_against_five():
    # 2 P(Binomial(6, 1/2) <= 1) = 2 (1 + 6) / 64 = 0.21875
    assert mcnemar_exact(1, 5) == pytest.approx(0.21875)


@given(st.integers(0, 400), st.integers(0, 400))
def test_it_is_scipys_binomial_test(only_first, only_second):
    theirs = binomtest(only_first, only_first + only_second).pvalue if only_first + only_second else 1.0
    assert mcnemar_exact(only_first, only_second) == pytest.approx(theirs, rel=1e-9)
    assert mcnemar_exact(only_second, only_first) == mcnemar_exact(only_first, only_second)


def test_problems_that_never_change_sides_say_nothing():
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(3, 3) == 1.0


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        mcnemar_exact(-1, 3)


def test_two_equal_checkpoints_are_told_apart_in_5_percent_of_cases():
    # 1,500 problems of rate 0.5 to both: some 750 change sides. An exact test stays a little below 5 %, never above.
    draw = np.random.default_rng(1)
    tables = draw.multinomial(1_500, [0.25] * 4, size=20_000)
    share = np.mean([mcnemar_exact(int(only_first), int(only_second)) < 0.05 for _, only_first, only_second, _ in tables])
    assert share == pytest.approx(0.05, abs=0.01)
    assert share < 0.053


# The sign-flip test


@given(quarters)
def test_all_flips_are_counted_where_they_are_few(differences):
    found = sign_flip_test(differences, seed=0)
    assert found.method == "exact"
    assert found.p_value == pytest.approx(by_enumeration(differences), rel=1e-9)


def test_it_is_scipys_permutation_test():
    differences = [0.31, 0.12, -0.05, 0.44, 0.2, -0.17, 0.09, 0.26]
    theirs = permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip_test(differences, seed=0).p_value == pytest.approx(theirs)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 50))
def test_with_one_sample_a_problem_it_is_mcnemars_test(only_first, only_second, same):
    differences = [-1.0] * only_first + [1.0] * only_second + [0.0] * same
    found = sign_flip_test(differences, seed=0)
    assert found.method == "exact"
    assert found.p_value == pytest.approx(mcnemar_exact(only_first, only_second), rel=1e-8)


def many_differences(shift):
    """500 problems of 8 samples: far more than 2^18 sums."""
    draw = np.random.default_rng(2)
    return [round(float(each) * 8) / 8 for each in np.clip(draw.normal(shift, 0.3, size=500), -1, 1)]


def test_drawn_flips_are_near_the_normal_approximation():
    differences = many_differences(0.03)
    found = sign_flip_test(differences, seed=0)
    # a flip moves the sum by twice an eighth at least; half of such a step makes the smooth curve fit the steps
    z = (abs(sum(differences)) - 0.125) / sum(each**2 for each in differences) ** 0.5
    assert found.method == "monte_carlo"
    assert found.p_value == pytest.approx(2 * norm.sf(z), abs=0.012)
    assert 0.01 < found.p_value < 0.9


def test_drawn_flips_follow_from_the_seed_and_never_give_zero():
    differences = many_differences(0.5)
    found = sign_flip_test(differences, seed=3, num_flips=999)
    assert found == sign_flip_test(differences, seed=3, num_flips=999)
    assert found.p_value == 1 / 1000


@given(quarters)
def test_swapping_the_sides_changes_nothing(differences):
    assert sign_flip_test([-each for each in differences], seed=0) == sign_flip_test(differences, seed=0)


def test_sizes_that_differ_by_rounding_only_are_one():
    # 3 * 0.1 is 0.30000000000000004: as two sizes these 40 would be 2^40 sums to enumerate or 21 * 21
    assert sign_flip_test([0.3, 3 * 0.1] * 20, seed=0).p_value == pytest.approx(2 / 2**40, rel=1e-6)


def test_equal_checkpoints_with_several_samples_are_told_apart_in_5_percent_of_cases():
    # 500 problems, 4 samples on either side, skills that differ from problem to problem but not between the sides
    draw, num_found = np.random.default_rng(4), 0
    for repeat in range(2_000):
        skill = draw.beta(0.8, 1.2, size=500)
        differences = (draw.binomial(4, skill) - draw.binomial(4, skill)) / 4
        num_found += sign_flip_test(differences, seed=repeat, num_flips=499).p_value <= 0.05
    assert num_found / 2_000 == pytest.approx(0.05, abs=0.01)


def test_a_real_difference_is_found():
    draw = np.random.default_rng(5)
    skill = draw.beta(0.8, 1.2, size=500)
    differences = (draw.binomial(4, np.minimum(skill + 0.1, 1)) - draw.binomial(4, skill)) / 4
    assert sign_flip_test(differences, seed=0).p_value < 0.001


def test_no_problem_gives_no_evidence():
    assert sign_flip_test([], seed=0).p_value == 1.0
    assert sign_flip_test([0.0, 0.0], seed=0).p_value == 1.0


@pytest.mark.parametrize(("differences", "num_flips", "message"), [([float("nan")], 9, "finite"), ([0.5], 0, "at least 1")])
def test_what_cannot_be_flipped_is_refused(differences, num_flips, message):
    with pytest.raises(ValueError, match=message):
        sign_flip_test(differences, seed=0, num_flips=num_flips)


# Several tests at once


def test_holm_by_hand():
    # sorted .01 .02 .04 .03 -> 4 x .01 = .04, 3 x .02 = .06, 2 x .03 = .06, 1 x .04 = .04 but not below .06
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    assert all(adjusted[i] <= adjusted[j] for i in range(len(adjusted)) for j in range(len(adjusted)) if p_values[i] < p_values[j])
