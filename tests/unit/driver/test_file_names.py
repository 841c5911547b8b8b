"""Paths from data and recipes cannot leave the run's folder."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import scene
from hypothesis import given
from hypothesis import strategies as st
from loop_scene import LoopScene
from samples import recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.data.prompt_file import load_prompt
from mathrl_ray.driver.evaluation import evaluate, validate
from mathrl_ray.driver.file_names import inside
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.types import Problem

HOSTILE = ["../../evil", "/etc/evil", "..", ".", "", "a/b", "a\\b", "nul\0", "line\nbreak", "~/evil", "x" * 500, "%2e%2e%2fevil", "$(evil)"]


def files_below(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


@scene
async def test_problem_ids_of_any_form_stay_inside_files(tmp_path):
    made = LoopScene(tmp_path / "runs", num_problems=len(HOSTILE), grpo={"num_steps": 6, "prompts_per_step": 2, "group_size": 2})
    made.run.train_problems = [Problem(name, f"{index}?", f"gold {index}") for index, name in enumerate(HOSTILE)]
    made.run.test_problems = made.run.validation_problems = made.run.train_problems
    await made.train()
    await evaluate(made.run, "grpo", step=6)
    await validate(made.run, "grpo", step=6)
    folder = made.run.recorder.folder
    assert {path for path in files_below(tmp_path) if not path.is_relative_to(folder)} == set()
    rows = pq.read_table(folder / "evaluations" / "grpo-v6.parquet").to_pylist()
    assert [row["problem_id"] for row in rows] == HOSTILE
    assert {path.name for path in (folder / "trajectories").iterdir()} == {f"grpo-{step}.parquet" for step in range(1, 7)}
    assert [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", "a\\b", "nul\0", "new\nline", "x" * 300, "lone\ud800", "back\u202e"]
)
def test_a_stages_or_prompts_name_that_is_no_part_of_a_path_is_refused_by_the_recorder(tmp_path, name):
    recorder = Recorder.create(recipe_for(tmp_path / "runs"))
    before = files_below(tmp_path)
    writers = (
        lambda: recorder.evaluation(name, 1, []),
        lambda: recorder.trajectories(name, 1, []),
        lambda: recorder.checkpoint_folder(name, 1),
    )
    for write in writers:
        with pytest.raises(ValueError, match=r"is no name for a file of a run|is too long"):
            write()
    assert files_below(tmp_path) == before
    recorder.close()


def test_the_longest_name_can_be_written_and_one_byte_more_is_refused(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path / "runs"))
    stage = "ä" * ((255 - len("..writing") - len("-v1.parquet")) // 2) + "x"
    assert len(recorder.evaluation(stage, 1, []).name.encode()) == 246
    with pytest.raises(ValueError, match="is too long for a file"):
        recorder.evaluation(stage + "x", 1, [])
    recorder.close()


@given(st.text(st.characters(), max_size=300))
def test_a_name_is_refused_or_lies_directly_in_the_folder(name):
    folder = Path("/runs/test")
    try:
        path = inside(folder, name)
    except ValueError:
        return
    assert path.parent == folder
    assert path.name == name
    assert ".." not in path.parts
    assert path.resolve().parent == folder
    assert len(os.fsencode(f".{name}.writing")) <= 255


@pytest.mark.parametrize("name", ["../evil", "/evil", "..", ".", ".hidden", "a/b", "a b", "a\n", "ä"])
def test_a_run_name_that_could_leave_its_root_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"run\.name|name"):
        recipe_for(tmp_path, run={"name": name})


@pytest.mark.parametrize("file", ["...toml", "..toml", ".toml"])
def test_a_recipe_whose_file_name_is_all_dots_makes_no_run_outside_its_root(tmp_path, file):
    (tmp_path / file).write_text("")
    recipe = load_recipe(tmp_path / file, [f"run.root={tmp_path}/runs"])
    assert recipe.run.name.strip(".")
    recorder = Recorder.create(recipe)
    recorder.close()
    assert recorder.folder.resolve().parent == tmp_path / "runs"


@pytest.mark.parametrize("name", ["a b.txt", "a:b.txt", "ä.txt", "a\n.txt"])
def test_a_prompt_file_whose_name_is_no_file_name_of_ours_is_refused(tmp_path, name):
    (tmp_path / name).write_text("{question}")
    with pytest.raises(RecipeError, match="goes into file names"):
        load_prompt(str(tmp_path / name), "data.prompt")


def test_a_prompt_elsewhere_gives_its_last_part_only(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine.txt").write_text("{question}")
    assert load_prompt(f"{tmp_path}/sub/../mine.txt", "data.prompt").name == "mine"
