from math import sqrt

import numpy as np
import pytest
from evaluation_rows import samples, verdicts
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mathrl_ray.core.paired_evaluations import Evaluation, compare_evaluations
from mathrl_ray.core.paired_seeds import SeedSet, compare_seeds, mean_difference

texts = st.text("+-", min_size=4, max_size=4)


def seed_set(name, verdicts_by_seed, **values):
    return SeedSet(name, {seed: Evaluation(f"{name} seed {seed}", verdicts(text, **values)) for seed, text in verdicts_by_seed.items()})


def test_the_mean_and_its_interval_are_those_of_the_formula():
    found = compare_seeds(seed_set("a", {0: "----", 1: "+---", 2: "----"}), seed_set("b", {0: "++--", 1: "+++-", 2: "+---"}))
    # differences a seed: (1, 1, 0, 0), (0, 1, 1, 0), (1, 0, 0, 0): means 1/2, 1/2, 1/4; a problem: 2/3, 2/3, 1/3, 0
    of_seeds, of_problems = np.var([1 / 2, 1 / 2, 1 / 4], ddof=1) / 3, np.var([2 / 3, 2 / 3, 1 / 3, 0], ddof=1) / 4
    half_width = sqrt(stats.t.ppf(0.975, 2) ** 2 * of_seeds + stats.t.ppf(0.975, 3) ** 2 * of_problems)
    mean = 5 / 12
    assert found.difference.value == pytest.approx(mean)
    assert (found.difference.low, found.difference.high) == pytest.approx((mean - half_width, min(1.0, mean + half_width)))
    assert (found.seeds, found.lone_seeds, found.difference.num_problems) == ((0, 1, 2), (), 4)
    assert found.difference.shares_problems


def test_the_p_value_is_where_the_interval_reaches_0():
    found = compare_seeds(seed_set("a", {0: "----", 1: "+---", 2: "----"}), seed_set("b", {0: "++--", 1: "+++-", 2: "+---"}))
    of_seeds, of_problems = np.var([1 / 2, 1 / 2, 1 / 4], ddof=1) / 3, np.var([2 / 3, 2 / 3, 1 / 3, 0], ddof=1) / 4
    quantiles = [stats.t.ppf(1 - found.p_value / 2, degrees) for degrees in (2, 3)]
    assert sqrt(quantiles[0] ** 2 * of_seeds + quantiles[1] ** 2 * of_problems) == pytest.approx(5 / 12)


def test_each_seed_stands_beside_it_as_a_comparison_of_its_own():
    first, second = seed_set("a", {0: "+---", 1: "--+-"}), seed_set("b", {0: "++--", 1: "---+"})
    found = compare_seeds(first, second)
    assert found.per_seed == tuple(compare_evaluations(first.evaluations[seed], second.evaluations[seed]) for seed in (0, 1))


def test_problems_of_its_own_with_each_seed_are_students_interval_of_the_seeds():
    first, second = seed_set("a", {0: "----", 1: "----", 2: "----"}), seed_set("b", {0: "+---", 1: "++--", 2: "+++-"})
    for each in (first, second):  # the same ids, as built-in problems of another data.seed have, and other texts
        for seed, evaluation in each.evaluations.items():
            for row in evaluation.rows:
                row["problem"] += f" ({seed})"
    found = compare_seeds(first, second).difference
    low, high = stats.t.interval(0.95, 2, loc=0.5, scale=stats.sem([0.25, 0.5, 0.75]))
    assert (found.low, found.high) == pytest.approx((low, min(high, 1.0)))
    assert (found.num_problems, found.shares_problems) == (12, False)


def test_a_single_seed_is_its_own_comparison():
    found = compare_seeds(seed_set("a", {4: "+---"}), seed_set("b", {4: "++--"}))
    (alone,) = found.per_seed
    assert (found.difference.low, found.difference.high, found.p_value) == (alone.low, alone.high, alone.p_value)


def test_where_nothing_varies_the_interval_still_has_a_width():
    found = compare_seeds(seed_set("a", {0: "+-+-", 1: "+-+-"}), seed_set("b", {0: "+-+-", 1: "+-+-"})).difference
    assert (found.value, found.p_value) == (0.0, 1.0)
    assert found.low < 0 < found.high


def test_nor_is_it_0_with_several_samples_a_problem():
    same = {seed: Evaluation(str(seed), samples(*["++--"] * 5)) for seed in (0, 1, 2)}
    found = compare_seeds(SeedSet("a", same), SeedSet("b", same)).difference
    assert found.low < -0.1
    assert found.high > 0.1


def test_of_seeds_that_do_not_differ_the_least_sure_speaks_for_all():
    # problems of its own with each seed, half of them gained: 2 of 4 is p = 0.5, 4 of 8 is p = 0.125
    first = {0: Evaluation("a", verdicts("----")), 1: Evaluation("a", verdicts("--------"))}
    second = {0: Evaluation("b", verdicts("++--")), 1: Evaluation("b", verdicts("++++----"))}
    for evaluation in (first[1], second[1]):
        for row in evaluation.rows:
            row["problem"] += " (1)"
    found = compare_seeds(SeedSet("a", first), SeedSet("b", second))
    assert [each.p_value for each in found.per_seed] == [0.5, 0.125]
    assert (found.p_value, found.difference.low) == (0.5, found.per_seed[0].low)


