from pathlib import Path

import pytest

from mathrl_ray.config import RecipeError
from mathrl_ray.data.dataset_name import DatasetName, absolute_spec, check_local_data, is_hub_spec, parse_dataset_name


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("gsm8k", ("gsm8k", None, None, None)),
        ("openai/gsm8k:main", ("openai/gsm8k", "main", None, None)),
        ("openai/gsm8k@1a2b3c", ("openai/gsm8k", None, "1a2b3c", None)),
        ("openai/gsm8k#test", ("openai/gsm8k", None, None, "test")),
        ("openai/gsm8k:main@refs/pr/1#train[:100]", ("openai/gsm8k", "main", "refs/pr/1", "train[:100]")),
        ("/data/math#test", ("/data/math", None, None, "test")),
    ],
)
def test_a_name_has_up_to_four_parts(spec, parts):
    assert parse_dataset_name(spec, "data.train") == DatasetName(*parts)


@pytest.mark.parametrize("spec", [":main", "a:", "a@", "a#", "@1", "#test"])
def test_another_form_is_refused_with_the_key(spec):
    with pytest.raises(RecipeError, match=r"data\.train = .*NAME\[:CONFIG\]\[@REVISION\]\[#SPLIT\]"):
        parse_dataset_name(spec, "data.train")


def test_a_folder_whose_name_holds_the_signs_is_that_folder(tmp_path):
    folder = tmp_path / "a@b:c#d"
    folder.mkdir()
    assert parse_dataset_name(str(folder), "data.train") == DatasetName(str(folder), None, None, None)


def test_a_folder_with_a_revision_is_refused_since_the_library_would_ignore_it():
    with pytest.raises(RecipeError, match="a folder has no revision: remove @v1"):
        parse_dataset_name("/data/math@v1", "data.train")


def test_paths_are_made_absolute_and_names_stay(tmp_path):
    (tmp_path / "sets").mkdir()
    for name in ("openai/gsm8k:main@x#test", "gsm8k", "builtin:arithmetic", ""):
        assert absolute_spec(name, tmp_path) == name
    for path in ("x.jsonl", "./x.jsonl", "deep/x.parquet", "a/b/c", "./sets", "sets", "x.csv"):
        assert absolute_spec(path, tmp_path) == str((tmp_path / path).resolve())
    assert absolute_spec("sets:main#test", tmp_path) == f"{tmp_path}/sets:main#test"
    assert absolute_spec("./sets#test", tmp_path) == f"{tmp_path}/sets#test"
    assert absolute_spec("~/x.jsonl", tmp_path) == str(Path.home() / "x.jsonl")


def test_an_absolute_spec_stays_what_it_is(tmp_path):
    for spec in ("x.jsonl", "./sets#test", "openai/gsm8k:main"):
        once = absolute_spec(spec, tmp_path)
        assert absolute_spec(once, Path("/")) == once
        assert is_hub_spec(once) == (spec == "openai/gsm8k:main")


@pytest.mark.parametrize(("name", "message"), [("absent.jsonl", "no such file"), ("absent#test", "no such file or folder")])
def test_a_local_set_that_is_not_there_is_named(tmp_path, name, message):
    with pytest.raises(RecipeError, match=rf"data\.test = .*{name}: {message}"):
        check_local_data(f"{tmp_path}/{name}", "data.test")


def test_what_is_there_or_cannot_be_looked_at_is_not_refused(tmp_path):
    (tmp_path / "x.jsonl").touch()
    for spec in (f"{tmp_path}/x.jsonl", f"{tmp_path}#test", "openai/gsm8k:main", "builtin:arithmetic", ""):
        check_local_data(spec, "data.train")
