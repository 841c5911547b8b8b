import doctest
from dataclasses import replace

import pytest
from samples import recipe_for

from mathrl_ray.driver import step_warnings as module
from mathrl_ray.driver.step_metrics import rollout_metrics
from mathrl_ray.driver.step_warnings import step_warnings, ungraded_warning
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

RIGHT = Grade(1.0, 1.0, 1.0, "correct", "5")
NO_FORMAT = Grade(0.0, 0.0, 0.0, "no_answer", None)
ERROR = Grade(1.0, 0.0, 0.0, "grader_error", "5", remark="KeyError: 'x' (mine.py, line 3)")


def group_of(*grades, finish_reasons=None, text="I think that it is five."):
    reasons = finish_reasons or ["stop"] * len(grades)
    trajectories = [
        Trajectory("g", sample, "arithmetic/train/3", (1,), Completion(text, (5, 6), (-1.0, -1.0), ((0, 2),), reason), grade)
        for sample, (grade, reason) in enumerate(zip(grades, reasons, strict=True))
    ]
    return TrajectoryGroup("g", "arithmetic/train/3", tuple(trajectories))


@pytest.fixture
def recipe(tmp_path):
    return recipe_for(tmp_path)


def test_the_example_in_the_docstrings_holds():
    assert doctest.testmod(module).failed == 0


def test_behaviour_10_a_step_in_which_nothing_passes_the_format_warns_with_a_sample_and_the_setting(recipe):
    found = step_warnings([group_of(NO_FORMAT, NO_FORMAT), group_of(NO_FORMAT, NO_FORMAT)], recipe)
    assert set(found) == {"format"}
    for part in ("none of 4 responses", "data.prompt = r1_zero", "arithmetic/train/3 'I think that it is five.'", "reward.format"):
        assert part in found["format"]
    assert step_warnings([group_of(NO_FORMAT, NO_FORMAT), group_of(NO_FORMAT, RIGHT)], recipe) == {}


def test_a_stage_that_does_not_learn_from_rewards_is_not_told_to_pay_for_the_format(recipe):
    (text,) = step_warnings([group_of(NO_FORMAT, NO_FORMAT)], recipe, learns_from_rewards=False).values()
    assert "reward.format" not in text
    assert text.endswith("Train the stage sft first, or name a data.prompt that fits the model.")


@pytest.mark.parametrize(("num_cut_off", "warns"), [(0, False), (2, False), (3, True), (4, True)])
def test_behaviour_10_a_step_in_which_more_than_half_are_cut_off_warns_with_a_sample_and_the_setting(recipe, num_cut_off, warns):
    reasons = ["length"] * num_cut_off + ["stop"] * (4 - num_cut_off)
    found = step_warnings([group_of(*[RIGHT] * 4, finish_reasons=reasons, text="a" * 200 + "b" * 400 + "c" * 200)], recipe)
    assert set(found) == ({"cut_off"} if warns else set())
    if warns:
        assert f"{num_cut_off} of 4 responses were cut off at generator.max_tokens = 64" in found["cut_off"]
        assert f"'{'a' * 150} [...] {'c' * 150}'" in found["cut_off"]
        assert "Raise generator.max_tokens" in found["cut_off"]


def test_a_function_that_has_no_format_is_not_asked_for_one(tmp_path):
    recipe = recipe_for(tmp_path, reward={"function": "a.module:f"})
    unpaid = replace(NO_FORMAT, parts={"reward": 0.0})
    assert step_warnings([group_of(unpaid, unpaid)], recipe) == {}
    assert set(step_warnings([group_of(replace(unpaid, parts={"reward": 0.0, "format": 0.0}))], recipe)) == {"format"}


@pytest.mark.parametrize(("num_ungraded", "warns"), [(0, False), (1, False), (2, True), (100, True)])
def test_over_one_percent_of_ungraded_responses_warns_with_the_kinds_and_what_a_function_raised(num_ungraded, warns):
    text = ungraded_warning([ERROR] * num_ungraded + [RIGHT] * (100 - num_ungraded))
    assert bool(text) == warns
    if warns:
        assert f"{num_ungraded} of 100 responses could not be graded (grader_error {num_ungraded})" in text
        assert "KeyError: 'x' (mine.py, line 3)" in text


def test_bad_golds_count_as_ungraded_and_time_outs_do_not(recipe):
    bad_gold, hung = replace(ERROR, outcome="bad_gold", remark=""), replace(ERROR, outcome="grader_timeout", remark="")
    assert "bad_gold 2, grader_error 1" in ungraded_warning([bad_gold, ERROR, bad_gold, RIGHT])
    assert ungraded_warning([hung] * 4) == ""
    assert set(step_warnings([group_of(bad_gold, RIGHT)], recipe)) == {"ungraded"}


def test_no_responses_warn_of_nothing(recipe):
    assert step_warnings([], recipe) == {}
    assert ungraded_warning([]) == ""


def test_the_metrics_of_a_step_hold_the_mean_of_each_part_and_count_what_was_not_graded():
    paid = replace(RIGHT, parts={"reward": 1.0, "format": 1.0, "style": 0.5})
    other = replace(RIGHT, reward=0.25, parts={"reward": 0.25, "style": 0.0, "length": 0.75})
    hung = replace(ERROR, outcome="grader_timeout", from_quarantine=True)
    metrics = rollout_metrics([group_of(paid, other, ERROR, hung)])
    assert (metrics["reward_style_mean"], metrics["reward_length_mean"], metrics["reward_mean"]) == (0.25, 0.75, 1.25 / 4)
    assert (metrics["ungraded_fraction"], metrics["grader_timeout_fraction"], metrics["num_quarantined"]) == (0.25, 0.25, 1)
    assert not {"reward_format_mean", "reward_answer_mean", "reward_reward_mean"} & set(metrics)  # columns of their own
