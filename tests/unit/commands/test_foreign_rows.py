import doctest

import pytest

from mathrl_ray.commands import (
    audit,
    checked_file,
    display,
    foreign_rows,
    grade,
    plain_graders,
    prompt_lengths,
    row_files,
    samples,
    second_grader,
)
from mathrl_ray.commands.foreign_rows import finish_reasons, recognise
from mathrl_ray.data import gold_lint
from mathrl_ray.data.rows import DataError, Rows


def rows_of(*rows):
    return Rows("--input", "file.jsonl", "file", list(enumerate(rows, start=1)))


VERL = {"input": "user\n1+1?", "output": "so 2", "gts": "2", "score": 1.0, "step": 7, "acc": True}
TRL = {"step": 3, "prompt": "1+1?", "completion": "so 2", "accuracy_reward": 1.0, "format_reward": 0.0, "advantage": 0.7, "answer": "2"}
LM_EVAL = {
    "doc_id": 4, "doc": {"question": "1+1?", "answer": "1+1 = <<1+1=2>>2\n#### 2"}, "target": "1+1 = <<1+1=2>>2\n#### 2",
    "arguments": [["1+1?", {}]], "resps": [["so 2"]], "filtered_resps": ["2"], "filter": "strict-match", "metrics": ["exact_match"],
    "exact_match": 1.0,
}  # fmt: skip
SYSTEMS = {"verl": VERL, "TRL": TRL, "lm-eval": LM_EVAL, "plain": {"response": "so 2", "gold": "2", "id": "a"}}


@pytest.mark.parametrize(
    "module",
    [audit, checked_file, display, foreign_rows, gold_lint, grade, plain_graders, prompt_lengths, row_files, samples, second_grader],
    ids=lambda m: m.__name__,
)
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_is_known_by_its_columns_and_read_in_its_own_words(system):
    row = SYSTEMS[system]
    layout = recognise(rows_of(row))
    assert layout.system == system
    assert layout.responses(row) == (["so 2"], False)
    assert layout.golds(row) == ["2"]


@pytest.mark.parametrize(
    ("row", "verdicts"),
    [
        (VERL, {"acc": True}),
        ({name: value for name, value in VERL.items() if name != "acc"}, {"score": 1.0}),
        (TRL, {"accuracy_reward": 1.0}),  # not what the format earned, nor the advantage
        (LM_EVAL, {"exact_match,strict-match": 1.0}),
        ({"response": "2", "gold": "2", "correct": False}, {"correct": False}),
        ({"response": "2", "gold": "2"}, {}),
    ],
)
def test_the_verdict_of_a_files_own_grader_is_found(row, verdicts):
    assert recognise(rows_of(row)).verdicts(row) == verdicts


def test_a_lone_reward_column_of_trl_is_its_verdict_whatever_its_name():
    row = {"step": 1, "prompt": "?", "completion": "2", "my_fn": 0.0, "advantage": 0.0, "solution": "2"}
    assert recognise(rows_of(row)).verdicts(row) == {"my_fn": 0.0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", (["text"], False)),
        (None, ([""], False)),
        ([{"role": "assistant", "content": "one"}], (["one"], False)),  # a chat is one response
        ([{"role": "assistant", "content": "call"}, {"role": "assistant", "content": "last"}], (["last"], False)),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], (["ab"], False)),
        (["one", "two"], (["one", "two"], True)),
        ([[{"role": "assistant", "content": "one"}], [{"role": "assistant", "content": "two"}]], (["one", "two"], True)),
        ([], ([], True)),
    ],
)
def test_a_completion_may_be_a_text_a_chat_or_a_list_of_either(value, expected):
    row = {**TRL, "completion": value}
    assert recognise(rows_of(row)).responses(row) == expected


def test_several_answers_of_lm_eval_are_samples():
    row = {**LM_EVAL, "resps": [["so 2", "so 3"]]}
    assert recognise(rows_of(row)).responses(row) == (["so 2", "so 3"], True)


def test_a_whole_solution_as_another_systems_gold_means_its_last_box_and_ours_stay_as_they_are():
    boxed = r"$1+1 = \boxed{2}$"
    assert recognise(rows_of(VERL)).golds({**VERL, "gts": boxed}) == ["2"]
    plain = {"response": "2", "gold": boxed}
    assert recognise(rows_of(plain)).golds(plain) == [boxed]


def test_an_id_is_the_first_column_that_says_something_and_else_the_place():
    layout = recognise(rows_of({"response": "2", "gold": "2"}))
    rows = [{"id": "i", "problem_id": "p", "source": "s"}, {"id": None, "problem_id": "p"}, {"id": "", "source": "s"}, {"id": 0}, {}]
    assert [layout.row_id(row, "file:9") for row in rows] == ["i", "p", "s", "0", "file:9"]


def test_a_generation_file_of_verl_has_its_gold_inside_another_column():
    row = {"prompt": [], "responses": ["2", "3"], "reward_model": {"style": "rule", "ground_truth": "2"}}
    layout = recognise(rows_of(row))
    assert (layout.responses(row), layout.golds(row)) == ((["2", "3"], True), ["2"])


def test_a_column_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(DataError, match=r"no column for the gold \(looked for gold, answer\); found: note, response.*--gold-field"):
        recognise(rows_of({"response": "2", "note": ""}))
    with pytest.raises(DataError, match="no column nope; found: gold, response"):
        recognise(rows_of({"response": "2", "gold": "2"}), response_field="nope")


def test_only_length_cuts_off_and_each_sample_has_its_own_reason():
    assert finish_reasons({"finish_reason": ["length", "stop"]}, 3) == ["length", "stop", "stop"]
    assert finish_reasons({"finish_reason": "length"}, 1) == ["length"]
    assert finish_reasons({}, 2) == ["stop", "stop"]
