import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mathrl_ray.core.intervals import accuracy_estimate, cluster_bootstrap_interval, equal_differences_interval, paired_rates_interval
from mathrl_ray.core.statistics import wilson_interval

rates = st.lists(st.integers(0, 4).map(lambda count: count / 4), min_size=1, max_size=40)
counts = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


# Coverage, by simulation


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.95])
def test_wilsons_interval_of_1000_samples_covers_the_rate_in_95_percent(rate):
    drawn, times = np.unique(np.random.default_rng(1).binomial(1000, rate, size=40_000), return_counts=True)
    ends = [wilson_interval(int(count), 1000) for count in drawn]
    covers = np.array([low <= rate <= high for low, high in ends])
    assert covers @ times / 40_000 == pytest.approx(0.95, abs=0.01)


def simulated_problems(draw, num_problems, num_samples):
    """Right samples of each problem, whose skills differ widely: Beta(0.8, 1.2), mean 0.4."""
    return draw.binomial(num_samples, draw.beta(0.8, 1.2, size=num_problems))


def test_the_bootstrap_over_500_problems_covers_the_mean_in_95_percent():
    draw, num_covered = np.random.default_rng(2), 0
    for repeat in range(2_000):
        low, high = cluster_bootstrap_interval(simulated_problems(draw, 500, 4) / 4, seed=repeat, num_resamples=1_000)
        num_covered += low <= 0.4 <= high
    assert num_covered / 2_000 == pytest.approx(0.95, abs=0.015)


def coverage_of_accuracies(num_problems, rate, num_repeats, spread=2.0):
    """Share of the intervals of four samples a problem that hold the rate, where skills are Beta with the mean `rate`."""
    draw, num_covered = np.random.default_rng(5), 0
    for repeat in range(num_repeats):
        counts = draw.binomial(4, draw.beta(spread * rate, spread * (1 - rate), size=num_problems))
        found = accuracy_estimate([[True] * count + [False] * (4 - count) for count in counts.tolist()], seed=repeat)
        num_covered += found.low <= rate <= found.high
    return num_covered / num_repeats


def test_an_accuracy_of_500_problems_with_several_samples_is_covered_in_95_percent():
    assert coverage_of_accuracies(500, 0.4, 1_000) == pytest.approx(0.95, abs=0.015)


def test_a_rate_near_0_is_covered_too_where_the_bootstrap_alone_would_cover_some_87_percent():
    assert coverage_of_accuracies(40, 0.02, 600, spread=10) >= 0.94


def test_taking_samples_of_a_problem_for_independent_would_cover_far_less():
    # what the bootstrap over problems is for: Wilson over all 2,000 samples covers some 84 % here
    draw = np.random.default_rng(3)
    ends = [wilson_interval(int(simulated_problems(draw, 500, 4).sum()), 2_000) for _ in range(2_000)]
    assert np.mean([low <= 0.4 <= high for low, high in ends]) < 0.9


def test_the_interval_of_a_paired_difference_covers_it_in_95_percent():
    draw = np.random.default_rng(4)
    shares = np.array([0.30, 0.10, 0.16, 0.44])  # both, only first, only second, neither: the difference is 0.06
    ends = [paired_rates_interval(*map(int, table)) for table in draw.multinomial(300, shares, size=4_000)]
    assert np.mean([low <= 0.06 <= high for low, high in ends]) == pytest.approx(0.95, abs=0.015)


# The bootstrap


def test_the_bootstrap_is_near_the_normal_interval_where_problems_are_many():
    means = np.random.default_rng(5).random(2_000)
    low, high = cluster_bootstrap_interval(means, seed=0, num_resamples=4_000)
    half_width = 1.959964 * stats.sem(means)
    assert (low, high) == pytest.approx((means.mean() - half_width, means.mean() + half_width), abs=0.001)


def test_drawing_counts_of_values_is_drawing_problems():
    # against scipy, which draws the problems themselves
    means = [0.0] * 30 + [0.25] * 10 + [1.0] * 20
    theirs = stats.bootstrap((means,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(0)).confidence_interval
    assert cluster_bootstrap_interval(means, seed=1, num_resamples=20_000) == pytest.approx((theirs.low, theirs.high), abs=0.008)


@given(rates, st.integers(0, 100))
def test_the_interval_lies_within_the_values_and_follows_from_the_seed(means, seed):
    low, high = cluster_bootstrap_interval(means, seed=seed, num_resamples=200)
    assert min(means) <= low <= high <= max(means)
    assert cluster_bootstrap_interval(means, seed=seed, num_resamples=200) == (low, high)


@given(rates, st.randoms())
def test_the_order_of_the_problems_does_not_matter(means, random):
    shuffled = random.sample(means, len(means))
    assert cluster_bootstrap_interval(shuffled, seed=0, num_resamples=200) == cluster_bootstrap_interval(means, seed=0, num_resamples=200)


def test_another_seed_moves_the_ends_a_little():
    means = np.random.default_rng(7).random(90)
    first, second = (cluster_bootstrap_interval(means, seed=seed) for seed in (0, 1))
    assert first != second
    assert first == pytest.approx(second, abs=0.02)


def test_many_different_values_are_drawn_in_blocks():
    # 5,000 values and 1,000 resamples: more than one block of 4,000,000 draws
    means = np.random.default_rng(6).random(5_000)
    low, high = cluster_bootstrap_interval(means, seed=0, num_resamples=1_000)
    assert high - low == pytest.approx(2 * 1.96 * means.std() / 5_000**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("means", "settings", "message"),
    [
        ([], {}, "at least 1 problem"),
        ([0.5], {"confidence": 95}, "between 0 and 1"),
        ([0.5], {"num_resamples": 10}, "at least 100"),
    ],
)
def test_what_gives_no_interval_is_refused(means, settings, message):
    with pytest.raises(ValueError, match=message):
        cluster_bootstrap_interval(means, seed=0, **settings)


# An accuracy with its interval


def test_one_sample_a_problem_gives_wilsons_interval():
    estimate = accuracy_estimate([[True]] * 5 + [[False]] * 5, seed=0)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.5, *wilson_interval(5, 10)))
    assert (estimate.method, estimate.num_problems, estimate.num_samples) == ("wilson", 10, 10)


