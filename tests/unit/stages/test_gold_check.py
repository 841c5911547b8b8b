from dataclasses import replace

import pytest
from samples import recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.stages.gold_check import check_golds
from mathrl_ray.stages.inputs import Inputs
from mathrl_ray.types import Problem

GOLDS = {"a": r"\frac{1}{2}", "b": r"\frac{1", "c": "7", "d": r"(1,2", "e": r"\text{Evelyn}"}


def inputs():
    problems = [Problem(problem_id, f"{problem_id}?", gold) for problem_id, gold in GOLDS.items()]
    return Inputs(train=problems[:3], validation=problems[3:4], test=problems[4:], traces=[], prompts={})


def recipe(tmp_path, **sections):
    files = dict.fromkeys(("train", "validation", "test"), "some.jsonl")
    return recipe_for(tmp_path, **{**sections, "data": {**files, **sections.get("data", {})}})


def test_behaviour_5_golds_that_do_not_parse_are_refused_before_a_run_all_by_name(tmp_path):
    with pytest.raises(RecipeError, match=r"2 golds cannot be graded.* b: .* d: .*data.bad_rows = \"drop\""):
        check_golds(recipe(tmp_path), inputs(), print)


def test_behaviour_5_or_they_are_left_out_and_named(tmp_path):
    said = []
    cleaned = check_golds(recipe(tmp_path, data={"bad_rows": "drop"}), inputs(), said.append)
    left = [problem.problem_id for problem in (*cleaned.train, *cleaned.validation, *cleaned.test)]
    assert left == ["a", "c", "e"]
    assert said == cleaned.remarks
    assert "b: " in said[0]
    assert "d: " in said[0]


def test_golds_for_a_reward_function_of_ones_own_are_its_own_affair(tmp_path):
    given = inputs()
    assert check_golds(recipe(tmp_path, reward={"function": "own:reward"}), given, print) is given


def test_where_all_golds_parse_nothing_is_said(tmp_path):
    given = replace(inputs(), train=inputs().train[:1], validation=[])
    assert check_golds(recipe(tmp_path), given, print) is given
