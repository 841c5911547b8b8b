import fcntl
import json
import os

import pytest
from made_up_runs import STAGES, recipe_with, write_run

from mathrl_ray.report.run_data import read_runs


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one")


def make_old(folder):
    """As if it had last been written to an hour ago."""
    path = folder / "metrics.jsonl"
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3600))


def read(*paths):
    return read_runs(list(paths))


def test_a_finished_run_has_its_stages_rows_and_files(run):
    (found,) = read(run)
    assert [stage.name for stage in found.stages] == list(STAGES)
    baseline, sft, rounds, grpo = found.stages
    assert baseline.rows == []
    assert [row["step"] for row in sft.rows] == list(range(1, 21))
    assert len(rounds.rows) == 5 * (3 + 1), "three updates and the round's own row, of five rounds"
    assert [row["step"] for row in grpo.validations] == [5, 10, 15, 20]
    assert [path.name for path in grpo.evaluations] == ["grpo-v3.parquet"]
    assert (found.state, found.seed, found.name, found.warnings) == ("finished", 0, "one", [])


def test_a_line_that_is_being_written_is_left_out_without_a_word(run):
    before = len(read(run)[0].metrics)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"time_s": 99.0, "stage": "grpo", "step": 21, "lo')
    (found,) = read(run)
    assert (len(found.metrics), found.warnings) == (before, [])


def test_a_damaged_line_in_the_middle_is_left_out_with_a_word(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[3] = lines[3][:20]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (found,) = read(run)
    assert len(found.metrics) == len(lines) - 1
    assert found.warnings == ["metrics.jsonl: 1 line is damaged and left out"]


@pytest.mark.parametrize("name", ["recipe.toml", "summary.json", "environment.json"])
def test_a_damaged_file_is_said_and_the_rest_is_read(run, name):
    (run / name).write_bytes(b'{"stages": [\xff')
    (found,) = read(run)
    assert name in found.warnings[0]
    assert len(found.stages) == len(STAGES)


def test_a_run_whose_lock_is_held_is_running(run):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({"stages": summary["stages"][:2]}))
    make_old(run)
    assert read(run)[0].state == "stopped"
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.exists("/proc/locks"):
            pytest.skip("only Linux lists its locks")
        (found,) = read(run)
        assert found.state == "running"
        assert [stage.summary is not None for stage in found.stages] == [True, True, False, False]
        with pytest.raises(BlockingIOError), (run / ".lock").open("w") as other:  # reading took no lock, and gave none away
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert read(run)[0].state == "stopped"


def test_a_run_that_was_written_to_a_moment_ago_is_running_wherever_it_is(run):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({"stages": summary["stages"][:3]}))
    assert read(run)[0].state == "running"


def test_a_job_of_one_stage_is_finished_when_that_is(tmp_path):
    recipe = recipe_with(study__stages=list(STAGES))  # its recipe does not say that only grpo was asked for
    assert read(write_run(tmp_path / "grpo", stages=["grpo"], recipe=recipe))[0].state == "finished"


def test_a_study_that_ended_between_two_stages_is_stopped(tmp_path):
    folder = write_run(tmp_path / "half", stages=["baseline", "sft"], recipe=recipe_with(study__stages=list(STAGES)))
    make_old(folder)
    assert read(folder)[0].state == "stopped"


def test_a_stage_that_ran_out_of_time_leaves_the_run_stopped(run):
    summary = json.loads((run / "summary.json").read_text())
    summary["stages"][-1]["ended_by"] = "max_hours"
    (run / "summary.json").write_text(json.dumps(summary))
    make_old(run)
    assert read(run)[0].state == "stopped"


def test_the_final_evaluation_is_the_one_of_the_weights_that_the_summary_names(run):
    newer = run / "evaluations" / "grpo-v9.parquet"  # of an earlier start that got farther, say
    newer.write_bytes((run / "evaluations" / "grpo-v3.parquet").read_bytes())
    (run / "evaluations" / "grpo-chat-v3.parquet").write_bytes(newer.read_bytes())
    assert [path.name for path in read(run)[0].stages[-1].evaluations] == ["grpo-v3.parquet", "grpo-chat-v3.parquet"]


def test_rows_that_were_moved_aside_are_kept_apart_in_their_order(run):
    for number, step in ((2, 8), (10, 9), (1, 7)):
        folder = run / f"superseded-{number}"
        folder.mkdir()
        row = {"time_s": 1.0, "stage": "grpo", "step": step, "policy_version": step, "loss": 5.0}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    grpo = read(run)[0].stages[-1]
    assert [row["step"] for row in grpo.superseded] == [7, 8, 9]
    assert len(grpo.rows) == 20


def test_guard_events_are_read(run):
    events = [{"kind": "fired", "stage": "grpo", "step": 7}, {"kind": "rollback", "stage": "grpo", "step": 7, "to_step": 0}]
    (run / "guards.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert read(run)[0].guard_events == events


def test_a_sweep_stands_for_its_runs_and_none_is_read_twice(tmp_path):
    folders = [write_run(tmp_path / f"study-seed-{seed}", seed=seed, stages=["grpo"]) for seed in (0, 1)]
    sweep = tmp_path / "study"
    sweep.mkdir()
    variants = [{"folder": folder.name} for folder in folders] + [{"folder": ""}, {"folder": "study-seed-9"}]
    (sweep / "sweep.json").write_text(json.dumps({"variants": variants}))
    assert [run.seed for run in read(folders[1], sweep)] == [1, 0]


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    found = read(write_run(tmp_path / "old" / "grpo", stages=["grpo"]), write_run(tmp_path / "new" / "grpo", stages=["grpo"]))
    assert [run.name for run in found] == ["old/grpo", "new/grpo"]


def test_what_is_no_run_directory_is_refused_and_told_what_one_is(tmp_path):
    with pytest.raises(ValueError, match=r"no such run directory.*<run.root>/<run.name>"):
        read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds neither metrics.jsonl nor recipe.toml"):
        read(tmp_path / "empty")
    (tmp_path / "empty" / "sweep.json").write_text('{"variants": [{"folder": ""}]}')
    with pytest.raises(ValueError, match="no run has begun"):
        read(tmp_path / "empty")


def test_a_run_that_has_written_its_recipe_only_has_no_stage_yet(tmp_path):
    (tmp_path / "recipe.toml").write_text("[run]\nseed = 3\n")
    (found,) = read(tmp_path)
    assert (found.stages, found.seed, found.last_row) == ([], 3, None)
