import doctest
import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core import rewards
from mathrl_ray.core.rewards import Rollout, adapted, reward_parts
from mathrl_ray.types import Problem

EXTRA = {"data_source": "gsm8k", "extra_info": {"index": 7}, "hint": "h"}
PROBLEM = Problem("p/1", "1+1?", "2", level=3, subject="algebra", solution="as we know", extra=EXTRA)
ROLLOUT = Rollout(PROBLEM, prompt="Q: 1+1? <think>", response=" so </think> <answer> 2 </answer>", step=12)


def test_the_example_in_the_docstrings_holds():
    assert doctest.testmod(rewards).failed == 0


def test_ours_gets_the_problem_with_the_rows_other_columns_and_the_step():
    def paid(problem, response, *, step):
        return {"reward": 0.5, "step": step, "hint_used": problem.extra["hint"] == "h", "tags": response.count("answer>")}

    assert adapted(paid)(ROLLOUT) == {"reward": 0.5, "step": 12.0, "hint_used": 1.0, "tags": 2.0}


def test_ours_need_not_take_the_step():
    assert adapted(lambda problem, response: problem.level)(ROLLOUT) == {"reward": 3.0}


def test_a5s_own_form_gives_its_three_parts():
    def r1_zero(response, ground_truth, fast=True):
        right = f"<answer> {ground_truth} </answer>" in response
        return {"format_reward": 1.0, "answer_reward": float(right), "reward": float(right)}

    assert adapted(r1_zero)(ROLLOUT) == {"format": 1.0, "answer": 1.0, "reward": 1.0}


def test_verls_compute_score_works_unchanged():
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        assert (data_source, ground_truth, extra_info["index"], extra_info["hint"]) == ("gsm8k", "2", 7, "h")
        return 1.0 if ground_truth in solution_str else 0.0

    assert adapted(compute_score)(ROLLOUT) == {"reward": 1.0}


def test_verls_dict_keeps_its_numbers_and_drops_its_texts():
    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
        return {"score": -1, "acc": False, "pred": "2"}

    assert adapted(compute_score)(ROLLOUT) == {"reward": -1.0, "acc": 0.0}


def test_trls_functions_get_lists_of_one_and_the_columns_that_they_name():
    def near(prompts, completions, hint, answer, **columns):
        assert (prompts, hint, columns["level"], columns["data_source"]) == ([ROLLOUT.prompt], ["h"], [3], ["gsm8k"])
        return [float(gold in completion) for completion, gold in zip(completions, answer, strict=True)]

    assert adapted(near)(ROLLOUT) == {"reward": 1.0}


def test_trls_functions_for_conversations_get_messages():
    def accuracy_reward(completions, solution, **kwargs):
        contents = [completion[0]["content"] for completion in completions]
        return [float(text.startswith(" so")) + 2 * (gold == "as we know") for text, gold in zip(contents, solution, strict=True)]

    assert adapted(accuracy_reward)(ROLLOUT) == {"reward": 3.0}


def test_the_error_of_a_trl_function_is_its_own_and_not_that_of_the_second_try():
    def fails(completions, **kwargs):
        return [len(completions[0]) + "x"]

    with pytest.raises(TypeError, match="unsupported operand"):
        adapted(fails)(ROLLOUT)


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (torch.tensor([0.25]), {"reward": 0.25}),
        ([0.25], {"reward": 0.25}),
        ({"rewards": torch.tensor([0.25]), "scores": torch.tensor([0.5])}, {"reward": 0.25, "scores": 0.5}),
        ({"rewards": [0.25], "extra_logs": {"length_reward": torch.tensor([3])}}, {"reward": 0.25, "length": 3.0}),
    ],
)
def test_openrlhfs_reward_func_works_unchanged(result, parts):
    def reward_func(queries, prompts, labels, **kwargs):
        assert (queries, prompts, labels) == ([ROLLOUT.prompt + ROLLOUT.response], [ROLLOUT.prompt], ["2"])
        return result

    assert adapted(reward_func)(ROLLOUT) == parts


def test_keyword_arguments_of_the_recipe_do_not_change_the_form():
    def paid(problem, response, *, step, scale):
        return scale * step

    assert adapted(functools.partial(paid, scale=0.5))(ROLLOUT) == {"reward": 6.0}


def test_a_function_may_be_asynchronous():
    async def paid(problem, response):
        return 0.75

    assert adapted(paid)(ROLLOUT) == {"reward": 0.75}


def test_a_function_of_no_known_form_hears_which_there_are():
    def score(text, target):
        return 1.0

    with pytest.raises(ValueError, match=r"score takes target, text: .*ground_truth \(A5\), solution_str \(verl\)"):
        adapted(score)


@pytest.mark.parametrize("result", [None, "1.0", float("nan"), float("inf"), {}, {"reward": float("nan")}, [], [1.0, 2.0], {"pred": "5"}])
def test_what_is_no_finite_number_is_refused(result):
    with pytest.raises(ValueError, match="the reward function gave"):
        reward_parts(result)


def test_a_foreign_dict_without_its_reward_is_refused_by_the_keys_name():
    with pytest.raises(ValueError, match='must hold a number under "score"'):
        reward_parts({"acc": 1.0}, reward_key="score")


@given(st.dictionaries(st.sampled_from(["reward", "a", "b_reward"]), st.floats(-1e6, 1e6), min_size=1))
def test_every_number_of_a_dict_is_kept_whatever_it_is_wrapped_in(values):
    expected = {name.removesuffix("_reward"): value for name, value in values.items()}
    assert reward_parts(values) == expected
    assert reward_parts({name: np.float64(value) for name, value in values.items()}) == expected
    assert reward_parts({name: [value] for name, value in values.items()}) == expected
