"""Every number of tables and figures is the one that a few lines recompute from the run's Parquet files and metrics."""

import asyncio
import json
import math
from collections import Counter
from statistics import fmean, median

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from made_up_runs import metrics_of, recipe_with, write_run
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.report.curves import CURVES
from mathrl_ray.report.figures import figures
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.report.tables import tables
from mathrl_ray.stages.study import run_study

TIMES = "\N{MULTIPLICATION SIGN} baseline (95 %)"
NOT_GRADED = ("grader_error", "bad_gold")


@pytest.fixture(
    params=[
        {},
        {"ungraded": 3},
        {"num_samples": 4, "ungraded": 2},
        {"validate": 0},
        {"seed": 9, "num_problems": 31},
        {"rollbacks": [(12, 5), (13, 0)]},
    ]
)
def folder(tmp_path, request):
    return write_run(tmp_path / "run", **request.param)


def table_named(found, name):
    return next(table for table in found if table.name == name)


def figure_named(found, name):
    return next(figure for figure in found if figure.name == name)


def cells_of(table, **where):
    """The row whose heads are so, by column."""
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        if all(cells[column].text == text for column, text in where.items()):
            return cells
    raise AssertionError(f"{table.name} has no row {where}")


def evaluation(folder, stage):
    (path,) = (folder / "evaluations").glob(f"{stage}-v*.parquet")
    return pq.read_table(path).to_pylist()


def accuracy_of(rows):
    """Mean over problems of the share of right responses among the graded."""
    problems = {}
    for row in rows:
        if row["outcome"] not in NOT_GRADED:
            problems.setdefault(row["problem_id"], []).append(row["outcome"] == "correct")
    return fmean(fmean(each) for each in problems.values()), len(problems)


def test_the_stages_table_says_what_the_evaluations_hold(folder):
    table = table_named(tables(read_runs([folder])), "stages")
    base, _ = accuracy_of(evaluation(folder, "baseline"))
    for stage in ("baseline", "sft", "expert_iteration", "grpo"):
        rows, cells = evaluation(folder, stage), cells_of(table, stage=stage)
        accuracy, num_problems = accuracy_of(rows)
        tokens = [row["num_response_tokens"] for row in rows]
        nats = sum(row["mean_token_entropy_nats"] * row["num_response_tokens"] for row in rows) / sum(tokens)
        assert cells["accuracy (95 %)"].number == pytest.approx(accuracy)
        assert cells["accuracy (95 %)"].text.startswith(f"{100 * accuracy:.1f} %")
        assert cells["accuracy (95 %)"].low <= accuracy <= cells["accuracy (95 %)"].high
        assert cells["problems"].number == num_problems
        assert cells["format"].number == pytest.approx(fmean(row["format_reward"] for row in rows))
        assert cells["nats/token"].number == pytest.approx(nats)
        assert cells["bits/token"].number == pytest.approx(nats / math.log(2))
        assert cells["tokens/response"].number == pytest.approx(fmean(tokens))
        if stage != "baseline":
            assert cells[TIMES].number == pytest.approx(accuracy / base)


def test_wilsons_interval_stands_beside_an_accuracy_of_one_response_a_problem(tmp_path):
    folder = write_run(tmp_path / "run", ungraded=3)
    cell = cells_of(table_named(tables(read_runs([folder])), "stages"), stage="grpo")["accuracy (95 %)"]
    share, n, z = *accuracy_of(evaluation(folder, "grpo")), 1.959963984540054
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert (cell.low, cell.high) == pytest.approx(((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)))


def test_costs_are_those_of_the_summary(folder):
    table = table_named(tables(read_runs([folder])), "stages")
    for stage in json.loads((folder / "summary.json").read_text())["stages"]:
        cells = cells_of(table, stage=stage["name"])
        assert cells["generated tokens"].number == stage["generated_tokens"]
        assert cells["updates"].number == stage["optimizer_steps"]
        assert cells["wall s"].number == stage["wall_s"]
        assert cells["learner s"].number == stage["device_s"]["learner"]


