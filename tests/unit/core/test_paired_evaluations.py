import numpy as np
import pytest
from evaluation_rows import RIGHT, WRONG, row, samples, verdicts
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.intervals import cluster_bootstrap_interval, equal_differences_interval, paired_rates_interval
from mathrl_ray.core.paired_evaluations import Evaluation, compare_evaluations
from mathrl_ray.core.paired_tests import mcnemar_exact, sign_flip_test


def compared(first, second, **settings):
    return compare_evaluations(Evaluation("first", first), Evaluation("second", second), **settings)


def test_one_sample_a_problem_is_mcnemars_test_with_ids_gained_and_lost():
    found = compared(verdicts("+++--------+"), verdicts("+--+++++--++"))
    #                          p0 both; p1, p2 lost; p3..p7 and p10 gained; p8, p9 neither; p11 both
    assert found.test == "mcnemar_exact"
    assert found.gained == ("p3", "p4", "p5", "p6", "p7", "p10")
    assert found.lost == ("p1", "p2")
    assert found.p_value == mcnemar_exact(2, 6)
    assert (found.first_accuracy.value, found.second_accuracy.value) == (4 / 12, 8 / 12)
    assert found.difference == pytest.approx(4 / 12)
    assert (found.low, found.high) == paired_rates_interval(both=2, only_first=2, only_second=6, neither=2)
    assert (found.num_problems, found.num_left_out, found.warnings) == (12, 0, ())


def test_several_samples_a_problem_are_a_sign_flip_test_of_the_means():
    found = compared(samples("+--", "---", "+++"), samples("++-", "--+", "++-"))
    differences = [1 / 3, 1 / 3, -1 / 3]
    assert found.test == "sign_flip_exact"
    assert found.p_value == sign_flip_test(differences, seed=0).p_value == 1.0
    assert found.difference == pytest.approx(1 / 9)
    assert (found.low, found.high) == pytest.approx(cluster_bootstrap_interval(differences, seed=0))
    assert (found.gained, found.lost) == (("p0", "p1"), ("p2",))


def test_the_seed_is_that_of_the_resamples():
    counts = np.random.default_rng(0).integers(0, 9, size=(2, 40))
    first, second = (samples(*["+" * count + "-" * (8 - count) for count in side.tolist()]) for side in counts)
    found = [compared(first, second, seed=seed) for seed in (0, 3)]
    assert (found[1].low, found[1].high) == pytest.approx(cluster_bootstrap_interval((counts[1] - counts[0]) / 8, seed=3))
    assert (found[0].low, found[0].high) != pytest.approx((found[1].low, found[1].high))


@pytest.mark.parametrize(("before", "after"), [("++--", "++--"), ("----", "++++"), ("++++", "+---"), ("+", "++--")])
def test_where_all_differences_are_equal_the_interval_still_has_a_width(before, after):
    found = compared(samples(*[before] * 10), samples(*[after] * 10))
    first, difference = before.count("+") / len(before), after.count("+") / len(after) - before.count("+") / len(before)
    assert (found.low, found.high) == equal_differences_interval(first, difference, 10)
    assert found.low <= found.difference <= found.high
    assert found.high - found.low > 0.1


def test_equal_checkpoints_are_told_apart_in_5_percent_of_cases():
    """Of problems that one of two solves, each like a coin. An exact test is conservative by what whole counts leave: of 301 such problems
    it finds 5.0 % (of 105 3.1)."""
    draw, num_problems, num_repeats = np.random.default_rng(0), 301, 3_000
    rows = [(row(f"p{index}", WRONG), row(f"p{index}", RIGHT)) for index in range(num_problems)]
    num_found = 0
    for _ in range(num_repeats):
        first = draw.integers(0, 2, size=num_problems)
        before, after = ([pair[right] for pair, right in zip(rows, side, strict=True)] for side in (first, 1 - first))
        num_found += compared(before, after).p_value < 0.05
    assert num_found / num_repeats == pytest.approx(0.05, abs=0.01)


