import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl_ray.config import RecipeError
from mathrl_ray.data.problems import read_problems
from mathrl_ray.data.rows import DataError, read_rows

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as the `datasets` library opens it, and the library's cache beside it."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    path = tmp_path / "sums"
    path.mkdir()
    (path / "train.jsonl").write_text("\n".join(json.dumps({"question": f"{n}+1?", "answer": f"{n + 1}"}) for n in range(6)))
    (path / "test.jsonl").write_text(json.dumps({"question": "9+9?", "answer": "18"}))
    return path


def test_a_folder_opens_through_the_library_with_the_keys_own_split(folder):
    train = read_rows(str(folder), key="data.train", default_split="train")
    assert [row["question"] for _, row in train.numbered] == [f"{n}+1?" for n in range(6)]
    assert train.stem == "sums/train"
    assert len(read_rows(str(folder), key="data.test", default_split="test").numbered) == 1


def test_a_named_split_wins_over_the_keys_own(folder):
    assert len(read_rows(f"{folder}#train", key="data.test", default_split="test").numbered) == 6
    assert len(read_rows(f"{folder}#train[:2]", key="data.test", default_split="test").numbered) == 2


def test_problems_of_a_folder_have_ids_of_set_split_and_row(folder):
    problems, _ = read_problems(f"{folder}#test", key="data.test", columns={}, bad_rows="refuse", default_split="test")
    assert [(problem.problem_id, problem.gold) for problem in problems] == [("sums/test:1", "18")]


def test_a_folder_of_parquet_files_opens_too(folder):
    (folder / "train.jsonl").unlink()
    (folder / "test.jsonl").unlink()
    pq.write_table(pa.table({"problem": ["1+1?"], "answer": ["2"], "level": [3]}), folder / "train-00000-of-00001.parquet")
    assert read_rows(str(folder), key="data.train", default_split="train").numbered == [(1, {"problem": "1+1?", "answer": "2", "level": 3})]


def test_a_split_that_is_not_there_is_refused_with_those_that_are(folder):
    with pytest.raises(DataError, match=r"data\.validation = .*cannot be read.*split validation\).*'train', 'test'"):
        read_rows(str(folder), key="data.validation", default_split="validation")


def test_an_unknown_configuration_is_refused(folder):
    with pytest.raises(DataError, match=r"config nonsense.*not found"):
        read_rows(f"{folder}:nonsense", key="data.train", default_split="train")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.train = .*absent#test: no such file or folder"):
        read_rows(f"{tmp_path}/absent#test", key="data.train", default_split="train")


def test_a_suffix_in_capitals_is_the_same_suffix(tmp_path):
    (tmp_path / "SET.JSONL").write_text('{"problem": "1+1?"}')
    pq.write_table(pa.table({"problem": ["1+1?"]}), tmp_path / "SET.Parquet")
    for name in ("SET.JSONL", "SET.Parquet"):
        assert read_rows(str(tmp_path / name), key="data.train", default_split="train").numbered == [(1, {"problem": "1+1?"})]


def test_a_parquet_file_that_is_damaged_or_holds_what_is_no_text_is_refused_by_name(tmp_path):
    pq.write_table(pa.table({"problem": [f"{number}+1?" for number in range(1000)]}), tmp_path / "damaged.parquet")
    data = bytearray((tmp_path / "damaged.parquet").read_bytes())
    data[4:200] = bytes(196)
    (tmp_path / "damaged.parquet").write_bytes(data)
    not_utf8 = pa.array([b"fine", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"problem": ["a", "b"], "answer": not_utf8}), tmp_path / "text.parquet")
    for name, message in (("damaged", "damaged one"), ("text", "row 2, column answer: cannot be read")):
        with pytest.raises(DataError, match=rf"--input = .*{name}\.parquet: .*{message}"):
            read_rows(str(tmp_path / f"{name}.parquet"), key="--input", default_split="test")


def test_a_word_of_no_known_form_is_refused():
    with pytest.raises(RecipeError, match=r"NAME\[:CONFIG\]"):
        read_rows("#test", key="data.train", default_split="train")


def test_a_hub_name_that_cannot_be_fetched_ends_the_job_with_one_message_that_names_the_key(tmp_path):
    recipe = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")
    answer = subprocess.run(
        [sys.executable, str(REPOSITORY / "jobs" / "baseline.py"), recipe, "data.test=nobody/nothing:main@v1", f"run.root={tmp_path}"],
        capture_output=True, text=True, timeout=100, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
    )  # fmt: skip
    assert answer.returncode == 1
    assert "error: data.test = nobody/nothing:main@v1: cannot be fetched from the hub" in answer.stderr
    assert "split test" in answer.stderr
    assert "Traceback" not in answer.stderr