def test_seeds_of_one_side_are_left_out_and_named():
    found = compare_seeds(seed_set("a", {0: "+-", 1: "--"}), seed_set("b", {1: "++", 2: "+-"}))
    assert (found.seeds, found.lone_seeds) == ((1,), (0, 2))


def test_no_seed_in_both_is_refused_with_the_seeds():
    with pytest.raises(ValueError, match=r"a has run\.seed 0, 1 and b has 2: none is in both"):
        compare_seeds(seed_set("a", {0: "+-", 1: "--"}), seed_set("b", {2: "++"}))


@given(st.lists(st.tuples(texts, texts), min_size=2, max_size=5))
def test_swapping_the_sides_swaps_the_sign(pairs):
    first, second = (seed_set(name, {seed: pair[side] for seed, pair in enumerate(pairs)}) for side, name in enumerate("ab"))
    there, back = compare_seeds(first, second).difference, compare_seeds(second, first).difference
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert there.p_value == pytest.approx(back.p_value)
    assert there.low - 1e-9 <= there.value <= there.high + 1e-9


def coverage(seeds_std, problems_std, noise_std, *, shared, num_seeds=3, num_problems=60, num_repeats=1500):
    """Share of intervals that hold the true difference, 0, where seeds, problems and their pairs each add chance."""
    draw, num_covered = np.random.default_rng(7), 0
    for _ in range(num_repeats):
        problems = draw.normal(0, problems_std, size=(1 if shared else num_seeds, num_problems))
        values = draw.normal(0, seeds_std, (num_seeds, 1)) + problems + draw.normal(0, noise_std, (num_seeds, num_problems))
        values /= 50  # so that no end is cut at -1 or 1
        by_seed = [
            {(f"p{index}", "shared" if shared else str(seed)): value for index, value in enumerate(row)} for seed, row in enumerate(values)
        ]
        found = mean_difference(by_seed, [])
        num_covered += found.low <= 0 <= found.high
    return num_covered / num_repeats


@pytest.mark.parametrize(
    ("stds", "shared", "least", "most"),
    [
        ((1.0, 0.0, 0.5), True, 0.935, 0.965),  # chance of the seed decides: Student's three seeds
        ((0.0, 2.0, 0.5), True, 0.935, 0.975),  # chance of the problem decides
        ((0.3, 0.5, 0.5), True, 0.945, 0.985),  # as it is: too wide rather than too narrow
        ((0.0, 0.0, 1.0), True, 0.945, 1.0),
        ((0.5, 1.0, 1.0), False, 0.935, 0.965),  # problems of its own with each seed: exact
    ],
)
def test_the_interval_of_three_seeds_covers_the_difference_in_95_percent_or_more(stds, shared, least, most):
    assert least <= coverage(*stds, shared=shared) <= most


@pytest.mark.parametrize("num_seeds", [2, 5])
def test_it_covers_with_two_seeds_and_with_five(num_seeds):
    assert coverage(0.3, 0.5, 0.5, shared=True, num_seeds=num_seeds) >= 0.945


@pytest.mark.parametrize(("num_seeds", "seeds_std"), [(3, 0.0), (3, 0.02), (5, 0.02)])
def test_equal_methods_are_told_apart_in_some_1_percent_of_cases(num_seeds, seeds_std):
    """The price of covering with few seeds: 0.6 to 1.8 % rather than 5."""
    draw, num_found = np.random.default_rng(0), 0
    for _ in range(400):
        skills = draw.beta(0.8, 1.2, size=300)
        rates = np.clip(skills + draw.normal(0, seeds_std, (2, num_seeds, 1)), 0, 1)
        verdict = (draw.random((2, num_seeds, 300)) < rates).astype(float)
        by_seed = [{(f"p{index}", ""): value for index, value in enumerate(seed)} for seed in verdict[1] - verdict[0]]
        num_found += mean_difference(by_seed, []).p_value < 0.05
    assert 0.001 < num_found / 400 < 0.025


def test_a_bootstrap_over_three_seeds_and_problems_would_cover_far_less():
    # why it is not used: with the chance of the seed in front it covers some 75 %
    draw, num_covered = np.random.default_rng(8), 0
    for _ in range(400):
        values = draw.normal(0, 0.5, (3, 1)) + draw.normal(0, 0.5, (3, 40))
        picked = values[draw.integers(0, 3, (500, 3))].mean(axis=1)
        resampled = np.array([row[draw.integers(0, 40, 40)].mean() for row in picked])
        low, high = np.quantile(resampled, [0.025, 0.975])
        num_covered += low <= 0 <= high
    assert num_covered / 400 < 0.85
