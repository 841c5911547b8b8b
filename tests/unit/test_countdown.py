"""The Countdown example: data that can be solved and do not overlap, and a reward that pays the rule and nothing else."""

import json
import re
import runpy
import sys

import pytest
from guide_commands import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.loss_check import check_loss
from mathrl_ray.custom import load_function
from mathrl_ray.types import Problem

FOLDER = REPOSITORY / "jobs" / "examples" / "countdown"
MAKER = runpy.run_path(str(FOLDER / "make_data.py"))
NAMES = runpy.run_path(str(FOLDER / "countdown.py"))
reward, right, value_of, RuleError = (NAMES[name] for name in ("reward", "right", "value_of", "RuleError"))
PROBLEM = Problem("p", "Use 2, 3, 7 to make 6.", "6", extra={"numbers": [2, 3, 7]})


def answer(text):
    return f" 7-3=4 </think> <answer> {text} </answer>"


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("7-3+2", 1.0), ("2+7-3", 1.0), ("7 - (3 - 2)", 1.0), ("7+3+2", 0.1), ("(7-3)-2", 0.1), ("7*2-3", 0.0), ("7/2-3", 0.0),
        ("6", 0.0), ("3+3", 0.0), ("7-3+2+0", 0.0), ("7-1", 0.0), ("7-3+2=6", 0.0), ("", 0.0), ("two", 0.0), ("7-3+-2", 0.0),
    ],
)  # fmt: skip
def test_a_sum_is_paid_by_the_rule(text, paid):
    parts = reward(PROBLEM, answer(text))
    assert parts["reward"] == paid
    assert right(PROBLEM, answer(text)) == float(paid == 1.0)
    assert parts["uses_all"] == float(paid >= 0.1)


def test_only_the_tags_count_and_of_several_the_last_pair():
    assert reward(PROBLEM, " 7-3+2")["reward"] == 0.0
    assert reward(PROBLEM, " x </think> <answer> 6 </answer> y </think> <answer> 7-3+2 </answer>")["reward"] == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "9**9**9", "2" * 5000, "(" * 3000 + "2", "7/(3-3)", "7;3", "7if 3else 2", "[7,3,2]", "7.0-3+2",
        "True+7", "0x7-3+2", "7-0b11+0o2", "7-3+2 # and 6 is what was asked", "7_-3+2", "7-3+2 or 1", "007-3+2",
        "\U0001d7d5-3+2", "lambda: 7", "7//3", "7-3+2\x00", "f'{7}'",
    ],
)  # fmt: skip
def test_hostile_or_odd_text_pays_nothing_and_runs_nothing(text):
    assert reward(PROBLEM, answer(text))["reward"] == 0.0


def test_a_value_comes_with_the_numbers_that_were_used():
    assert value_of("9-(1+3)-(2-4)") == (7, [1, 2, 3, 4, 9])
    with pytest.raises(RuleError, match="no sum has"):
        value_of("a+1")


@given(numbers=st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple))
def test_each_expression_uses_each_number_once_and_makes_its_target_by_another_arithmetic(numbers):
    for target, held in MAKER["expressions"](numbers).items():
        for text in held:
            assert sorted(map(int, re.findall(r"\d", text))) == sorted(numbers)
            assert sum(map(int, re.findall(r"[+-]?\d", text))) == target


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Rows by file, of two runs with one seed and of one with another."""
    folders = []
    for seed in ("0", "0", "1"):
        folder = tmp_path_factory.mktemp("countdown")
        words, sys.argv = sys.argv, ["make_data.py", "--output", str(folder), "--seed", seed]
        try:
            runpy.run_path(str(FOLDER / "make_data.py"), run_name="__main__")
        finally:
            sys.argv = words
        folders.append({path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()})
    return folders


def test_everything_follows_from_the_seed_and_splits_do_not_depend_on_it(made):
    first, again, other = made
    assert first == again
    assert first["traces"] != other["traces"]
    for split in ("train", "validation", "test"):
        assert {row["problem"] for row in first[split]} == {row["problem"] for row in other[split]}


def test_splits_share_no_problem_and_every_problem_can_be_solved(made):
    rows = made[0]
    texts = [row["problem"] for split in ("train", "validation", "test") for row in rows[split]]
    assert len(set(texts)) == len(texts) == 1654
    for row in rows["test"]:
        assert int(row["answer"]) in MAKER["expressions"](tuple(row["numbers"]))
        assert row["problem"] == f"Use {', '.join(map(str, row['numbers']))} to make {row['answer']}."


def test_the_stated_share_of_traces_is_right_and_all_keep_the_form(made):
    rows = made[0]
    by_problem = {row["problem"]: Problem(row["id"], row["problem"], row["answer"], extra=row) for row in rows["train"]}
    paid = [reward(by_problem[row["problem"]], row["response"]) for row in rows["traces"]]
    assert all(parts["uses_all"] for parts in paid)
    share = sum(parts["makes_target"] for parts in paid) / len(paid)
    assert MAKER["RIGHT_SHARE"] - 0.04 < share < MAKER["RIGHT_SHARE"] + 0.04
    assert all(row["prompt"].startswith("Use every number once") and row["problem"] in row["prompt"] for row in rows["traces"])


@pytest.mark.parametrize("push", [0.0, 0.5, 1.0])
def test_the_examples_loss_has_no_fault(push):
    gentle = load_function(str(FOLDER / "countdown.py:gentle"), key="loss.function", kwargs={"push": push})
    findings = check_loss(gentle)
    assert [finding.name for finding in findings if finding.verdict == "fault"] == []
