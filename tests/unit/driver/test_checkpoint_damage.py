"""Checkpoints and runs that were damaged, half copied, or changed while a job looked at them: named, and nothing else is lost by it."""

import json
import shutil
from dataclasses import replace

import pytest
from checkpoint_scene import digests_of, made_run, resumption_for, save
from samples import recipe_for
from test_checkpoint_kills import loops_at

from mathrl_ray.config import RecipeError
from mathrl_ray.driver.checkpoint import whole_checkpoints


def two_saved(folder):
    """A run that has ended after two checkpoints; its folder."""
    run = made_run(folder)
    for step in (1, 2):
        save(run, "grpo", step)
        run.recorder.metrics("grpo", step, step, {"loss": 1.0})
    run.recorder.summary([])
    run.recorder.digests(digests_of(run))
    run.recorder.close()
    return run.recorder.folder


def without_a_key(path):
    content = json.loads(path.read_text())
    del content["finished"]
    path.write_text(json.dumps(content))


def with_a_changed_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "torn run.json": ("run.json", lambda path: path.write_text("{")),
    "run.json of another kind": ("run.json", lambda path: path.write_text("[]")),
    "run.json without a key": ("run.json", without_a_key),
    "run.json of other bytes": ("run.json", lambda path: path.write_bytes(b"\xff\xfe\x00")),
    "a changed byte in run.json": ("run.json", with_a_changed_byte),
    "torn groups": ("groups.parquet", lambda path: path.write_bytes(b"PAR1")),
    "a changed byte in groups": ("groups.parquet", with_a_changed_byte),
    "no groups": ("groups.parquet", lambda path: path.unlink()),
    "no file of the learner's": ("fake.json", lambda path: path.unlink()),
    "a changed byte in the learner's file": ("fake.json", with_a_changed_byte),
    "no files.json": ("files.json", lambda path: path.unlink()),
    "torn files.json": ("files.json", lambda path: path.write_text('{"files"')),
    "files.json of another kind": ("files.json", lambda path: path.write_text("[]")),
    "files.json that names nothing": ("files.json", lambda path: path.write_text("{}")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken_but_refused_where_its_path_is_given(tmp_path, damage):
    name, make = DAMAGES[damage]
    folder = two_saved(tmp_path)
    path = folder / "checkpoints" / "grpo-2" / "trainer" / name
    make(path)
    found = resumption_for(tmp_path)
    assert found.checkpoint.step == 1
    (remark,) = found.remarks
    assert "grpo-2 is left out" in remark
    assert str(path) in remark
    with pytest.raises(RecipeError, match=f"grpo-2/trainer/{name}"):
        resumption_for(tmp_path, run={"resume": str(folder / "checkpoints" / "grpo-2")})


def test_a_run_whose_only_checkpoint_is_damaged_is_not_begun_anew_without_a_word(tmp_path):
    save(made_run(tmp_path), "grpo", 1)
    (tmp_path / "test" / "checkpoints" / "grpo-1" / "trainer" / "fake.json").unlink()
    with pytest.raises(RecipeError, match=r'grpo-1 is left out: .*fake.json is missing[\s\S]*run.resume = "" to begin anew'):
        resumption_for(tmp_path)


DAMAGED_RUNS = {
    "empty summary": ("summary.json", ""),
    "summary of another kind": ("summary.json", "[]"),
    "empty recipe": ("recipe.toml", ""),
    "torn recipe": ("recipe.toml", "[run\nname="),
}


@pytest.mark.parametrize("damage", DAMAGED_RUNS)
def test_a_damaged_file_of_a_run_is_named(tmp_path, damage):
    name, text = DAMAGED_RUNS[damage]
    folder = two_saved(tmp_path)
    (folder / name).write_text(text)
    for resume in ("auto", str(folder), str(folder / "checkpoints" / "grpo-2")):
        with pytest.raises(RecipeError, match=f"test/{name} is damaged"):
            resumption_for(tmp_path, run={"resume": resume})


@pytest.mark.parametrize("damage", DAMAGED_RUNS)
def test_a_damaged_second_run_is_named_and_does_not_hold_up_the_first(tmp_path, damage):
    two_saved(tmp_path)
    name, text = DAMAGED_RUNS[damage]
    (two_saved(tmp_path) / name).write_text(text)
    found = resumption_for(tmp_path)
    assert (found.folder.name, found.checkpoint.step) == ("test", 2)
    assert any(f"test-2/{name} is damaged" in remark for remark in found.remarks)


def test_metrics_that_are_shorter_than_a_checkpoint_says_are_named(tmp_path):
    folder = two_saved(tmp_path)
    first = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    (folder / "metrics.jsonl").write_text(first)  # the first checkpoint was written before any row
    found = resumption_for(tmp_path)
    assert found.checkpoint.step == 1
    assert f"grpo-2 is left out: {folder}/metrics.jsonl has {len(first)} bytes, and had" in found.remarks[0]
    with pytest.raises(RecipeError, match=r"metrics.jsonl has"):
        resumption_for(tmp_path, run={"resume": str(folder / "checkpoints" / "grpo-2")})


def test_rows_of_metrics_are_on_disk_before_their_length_is_written_down(tmp_path):
    run, written = made_run(tmp_path), []
    sync = run.recorder.sync_metrics

    def noted():
        written.append(list((tmp_path / "test" / "checkpoints").glob(".*/trainer/run.json")))
        sync()

    run.recorder.sync_metrics = noted
    save(run, "grpo", 1)
    assert written == [[]]


def test_a_file_beside_the_checkpoints_is_no_ones_business(tmp_path):
    folder = two_saved(tmp_path)
    (folder / "checkpoints" / "readme.txt").write_text("x")
    (folder / "checkpoints" / "grpo-2" / "mirrored.json").write_text("{}")
    found = resumption_for(tmp_path)
    assert (found.checkpoint.step, found.remarks) == (2, [])


def test_a_run_that_comes_back_from_a_mirror_goes_on_and_a_checkpoint_that_was_half_copied_is_left_out(tmp_path):
    folder = two_saved(tmp_path)
    copy = tmp_path / "elsewhere" / "test"
    for path in ("metrics.jsonl", "recipe.toml", "summary.json"):
        copy.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / path, copy)
    shutil.copytree(folder / "checkpoints", copy / "checkpoints")
    half = copy / "checkpoints" / "grpo-2" / "trainer" / "groups.parquet"
    half.write_bytes(half.read_bytes()[:-100])
    found = resumption_for(copy.parent)
    assert found.checkpoint.step == 1
    run = made_run(copy.parent, found, resume="auto")
    assert all((copy / part).is_dir() for part in ("trajectories", "evaluations"))
    save(run, "grpo", 2)
    assert [each.step for each in whole_checkpoints(copy)] == [1, 2]
    assert (copy / "superseded-1" / "checkpoints" / "grpo-2").is_dir()


