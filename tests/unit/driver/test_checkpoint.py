"""Checkpoints and their resumption, piece by piece: what is written, when, what stays, and what is refused in words."""

import asyncio
import dataclasses
import json
import os
import threading
from pathlib import Path

import pytest
from checkpoint_scene import made_run, resumption_for, save
from fakes import Diary, FakeLearner
from hypothesis import given
from hypothesis import strategies as st
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import RecipeError
from mathrl_ray.driver.checkpoint import is_due, kept_steps
from mathrl_ray.driver.group_rows import read_groups, write_groups
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.superseded import Position, supersede
from mathrl_ray.driver.whole_folder import remove_leftovers, remove_whole, whole_folder
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.stages.sft_training import sft_batches
from mathrl_ray.stages.study import run_study
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

REWARDS = st.floats(allow_nan=True, allow_infinity=True)
IDS = st.lists(st.integers(0, 2**40), min_size=1, max_size=4).map(tuple)


@st.composite
def trajectories(draw, group_id="g", sample=0):
    ids = draw(IDS)
    completion = Completion(
        text=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
        token_ids=ids,
        logprobs=tuple(draw(REWARDS) for _ in ids),
        version_runs=((draw(st.integers(0, 9)), 1), (10, len(ids) - 1)),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
    )
    grade = Grade(
        format_reward=draw(REWARDS),
        answer_reward=0.1,
        reward=draw(REWARDS),
        outcome=draw(st.sampled_from(["correct", "grader_error"])),
        extracted_answer=draw(st.none() | st.text("ab", max_size=3)),
        grading_s=draw(st.floats(0, 1)),
        lenient_answer_correct=draw(st.booleans()),
        parts=draw(st.dictionaries(st.text("xyz", max_size=3), REWARDS, max_size=2)),
        remark=draw(st.text("why", max_size=3)),
        from_quarantine=draw(st.booleans()),
    )
    advantage, reason = draw(st.sampled_from([(None, None), (None, "stale"), (0.1 + 0.2, None)]))
    return Trajectory(group_id, sample, "p", draw(IDS), completion, grade, advantage, reason)


@given(st.data())
def test_every_field_of_a_group_comes_back_exactly(tmp_path_factory, data):
    groups = [
        (number, TrajectoryGroup(f"g-{index}", "p", tuple(data.draw(trajectories(f"g-{index}", sample)) for sample in range(2))))
        for index, number in enumerate(data.draw(st.lists(st.integers(-1, 5), max_size=3)))
    ]
    path = tmp_path_factory.mktemp("groups") / "groups.parquet"
    write_groups(path, groups)
    assert repr(read_groups(path)) == repr(groups)  # NaN is not equal to itself
    assert all(repr(each) == repr(dataclasses.replace(each)) for _, group in read_groups(path) for each in group.trajectories)


