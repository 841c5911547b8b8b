import pytest
from elite_samples import group
from hypothesis import assume, given
from hypothesis import strategies as st

from mathrl_ray.core.quality import CORRECT_ONLY, QualityWeights, group_qualities, quality, weights_of
from mathrl_ray.sections import ExpertIterationSection

shares = st.floats(0, 1)
weight = st.floats(0, 10)


@st.composite
def weights(draw):
    correct = draw(st.floats(0.01, 10))
    return QualityWeights(correct, draw(st.floats(0, correct)), draw(weight), draw(weight))


@given(weights(), st.booleans(), shares, shares, shares)
def test_a_quality_lies_between_0_and_1(chosen, correct, form, length, agreement):
    assert 0 <= quality(chosen, correct=correct, format_part=form, length=length, agreement=agreement) <= 1


@given(weights(), st.tuples(shares, shares, shares), st.tuples(shares, shares, shares))
def test_no_wrong_response_is_worth_more_than_a_right_one(chosen, right, wrong):
    names = ("format_part", "length", "agreement")
    of_right = quality(chosen, correct=True, **dict(zip(names, right, strict=True)))
    assert of_right >= quality(chosen, correct=False, **dict(zip(names, wrong, strict=True)))


@given(weights(), shares, shares, shares, shares)
def test_of_two_right_responses_the_shorter_is_worth_at_least_as_much(chosen, form, agreement, one, other):
    assume(one <= other)
    less, more = (quality(chosen, correct=True, format_part=form, length=length, agreement=agreement) for length in (one, other))
    assert less <= more


def test_the_siblings_of_a_problem_get_what_the_formula_says():
    # two of the four that could be graded are right: agreement 2/4; lengths left over of 10 tokens: 1 - 4/10 and 1 - 8/10
    # right:  0.7 + 0.1 + 0.1 * 0.6 + 0.1 * 0.5 = 0.91, and with 0.2 in place of 0.6: 0.87;  wrong, in form: 0.1
    siblings = group("correct", "wrong", "grader_error", "correct", "truncated", num_tokens=[4, 4, 4, 8, 10])
    found = group_qualities(siblings.trajectories, QualityWeights(0.7, 0.1, 0.1, 0.1), max_tokens=10)
    assert found == [0.91, 0.1, None, 0.87, 0.1]


def test_right_answers_agree_however_they_are_written():
    siblings = group("correct", "correct", answers=["1/2", "0.5"])
    assert group_qualities(siblings.trajectories, QualityWeights(1, 0, 0, 1), max_tokens=8) == [1.0, 1.0]


def test_correct_only_is_one_for_right_and_zero_for_anything_else():
    siblings = group("correct", "wrong", "no_answer", "unparseable_answer", "truncated", "grader_timeout", "bad_gold")
    assert group_qualities(siblings.trajectories, CORRECT_ONLY, max_tokens=8) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, None]


def test_a_reward_functions_own_idea_of_a_format_cannot_leave_the_range():
    siblings = group("correct", "wrong", format_reward=25.0)
    assert group_qualities(siblings.trajectories, QualityWeights(1, 1), max_tokens=8) == [1.0, 0.5]


def test_the_recipe_names_the_weights_or_correct_only():
    assert weights_of(ExpertIterationSection(quality="correct")) == CORRECT_ONLY
    assert weights_of(ExpertIterationSection(weight_length=0.3)) == QualityWeights(0.7, 0.1, 0.3, 0.1)


@pytest.mark.parametrize("given_weights", [(0, 0, 0, 0), (1, 2, 0, 0), (1, -1, 0, 0), (1, 0, -1, 0), (1, 0, 0, -1)])
def test_weights_that_could_prefer_a_wrong_answer_are_refused(given_weights):
    with pytest.raises(ValueError, match=r"expert_iteration\.weight_correct"):
        QualityWeights(*given_weights)
