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
