import fcntl
import json
import math
import os

import pytest
from made_up_runs import STAGES, metrics_of, recipe_with, write_run

from mathrl_ray.report.run_data import read_runs


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one")


def make_old(folder):
    """As if it had last been written to an hour ago."""
    path = folder / "metrics.jsonl"
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3600))


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    assert found.warnings == [f"metrics.jsonl: 1 of {len(lines)} lines is damaged and left out"]


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
    validation = {"time_s": 1.5, "stage": "grpo", "validation_accuracy": 0.5}
    for number, step in ((2, 8), (10, 9), (1, 7)):
        folder = run / f"superseded-{number}"
        folder.mkdir()
        row = {"time_s": 1.0, "stage": "grpo", "step": step, "policy_version": step, "loss": 5.0}
        write_lines(folder / "metrics.jsonl", [row, {**validation, "step": step}])
    grpo = read(run)[0].stages[-1]
    found = [(each.folder, [row["step"] for row in each.rows], len(each.validations)) for each in grpo.superseded]
    assert found == [("superseded-1", [7], 1), ("superseded-2", [8], 1), ("superseded-10", [9], 1)]
    assert (len(grpo.rows), len(grpo.validations)) == (20, 4)


def test_a_stage_whose_rows_are_all_moved_aside_is_still_there(tmp_path):
    run = write_run(tmp_path / "one", stages=["baseline", "grpo"], rollbacks=[(7, 0)])
    rows = [row for row in metrics_of(run) if row["stage"] == "baseline"]  # as if it had only just gone back to its start
    write_lines(run / "metrics.jsonl", rows)
    (run / "summary.json").write_text(json.dumps({"stages": json.loads((run / "summary.json").read_text())["stages"][:1]}))
    make_old(run)
    (found,) = read(run)
    assert [(stage.name, len(stage.rows)) for stage in found.stages] == [("baseline", 0), ("grpo", 0)]
    assert [row["step"] for row in found.stages[1].superseded[0].rows] == [1, 2, 3, 4, 5, 6, 7]
    assert found.state == "stopped", "and not finished with its baseline"


def test_guard_events_are_read(run):
    events = [{"kind": "fired", "stage": "grpo", "step": 7}, {"kind": "rollback", "stage": "grpo", "step": 7, "to_step": 0}]
    write_lines(run / "guards.jsonl", events)
    assert read(run)[0].guard_events == events


FIRED = {"kind": "fired", "stage": "grpo", "step": 3, "guard": "entropy", "action": "warn", "value": 0.1, "limit": None}
ROLLBACK = {"kind": "rollback", "stage": "grpo", "step": 3, "to_step": 1, "changes": {"grpo.learning_rate": [2.0, 1.0]}}
ROW = {"stage": "grpo", "step": 3, "loss": 1.0}


@pytest.mark.parametrize(
    ("file", "whole", "damage"),
    [
        ("guards.jsonl", ROLLBACK, {"step": None}),
        ("guards.jsonl", ROLLBACK, {"to_step": "1"}),
        ("guards.jsonl", ROLLBACK, {"changes": None}),
        ("guards.jsonl", ROLLBACK, {"changes": {"grpo.learning_rate": 1.0}}),
        ("guards.jsonl", FIRED, {"value": "0.1"}),
        ("guards.jsonl", FIRED, {"limit": [1]}),
        ("guards.jsonl", FIRED, {"kind": 3}),
        ("metrics.jsonl", ROW, {"step": None}),
        ("metrics.jsonl", ROW, {"step": "3"}),
        ("metrics.jsonl", ROW, {"stage": 3}),
        ("metrics.jsonl", ROW, {"time_s": "soon"}),
    ],
)
def test_a_line_with_a_value_of_another_kind_is_left_out_with_a_word(run, file, whole, damage):
    write_lines(run / file, [whole, {**whole, **damage}, whole])
    (found,) = read(run)
    assert (found.guard_events if file == "guards.jsonl" else found.metrics) == [whole, whole]
    assert found.warnings == [f"{file}: 1 of 3 lines is damaged and left out"]


@pytest.mark.parametrize("damage", [{"accuracy": None}, {"ci95": None}, {"ci95": [None, 0.5]}, {"name": 3}, {"num_problems": "40"}])
def test_a_damaged_entry_of_a_stage_is_left_out_with_a_word(run, damage):
    stages = json.loads((run / "summary.json").read_text())["stages"]
    (run / "summary.json").write_text(json.dumps({"stages": [{**stages[0], **damage}, *stages[1:]]}))
    (found,) = read(run)
    assert [stage.name for stage in found.stages if stage.summary] == list(STAGES[1:])
    assert found.warnings == ["summary.json: 1 of 4 stages is damaged and left out"]


def test_an_accuracy_that_is_not_a_number_since_nothing_could_be_graded_is_no_damage(run):
    stages = json.loads((run / "summary.json").read_text())["stages"]
    (run / "summary.json").write_text(json.dumps({"stages": [{**stages[0], "accuracy": math.nan, "ci95": [math.nan, math.nan]}]}))
    (found,) = read(run)
    assert (found.stages[0].summary is not None, found.warnings) == (True, [])


PAIR = {"first": "sft", "second": "grpo", "difference": 0.1, "low": 0.0, "high": 0.2, "num_problems": 40, "gained": 5, "lost": 1}
PAIR |= {"test": "mcnemar_exact", "p_value": 0.2}
NOT_COMPARED = {"first": "sft", "second": "grpo", "text": "they share no problem"}


def test_damaged_comparisons_are_left_out_with_a_word(run):
    def compared(given):
        (run / "summary.json").write_text(json.dumps({"stages": [], "comparisons": given}))
        (found,) = read(run)
        return found.comparisons, found.warnings

    equal = {**PAIR, "generated_tokens": {"grpo": 3, "expert_iteration": 4}}
    whole = {"neighbours": [PAIR, NOT_COMPARED], "equal_tokens": equal}
    assert compared(whole) == (whole, [])
    word = "summary.json: 1 of 3 comparisons is damaged and left out"
    assert compared({**whole, "neighbours": [PAIR, {**PAIR, "difference": None}, NOT_COMPARED]}) == (whole, [word])
    word = "summary.json: 1 of 1 comparisons is damaged and left out"
    assert compared({**whole, "equal_tokens": {**equal, "generated_tokens": 3}}) == ({**whole, "equal_tokens": None}, [word])
    assert compared({**whole, "neighbours": "none"}) == ({**whole, "neighbours": []}, [word])
    assert compared([1]) == ({}, [word])


def test_a_summary_without_a_list_of_stages_is_damaged(run):
    (run / "summary.json").write_text('{"stages": null}')
    (found,) = read(run)
    assert [stage.summary for stage in found.stages] == [None] * 4
    assert found.warnings == ["summary.json: 1 of 1 stages is damaged and left out"]


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
