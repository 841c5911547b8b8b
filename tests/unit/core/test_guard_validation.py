"""The validation guard: by hand, and how often chance alone sets it off."""

from math import sqrt

import numpy as np
import pytest

from mathrl_ray.core.guard_rules import GuardRules
from mathrl_ray.core.guard_validation import standard_error
from mathrl_ray.guard_section import GuardsSection


def fires_at(accuracies, *, num_problems: int = 500, every: int = 10, **keys) -> list[int]:
    rules = GuardRules(GuardsSection(**keys))
    return [number * every for number, accuracy in enumerate(accuracies, 1) if rules.validated(number * every, accuracy, num_problems)]


def test_the_error_of_a_difference_is_that_of_both_together():
    # 250 + 200 right of 1,000, and 2 more of 4: p = 452 / 1004 = 0.4502; sqrt(p (1 - p) 2 / 500) = 0.03147
    assert standard_error(0.5, 0.4, 500, 500) == pytest.approx(0.03147, abs=1e-5)


def test_all_of_few_is_no_certainty():
    # (10 + 10 + 2) / 24 = 11 / 12, sqrt(11 / 144 x 2 / 10) = 0.1236: 0.7 of 10 is not 3 of these below 1.0 of 10
    assert standard_error(1.0, 1.0, 10, 10) == pytest.approx(sqrt(11 / 144 * 0.2))
    assert fires_at([1.0, 0.7, 0.7, 0.7], num_problems=10) == []


@pytest.mark.parametrize(("accuracy", "fired"), [(0.716, [30, 40]), (0.722, [])])
def test_two_validations_in_a_row_that_are_three_errors_below_the_best_fire(accuracy, fired):
    # (400 + 358 + 2) / 1004 = 0.757, error sqrt(0.757 x 0.243 / 250) = 0.0271, limit 0.8 - 0.0814 = 0.7186; with 0.722 it is 0.7190
    assert fires_at([0.8, accuracy, accuracy, accuracy]) == fired


def test_one_bad_validation_is_no_alarm():
    assert fires_at([0.8, 0.6, 0.8, 0.6, 0.8]) == []


def test_the_last_good_step_is_the_last_validated_one_that_was_as_good_as_the_best():
    rules = GuardRules(GuardsSection())
    accuracies = {10: 0.6, 20: 0.8, 30: 0.79, 40: 0.6, 50: 0.6}
    for step in range(1, 51):
        rules.look(step, {})
        findings = rules.validated(step, accuracies[step], 500) if step in accuracies else []
        assert bool(findings) == (step == 50)
    assert "at step 20" in findings[0].text
    assert "since step 31" in findings[0].text
    assert rules.last_good_step(50) == 30


def test_a_validation_of_weights_that_training_has_left_behind_counts_for_its_own_step():
    rules = GuardRules(GuardsSection())
    for step in range(1, 31):
        rules.look(step, {})
    assert [rules.validated(step, accuracy, 500) for step, accuracy in ((10, 0.8), (20, 0.5))] == [[], []]
    assert rules.validated(25, 0.5, 500)
    assert rules.last_good_step(31) == 10


def test_a_validation_without_a_graded_problem_says_nothing():
    assert fires_at([0.8, 0.0, 0.0, 0.0], num_problems=0) == []


@pytest.mark.parametrize("num_problems", [20, 100, 500])
@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.95])
def test_chance_alone_fires_in_about_1_of_100_stages_of_20_validations(num_problems, accuracy):
    # A plateau, each validation drawn anew: the worst there is for a guard that compares with the best. Of 2,000 stages at most 1.5 %.
    draws = np.random.default_rng(8).binomial(num_problems, accuracy, size=(2000, 20)) / num_problems
    assert sum(bool(fires_at(stage.tolist(), num_problems=num_problems)) for stage in draws) <= 30


def test_a_fall_by_half_is_seen_with_few_problems_too():
    # 50 problems: 0.6 against 0.3 is 0.3 / sqrt(0.45 x 0.55 x 2 / 50) = 3.0 errors, so 0.2 is surely enough
    assert fires_at([0.5, 0.6, 0.2, 0.2], num_problems=50) == [40]
