import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mathrl_ray.__main__ import main
from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.checked_file import mark_bad, read_checked
from mathrl_ray.commands.clean_files import write_clean
from mathrl_ray.data.gold_lint import lint

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
HANGS = r"\prod_{k=1}^{9999}\sin k"

GOOD = [
    {"id": "one", "problem": "What is 1+1?", "answer": "2", "level": "Level 1"},
    {"id": "half", "problem": "What is 1/2?", "answer": r"\frac{1}{2}", "level": 3},
]
BAD = [
    {"id": "empty", "problem": "What is it?", "answer": " ", "level": 1},
    {"id": "broken", "problem": "What is broken?", "answer": r"\frac{", "level": 1},
    {"id": "no level", "problem": "What is a level?", "answer": "4", "level": "Level ?"},
    {"id": "listed", "problem": "What is a list?", "answer": ["4", "5"], "level": 1},
    {"id": "silent", "problem": "", "answer": "4", "level": 1},
    {"id": "twin", "problem": "what is 1 + 1", "answer": "2", "level": 1},
]


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_good_rows_are_fine_and_the_status_is_0(tmp_path, capsys):
    assert main(["check-data", write(tmp_path / "good.jsonl", GOOD)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_every_fault_is_printed_with_its_kind_and_id_and_the_status_is_1(tmp_path, capsys):
    assert main(["check-data", write(tmp_path / "bad.jsonl", [*GOOD, *BAD, "{no json"])]) == 1
    out = capsys.readouterr().out
    found = [tuple(line.split(": ")[1:3]) for line in out.splitlines() if line.startswith("bad.jsonl: ")]
    assert found == [
        ("unusable_row", "listed"),
        ("unusable_row", "bad:9"),
        ("empty_problem", "silent"),
        ("empty_gold", "empty"),
        ("unparseable_gold", "broken"),
        ("level_is_no_number", "no level"),
        ("duplicate", "one, twin"),
    ]


def test_no_list_of_ids_is_ever_shortened(tmp_path, capsys):
    rows = [{"id": f"row-{index:04}", "problem": f"Question {index}?", "answer": ""} for index in range(500)]
    assert main(["check-data", write(tmp_path / "empty.jsonl", rows)]) == 1
    out = capsys.readouterr().out
    assert all(row["id"] in out for row in rows)
    assert main(["check-data", write(tmp_path / "junk.jsonl", [*GOOD, *["junk"] * 300])]) == 1
    out = capsys.readouterr().out
    assert all(f"junk:{line}:" in out for line in range(3, 303))


def test_a_pair_that_hangs_costs_its_limit_and_no_other_pair_its_verdict():
    began = time.monotonic()
    with GoldJudge(num_processes=2, limit_s=1) as judge:
        done = []
        judge.judge([("1/3", HANGS), *[(f"{k}/2", f"\\frac{{{k}}}{{2}}") for k in range(1, 100)]], done.append)
        assert sum(done) == 100
        assert judge.verdict("1/3", HANGS) == "grader_timeout"
        assert {judge.verdict(f"{k}/2", f"\\frac{{{k}}}{{2}}") for k in range(1, 100)} == {"correct"}
        assert judge.verdict("0.5", "1/2") == "correct"  # one that was not asked before
    assert time.monotonic() - began < 20  # one limit and the start of three processes


def test_duplicates_whose_golds_hang_the_grader_are_reported_within_the_limit(tmp_path, capsys):
    rows = [{"id": "a", "problem": "What?", "answer": HANGS}, {"id": "b", "problem": "What?", "answer": r"\frac{1}{3}"}]
    assert main(["check-data", write(tmp_path / "hang.jsonl", rows), "--limit-s", "1", "--workers", "2"]) == 1
    assert "hang.jsonl: duplicate: a, b: the same text, different golds" in capsys.readouterr().out


def test_overlaps_between_files_name_both_ids_whatever_case_spacing_and_punctuation(tmp_path, capsys):
    train = write(tmp_path / "train.jsonl", [GOOD[0], {"id": "t2", "problem": "Find $x$, if  $2x = 4$.", "answer": "2"}])
    held = [{"id": "e1", "problem": "What is 1+1? ", "answer": "2"}, {"id": "e2", "problem": "find x if 2x=4", "answer": "2.0"}]
    test = write(tmp_path / "test.jsonl", held)
    assert main(["check-data", train, test]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if ": overlap: " in line]
    assert [line.split(": ")[2] for line in lines] == ["one, e1", "t2, e2"]
    assert all(line.startswith("train.jsonl and test.jsonl: ") for line in lines)


def test_texts_that_differ_in_signs_of_mathematics_and_in_their_golds_are_only_possible_duplicates(tmp_path, capsys):
    rows = [{"id": "plus", "problem": "Compute 6+3-7.", "answer": "2"}, {"id": "minus", "problem": "Compute 6-3+7.", "answer": "10"}]
    out_file = tmp_path / "clean.jsonl"
    assert main(["check-data", write(tmp_path / "signs.jsonl", rows), "--write-clean", str(out_file)]) == 0
    out = capsys.readouterr().out
    assert "possible_duplicate: plus, minus" in out
    assert read(out_file) == rows


def test_the_clean_file_has_the_good_lines_as_they_were_and_the_rest_with_reasons(tmp_path):
    odd = '{ "id":"odd",  "problem": "½ \\u00bd?", "answer": "3", "level": 2 }'
    source = write(tmp_path / "rows.jsonl", [GOOD[0], *BAD, odd, GOOD[1], "{no json"])
    assert main(["check-data", source, "--write-clean", str(tmp_path / "clean.jsonl")]) == 1
    assert (tmp_path / "clean.jsonl").read_text() == f"{json.dumps(GOOD[0])}\n{odd}\n{json.dumps(GOOD[1])}\n"
    left_out = read(tmp_path / "clean.left_out.jsonl")
    assert [(row["line"], row["problem_id"]) for row in left_out] == [
        *[(line, row["id"]) for line, row in enumerate(BAD, start=2)], (10, "rows:10")
    ]  # fmt: skip
    assert all(row["reasons"] for row in left_out)
    assert main(["check-data", str(tmp_path / "clean.jsonl")]) == 0


def test_of_overlaps_the_last_file_keeps_its_rows_and_several_files_go_into_a_folder(tmp_path):
    train = write(tmp_path / "train.jsonl", GOOD)
    test = write(tmp_path / "test.jsonl", [GOOD[0] | {"id": "held out"}])
    assert main(["check-data", train, test, "--write-clean", str(tmp_path / "clean")]) == 1
    assert read(tmp_path / "clean" / "train.jsonl") == [GOOD[1]]
    assert [row["id"] for row in read(tmp_path / "clean" / "test.jsonl")] == ["held out"]
    assert read(tmp_path / "clean" / "test.left_out.jsonl") == []
    [row] = read(tmp_path / "clean" / "train.left_out.jsonl")
    assert "held out" in row["reasons"][0]


class CountedList(list):
    """Counts how often somebody goes through it."""

    num_passes = 0

    def __iter__(self):
        self.num_passes += 1
        return super().__iter__()


def test_writing_the_clean_file_goes_through_the_rows_once_however_many_are_bad(tmp_path):
    rows = [*({"id": f"empty {index}", "problem": f"{index}?", "answer": ""} for index in range(300)), *["junk"] * 300]
    file = read_checked(write(tmp_path / "bad.jsonl", [GOOD[0], *rows]), "bad.jsonl", {})
    for fault in lint(file.problems):
        mark_bad([file], fault)
    file.problems, file.unusable = CountedList(file.problems), CountedList(file.unusable)
    write_clean([file], {file.spec: tmp_path / "clean.jsonl"})
    left_out = read(tmp_path / "clean.left_out.jsonl")
    assert [row["problem_id"] for row in left_out] == [
        *(f"empty {index}" for index in range(300)),
        *(f"bad:{line}" for line in range(302, 602)),
    ]
    assert file.problems.num_passes <= 2
    assert file.unusable.num_passes <= 2


def test_the_reasons_of_equal_rows_grow_with_their_number_and_not_with_its_square(tmp_path):
    sizes = []
    for number in (100, 800):
        rows = [{"id": f"row {index:04}", "problem": "What?", "answer": str(index)} for index in range(number)]
        source = write(tmp_path / f"{number}.jsonl", rows)
        assert main(["check-data", source, "--write-clean", str(tmp_path / "clean.jsonl"), "--workers", "1"]) == 1
        sizes.append((tmp_path / "clean.left_out.jsonl").stat().st_size)
        assert read(tmp_path / "clean.left_out.jsonl")[-1]["reasons"][0].endswith("(like row 0000)")
    assert sizes[1] < 2 * 8 * sizes[0]  # 8 times the rows; with all ids in each reason it would be 64 times


def test_what_is_left_out_of_one_file_does_not_overwrite_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", GOOD)
    write(tmp_path / "a.left_out.jsonl", GOOD[1:])
    for arguments in (["a.jsonl", "a.left_out.jsonl", "--write-clean", "clean"], ["a.left_out.jsonl", "--write-clean", "a.jsonl"]):
        assert main(["check-data", *arguments]) == 1
        assert "--write-clean" in capsys.readouterr().err
    assert read(tmp_path / "a.jsonl") == GOOD
    assert not (tmp_path / "clean").exists()


def test_a_line_with_a_number_that_python_does_not_read_is_one_bad_row(tmp_path, capsys):
    long_number = json.dumps(GOOD[1])[:-1] + ', "n": ' + "9" * 5000 + "}"
    many_digits = {"id": "digits", "problem": "How many?", "answer": "9" * 5000, "level": "9" * 5000}
    assert main(["check-data", write(tmp_path / "rows.jsonl", [GOOD[0], long_number, many_digits, {"id": "\ud800", "problem": "?"}])]) == 1
    out = capsys.readouterr().out
    assert "unusable_row: rows:2: no row: a number of more than 4,300 digits" in out
    assert "level_is_no_number: digits" in out
    assert "empty_gold: \\ud800" in out


def test_parquet_stays_parquet_with_its_types(tmp_path):
    rows = {"problem": ["1+1?", "?"], "answer": ["2", ""], "small": pa.array([1, 2], pa.int8())}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    assert main(["check-data", str(tmp_path / "rows.parquet"), "--write-clean", str(tmp_path / "clean.parquet")]) == 1
    clean = pq.read_table(tmp_path / "clean.parquet")
    assert clean.to_pylist() == [{"problem": "1+1?", "answer": "2", "small": 1}]
    assert clean.schema.field("small").type == pa.int8()


def test_a_folder_that_datasets_opens_can_be_checked(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", GOOD[:1])
    assert main(["check-data", str(tmp_path / "set")]) == 0


def test_prompts_over_the_limit_are_named_with_their_length(tmp_path, capsys):
    words = PreTrainedTokenizerFast(tokenizer_object=_word_tokenizer())
    words.save_pretrained(tmp_path / "model")
    rows = [{"id": "short", "problem": "a b c", "answer": "1"}, {"id": "long", "problem": "a b c d", "answer": "1"}]
    options = ["--max-prompt-tokens", "3", "--tokenizer", str(tmp_path / "model"), "--prompt", "question_only"]
    assert main(["check-data", write(tmp_path / "rows.jsonl", rows), *options]) == 1
    out = capsys.readouterr().out
    assert "prompt_too_long: long: its prompt has 4 tokens, over the limit of 3" in out
    assert "prompt_too_long: short" not in out


def _word_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "absent.jsonl: no such file"),
        (["no_gold.jsonl"], "--columns"),
        (["good.jsonl", "good.jsonl"], "named twice"),
        (["good.jsonl", "--write-clean", "good.jsonl"], "would overwrite"),
        (["good.jsonl", "--write-clean", "clean.txt"], ".jsonl and .parquet"),
        (["good.jsonl", "--max-prompt-tokens", "5"], "--tokenizer"),
        (["good.jsonl", "--max-prompt-tokens", "5", "--tokenizer", "absent"], "absent: no such folder"),
        (["good.jsonl", "--max-prompt-tokens", "5", "--tokenizer", "."], "no tokenizer can be loaded"),
        (["good.jsonl", "--columns", "gold"], "FIELD=COLUMN"),
        (["good.jsonl", "--limit-s", "0"], "--limit-s"),
    ],
)
def test_what_a_user_can_get_wrong_ends_with_one_message_and_status_1(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.jsonl", GOOD)
    write(tmp_path / "no_gold.jsonl", [{"problem": "1+1?", "result": "2"}])
    assert main(["check-data", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_a_column_of_another_name_is_taken_when_it_is_named(tmp_path):
    source = write(tmp_path / "rows.jsonl", [{"problem": "1+1?", "result": "2"}])
    assert main(["check-data", source, "--columns", "gold=result"]) == 0


def shared(*names):
    if missing := [name for name in names if not (DATA / name).exists()]:
        pytest.skip(f"the data sets are not here: {', '.join(missing)} in {DATA}")
    return [str(DATA / name) for name in names]


def test_the_known_faults_of_math_are_found_in_time(capsys):
    files = shared("math_train.jsonl", "math_test.jsonl")
    began = time.monotonic()
    assert main(["check-data", *files, "--workers", "2"]) == 1
    assert time.monotonic() - began < 25  # the limit of DESIGN.md for these 12,500 rows
    lines = [line.split(": ") for line in capsys.readouterr().out.splitlines() if ": " in line]
    ids = {(kind, problem_id) for _, kind, problem_id, *_ in lines if not kind.endswith(("duplicate", "overlap"))}
    assert ids == {
        ("empty_gold", "MATH/train/number_theory/7115.json"),
        ("empty_gold", "MATH/train/number_theory/7117.json"),
        ("level_is_no_number", "MATH/train/geometry/377.json"),
        ("level_is_no_number", "MATH/train/geometry/471.json"),
    }
    pairs = [line[2] for line in lines if line[1].endswith("overlap")]
    assert len(pairs) == 10
    overlaps = " ".join(line[2] for line in lines if line[1] == "overlap")
    assert "MATH/train/geometry/6032.json, MATH/test/precalculus/24307.json" in overlaps
    for name in ("algebra/636", "algebra/1674", "intermediate_algebra/965"):
        assert f"MATH/test/{name}.json" in overlaps


def test_the_overlaps_of_olympiad_with_math_are_found(capsys):
    files = shared("math_train.jsonl", "math_test.jsonl", "olympiad.jsonl")
    main(["check-data", *files, "--workers", "2"])
    lines = [line.split(": ") for line in capsys.readouterr().out.splitlines() if "olympiad.jsonl: overlap: " in line]
    found = {line[2].split(", ")[0] for line in lines}
    assert found == {
        "MATH/train/intermediate_algebra/753.json", "MATH/train/intermediate_algebra/1087.json", "MATH/test/precalculus/216.json"
    }  # fmt: skip
