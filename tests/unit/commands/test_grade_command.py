import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl_ray.__main__ import main
from mathrl_ray.commands import display
from mathrl_ray.core.grading.grade import grade

REPOSITORY = Path(__file__).resolve().parents[3]
GRADE_FIELDS = {
    "format_reward", "answer_reward", "reward", "outcome", "extracted_answer", "lenient_answer_correct", "grading_s", "grader"
}  # fmt: skip
HANGS = r"\prod_{k=1}^{9999}\sin k"


def tagged(answer):
    return f"so it is </think> <answer> {answer} </answer>"


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_grade(tmp_path, rows, *options, source="rows.jsonl", output="graded.jsonl"):
    """The graded rows."""
    status = main(["grade", "--input", write(tmp_path / source, rows), "--output", str(tmp_path / output), "--workers", "2", *options])
    assert status == 0
    return read(tmp_path / output)


ROWS = [
    {"id": "a", "response": tagged("0.5"), "gold": r"\frac{1}{2}", "note": "½"},
    {"id": "b", "response": tagged("6"), "gold": "5", "note": None},
    {"id": "c", "response": r"\boxed{5}", "gold": "5", "note": "no tags"},
    {"id": "d", "response": tagged("5"), "gold": "", "note": ""},
]


@pytest.mark.parametrize("source", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("output", ["graded.jsonl", "graded.parquet"])
def test_rows_keep_their_order_and_columns_in_every_format(tmp_path, source, output):
    graded = run_grade(tmp_path, ROWS, source=source, output=output)
    assert [{name: row[name] for name in ROWS[0]} for row in graded] == ROWS
    assert all(set(row) == set(ROWS[0]) | GRADE_FIELDS for row in graded)
    assert [row["outcome"] for row in graded] == ["correct", "wrong", "no_answer", "bad_gold"]
    assert [(row["format_reward"], row["answer_reward"], row["reward"]) for row in graded] == [(1, 1, 1), (1, 0, 0), (0, 0, 0), (1, 0, 0)]
    assert {row["grader"] for row in graded} == {"default"}


def test_the_command_says_what_the_pure_grader_says(tmp_path):
    graded = run_grade(tmp_path, ROWS)
    for before, after in zip(ROWS, graded, strict=True):
        expected = grade(before["response"], before["gold"])
        assert (after["reward"], after["outcome"], after["extracted_answer"], after["lenient_answer_correct"]) == (
            expected.reward, expected.outcome, expected.extracted_answer, expected.lenient_answer_correct
        )  # fmt: skip


def test_a_hanging_row_costs_its_limit_and_no_other_row_its_place(tmp_path):
    rows = [
        {"id": "good", "response": tagged("0.5"), "gold": r"\frac{1}{2}"},
        {"id": "hang", "response": tagged(HANGS), "gold": "0.5"},
        {"id": "empty", "response": "", "gold": "5"},
        {"id": "null", "response": None, "gold": "5"},
        {"id": "junk", "response": "\ud800{{{ </answer><answer> \\frac{", "gold": "x+1"},
        {"id": "good too", "response": tagged("1+x"), "gold": "x+1"},
    ]
    graded = run_grade(tmp_path, rows, "--limit-s", "1")
    assert [row["id"] for row in graded] == [row["id"] for row in rows]
    assert [row["response"] for row in graded] == [row["response"] for row in rows]  # the lone surrogate too
    outcomes = {row["id"]: row["outcome"] for row in graded}
    assert outcomes == {
        "good": "correct", "hang": "grader_timeout", "empty": "no_answer", "null": "no_answer", "junk": "no_answer", "good too": "correct"
    }  # fmt: skip
    assert 1 <= graded[1]["grading_s"] < 2
    assert graded[1]["format_reward"] == 1


def test_the_boxed_styles_grade_the_last_box(tmp_path):
    rows = [{"response": r"\boxed{4}, no: \boxed{5}", "gold": "5"}]
    for style in ("boxed", "question_only"):
        assert run_grade(tmp_path, rows, "--style", style)[0]["reward"] == 1


def test_a_response_that_was_cut_off_is_truncated(tmp_path):
    rows = [{"response": "so", "gold": "5", "finish_reason": "length"}, {"response": "so", "gold": "5", "finish_reason": "stop"}]
    assert [row["outcome"] for row in run_grade(tmp_path, rows)] == ["truncated", "no_answer"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_of_several_responses_gets_lists(tmp_path, suffix):
    rows = [{"response": [tagged("5"), tagged("6"), ""], "gold": "5"}, {"response": [], "gold": "5"}]
    graded = run_grade(tmp_path, rows, source=f"rows{suffix}", output=f"graded{suffix}")
    assert [row["reward"] for row in graded] == [[1, 0, 0], []]
    assert graded[0]["outcome"] == ["correct", "wrong", "no_answer"]
    assert graded[0]["extracted_answer"] == ["5", "6", None]


def test_any_of_several_golds_will_do_and_numbers_are_golds_too(tmp_path):
    rows = [
        {"response": tagged("5"), "gold": ["4", "five", 5]},
        {"response": tagged("0.00001"), "gold": 1e-05},
        {"response": tagged("6"), "gold": ["4", ""]},
        {"response": tagged("72"), "gold": "48/2 = 24 clips\n#### 72"},
    ]
    assert [row["outcome"] for row in run_grade(tmp_path, rows)] == ["correct", "correct", "wrong", "correct"]


def test_other_columns_are_taken_when_they_are_named_and_answer_stands_in_for_gold(tmp_path):
    rows = [{"text": tagged("5"), "answer": "4", "true": {"answer": "5"}}]
    assert run_grade(tmp_path, rows, "--response-field", "text")[0]["outcome"] == "wrong"
    assert run_grade(tmp_path, rows, "--response-field", "text", "--gold-field", "true.answer")[0]["outcome"] == "correct"


def test_a_column_of_a_grades_name_is_kept_under_another_and_said(tmp_path, capsys):
    rows = [{"response": tagged("5"), "gold": "5", "reward": -1.0, "outcome": "mine"}]
    for suffix in (".jsonl", ".parquet"):
        [row] = run_grade(tmp_path, rows, source=f"rows{suffix}", output=f"graded{suffix}")
        assert (row["previous_reward"], row["previous_outcome"], row["reward"], row["outcome"]) == (-1.0, "mine", 1.0, "correct")
        assert "kept under other names: reward of the input is previous_reward, outcome of" in capsys.readouterr().out
        # Grading the output again keeps both verdicts before.
        again = run_grade(tmp_path, [row], source=f"again{suffix}", output=f"twice{suffix}")
        assert (again[0]["previous_reward"], again[0]["previous_reward_2"], again[0]["reward"]) == (-1.0, 1.0, 1.0)
        assert "reward of the input is previous_reward_2" in capsys.readouterr().out


def test_parquet_keeps_the_types_of_its_columns(tmp_path):
    table = pa.table({
        "response": [tagged("5")], "gold": ["5"], "small": pa.array([1], pa.int8()), "ids": pa.array([[1, 2]], pa.list_(pa.int32())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "rows.parquet")
    assert main(["grade", "--input", str(tmp_path / "rows.parquet"), "--output", str(tmp_path / "out.parquet"), "--workers", "1"]) == 0
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert [schema.field(name).type for name in ("small", "ids", "reward", "extracted_answer")] == [
        pa.int8(), pa.list_(pa.int32()), pa.float64(), pa.string(),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", [10**30, "\ud800", {}, [1]])
def test_what_parquet_cannot_hold_is_said_before_anything_is_graded(tmp_path, capsys, odd):
    rows = [{"response": tagged("5"), "gold": "5", "odd": value} for value in (1, odd)]
    (tmp_path / "marks.py").write_text(
        f"import pathlib\ndef judge(response, gold):\n    pathlib.Path({str(tmp_path / 'graded')!r}).touch()\n    return 1\n"
    )
    compare = ["--compare", f"{tmp_path / 'marks.py'}:judge", "--workers", "1"]
    source = write(tmp_path / "rows.jsonl", rows)
    assert main(["grade", "--input", source, "--output", str(tmp_path / "out.parquet"), *compare]) == 1
    error = capsys.readouterr().err
    assert "column 'odd'" in error
    assert "line 2 has" in error
    assert "write .jsonl instead" in error
    assert not (tmp_path / "graded").exists()
    assert not (tmp_path / "out.parquet").exists()
    assert main(["grade", "--input", source, "--output", str(tmp_path / "out.jsonl"), *compare]) == 0
    assert [row["odd"] for row in read(tmp_path / "out.jsonl")] == [1, odd]
    assert (tmp_path / "graded").exists()  # so the function does leave a mark


def test_rows_of_one_and_of_several_samples_go_into_one_parquet_column_of_lists(tmp_path):
    """lm-eval's resps hold a list a row; a list of one is one response."""
    rows = [{"doc": {"q": "?"}, "resps": [responses], "target": "5"} for responses in ([tagged("5")], [tagged("5"), tagged("6")])]
    assert [row["reward"] for row in run_grade(tmp_path, rows, output="graded.parquet")] == [[1], [1, 0]]
    assert [row["reward"] for row in run_grade(tmp_path, rows)] == [1, [1, 0]]


def test_a_reward_in_the_file_that_no_float_holds_costs_no_grade(tmp_path):
    rows = [{"response": tagged("5"), "gold": "5", "correct": 10**400}, {"response": tagged("6"), "gold": "5", "correct": -(10**400)}]
    assert [row["reward"] for row in run_grade(tmp_path, rows)] == [1, 0]


def test_an_id_that_no_terminal_can_show_appears_with_escapes(tmp_path, capsys):
    run_grade(tmp_path, [{"id": "half \ud800", "response": tagged("5"), "gold": ""}])
    assert "half \\ud800" in capsys.readouterr().out


def test_numbers_of_5000_digits_are_graded_as_the_texts_that_they_are(tmp_path):
    digits = "9" * 5000
    rows = [{"response": tagged(digits), "gold": digits}, {"response": tagged(digits[1:]), "gold": digits}]
    assert [row["outcome"] for row in run_grade(tmp_path, rows)] == ["correct", "wrong"]


@pytest.mark.parametrize("output", ["rows.jsonl", "./sub/../rows.jsonl", "link.jsonl", "golds.jsonl", "graded.jsonl"])
def test_nothing_that_is_read_is_ever_overwritten(tmp_path, monkeypatch, capsys, output):
    """Of graded.jsonl it is the file of disagreements that would."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    source = "graded.disagreements.jsonl" if output == "graded.jsonl" else "rows.jsonl"
    write(tmp_path / source, ROWS)
    write(tmp_path / "golds.jsonl", [{"problem": "1+1?", "gold": "2"}])
    (tmp_path / "link.jsonl").symlink_to(source)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    assert main(["grade", "--input", source, "--output", output, "--golds", "golds.jsonl", "--workers", "1"]) == 1
    assert "would overwrite" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


def test_a_file_inside_of_the_folder_that_is_read_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "set").mkdir()
    source = write(tmp_path / "set" / "test.jsonl", ROWS)
    for spec in (str(tmp_path / "set"), f"{tmp_path / 'set'}#test"):
        assert main(["grade", "--input", spec, "--output", source]) == 1
        assert "would overwrite" in capsys.readouterr().err
    assert read(tmp_path / "set" / "test.jsonl") == ROWS


def test_the_table_has_counts_shares_and_the_accuracy_with_its_interval(tmp_path, capsys):
    run_grade(tmp_path, ROWS)
    out = capsys.readouterr().out
    assert next(line.replace("│", " ").split() for line in out.splitlines() if "correct" in line) == ["correct", "1", "25.0", "%"]
    # 1 of 3: z = 1.96, (1/3 + z²/6 -+ z sqrt(2/27 + z²/36)) / (1 + z²/3) = 6.1 % and 79.2 %; the empty gold is nobody's error
    assert "accuracy 33.3 % (6.1 to 79.2, 95 % Wilson interval) of 3 graded samples; 1 could not be graded" in out
    assert "format kept: 3 of 4; format broken and answer right: 1" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "absent.jsonl", "--output", "o.jsonl"], "absent.jsonl: no such file"),
        (["--input", "no_gold.jsonl", "--output", "o.jsonl"], "found: note, response"),
        (["--input", "good.jsonl", "--output", "o.csv"], ".jsonl and .parquet"),
        (["--input", "good.jsonl", "--output", "absent/o.jsonl"], "cannot be written"),
        (["--input", "good.jsonl", "--output", "o.jsonl", "--limit-s", "0"], "limit_s = 0"),
        (["--input", "bad.jsonl", "--output", "o.jsonl"], "line 2"),
        (["--input", "mixed.jsonl", "--output", "o.parquet"], "write .jsonl instead"),
        (["--input", "good.jsonl", "--output", "o.jsonl", "--compare", "nobody"], "module:function"),
        (["--input", "good.jsonl", "--output", "o.jsonl", "--compare", "absent.py:f"], "absent.py: no such file"),
        (["--input", "good.jsonl", "--output", "o.jsonl", "--compare", "math:nothing"], "has no function nothing"),
        (["--input", "good.jsonl", "--output", "o.jsonl", "--compare", "raises.py:f"], "ZeroDivisionError"),
    ],
)
def test_what_a_user_can_get_wrong_ends_with_one_message_status_1_and_no_file(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.jsonl", [{"response": tagged("5"), "gold": "5"}])
    write(tmp_path / "no_gold.jsonl", [{"response": "5", "note": ""}])
    write(tmp_path / "mixed.jsonl", [{"response": "5", "gold": "5", "odd": 1}, {"response": "5", "gold": "5", "odd": "text"}])
    (tmp_path / "bad.jsonl").write_text('{"response": "5", "gold": "5"}\n{"response": \n')
    (tmp_path / "raises.py").write_text("1 / 0\ndef f(response, gold): return 1\n")
    before = sorted(tmp_path.iterdir())
    assert main(["grade", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("--compare") <= 1  # a message is not put into itself
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_a_wrong_option_ends_with_status_1(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["grade", "--input", "x.jsonl", "--output", "y.jsonl", "--workers", "0"])
    assert ended.value.code == 1
    assert "at least 1 worker" in capsys.readouterr().err


def test_the_command_loads_no_engine_and_leaves_no_process(tmp_path):
    write(tmp_path / "rows.jsonl", ROWS)
    code = (
        "import sys; from mathrl_ray.__main__ import main; "
        "status = main(['grade', '--input', 'rows.jsonl', '--output', 'graded.jsonl', '--workers', '1']); "
        "import psutil; print(status, sorted({'ray', 'vllm', 'torch', 'deepspeed'} & set(sys.modules)), psutil.Process().children())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True,
        env={"PATH": "", "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert answer.stdout.splitlines()[-1] == "0 [] []"


def test_progress_in_a_log_is_whole_lines_that_end_at_the_total(monkeypatch, capsys):
    monkeypatch.setattr(display, "LINE_EVERY_S", 0)
    with display.progress("grading", 4) as advance:
        advance(1)
        advance(3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["grading 1/4 (25 %)", "grading 4/4 (100 %)"]
