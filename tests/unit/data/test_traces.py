import json

import pytest

from mathrl_ray.core.prompts import named_prompt, render
from mathrl_ray.data.rows import DataError
from mathrl_ray.data.traces import SftRow, load_traces, with_golds
from mathrl_ray.types import Problem


@pytest.fixture
def write(tmp_path):
    def rows(*rows):
        (tmp_path / "sft.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        return str(tmp_path / "sft.jsonl")

    return rows


def test_traces_are_full_prompts_and_responses(write):
    assert load_traces(write({"prompt": "Q: 1+1? A:", "response": " 2", "id": "a"})) == [SftRow("a", "Q: 1+1? A:", " 2")]


def test_a5s_sft_rows_open_as_they_are(write):
    row = {"prompt": render("r1_zero", "1+1?"), "response": " 2 </think> <answer> 2 </answer>", "ground_truth": "2"}
    (trace,) = load_traces(write(row), prompts=[named_prompt("r1_zero")])
    assert trace == SftRow("traces/sft:1", row["prompt"], row["response"], gold="2", problem="1+1?")


def test_a_trace_without_a_response_is_named_by_line(write):
    with pytest.raises(DataError, match=r"sft\.traces = .*\n  line 2: response is empty"):
        load_traces(write({"prompt": "a", "response": "b"}, {"prompt": "a", "response": ""}))
    with pytest.raises(DataError, match=r"line 1 \(id t/7\): prompt is empty"):
        load_traces(write({"prompt": "", "response": "b", "id": "t/7"}))
    with pytest.raises(DataError, match="no column response; found: prompt"):
        load_traces(write({"prompt": "a"}))


def test_a_column_tells_the_problem_where_the_prompt_is_unknown(write):
    traces = load_traces(write({"prompt": "?", "response": "b", "question": "1+1?"}, {"prompt": "?", "response": "b"}))
    assert [trace.problem for trace in traces] == ["1+1?", None]


def test_golds_come_from_the_row_then_from_the_problems_text_then_from_its_id():
    problems = [Problem("a", "1+1?", "2"), Problem("b", "2+2?", "4")]
    traces = [
        SftRow("b", "", "", gold="own", problem="1+1?"),
        SftRow("b", "", "", problem=" 1+1?\n"),
        SftRow("b", "", ""),
        SftRow("c", "", "", problem="3+3?"),
    ]
    assert [trace.gold for trace in with_golds(traces, problems)] == ["own", "2", "4", None]


def test_ids_that_we_make_for_traces_never_name_a_problem(write):
    # sft.jsonl's first row is no answer to the first problem of another file called sft.jsonl
    (trace,) = with_golds(load_traces(write({"prompt": "?", "response": "b"})), [Problem("sft:1", "1+1?", "2")])
    assert trace.gold is None


MATH_ROW = {"problem": "What is $1+1$?", "level": "Level 3", "type": "Prealgebra", "solution": r"Adding, $1+1=\boxed{2}$."}
"""As the sets of MATH on the hub have it."""


def test_problems_with_worked_solutions_are_traces_in_the_form_of_the_training_prompt(write):
    (trace,) = load_traces(write(MATH_ROW), prompts=[named_prompt("r1_zero"), named_prompt("question_only")])
    response = r" Adding, $1+1=\boxed{2}$. </think> <answer> 2 </answer>"
    assert trace == SftRow("traces/sft:1", render("r1_zero", MATH_ROW["problem"]), response, gold="2", problem=MATH_ROW["problem"])
    (boxed,) = load_traces(write(MATH_ROW), prompts=[named_prompt("question_only")])
    assert (boxed.prompt, boxed.response) == (MATH_ROW["problem"], MATH_ROW["solution"])


def test_a_solution_without_a_box_gets_one_where_the_prompt_wants_a_box(write):
    (trace,) = load_traces(write({"question": "6+6?", "answer": "6+6 = 12\n#### 12"}), prompts=[named_prompt("question_only")])
    assert trace.response == "6+6 = 12\n\\boxed{12}"


def test_problems_without_gold_or_solution_are_refused_by_line_or_left_out_by_name(write):
    spec = write(MATH_ROW, {**MATH_ROW, "solution": r"So \boxed{}.", "id": "m/7115"}, {**MATH_ROW, "problem": "What is $2$?"})
    prompts = [named_prompt("r1_zero")]
    with pytest.raises(DataError, match=r"line 2 \(id m/7115\): has no gold or no worked solution(.|\n)*data\.bad_rows"):
        load_traces(spec, prompts=prompts)
    remarks = []
    assert [trace.problem for trace in load_traces(spec, prompts=prompts, remarks=remarks)] == [MATH_ROW["problem"], "What is $2$?"]
    assert remarks == ["sft.traces: left out, line 2 (id m/7115): has no gold or no worked solution"]


def test_worked_solutions_do_not_go_behind_the_chat_prompt(write):
    with pytest.raises(DataError, match=r'data\.prompt = "chat"'):
        load_traces(write(MATH_ROW), prompts=[named_prompt("chat")])