def test_the_order_of_the_rows_does_not_matter():
    first, second = verdicts("+-+-+"), verdicts("++--+")
    assert compared(first, second[::-1]) == compared(first, second)


def test_problems_that_one_side_could_not_grade_are_left_out_and_counted():
    found = compared(verdicts("+?+-"), verdicts("-++?"))
    assert (found.num_problems, found.num_left_out) == (2, 2)
    assert (found.first_accuracy.value, found.second_accuracy.value, found.lost) == (1.0, 0.5, ("p0",))


@given(st.text("+-?", min_size=3, max_size=12), st.data())
def test_swapping_the_sides_swaps_gains_and_losses(first, data):
    second = data.draw(st.text("+-?", min_size=len(first), max_size=len(first)))
    if not any("?" not in pair for pair in zip(first, second, strict=True)):
        return
    there, back = compared(verdicts(first), verdicts(second)), compared(verdicts(second), verdicts(first))
    assert (there.gained, there.lost, there.p_value) == (back.lost, back.gained, back.p_value)
    assert (there.difference, there.low, there.high) == pytest.approx((-back.difference, -back.high, -back.low))


# What may not be compared, and what is warned of


def test_other_problems_are_refused_with_their_ids_and_what_is_shared_on_request():
    first, second = verdicts("++-"), [*verdicts("+-+"), row("q7")]
    with pytest.raises(ValueError, match=r"second has 1 that the other has not \(q7\)\. --shared compares the 3") as told:
        compared(first, second)
    assert "eval.num_problems" in str(told.value)
    found = compared(first, second, shared_only=True)
    assert (found.num_problems, found.num_left_out) == (3, 1)


def test_no_shared_problem_is_refused_also_on_request():
    with pytest.raises(ValueError, match=r"None is in both"):
        compared([row("a")], [row("b")], shared_only=True)


@pytest.mark.parametrize(("column", "other"), [("problem", "What is 2+2?"), ("gold", "3")])
def test_one_id_for_two_problems_is_refused(column, other):
    # built-in problems of another data.seed have the same ids
    with pytest.raises(ValueError, match=f"the column {column} of 1 problems is not the same under the same id \\(a\\)"):
        compared([row("a"), row("b")], [row("a", {column: other}), row("b")])


def test_another_grader_is_refused():
    with pytest.raises(ValueError, match=r"first was graded by default and second was graded by mine\.py:grade"):
        compared([row("a")], [row("a", grader="mine.py:grade")])


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"temperature": 0.6}, "temperature differs (1.0 and 0.6)"),
        ({"top_p": 0.9}, "top_p differs (1.0 and 0.9)"),
        ({"max_tokens": 1024}, "max_tokens differs (64 and 1024)"),
        ({"prompt_name": "chat", "prompt": "Say: "}, "prompt_name differs (r1_zero and chat)"),
        ({"prompt": "another text"}, "the prompt's text differs in 2 problems"),
    ],
)
def test_another_protocol_is_compared_with_one_warning(changes, warning):
    found = compared(verdicts("+-"), verdicts("++", **changes))
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(warning)
    assert "not the checkpoints' alone" in found.warnings[0]


def test_other_numbers_of_samples_are_compared_with_a_warning():
    first = [{**each, "sample": 0} for each in samples("+", "-")]
    found = compared(first, samples("+-", "++"))
    assert found.warnings == ("samples a problem differ (1 and 2): each problem still weighs the same",)
    assert found.difference == pytest.approx(0.25)  # (1/2 - 1 + 1 - 0) / 2


def test_rows_that_are_no_single_evaluation_are_refused_with_the_name():
    with pytest.raises(ValueError, match="second: sample 0 of the problem a comes 2 times"):
        compared([row("a")], [row("a"), row("a")])


def test_nothing_graded_on_both_sides_is_refused():
    with pytest.raises(ValueError, match="nothing to compare"):
        compared(verdicts("+?"), verdicts("?+"))