def test_each_problem_weighs_the_same_and_one_without_samples_nothing():
    # (1/1 + 0/2 + 1/4) / 3 = 0.41667; over samples it would be 2 / 7
    estimate = accuracy_estimate([[True], [False, False], [True, False, False, False], []], seed=0)
    assert estimate.value == pytest.approx(0.41667, abs=1e-5)
    assert (estimate.method, estimate.num_problems, estimate.num_samples) == ("cluster_bootstrap", 3, 7)


@pytest.mark.parametrize("right", [True, False])
def test_where_all_samples_agree_the_width_is_wilsons_and_not_zero(right):
    estimate = accuracy_estimate([[right] * 4] * 50, seed=0)
    assert (estimate.low, estimate.high) == wilson_interval(50 * right, 50)


def test_where_all_problems_have_the_same_share_the_interval_holds_it():
    # 1 of 2 in each of 3 problems: no count of 3 is 1.5, so from Wilson's lower end of 1 to the upper end of 2
    estimate = accuracy_estimate([[True, False]] * 3, seed=0)
    assert (estimate.low, estimate.high) == (wilson_interval(1, 3)[0], wilson_interval(2, 3)[1])


def test_one_wrong_of_forty_samples_reaches_as_far_as_wilsons_over_the_samples():
    # the bootstrap's lower end is 0.925: 3 of the 10 problems drawn are the one with a wrong sample
    estimate = accuracy_estimate([[True] * 4] * 9 + [[True] * 3 + [False]], seed=0)
    assert (estimate.low, estimate.high) == (wilson_interval(39, 40)[0], 1.0)
    assert estimate.method == "cluster_bootstrap"


def test_without_a_sample_nothing_is_known():
    estimate = accuracy_estimate([[], []], seed=0)
    assert (estimate.value, estimate.low, estimate.high, estimate.num_problems) == (0.0, 0.0, 1.0, 0)


# A difference of two rates on the same problems


def test_the_published_interval_of_the_airway_data():
    # Bentur et al.: 1 child with hyper-responsiveness before and after, 1 only before, 7 only after, 12 never. Fagerland, Lydersen and
    # Laake 2013 print Newcombe's interval of before less after as -0.507 to -0.026; after less before is its mirror image.
    assert paired_rates_interval(both=1, only_first=1, only_second=7, neither=12) == pytest.approx((0.026, 0.507), abs=0.0005)


def test_sides_that_never_disagree_still_have_a_width():
    low, high = paired_rates_interval(both=50, only_first=0, only_second=0, neither=50)
    assert -0.1 < low < 0 < high < 0.1


@given(counts)
def test_swapping_the_sides_mirrors_the_interval_which_holds_the_difference(table):
    both, only_first, only_second, neither = table
    low, high = paired_rates_interval(both, only_first, only_second, neither)
    assert -1 <= low <= (only_second - only_first) / sum(table) <= high <= 1
    assert paired_rates_interval(both, only_second, only_first, neither) == pytest.approx((-high, -low))


@pytest.mark.parametrize("table", [(0, 0, 0, 0), (-1, 1, 1, 1)])
def test_a_table_that_cannot_be_is_refused(table):
    with pytest.raises(ValueError, match="at least 1"):
        paired_rates_interval(*table)


# A difference that is the same in every problem


def test_equal_differences_have_the_interval_of_one_sample_each():
    assert equal_differences_interval(0.5, 0.0, 100) == paired_rates_interval(50, 0, 0, 50)
    assert equal_differences_interval(0.0, 1.0, 2) == paired_rates_interval(0, 0, 2, 0)
    # 0.5 of 3 problems: from the lower end of 1 to the upper one of 2, and of 0.25 the first solves 1
    assert equal_differences_interval(0.25, 0.5, 3) == (paired_rates_interval(1, 0, 1, 1)[0], paired_rates_interval(1, 0, 2, 0)[1])


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 40))
def test_that_interval_holds_the_difference_has_a_width_and_is_mirrored(first, second, num_problems):
    difference = (second - first) / 8
    low, high = equal_differences_interval(first / 8, difference, num_problems)
    assert low <= difference + 1e-12
    assert high >= difference - 1e-12
    assert high - low > 0.01
    assert equal_differences_interval(second / 8, -difference, num_problems) == pytest.approx((-high, -low))
