import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl_ray.data.problems import load_problems, read_problems
from mathrl_ray.data.rows import DataError

SHARED = Path(__file__).parents[4] / "shared" / "data"


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


def test_a_bad_row_is_named_by_its_id_too_where_it_has_one(write):
    rows = [{"problem": "a", "answer": "1", "id": "gsm8k/train/7"}, {"problem": "b", "answer": "", "id": "gsm8k/train/8"}]
    path = write(*rows, {"problem": "c", "answer": ""})
    with pytest.raises(DataError, match=r"\n  line 2 \(id gsm8k/train/8\): gold is empty\n  line 3: gold is empty\n"):
        load_problems(path)


def test_a_malformed_line_is_shown(write):
    with pytest.raises(DataError, match=r'line 2: no JSON .*: \{"problem": "b"'):
        load_problems(write({"problem": "a", "answer": "1"}, '{"problem": "b"'))


def test_a_line_that_is_no_object_is_refused(write):
    with pytest.raises(DataError, match=r"line 1: no JSON object: \[1, 2\]"):
        load_problems(write("[1, 2]"))


def test_a_line_that_is_not_utf_8_is_named_and_a_byte_order_mark_is_none_of_the_text(tmp_path):
    file = tmp_path / "set.jsonl"
    row = json.dumps({"problem": "a", "answer": "1"}).encode()
    file.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n" + row.replace(b"a", b"b", 1))
    assert [problem.problem for problem in load_problems(str(file))] == ["a", "b"]
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


def test_columns_of_ones_own_train_data_fit_a_test_set_with_common_names_and_the_person_hears_it(write):
    columns = {"problem": "task", "gold": "aim"}

    def problems(key, row):
        return read_problems(write(row), key=key, columns=columns, bad_rows="refuse", default_split="train")

    (own,), silent = problems("data.train", {"task": "1+1?", "aim": "2", "problem": "no", "answer": "no"})
    assert (own.problem, own.gold, silent) == ("1+1?", "2", [])
    (gsm8k,), remarks = problems("data.test", {"question": "2+2?", "answer": "so\n#### 4"})
    assert (gsm8k.problem, gsm8k.gold) == ("2+2?", "4")
    assert remarks == [
        "data.test: it has no column task, which data.columns names for problem; question is used",
        "data.test: it has no column aim, which data.columns names for gold; answer is used",
    ]
    (boxed,), remarks = problems("data.test", {"problem": "3+3?", "solution": "so \\boxed{6}"})
    assert boxed.gold == "6"
    assert "for gold; the box in solutions is used" in remarks[1]


def test_a_mapped_column_is_refused_where_no_common_name_stands_in(write):
    for columns in ({"gold": "aim"}, {"level": "hardness"}):
        with pytest.raises(DataError, match=r"data\.columns names (aim|hardness), which .*set\.jsonl \(data\.test\) does not have, nor a"):
            load_problems(write({"problem": "a", "goal": "1"} if "gold" in columns else {"problem": "a", "answer": "1"}), columns=columns)


@pytest.mark.parametrize(("name", "message"), [("absent.jsonl", "no such file"), ("set.csv", "suffix '.csv' is not known")])
def test_a_file_that_cannot_be_read_is_named(write, tmp_path, name, message):
    write("x", name="set.csv")
    with pytest.raises((DataError, FileNotFoundError), match=message):
        load_problems(str(tmp_path / name))


def test_an_empty_file_is_refused(write):
    with pytest.raises(DataError, match="holds no rows"):
        load_problems(write())


def test_behaviour_29_two_rows_with_one_text_are_both_named(write):
    path = write(*({"problem": text, "answer": "1", "id": name} for name, text in (("a", "p"), ("b", "q"), ("c", " p\n"))))
    with pytest.raises(DataError, match="line 3: c has the same text as a"):
        load_problems(path)


def read(path, bad_rows):
    return read_problems(path, key="data.train", columns={}, bad_rows=bad_rows, default_split="train")


def test_behaviour_29_an_empty_gold_is_refused_with_the_key_that_drops_it(write):
    path = write({"problem": "a", "answer": "1"}, {"problem": "b", "answer": " "})
    with pytest.raises(DataError, match=r'line 2: gold is empty\nCorrect these rows, or set data\.bad_rows = "drop"'):
        read(path, "refuse")


def test_bad_rows_that_are_dropped_are_counted_and_every_one_is_named(write):
    rows = [{"problem": f"{n}?", "answer": "1" if n % 2 else "", "id": f"p{n}"} for n in range(20)]
    problems, remarks = read(write(*rows, {"problem": "1?", "answer": "1", "id": "again"}), "drop")
    assert [problem.problem_id for problem in problems] == [f"p{n}" for n in range(1, 20, 2)]
    (remark,) = remarks
    assert "data.train: 11 rows left out" in remark
    assert all(f"p{n} (line {n + 1}: gold is empty)" in remark for n in range(0, 20, 2))
    assert "again (line 21: again has the same text as p1)" in remark


def test_good_rows_need_no_remark(write):
    assert read(write({"problem": "a", "answer": "1"}), "drop")[1] == []


def test_a_file_of_bad_rows_only_is_refused_either_way(write):
    with pytest.raises(DataError, match="1 rows cannot be used") as caught:
        read(write({"problem": "a", "answer": ""}), "drop")
    assert "data.bad_rows" not in str(caught.value)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the MATH data set is not beside the project")
def test_math_loads_with_level_and_subject_and_its_two_empty_golds_are_named():
    test = load_problems(str(SHARED / "math_test.jsonl"))
    train, remarks = read(str(SHARED / "math_train.jsonl"), "drop")
    assert (len(test), len(train)) == (5000, 7498)
    for problems in (test, train):
        assert {problem.level for problem in problems} - {None} == {1, 2, 3, 4, 5}
        assert len({problem.subject for problem in problems}) == 7
    assert sum(problem.level is None for problem in train) == 2  # "Level ?" in the original
    assert all(f"MATH/train/number_theory/{number}.json" in remarks[0] for number in (7115, 7117))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the MATH data set is not beside the project")
def test_maths_golds_are_found_in_the_boxes_of_its_solutions(tmp_path):
    # the original MATH files have no answer column; SOURCES.md of the data counts "\\boxed 2", "\\boxed 9" and "\\boxed {17}" among them
    rows = [json.loads(line) for line in (SHARED / "math_test.jsonl").read_text().splitlines()]
    rows += [json.loads(line) for line in (SHARED / "math_train.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["answer"]]
    original = [{key: row[key] for key in ("problem", "solution", "level")} | {"type": row["subject"], "id": row["source"]} for row in rows]
    (tmp_path / "math.jsonl").write_text("\n".join(json.dumps(row) for row in original))
    problems, _ = read(str(tmp_path / "math.jsonl"), "drop")
    golds = {row["source"]: row["answer"].strip() for row in rows}
    assert len(problems) == 12_497  # one text is in both files
    assert [problem.problem_id for problem in problems if problem.gold != golds[problem.problem_id]] == []