def test_a_run_that_went_on_while_a_job_looked_at_it_loses_nothing(tmp_path):
    ending = made_run(tmp_path, keep_last=1, keep_best=0)
    save(ending, "grpo", 5)
    looking = resumption_for(tmp_path, run={"keep_last": 1})
    assert looking.checkpoint.step == 5
    save(ending, "grpo", 50)  # and grpo-5 is removed
    ending.recorder.close()
    recipe = recipe_for(tmp_path, run={"seed": 7})
    before = (tmp_path / "test" / "recipe.toml").read_text()
    with pytest.raises(RecipeError, match="went on while this job looked at it: start this job again"):
        looking.open(recipe, ["grpo"], print)
    assert [path.name for path in (tmp_path / "test" / "checkpoints").iterdir()] == ["grpo-50"]
    assert (tmp_path / "test" / "recipe.toml").read_text() == before
    again = resumption_for(tmp_path)
    assert again.checkpoint.step == 50
    again.open(recipe_for(tmp_path), ["grpo"], print).close()  # nobody holds the folder


def test_a_stage_that_was_finished_while_a_job_looked_is_noticed_too(tmp_path):
    ending = made_run(tmp_path)
    save(ending, "grpo", 5, is_trained=True)
    looking = resumption_for(tmp_path)
    ending.recorder.summary([{"name": "grpo"}])
    ending.recorder.close()
    with pytest.raises(RecipeError, match="start this job again"):
        looking.open(ending.recipe, ["grpo"], print)


def test_older_checkpoints_may_be_removed_while_a_job_looks_but_not_the_chosen_one(tmp_path):
    run = made_run(tmp_path)
    folders = [save(run, "grpo", step) for step in (1, 2)]
    run.recorder.close()
    first, second = resumption_for(tmp_path), resumption_for(tmp_path)
    shutil.rmtree(folders[0])
    first.open(run.recipe, ["grpo"], print).close()
    shutil.rmtree(folders[1])
    with pytest.raises(RecipeError, match="start this job again"):
        second.open(run.recipe, ["grpo"], print)


def test_an_old_checkpoint_that_cannot_be_removed_costs_a_warning(tmp_path, capsys):
    run = made_run(tmp_path, keep_last=1)
    folder = save(run, "grpo", 1)
    (folder.parent / ".grpo-1.removing").write_text("no folder can be moved over a file")
    save(run, "grpo", 2)
    assert "warning: the old checkpoint grpo-1 was not removed" in capsys.readouterr().out
    assert [each.step for each in whole_checkpoints(run.recorder.folder)] == [1, 2]


def test_a_copy_of_a_checkpoint_is_nobodys_and_stays(tmp_path, capsys):
    run = made_run(tmp_path, keep_last=1)
    folder = save(run, "grpo", 1)
    shutil.copytree(folder, folder.with_name("grpo-1-keepme"))
    for step in (2, 3):
        save(run, "grpo", step)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["grpo-1-keepme", "grpo-3"]
    assert "warning" not in capsys.readouterr().out
    run.recorder.close()
    assert resumption_for(tmp_path).checkpoint.step == 3
    assert resumption_for(tmp_path, run={"resume": str(folder.with_name("grpo-1-keepme"))}).checkpoint.step == 1


def test_a_checkpoint_whose_validation_still_goes_on_is_not_removed(tmp_path):
    run = made_run(tmp_path, keep_last=1, keep_best=1)
    save(run, "grpo", 2, loops=loops_at(2))
    save(run, "grpo", 3, loops=replace(loops_at(3), validating=[2]))
    assert [each.step for each in whole_checkpoints(run.recorder.folder)] == [2, 3]
    run.validated["grpo", 2] = 0.9
    save(run, "grpo", 4, loops=loops_at(4))
    assert [each.step for each in whole_checkpoints(run.recorder.folder)] == [2, 4]
