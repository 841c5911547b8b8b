import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core import reward_weights
from mathrl_ray.core.grading.extraction import extract
from mathrl_ray.core.reward_weights import grade_of_parts, rewarded, ungraded, weight_at
from mathrl_ray.sections import RewardSection
from mathrl_ray.types import Grade

RIGHT = Grade(1.0, 1.0, 1.0, "correct", "5")
WRONG = Grade(1.0, 0.0, 0.0, "wrong", "4")
NO_FORMAT = Grade(0.0, 0.0, 0.0, "no_answer", None)


def paid(grade, *, step=0, num_tokens=16, max_tokens=64, **weights):
    return rewarded(grade, RewardSection(**weights), step=step, num_tokens=num_tokens, max_tokens=max_tokens)


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(reward_weights).failed == 0


@pytest.mark.parametrize("grade", [RIGHT, WRONG, NO_FORMAT])
def test_the_default_is_a5s_reward(grade):
    assert paid(grade) == grade


def test_the_parts_are_weighed_and_summed():
    # answer 1 x 0.7 + format 1 x 0.2 + length (1 - 16/64 = 0.75) x 0.4 = 1.2
    assert paid(RIGHT, answer=0.7, format=0.2, length=0.4).reward == pytest.approx(1.2)
    assert paid(RIGHT, answer=0.7, format=0.2, length=0.4).parts == {"length": 0.75}
    assert paid(WRONG, answer=0.7, format=0.2, length=0.4).reward == pytest.approx(0.2)  # a wrong answer is not paid for being short
    assert paid(NO_FORMAT, answer=0.7, format=0.2, length=0.4).reward == 0.0


def test_a_schedule_goes_in_straight_lines_between_its_points():
    # from (10, 1.0) to (20, 0.0): at 13 it is 0.7; then to (40, 0.5): at 30 half of the way is 0.25
    points = [(10, 1.0), (20, 0.0), (40, 0.5)]
    assert [weight_at(points, step) for step in (0, 10, 13, 20, 30, 40, 99)] == pytest.approx([1.0, 1.0, 0.7, 0.0, 0.25, 0.5, 0.5])
    assert paid(WRONG, step=13, format=points).reward == pytest.approx(0.7)


schedules = st.dictionaries(st.integers(0, 1000), st.floats(-2, 2), min_size=1).map(lambda points: sorted(points.items()))


@given(schedules, st.integers(0, 1000))
def test_a_schedule_never_leaves_the_range_of_its_points(points, step):
    values = [value for _, value in points]
    assert min(values) - 1e-9 <= weight_at(points, step) <= max(values) + 1e-9
    assert all(weight_at(points, at) == pytest.approx(value) for at, value in points)


@pytest.mark.parametrize("outcome", ["grader_timeout", "grader_error", "bad_gold"])
def test_what_could_not_be_graded_earns_nothing_whatever_is_weighed(outcome):
    assert paid(Grade(1.0, 0.0, 0.0, outcome, "5"), format=1.0).reward == 0.0


def test_a_functions_reward_is_taken_as_it_is():
    grade = grade_of_parts(extract("5"), {"reward": 0.3, "style": 2.0}, cut_off=False, grading_s=0.1)
    assert paid(grade, answer=9.0, format=9.0).reward == 0.3


def test_a_functions_parts_without_a_reward_are_weighed_by_name():
    grade = grade_of_parts(extract("5"), {"answer": 1.0, "format": 1.0, "style": 0.25}, cut_off=False, grading_s=0.1)
    assert grade.reward == 2.25
    # 1 x 0.5 + 1 x 0.1 + 0.25, which has no weight of its own
    assert paid(grade, answer=0.5, format=0.1).reward == pytest.approx(0.85)
    assert paid(grade, answer=0.5, format=0.1).parts == {"answer": 1.0, "format": 1.0, "style": 0.25}


@pytest.mark.parametrize(
    ("parts", "response", "cut_off", "expected"),
    [
        ({"reward": 1.0}, "free text", False, ("correct", 0.0, 1.0)),  # the tag rule decides nothing for a function
        ({"reward": -1.0}, "</think> <answer> 5 </answer>", False, ("wrong", 1.0, 0.0)),
        ({"reward": 0.5}, "</think> <answer> 5 </answer>", False, ("wrong", 1.0, 0.0)),  # correct is above a half
        ({"reward": 0.0, "format": 0.5, "answer": 0.25}, "</think> <answer> 5 </answer>", False, ("wrong", 0.5, 0.25)),
        ({"reward": 0.0}, "free text", True, ("truncated", 0.0, 0.0)),
        ({"reward": 0.0}, "free text", False, ("no_answer", 0.0, 0.0)),
    ],
)
def test_the_grade_that_parts_make(parts, response, cut_off, expected):
    grade = grade_of_parts(extract(response), parts, cut_off=cut_off, grading_s=0.1)
    assert (grade.outcome, grade.format_reward, grade.answer_reward) == expected


def test_a_function_that_gave_nothing_is_not_hidden_behind_the_tags():
    grade = ungraded(extract("no tags"), "grader_error", grading_s=0.1, remark="KeyError: 'x'")
    assert (grade.outcome, grade.reward, grade.format_reward, grade.remark) == ("grader_error", 0.0, 0.0, "KeyError: 'x'")