def test_a_folder_is_there_with_all_of_its_files_or_not_at_all(tmp_path):
    async def write(fails):
        async with whole_folder(tmp_path / "c") as aside:
            (aside / "trainer").mkdir()
            (aside / "trainer" / "x").write_text("x")
            assert not (tmp_path / "c").exists()
            if fails:
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(write(True))
    assert list(tmp_path.iterdir()) == []
    asyncio.run(write(False))
    assert (tmp_path / "c" / "trainer" / "x").read_text() == "x"
    with pytest.raises(FileExistsError, match="never written over"):
        asyncio.run(write(False))
    remove_whole(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_is_cancelled_while_it_syncs_never_appears(tmp_path, monkeypatch):
    import mathrl_ray.driver.whole_folder as module

    syncing, may_go_on, sync = threading.Event(), threading.Event(), module._sync

    def slowly(path):
        syncing.set()
        may_go_on.wait(10)
        if path.exists():
            sync(path)

    async def write():
        async with whole_folder(tmp_path / "c") as aside:
            (aside / "x").write_text("x")

    async def cancelled():
        task = asyncio.create_task(write())
        await asyncio.to_thread(syncing.wait, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        may_go_on.set()

    monkeypatch.setattr(module, "_sync", slowly)
    asyncio.run(cancelled())  # which waits for its threads
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path):
    for name in (".c.writing", ".c.removing", ".sft-best-size", "c"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sft-best-size", "c"]


def test_the_newest_and_the_best_validated_checkpoints_stay():
    accuracies = {10: 0.3, 20: 0.5, 30: 0.5, 40: 0.1, 99: 0.9}
    assert kept_steps([50, 10, 20, 30, 40], accuracies, keep_last=2, keep_best=1) == {40, 50, 30}
    assert kept_steps([10, 20], {}, keep_last=1, keep_best=3) == {20}
    assert kept_steps([10, 20, 30], accuracies, keep_last=1, keep_best=0) == {30}
    assert kept_steps([10, 20, 30], accuracies, keep_last=9, keep_best=9) == {10, 20, 30}


def test_a_checkpoint_is_due_every_so_many_steps_or_minutes(tmp_path):
    run = made_run(tmp_path, checkpoint_every=3, checkpoint_minutes=0)
    assert [step for step in range(1, 10) if is_due(run, step)] == [3, 6, 9]
    run = made_run(tmp_path, checkpoint_every=0, checkpoint_minutes=2)
    assert not is_due(run, 1)
    run.recorder._began -= 121
    assert is_due(run, 1)
    run.saved_s = run.recorder.elapsed_s()
    assert not is_due(run, 2)
    assert not is_due(made_run(tmp_path, checkpoint_minutes=0), 1)


def test_the_formats_are_read_without_running_code_and_the_row_says_what_it_cost(tmp_path):
    run = made_run(tmp_path)
    folder = save(run, "grpo", 3)
    assert sorted(path.name for path in (folder / "trainer").iterdir()) == ["fake.json", "files.json", "groups.parquet", "run.json"]
    (row,) = [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]
    assert (row["stage"], row["step"], row["checkpoint_bytes"]) == ("grpo", 3, 1.0)
    assert row["checkpoint_s"] > 0


def test_auto_takes_the_furthest_checkpoint_of_the_run_that_was_written_to_last(tmp_path):
    assert resumption_for(tmp_path) is None
    first = made_run(tmp_path)
    assert resumption_for(tmp_path) is None  # nothing to go on from
    save(first, "grpo", 9)
    second = made_run(tmp_path)
    assert second.recorder.folder.name == "test-2"
    for step in (2, 3):
        save(second, "grpo", step)
    later = max(path.stat().st_mtime for path in tmp_path.rglob("*")) + 10
    for path in second.recorder.folder.rglob("*"):
        os.utime(path, (later, later))
    other = made_run(tmp_path, name="test-x")
    save(other, "grpo", 20)
    found = resumption_for(tmp_path)
    assert (found.folder.name, found.checkpoint.step) == ("test-2", 3)
    named = resumption_for(tmp_path, run={"resume": str(tmp_path / "test")})
    assert (named.folder.name, named.checkpoint.step) == ("test", 9)
    named = resumption_for(tmp_path, run={"resume": str(second.recorder.folder / "checkpoints" / "grpo-2")})
    assert (named.folder.name, named.checkpoint.step) == ("test-2", 2)


def test_another_recipe_is_refused_with_the_keys_that_differ_unless_they_are_meant(tmp_path):
    save(made_run(tmp_path), "grpo", 1)
    with pytest.raises(RecipeError) as refusal:
        resumption_for(tmp_path, grpo={"num_steps": 77}, learner={"betas": (0.9, 0.99)}, run={"max_hours": 3.0})
    text = str(refusal.value)
    assert "grpo.num_steps: 50 was saved, 77 is given" in text
    assert "learner.betas: [0.9, 0.95] was saved, [0.9, 0.99] is given" in text
    assert "run.resume_with_changes = true" in text
    assert "max_hours" not in text
    found = resumption_for(tmp_path, grpo={"num_steps": 77}, run={"resume_with_changes": True})
    assert found.checkpoint.step == 1
    assert resumption_for(tmp_path, run={"max_hours": 3.0, "keep_last": 9}, generator={"limit_s": 9.0}).checkpoint.step == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere", 'give "auto", a run directory'), ("test", "grpo-1 is left out: .*files.json"), ("test/checkpoints/grpo-1", "files.json")],
)
def test_a_path_that_is_no_checkpoint_is_refused(tmp_path, path, words):
    made_run(tmp_path)
    (tmp_path / "test" / "checkpoints" / "grpo-1" / "trainer").mkdir(parents=True)
    with pytest.raises(RecipeError, match=words):
        resumption_for(tmp_path, run={"resume": str(tmp_path / path)})


def test_other_stages_than_those_that_were_run_are_refused(tmp_path):
    run = made_run(tmp_path)
    run.stages.append({"name": "baseline"})
    save(run, "sft", 1)
    assert resumption_for(tmp_path, stages=["baseline", "sft", "grpo"]).checkpoint.stage == "sft"
    with pytest.raises(RecipeError, match=r"has run the stages baseline, sft, this job is for baseline, grpo: these must begin with those"):
        resumption_for(tmp_path, stages=["baseline", "grpo"])


def test_two_jobs_never_write_to_one_folder(tmp_path):
    run = made_run(tmp_path)
    save(run, "grpo", 1)
    with pytest.raises(RecipeError, match="is being written to by another job"):
        resumption_for(tmp_path).open(run.recipe, ["grpo"], print)
    run.recorder.close()
    resumption_for(tmp_path).open(run.recipe, ["grpo"], print).close()


def test_finished_stages_are_not_run_again_and_the_table_has_them(tmp_path):
    run = made_run(tmp_path)
    asyncio.run(run_study(run, ["baseline"]))
    run.recorder.close()
    found = resumption_for(tmp_path, stages=["baseline", "baseline"])
    assert found.checkpoint is None
    again = made_run(tmp_path, found, stages=["baseline", "baseline"], resume="auto")
    asyncio.run(run_study(again, ["baseline", "baseline"]))
    assert len(again.actors.learner.diary.of("start_stage")) == 1  # of two
    assert [stage["name"] for stage in json.loads((tmp_path / "test" / "summary.json").read_text())["stages"]] == ["baseline"] * 2


def test_a_stage_that_was_trained_but_not_evaluated_goes_on_and_one_that_was_is_done(tmp_path):
    run = made_run(tmp_path)
    save(run, "grpo", 5, is_trained=True)
    assert resumption_for(tmp_path).checkpoint.step == 5
    run.recorder.summary([{"name": "grpo"}])
    found = resumption_for(tmp_path, stages=["grpo", "sft"])
    assert (found.checkpoint, found.finished) == (None, [{"name": "grpo"}])


def test_a_stage_that_run_max_hours_ended_goes_on_although_it_was_evaluated(tmp_path):
    run = made_run(tmp_path)
    save(run, "grpo", 5, is_trained=False)
    run.recorder.summary([{"name": "grpo"}])
    found = resumption_for(tmp_path)
    assert (found.checkpoint.step, found.finished) == (5, [])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_was_written_after_the_checkpoint_is_moved_aside_and_nothing_is_lost(tmp_path):
    names = ["trajectories/sft_filtered-9", "trajectories/grpo-2", "trajectories/grpo-3", "evaluations/sft_filtered-chat-v4"]
    names += [
        "evaluations/validation-grpo-step2-v2",
        "evaluations/validation-grpo-step3-v3",
        "evaluations/grpo-v3",
        "evaluations/grpo-chat-v3",
    ]
    names += ["evaluations/validation-sft_filtered-size8-step9-v1", "evaluations/note of mine"]
    names += [f"{part}/{name}" for part in ("problem_memory", "elite_pool") for name in ("sft_filtered-9", "grpo-2", "grpo-3")]
    names += ["evaluations/my-notes-v1", "evaluations/grpo-notes", "checkpoints/backup-3", "trajectories/mine-9"]  # a person's
    for name in names:
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    rows = [("sft_filtered", 9), ("grpo", 1), ("grpo", 2), ("grpo", 3), ("grpo", 2), ("grpo", 0)]
    lines = [json.dumps({"stage": stage, "step": step, "n": n}) + "\n" for n, (stage, step) in enumerate(rows)]
    evaluations = [{"stage": stage, "step": step, "n": 6, "accuracy": 0.5} for stage, step in (("sft_filtered", 9), ("grpo", 2))]
    lines += [json.dumps(row) + "\n" for row in evaluations]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"stage": "grpo", "st')
    before = len(files(tmp_path))
    position = Position(["sft_filtered"], "grpo", 2, metrics_bytes=sum(map(len, lines[:3])))
    aside = supersede(tmp_path, position)
    assert aside.name == "superseded-1"
    assert [json.loads(line)["n"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 4, 5, 6]
    assert (aside / "metrics.jsonl").read_text() == lines[3] + lines[7] + '{"stage": "grpo", "st'
    moved = [*["grpo-3"] * 3, "validation-grpo-step3-v3", "grpo-v3", "grpo-chat-v3"]
    assert sorted(Path(name).stem for name in files(aside)) == sorted([*moved, "metrics"])
    assert len(files(tmp_path)) == before + 1
    assert supersede(tmp_path, position) is None


def test_a_position_at_the_beginning_of_a_stage_keeps_the_finished_ones_only(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"stage": stage, "step": 1}) + "\n" for stage in ("sft", "grpo")))
    (tmp_path / "checkpoints" / "grpo-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "sft-1").mkdir()
    supersede(tmp_path, Position(["sft"]))
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["sft-1"]
    assert (tmp_path / "superseded-1" / "checkpoints" / "grpo-1").is_dir()


def test_a_recipe_and_an_environment_of_an_earlier_start_stay_beside_the_new_ones(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path))
    recorder.environment({"start": 1})
    recorder.close()
    reopened = Recorder.reopen(recorder.folder, elapsed_s=100.0)
    reopened.recipe(recipe_for(tmp_path, run={"seed": 5}))
    reopened.environment({"start": 2})
    assert reopened.elapsed_s() >= 100
    assert "seed = 0" in (recorder.folder / "recipe-1.toml").read_text()
    assert "seed = 5" in (recorder.folder / "recipe.toml").read_text()
    assert json.loads((recorder.folder / "environment-1.json").read_text()) == {"start": 1}
    assert json.loads((recorder.folder / "environment.json").read_text()) == {"start": 2}