@pytest.mark.parametrize("word", ["level", "subject"])
def test_levels_and_subjects_are_those_of_the_evaluations(folder, word):
    runs = read_runs([folder])
    table, figure = table_named(tables(runs), f"by_{word}"), figure_named(figures(runs), f"by_{word}")
    for stage in ("baseline", "grpo"):
        rows = evaluation(folder, stage)
        for part in {str(row[word]) for row in rows if row[word] is not None}:
            accuracy, num_problems = accuracy_of([row for row in rows if str(row[word]) == part])
            cell = cells_of(table, stage=stage)[f"level {part}" if word == "level" else part]
            drawn = next(row for row in figure.data() if (row["stage"], row["part"]) == (stage, part))
            assert (cell.number, drawn["value"], drawn["n"]) == (pytest.approx(accuracy), pytest.approx(accuracy), num_problems)
            assert cell.text.endswith(f"of {num_problems}")


def test_outcomes_and_lengths_are_those_of_the_evaluations(folder):
    runs = read_runs([folder])
    table, found = table_named(tables(runs), "outcomes"), figures(runs)
    for stage in ("baseline", "sft", "grpo"):
        rows = evaluation(folder, stage)
        counts = Counter(row["outcome"] for row in rows)
        cells = cells_of(table, stage=stage)
        drawn = {row["outcome"]: row for row in figure_named(found, "outcomes").data() if row["stage"] == stage}
        assert cells["responses"].number == len(rows)
        for outcome, count in counts.items():
            assert cells[outcome.replace("_", " ")].number == count
            assert (drawn[outcome]["n"], drawn[outcome]["value"]) == (count, pytest.approx(count / len(rows)))
        right = [row["num_response_tokens"] for row in rows if row["outcome"] == "correct"]
        wrong = [row["num_response_tokens"] for row in rows if row["outcome"] not in ("correct", *NOT_GRADED)]
        for line, lengths in (("right", right), ("wrong", wrong)):
            told = next(row for row in figure_named(found, "lengths").data() if (row["stage"], row["line"]) == (stage, line))
            assert (told["value"], told["mean"], told["n"]) == (median(lengths), pytest.approx(fmean(lengths)), len(lengths))
            assert (told["low"], told["high"]) == pytest.approx(tuple(np.quantile(lengths, (0.1, 0.9))))


def test_pass_at_k_is_that_of_the_summary_and_is_left_out_where_a_problem_has_one_response(tmp_path):
    several = write_run(tmp_path / "several", num_samples=4)
    cells = cells_of(table_named(tables(read_runs([several])), "at_k"), stage="grpo")
    by_problem = {}
    for row in evaluation(several, "grpo"):
        by_problem.setdefault(row["problem_id"], []).append(row["outcome"] == "correct")
    assert cells["pass@4"].number == pytest.approx(fmean(any(each) for each in by_problem.values()))
    assert cells["pass@1"].number == pytest.approx(fmean(fmean(each) for each in by_problem.values()))
    assert "at_k" not in {table.name for table in tables(read_runs([write_run(tmp_path / "one")]))}


def moved_aside(folder):
    return [row for each in sorted(folder.glob("superseded-*")) for row in metrics_of(each)]


def test_every_point_of_every_curve_is_a_number_of_metrics_jsonl(folder):
    logged = metrics_of(folder)
    starts = {}
    for row in sorted([*logged, *moved_aside(folder)], key=lambda row: row["time_s"]):
        starts.setdefault(row["stage"], row["time_s"])
    found = {figure.name: figure for figure in figures(read_runs([folder])) if figure.group == "curves"}
    keys = {(curve.name, line.name): line for curve in CURVES for line in curve.lines}
    num_points = 0
    for (name, line), definition in keys.items():
        if name == "accuracy" or name not in found:
            continue
        drawn = [row for row in found[name].data() if row["line"] == line]
        for stage in {row["stage"] for row in logged}:
            key = definition.other_keys.get(stage, definition.key)
            steps = [row for row in logged if row["stage"] == stage and key in row and ("loss" in row or "step_s" in row)]
            given = [row for row in drawn if row["stage"] == stage]
            assert [row["value"] for row in given] == [row[key] for row in steps]
            assert [row["wall_clock_s"] for row in given] == pytest.approx([row["time_s"] - starts[stage] for row in steps])
            num_points += len(given)
    assert num_points > 300


