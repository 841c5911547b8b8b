"""Reward functions of the user's own in the scorer's processes: what they give, and what their faults cost."""

import asyncio
import datetime
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from test_scorer import GOOD, is_gone, until, workers_of

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.grading_process import RewardFunctionError
from mathrl_ray.actors.own_rewards import check_reward_functions, function_sources
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.types import Problem, ScoreRequest

TEXT = '''
import dataclasses, os, signal, subprocess, sys, time

@dataclasses.dataclass
class Told:
    """A class of the file is found again, although the file is not there."""
    reward: float

def told(problem, response, *, step, scale=1.0):
    print("a line that must not reach the channel")
    command, _, rest = response.partition(" ")
    if command == "pay":
        return {"reward": Told(float(rest)).reward * scale, "level": problem.level, "step": step, "hint": problem.extra["hint"]}
    if command == "hang":
        time.sleep(600)  # longer than any limit here, as below: what is tested is that it is ended
    if command == "hang_in_c":
        sum(range(10**15))
    if command == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(1)
        signal.alarm(0)
        time.sleep(600)
    if command == "spawn":
        child = subprocess.Popen(["sleep", "600"])
        print("pid", child.pid, file=open(rest, "w"))
        time.sleep(600)
    if command == "fill":
        kept = []
        while True:
            kept.append(bytearray(50 << 20))
    if command == "fail":
        return {}[rest]
    if command == "unknown":
        return {"reward": None, "bonus": 1.0}
    if command == "exit":
        sys.exit(rest)
    if command == "crash":
        os._exit(3)
    return float("nan") if command == "nan" else None
'''
SPEC = "/where/it/was/written/mine.py:told"
TOLD = FunctionSource(SPEC, "reward.function", TEXT, {"scale": 2.0})
PROBLEM = Problem("p", "1+1?", "2", level=3, extra={"hint": 0.5})


def said(text):
    return ScoreRequest(text, "2", function=SPEC, problem=PROBLEM, step=7)


def score(requests, **settings):
    async def run():
        scorer = Scorer(**{"limit_s": 1.0, "memory_bytes": 1 << 30, "functions": [TOLD], **settings})
        await scorer.setup()
        try:
            return await scorer.score(requests)
        finally:
            await scorer.shutdown()

    return asyncio.run(run())


def test_a_function_of_a_file_that_is_not_here_pays_and_its_parts_come_back():
    right, wrong = score([said("pay 0.75"), said("pay 0.1")])
    assert (right.reward, right.outcome, right.parts) == (1.5, "correct", {"reward": 1.5, "level": 3.0, "step": 7.0, "hint": 0.5})
    assert (wrong.reward, wrong.outcome) == (0.2, "no_answer")  # below a half, and no tags


def test_a_batch_with_every_fault_comes_back_complete_in_order_and_each_fault_costs_its_own_item():
    commands = ["pay 1", "hang", "fail key", "exit now", "pay 1", "crash", "nan", "none", "unknown", "hang_in_c", "deaf", "fill", "pay 1"]
    # a busy machine fills 256 MiB within 3 s too
    grades = score([said(command) for command in commands], num_processes=2, memory_bytes=256 << 20, limit_s=3.0)
    expected = {"pay": "correct", "hang": "grader_timeout", "hang_in_c": "grader_timeout", "deaf": "grader_timeout"}
    assert [grade.outcome for grade in grades] == [expected.get(command.split()[0], "grader_error") for command in commands]
    assert [grade.reward for grade in grades] == [2.0 if command == "pay 1" else 0.0 for command in commands]
    remarks = dict(zip(commands, (grade.remark for grade in grades), strict=True))
    assert remarks["fail key"].startswith("KeyError: 'key' (mine.py, line ")
    assert remarks["exit now"].startswith("SystemExit: now")
    assert remarks["nan"].startswith("ValueError: the reward function gave nan")
    assert remarks["none"].startswith("ValueError: the reward function gave None")
    assert "{'reward': None, 'bonus': 1.0}: reward must be one finite number" in remarks["unknown"]


def test_a_process_that_a_hanging_function_started_is_ended_with_it(tmp_path):
    note = tmp_path / "pid"
    (grade,) = score([said(f"spawn {note}")])
    assert grade.outcome == "grader_timeout"
    pid = int(note.read_text().split()[1])
    assert until(lambda: not psutil.pid_exists(pid) or is_gone(psutil.Process(pid)), limit_s=3)


