import doctest
import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core import reward_parts as parts_file
from mathrl_ray.core import rewards
from mathrl_ray.core.reward_parts import reward_parts
from mathrl_ray.core.rewards import Rollout, adapted
from mathrl_ray.types import Problem

EXTRA = {"data_source": "gsm8k", "extra_info": {"index": 7}, "hint": "h"}
PROBLEM = Problem("p/1", "1+1?", "2", level=3, subject="algebra", solution="as we know", extra=EXTRA)
ROLLOUT = Rollout(PROBLEM, prompt="Q: 1+1? <think>", response=" so </think> <answer> 2 </answer>", step=12)


def test_the_example_in_the_docstrings_holds():
    assert doctest.testmod(rewards).failed == 0
    assert doctest.testmod(parts_file).failed == 0


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


@pytest.mark.parametrize("unknown", [None, "1.0", [], [1.0, 2.0], torch.zeros(2), {"of": 1.0}, float("nan")])
def test_a_reward_that_is_named_and_no_number_is_not_made_up_for_by_other_parts(unknown):
    with pytest.raises(ValueError, match="reward must be one finite number"):
        reward_parts({"reward": unknown, "bonus": 1})
    with pytest.raises(ValueError, match="score must be one finite number"):
        reward_parts({"score": unknown, "reward": 1.0, "acc": 1.0}, reward_key="score")
    with pytest.raises(ValueError, match="answer_reward must be one finite number"):
        reward_parts({"format_reward": 1.0, "answer_reward": unknown})


def test_what_is_no_reward_may_be_unknown():
    assert reward_parts({"reward": 0.5, "answer_reward": None, "extracted": None}) == {"reward": 0.5}
    assert reward_parts({"format_reward": 1.0, "extracted": None}) == {"format": 1.0}


@pytest.mark.parametrize(
    ("result", "key", "parts"),
    [
        ({"answer_reward": 1.0, "answer": 42}, "reward", {"answer": 1.0}),  # the answer itself is 42
        ({"answer": 42, "answer_reward": 1.0}, "reward", {"answer": 1.0}),
        ({"reward": 0.5, "length": 400, "length_reward": 0.25}, "reward", {"reward": 0.5, "length": 0.25}),
        ({"score": -1.0, "reward": 1.0}, "score", {"reward": -1.0}),
        ({"reward": 1.0, "score": -1.0}, "score", {"reward": -1.0}),
        ({"rewards": [0.5], "extra_logs": {"rewards": 9.0, "reward": 9.0, "steps": 3}}, "rewards", {"reward": 0.5, "steps": 3.0}),
    ],
)
def test_of_two_keys_that_come_to_one_name_the_more_explicit_one_counts(result, key, parts):
    assert reward_parts(result, reward_key=key) == parts


def test_parameters_may_stand_in_any_order():
    assert adapted(lambda response, problem: {"reward": problem.level, "text": len(response)})(ROLLOUT)["reward"] == 3.0
    assert adapted(lambda ground_truth, response: float(ground_truth))(ROLLOUT) == {"reward": 2.0}


def test_what_the_recipes_kwargs_give_is_not_given_again():
    def compute_score(solution_str, ground_truth, data_source, **others):
        return {"score": float(data_source == "mine"), "others": len(others)}

    # of **others it gets extra_info
    assert adapted(functools.partial(compute_score, data_source="mine"))(ROLLOUT) == {"reward": 1.0, "others": 1.0}


@pytest.mark.parametrize(
    ("parameters", "missing", "form"),
    [
        ("problem, response, tokenizer", "tokenizer", "our"),
        ("response, ground_truth, problem_id", "problem_id", "A5's"),
        ("solution_str, ground_truth, reward_router_address", "reward_router_address", "verl's"),
        ("queries, prompts, labels, answers", "answers", "OpenRLHF's"),
        ("completions, completion_ids", "completion_ids", "TRL's"),
        ("completions, completions_ids, solution, **kwargs", "completions_ids", "TRL's"),
        ("rows, /, completions", "rows", "TRL's"),
    ],
)
def test_a_function_that_could_never_be_called_is_refused_before_it_is_called(parameters, missing, form):
    function = eval(f"lambda {parameters}: 1.0")
    with pytest.raises(TypeError, match=rf"asks for {missing}, which it cannot be given: a function of {form} form gets "):
        adapted(function)


def test_a_parameter_with_a_default_or_among_any_others_is_not_missed():
    assert adapted(lambda completions, completion_ids=None: [float(completion_ids is None)])(ROLLOUT) == {"reward": 1.0}
    assert adapted(lambda completions, **others: [float("completion_ids" in others)])(ROLLOUT) == {"reward": 0.0}
    with_value = functools.partial(lambda problem, response, tokenizer: len(tokenizer), tokenizer="four")
    assert adapted(with_value)(ROLLOUT) == {"reward": 4.0}


def test_a_column_that_the_row_does_not_have_is_named_with_those_that_it_has():
    with pytest.raises(ValueError, match=r"asks for task, which is no column of the data row; .*data_source, extra_info, hint"):
        adapted(lambda completions, task: [1.0])(ROLLOUT)


def test_trls_functions_learn_the_step():
    def grows(completions, trainer_state, **kwargs):
        return [trainer_state.global_step / 24]

    assert adapted(grows)(ROLLOUT) == {"reward": 0.5}


def test_what_trls_functions_log_becomes_parts_and_never_the_reward():
    def logs(completions, log_extra, log_metric=None):
        content = completions[0][0]["content"]  # fails with a text, after which what was logged before it must be forgotten
        log_metric("seen", 1)
        log_metric("seen", 2)
        log_metric("reward", 9.0)
        log_extra("answer", ["2"])
        log_extra("num_characters", [len(content)])
        return [0.5]

    def logs_first(completions, log_metric):
        log_metric("calls", 1.0)
        log_metric("texts", isinstance(completions[0], str))
        return [0.5 if completions[0][0]["content"] else 0.0]

    expected = {"reward": 0.5, "log_seen": 1.5, "log_reward": 9.0, "log_num_characters": float(len(ROLLOUT.response))}
    assert adapted(logs)(ROLLOUT) == expected
    assert adapted(logs_first)(ROLLOUT) == {"reward": 0.5, "log_calls": 1.0, "log_texts": 0.0}


def test_an_asynchronous_function_of_trls_for_conversations_gets_messages_too():
    async def judged(completions, **kwargs):
        return [float(completions[0][0]["content"] == ROLLOUT.response)]

    assert adapted(judged)(ROLLOUT) == {"reward": 1.0}


@given(st.dictionaries(st.sampled_from(["reward", "a", "b_reward"]), st.floats(-1e6, 1e6), min_size=1))
def test_every_number_of_a_dict_is_kept_whatever_it_is_wrapped_in(values):
    expected = {name.removesuffix("_reward"): value for name, value in values.items()}
    assert reward_parts(values) == expected
    assert reward_parts({name: np.float64(value) for name, value in values.items()}) == expected
    assert reward_parts({name: [value] for name, value in values.items()}) == expected