def test_the_accuracy_curve_holds_the_validations_and_the_final_evaluation(folder):
    logged = [row for row in metrics_of(folder) if "validation_accuracy" in row]
    drawn = figure_named(figures(read_runs([folder])), "accuracy").data()
    lines = [row for row in drawn if row["line"] == ""]
    assert [(row["stage"], row["step"], row["value"], row["low"], row["n"]) for row in lines] == [
        (row["stage"], row["step"], row["validation_accuracy"], row["validation_ci95_low"], 498) for row in logged
    ]
    for row in (row for row in drawn if row["line"] == "test"):
        accuracy, num_problems = accuracy_of(evaluation(folder, row["stage"]))
        assert (row["value"], row["n"]) == (pytest.approx(accuracy), num_problems)
    assert {row["stage"] for row in drawn if row["line"] == "test"} == {"sft", "expert_iteration", "grpo"}


def test_what_was_superseded_is_in_no_other_line_and_no_table(tmp_path):
    folder = write_run(tmp_path / "run", stages=["grpo"])
    before = table_named(tables(read_runs([folder])), "stages").rows
    aside = folder / "superseded-1"
    aside.mkdir()
    rows = [row for row in metrics_of(folder) if "loss" in row and row["step"] > 15]
    (aside / "metrics.jsonl").write_text("".join(json.dumps({**row, "reward_mean": -7.0}) + "\n" for row in rows))
    runs = read_runs([folder])
    drawn = figure_named(figures(runs), "reward").data()
    assert [row["step"] for row in drawn if row["value"] == -7.0] == [16, 17, 18, 19, 20]
    assert {row["line"] for row in drawn if row["value"] == -7.0} == {"superseded-1"}
    assert len([row for row in drawn if row["line"] == ""]) == 20
    assert table_named(tables(runs), "stages").rows == before
    assert "Dotted grey" in figure_named(figures(runs), "reward").caption


def test_means_over_seeds_are_those_of_the_seeds(tmp_path):
    folders = [write_run(tmp_path / f"s{seed}", seed=seed, recipe=recipe_with(run__seed=seed)) for seed in (0, 1, 2)]
    table = table_named(tables(read_runs(folders)), "stages")
    own = [accuracy_of(evaluation(folder, "sft"))[0] for folder in folders]
    base = [accuracy_of(evaluation(folder, "baseline"))[0] for folder in folders]
    cells = cells_of(table, run="mean of 3 seeds", stage="sft")
    half = 4.302652729911275 * np.std(own, ddof=1) / math.sqrt(3)
    assert cells["accuracy (95 %)"].number == pytest.approx(fmean(own))
    ends = (max(0, fmean(own) - half), min(1, fmean(own) + half))
    assert (cells["accuracy (95 %)"].low, cells["accuracy (95 %)"].high) == pytest.approx(ends)
    times = [after / before for after, before in zip(own, base, strict=True)]
    assert cells[TIMES].number == pytest.approx(fmean(times))


def test_a_run_that_the_program_itself_made_is_reported_as_it_was(tmp_path):
    diary = Diary()
    actors = Actors(FakeLearner(diary), (FakeGenerator(diary),), (FakeScorer(diary),), (0,))
    grpo = {"num_steps": 4, "prompts_per_step": 2, "group_size": 2}
    recipe = recipe_for(tmp_path, grpo=grpo, eval={"num_problems": 6, "validate_every": 2})
    run = make_run(recipe, actors)
    asyncio.run(run_study(run, ["baseline", "grpo"]))
    folder = run.recorder.folder
    runs = read_runs([folder])
    assert [(stage.name, len(stage.rows)) for stage in runs[0].stages] == [("baseline", 0), ("grpo", 4)]
    found = figures(runs)
    logged = [row for row in metrics_of(folder) if "reward_mean" in row]
    drawn = [row for row in figure_named(found, "reward").data() if row["line"] == ""]
    assert [(row["step"], row["value"]) for row in drawn] == [(row["step"], row["reward_mean"]) for row in logged]
    assert [row["generated_tokens"] for row in drawn] == [row["consumed_tokens_total"] for row in logged]
    for stage in ("baseline", "grpo"):
        cell = cells_of(table_named(tables(runs), "stages"), stage=stage)["accuracy (95 %)"]
        assert cell.number == pytest.approx(accuracy_of(evaluation(folder, stage))[0])
    run.recorder.close()
