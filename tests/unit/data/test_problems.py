import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl_ray.data.problems import DataError, SftRow, load_problems, load_split, load_traces

MATH_TEST = Path(__file__).parents[4] / "shared" / "data" / "math_test.jsonl"


@pytest.fixture
def write(tmp_path):
    def rows(*rows: object, name: str = "set.jsonl") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return rows


def test_common_column_names_are_known_and_the_rest_is_kept(write):
    (problem,) = load_problems(write({"question": "1+1?", "answer": 2, "id": "a", "level": "Level 3", "type": "Algebra", "year": 1999}))
    assert (problem.problem_id, problem.problem, problem.gold, problem.level, problem.subject) == ("a", "1+1?", "2", 3, "Algebra")
    assert problem.extra == {"year": 1999}


def test_a_row_without_an_id_gets_its_file_and_line(write):
    problems = load_problems(write({"problem": "a", "answer": "1"}, "", {"problem": "b", "answer": "2"}))
    assert [problem.problem_id for problem in problems] == ["set:1", "set:3"]


@pytest.mark.parametrize(
    ("level", "number"), [("Level ?", None), ("Level 5", 5), (4, 4), (4.0, 4), (True, None), (None, None), ("hard", None)]
)
def test_a_level_is_a_number_or_nothing(write, level, number):
    (problem,) = load_problems(write({"problem": "a", "answer": "1", "level": level}))
    assert problem.level == number


def test_parquet_rows_are_read_too(tmp_path):
    pq.write_table(pa.table({"prompt": ["1+1?"], "ground_truth": ["2"]}), tmp_path / "set.parquet")
    (problem,) = load_problems(str(tmp_path / "set.parquet"))
    assert (problem.problem, problem.gold, problem.problem_id) == ("1+1?", "2", "set:1")


def test_behaviour_29_bad_rows_are_named_by_line_and_the_key_by_name(write):
    path = write({"problem": "a", "answer": "1"}, {"problem": " ", "answer": "1"}, {"problem": "c", "answer": ""}, {"problem": "d"})
    with pytest.raises(DataError) as caught:
        load_problems(path, key="data.train")
    message = str(caught.value)
    assert message.startswith(f"data.train = {path}: 3 rows cannot be used")
    assert all(fault in message for fault in ("line 2: problem is empty", "line 3: gold is empty", "line 4: gold is empty"))


def test_a_malformed_line_is_shown(write):
    with pytest.raises(DataError, match=r'line 2: no JSON .*: \{"problem": "b"'):
        load_problems(write({"problem": "a", "answer": "1"}, '{"problem": "b"'))


def test_a_line_that_is_no_object_is_refused(write):
    with pytest.raises(DataError, match=r"line 1: no JSON object: \[1, 2\]"):
        load_problems(write("[1, 2]"))


def test_a_line_that_is_not_utf_8_is_named_and_a_byte_order_mark_is_none_of_the_text(tmp_path):
    file = tmp_path / "set.jsonl"
    row = json.dumps({"problem": "a", "answer": "1"}).encode()
    file.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n" + row)
    assert [problem.problem for problem in load_problems(str(file))] == ["a", "a"]
    file.write_bytes(row + b"\n" + row.replace(b"a", b"\xe4", 1))
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        load_problems(str(file))


def test_a_broken_parquet_file_is_named_with_its_key(write):
    with pytest.raises(DataError, match=r"data\.train = .*set\.parquet: no Parquet file"):
        load_problems(write("PAR0", name="set.parquet"), key="data.train")


def test_an_answer_that_is_a_list_or_nan_is_refused(write):
    with pytest.raises(DataError, match=r"line 1: gold is a list or an object\n  line 2: gold is empty"):
        load_problems(write({"problem": "a", "answer": ["1", "2"]}, '{"problem": "b", "answer": NaN}'))


def test_many_bad_rows_are_counted_and_five_shown(write):
    with pytest.raises(DataError, match=r"8 rows cannot be used(.|\n)*and 3 more") as caught:
        load_problems(write(*({"problem": "", "answer": str(number)} for number in range(8))))
    assert str(caught.value).count("is empty") == 5


def test_behaviour_29_two_rows_with_one_id_are_both_named(write):
    with pytest.raises(DataError, match="lines 1 and 3 both have the id 'a'"):
        load_problems(write(*({"problem": "p", "answer": "1", "id": name} for name in ("a", "b", "a"))))


def test_a_missing_column_lists_those_found_and_the_key_that_maps_them(write):
    with pytest.raises(DataError, match=r"no column for gold .*; found: aim, problem\. Name it: data\.columns"):
        load_problems(write({"problem": "a", "aim": "1"}))


def test_columns_are_mapped_by_the_recipe(write):
    (problem,) = load_problems(write({"problem": "a", "aim": "1", "answer": "no"}), columns={"gold": "aim"})
    assert problem.gold == "1"
    with pytest.raises(DataError, match=r"data\.columns names goal"):
        load_problems(write({"problem": "a", "aim": "1"}), columns={"gold": "goal"})
    with pytest.raises(DataError, match="golt is no field of a problem"):
        load_problems(write({"problem": "a", "aim": "1"}), columns={"golt": "aim"})


@pytest.mark.parametrize(("name", "message"), [("absent.jsonl", "no such file"), ("set.csv", "suffix '.csv' is not known")])
def test_a_file_that_cannot_be_read_is_named(write, tmp_path, name, message):
    write("x", name="set.csv")
    with pytest.raises((DataError, FileNotFoundError), match=message):
        load_problems(str(tmp_path / name))


def test_an_empty_file_is_refused(write):
    with pytest.raises(DataError, match="holds no rows"):
        load_problems(write())


def test_a_part_of_a_file_follows_from_the_seed_and_keeps_the_order(write):
    path = write(*({"problem": "p", "answer": str(number), "id": f"{number:02}"} for number in range(20)))

    def ids(seed):
        problems = load_split(path, split="train", num_problems=5, seed=seed, key="data.train", columns={})
        return [problem.problem_id for problem in problems]

    assert ids(0) == ids(0) == sorted(ids(0))
    assert ids(0) != ids(1)
    assert len(ids(0)) == 5


def test_the_builtin_set_needs_no_file():
    problems = load_split("builtin:arithmetic", split="test", num_problems=3, seed=0, key="data.test", columns={})
    assert [problem.problem_id.split("/")[:2] for problem in problems] == [["arithmetic", "test"]] * 3


def test_traces_are_full_prompts_and_responses(write):
    assert load_traces(write({"prompt": "Q: 1+1? A:", "response": " 2", "id": "a"})) == [SftRow("a", "Q: 1+1? A:", " 2")]


def test_a_trace_without_a_response_is_named_by_line(write):
    with pytest.raises(DataError, match=r"sft\.traces = .*\n  line 2: response is empty"):
        load_traces(write({"prompt": "a", "response": "b"}, {"prompt": "a", "response": ""}))
    with pytest.raises(DataError, match="no column response; found: prompt"):
        load_traces(write({"prompt": "a"}))


@pytest.mark.skipif(not MATH_TEST.is_file(), reason="the MATH data set is not beside the project")
def test_math_loads_with_level_and_subject():
    problems = load_problems(str(MATH_TEST))
    assert len(problems) == 5000
    assert {problem.level for problem in problems} == {1, 2, 3, 4, 5}
    assert len({problem.subject for problem in problems}) == 7