def test_the_grader_and_a_function_share_one_process():
    grades = score([said("pay 1"), GOOD, said("pay 1")])
    assert [(grade.outcome, grade.reward) for grade in grades] == [("correct", 2.0), ("correct", 1.0), ("correct", 2.0)]
    assert workers_of(os.getpid()) == set()


def test_a_module_that_the_owner_can_import_is_imported_there_too(tmp_path, monkeypatch):
    (tmp_path / "a_module_beside.py").write_text("def paid(problem, response):\n    return len(response)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = "a_module_beside:paid"
    (grade,) = score([ScoreRequest("four", "2", function=spec, problem=PROBLEM)], functions=[FunctionSource(spec, "eval.graders")])
    assert grade.reward == 4.0


def test_what_json_does_not_know_in_a_row_arrives_as_a_list_or_as_text():
    text = "def paid(problem, response):\n    return sum(problem.extra['numbers']) + (problem.extra['day'] == '2024-02-29')\n"
    problem = Problem("p", "1+1?", "2", extra={"numbers": np.array([1, 2]), "day": datetime.date(2024, 2, 29)})
    (grade,) = score([ScoreRequest("x", "2", function="f.py:paid", problem=problem)], functions=[FunctionSource("f.py:paid", "k", text)])
    assert grade.reward == 4.0


def test_a_function_that_the_scorer_was_not_given_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'other:f' is no reward function of this scorer"):
        score([ScoreRequest("x", "2", function="other:f", problem=PROBLEM)])


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        ("mine.py:absent", TEXT, r"reward\.function = 'mine\.py:absent': .*mine\.py has no function absent"),
        ("mine.py:f", "def f(:", r"SyntaxError"),
        ("mine.py:f", "import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module' \(mine\.py, line 1\)"),
        ("mine.py:f", "raise SystemExit('no')", r"SystemExit: no"),
        ("mine.py:f", "def f(text): pass", r"f takes text: the parameters of a reward function are"),
        ("no_such_module:f", None, r"No module named 'no_such_module'"),
        ("mine.py:f", "def f(completions, completion_ids): pass", r"f asks for completion_ids, which it cannot be given: .* TRL's form"),
        ("mine.py:f", "def f(problem, response, tokenizer): pass", r"reward\.function = 'mine\.py:f': .*f asks for tokenizer"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_when_the_scorer_starts(spec, text, message):
    with pytest.raises(RewardFunctionError, match=message):
        score([], functions=[FunctionSource(spec, "reward.function", text)])


def test_keyword_arguments_of_the_recipe_that_do_not_fit_are_refused_with_the_parameters():
    with pytest.raises(RewardFunctionError, match=r"reward\.kwargs = \{'scal': 2\} does not fit told\(problem, response.*'scal'"):
        score([], functions=[FunctionSource(SPEC, "reward.function", TEXT, {"scal": 2})])


def test_a_file_in_another_encoding_is_read_as_python_would(tmp_path):
    for name, content in (("bom.py", b"\xef\xbb\xbf"), ("latin.py", b"# coding: latin-1\n# caf\xe9\n")):
        path = tmp_path / name
        path.write_bytes(content + b"def paid(problem, response):\n    return 1.0\n")
        check_reward_functions(Recipe.model_validate({"reward": {"function": f"{path}:paid"}}))


def test_a_recipes_functions_are_read_with_their_text_and_checked_before_any_engine_starts(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    recipe = Recipe.model_validate(
        {"reward": {"function": f"{path}:told", "kwargs": {"scale": 3}}, "eval": {"graders": ["default", "a.module:f", f"{path}:told"]}}
    )
    grader, told = function_sources(recipe)
    assert (grader.spec, grader.text, grader.key) == ("a.module:f", None, "eval.graders")
    assert (told.spec, told.text, told.kwargs, told.key) == (f"{path}:told", TEXT, {"scale": 3}, "reward.function")
    with pytest.raises(RecipeError, match=r"eval\.graders = 'a\.module:f': ModuleNotFoundError"):
        check_reward_functions(recipe)
    check_reward_functions(Recipe.model_validate({"reward": {"function": f"{path}:told"}}))
    path.unlink()
    with pytest.raises(RecipeError, match=r"reward\.function = .*mine\.py cannot be read"):
        function_sources(Recipe.model_validate({"reward": {"function": f"{path}:told"}}))


def test_a_grading_process_does_not_load_what_reads_recipes():
    code = "import sys, mathrl_ray.actors.grading_keeper; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"


def test_a_recipe_without_functions_starts_nothing_to_check():
    started = time.monotonic()
    check_reward_functions(Recipe())
    assert time.monotonic() - started < 0.1