def test_a_relative_path_to_resume_from_means_the_recipes_folder(tmp_path):
    (tmp_path / "r.toml").write_text('[run]\nresume = "runs/a"\n')
    assert load_recipe(tmp_path / "r.toml").run.resume == str(tmp_path / "runs" / "a")
    assert load_recipe(tmp_path / "r.toml", ["run.resume=auto"]).run.resume == "auto"


@pytest.mark.parametrize("num_rows", [8, 10])
def test_batches_that_are_left_out_are_the_first_ones_of_the_same_order(tmp_path, num_rows):
    from mathrl_ray.data.traces import SftRow

    run = make_run(recipe_for(tmp_path, sft={"batch_size": 4, "epochs": 3}), Actors(FakeLearner(Diary()), (), (), ()))
    traces = [SftRow(f"p-{index}", "q", f"answer {index}", gold="1", problem="q") for index in range(num_rows)]
    whole = list(sft_batches(run, traces))
    assert len(whole) == 3 * -(-num_rows // 4)
    for first in range(len(whole) + 1):
        assert list(sft_batches(run, traces, first=first)) == whole[first:]


def test_the_summary_of_stages_that_are_run_again_is_moved_aside_too(tmp_path):
    run = made_run(tmp_path)
    folder = save(run, "grpo", 5, is_trained=True)
    run.recorder.summary([{"name": "grpo", "accuracy": 0.5}])
    run.recorder.metrics("grpo", 6, 6, {"loss": 0.0})
    run.recorder.close()
    found = resumption_for(tmp_path, run={"resume": str(folder)})
    found.open(run.recipe, ["grpo"], print).close()
    assert json.loads((tmp_path / "test" / "summary.json").read_text()) == {"stages": []}
    assert json.loads((tmp_path / "test" / "superseded-1" / "summary.json").read_text())["stages"][0]["accuracy"] == 0.5
