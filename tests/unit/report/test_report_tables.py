import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import recipe_with, write_run

from mathrl_ray.report.known_results import KNOWN_RESULTS
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.report.table import Cell, Table, latex_text, markdown_text
from mathrl_ray.report.tables import tables


def table_named(found, name):
    return next(table for table in found if table.name == name)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one", stages=["baseline", "grpo"])


HOSTILE = "a|b\n\\% & <script> $x$ _y_ {z} ^ ~ # `q` [l](u)"


def test_markdown_has_as_many_cells_in_every_row_whatever_they_hold():
    made = Table("t", "T", "caption", ("head|1", "n"), ((Cell(HOSTILE), Cell("3", 3)), (Cell("plain"), Cell("-"))))
    lines = made.to_markdown().splitlines()[:4]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3, 3]
    assert lines[1] == "| --- | ---: |"
    assert "<script>" not in made.to_markdown()


def test_latex_escapes_what_it_would_read():
    assert latex_text("50 % & a_b #1 {x} ~ ^ \\ $") == (r"50 \% \& a\_b \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$")
    made = Table("t_1", "T", "c", ("a", "b"), ((Cell("x"), Cell("1", 1)),)).to_latex()
    assert made.splitlines()[4:9] == [r"\begin{tabular}{lr}", r"\toprule", r"a & b \\", r"\midrule", r"x & 1 \\"]


def test_latex_reads_no_name_as_an_argument_of_the_line_before():
    rows = ((Cell("[b]"), Cell("[1]")), (Cell("*"), Cell("2")), (Cell("c"), Cell("3")))
    lines = Table("t", "T", "c", ("[a]", "n"), rows).to_latex().splitlines()
    assert lines[6:11] == [r"{}[a] & n \\", r"\midrule", r"{}[b] & [1] \\", r"{}* & 2 \\", r"c & 3 \\"]


@given(st.text())
def test_no_text_breaks_out_of_its_cell(text):
    assert not re.search(r"(?<!\\)(\\\\)*\|", markdown_text(text))
    assert "\n" not in markdown_text(text)
    assert not re.search(r"(?<!\\)[&%#_]", latex_text(text))


def test_csv_holds_numbers_unrounded_with_their_intervals():
    made = Table("t", "T", "c", ("stage", "accuracy"), ((Cell("sft, all"), Cell("33.3 %", 1 / 3, 0.25, 0.5)), (Cell("grpo"), Cell("-"))))
    rows = list(csv.reader(io.StringIO(made.to_csv())))
    assert rows == [["stage", "accuracy", "accuracy low", "accuracy high"], ["sft, all", repr(1 / 3), "0.25", "0.5"], ["grpo", "-", "", ""]]


def test_what_others_report_stands_apart_with_model_data_and_source(run):
    found = tables(read_runs([run]))
    known = table_named(found, "known_results")
    assert known.title == "What others report, for another task"
    assert "Not to be compared" in known.caption
    assert "builtin:arithmetic" in known.caption
    assert {row[0].text for row in known.rows} == {"baseline", "grpo"}
    cells = [dict(zip(known.columns, row, strict=True)) for row in known.rows]
    assert all(each["model"].text == "Qwen2.5-Math-1.5B" and each["data"].text.startswith("MATH") for each in cells)
    assert {each["accuracy"].text for each in cells} == {"2.7 to 2.9 %", "28.9 %", "71.3 %", "68.8 %", "53.8 %"}
    assert not any("Qwen" in cell.text for row in table_named(found, "stages").rows for cell in row)


def test_a_run_of_the_same_model_is_not_told_that_it_is_another_task(tmp_path):
    recipe = recipe_with(model__path="Qwen/Qwen2.5-Math-1.5B", data__test="math")
    known = table_named(tables(read_runs([write_run(tmp_path / "math", stages=["grpo"], recipe=recipe)])), "known_results")
    assert known.title == "What others report"
    assert "Compare with care" in known.caption


def test_known_results_are_those_of_the_course_notes_and_public_runs():
    notes = {each.stage: each.low for each in KNOWN_RESULTS if "course notes" in each.source}
    assert notes == {"sft": 0.187, "sft_filtered": 0.223, "expert_iteration": 0.251, "grpo": 0.289}
    assert all(0 < each.low <= each.high < 1 for each in KNOWN_RESULTS)


def test_accuracies_are_never_shown_without_prompt_temperature_limit_and_grader(run):
    found = tables(read_runs([run]))
    for name in ("stages", "by_level", "by_subject", "outcomes"):
        caption = table_named(found, name).caption
        assert "prompt r1_zero, temperature 1, top-p 1, at most 64 tokens, grader default" in caption


def test_settings_that_differ_between_runs_are_all_named(tmp_path):
    runs = [
        write_run(tmp_path / f"t{number}", stages=["grpo"], recipe=recipe_with(eval__temperature=temperature))
        for number, temperature in enumerate((1.0, 0.6))
    ]
    assert "temperature 1 / 0.6, top-p 1," in table_named(tables(read_runs(runs)), "stages").caption


def comparison(**changes):
    return {
        "first": "baseline", "second": "grpo", "difference": 0.25, "low": 0.2, "high": 0.3, "num_problems": 40, "gained": 12, "lost": 2,
        "test": "mcnemar_exact", "p_value": 0.013, "text": "...", **changes,
    }  # fmt: skip


def test_comparisons_are_those_of_the_summary_and_what_could_not_be_compared_says_why(run):
    summary = json.loads((run / "summary.json").read_text())
    refused = {"first": "a", "second": "b", "text": "grpo and sft are not compared: other problems"}
    equal = comparison(generated_tokens={"expert_iteration": 900, "grpo": 1000})
    summary["comparisons"] = {"neighbours": [comparison(), refused], "equal_tokens": equal, "note": ""}
    (run / "summary.json").write_text(json.dumps(summary))
    found = table_named(tables(read_runs([run])), "comparisons")
    assert [cell.text for cell in found.rows[0]] == [
        "grpo", "baseline", "+25.0 (+20.0 to +30.0)", "40", "12", "2", "McNemar's exact test", "0.013", "at each stage's end",
    ]  # fmt: skip
    assert found.rows[1][-1].text == "at equal generated tokens: 900 (expert_iteration), 1,000 (grpo)"
    assert len(found.rows) == 2
    assert "other problems" in found.caption


def test_a_test_of_another_version_is_named_as_it_is(run):
    changed(run, comparisons={"neighbours": [comparison(test="new_test")]})
    assert table_named(tables(read_runs([run])), "comparisons").rows[0][6].text == "new_test"


def changed(run, of_last=None, **values):
    """The run with other values in summary.json, or in its last stage's entry."""
    summary = json.loads((run / "summary.json").read_text()) | values
    summary["stages"][-1] |= of_last or {}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_each_prompt_has_a_row_with_its_difference_from_the_first(run):
    first = {
        "name": "r1_zero", "accuracy": 0.5, "ci95": [0.4, 0.6], "num_ungraded": 1, "num_problems": 40, "num_graded_problems": 39,
        "num_samples": 1, "format_rate": 0.9, "mean_response_tokens": 20.25, "difference": None,
    }  # fmt: skip
    less = {"value": -0.1, "ci95": [-0.2, 0.01], "test": "mcnemar_exact", "p_value": 0.04, "p_value_holm": 0.08, "num_problems": 39}
    other = {**first, "name": "mine.txt", "accuracy": 0.4, "ci95": [0.3, 0.5], "difference": less}
    found = table_named(tables(read_runs([changed(run, {"prompts": [first, other]})])), "by_prompt")
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["grpo", "r1_zero", "50.0 % (40.0 to 60.0)", "39", "90.0 %", "20.2", "-", "-"],
        ["grpo", "mine.txt", "40.0 % (30.0 to 50.0)", "39", "90.0 %", "20.2", "-10.0 (-20.0 to +1.0)", "0.080"],
    ]
    assert "prompt r1_zero" not in found.caption
    assert "temperature 1, top-p 1, at most 64 tokens, grader default" in found.caption


def test_each_grader_has_a_row_but_not_in_a_mean_over_seeds(tmp_path):
    graders = {
        "default": {"accuracy": 0.5, "ci95": [0.4, 0.6], "num_ungraded": 0, "num_graded_problems": 1500},
        "mine.py:strict": {"accuracy": 0.123, "ci95": [0.1, 0.2], "num_ungraded": 3, "num_graded_problems": 1497},
    }
    folders = [write_run(tmp_path / f"seed-{seed}", seed=seed, stages=["grpo"], recipe=recipe_with(run__seed=seed)) for seed in (0, 1)]
    runs = read_runs([changed(folder, {"graders": graders}) for folder in folders])
    found = table_named(tables(runs), "by_grader")
    assert [[cell.text for cell in row] for row in found.rows[:2]] == [
        ["seed-0", "grpo", "default", "50.0 % (40.0 to 60.0)", "1,500", "0"],
        ["seed-0", "grpo", "mine.py:strict", "12.3 % (10.0 to 20.0)", "1,497", "3"],
    ]
    assert len(found.rows) == 4
    assert "grader default" not in found.caption
    assert {"by_grader", "by_prompt"}.isdisjoint({table.name for table in tables(read_runs([write_run(tmp_path / "x")]))})


def test_a_stage_says_whose_weights_it_evaluated_where_these_are_not_its_last(run):
    facts = {"ended_by": "early stopping", "last_step": 40, "best_step": 20}
    stages = table_named(tables(read_runs([changed(run, facts)])), "stages")
    assert [row[stages.columns.index("model")].text for row in stages.rows] == ["-", "stopped early after step 40, model of step 20"]
    changed(run, {"ended_by": None, "best_step": None, "average": {"kind": "last_k", "num_averaged": 5.0}})
    stages = table_named(tables(read_runs([run])), "stages")
    assert stages.rows[1][stages.columns.index("model")].text == "average of 5 weights"
    assert "model" not in table_named(tables(read_runs([write_run(run.parent / "usual")])), "stages").columns


def test_a_mean_over_seeds_is_no_weights_of_its_own(tmp_path):
    facts = {"ended_by": "early stopping", "last_step": 40, "best_step": 20}
    folders = [write_run(tmp_path / f"seed-{seed}", seed=seed, stages=["grpo"], recipe=recipe_with(run__seed=seed)) for seed in (0, 1)]
    stages = table_named(tables(read_runs([changed(folder, facts) for folder in folders])), "stages")
    assert [row[stages.columns.index("model")].text for row in stages.rows][2] == "-"


def test_times_the_baseline_are_spoken_of_only_where_there_is_one(run, tmp_path):
    assert "Times the baseline" in table_named(tables(read_runs([run])), "stages").caption
    alone = write_run(tmp_path / "alone", stages=["grpo"])
    assert "Times the baseline" not in table_named(tables(read_runs([alone])), "stages").caption


def test_problems_have_thousands_separators(run):
    changed(run, {"num_problems": 1500, "num_graded_problems": 1498, "num_ungraded": 2})
    stages = table_named(tables(read_runs([run])), "stages")
    assert stages.rows[1][stages.columns.index("problems")].text == "1,498"


def test_differences_between_runs_are_a_table_too(run, tmp_path):
    other = write_run(tmp_path / "other", stages=["baseline", "grpo"], recipe=recipe_with(grpo__learning_rate=0.5))
    (other / "environment.json").write_text(json.dumps({"versions": {"python": "3.12"}}))
    found = tables(read_runs([run, other]))
    settings = table_named(found, "differences_settings")
    assert settings.columns == ("key", "one", "other")
    assert ["grpo.learning_rate", "0.001", "0.5"] in [[cell.text for cell in row] for row in settings.rows]
    environment = table_named(found, "differences_environment")
    assert [[cell.text for cell in row] for row in environment.rows] == [["versions.python", "3.11", "3.12"]]
    assert not [table for table in tables(read_runs([run])) if table.name.startswith("differences")]


def test_guards_say_what_fired_what_was_tried_and_whether_it_helped(run):
    events = [
        {"kind": "fired", "time_s": 9.0, "stage": "grpo", "step": 12, "guard": "entropy", "metric": "entropy_nats", "value": 0.0123456,
         "limit": 0.02, "action": "rollback", "text": "entropy fell"},
        {"kind": "rollback", "time_s": 9.1, "stage": "grpo", "step": 12, "to_step": 8, "remedy": "lower rate",
         "changes": {"grpo.learning_rate": [0.002, 0.001]}, "try": 1, "tokens_lost": 4000, "text": "back"},
        {"kind": "outcome", "time_s": 20.0, "stage": "grpo", "step": 20, "remedy": "lower rate", "helped": True, "text": "held"},
    ]  # fmt: skip
    (run / "guards.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = table_named(tables(read_runs([run])), "guards")
    assert [row[2].text for row in found.rows] == [
        "fired: entropy, rollback", "rollback to step 8: lower rate (grpo.learning_rate 0.002 to 0.001)", "lower rate helped",
    ]  # fmt: skip
    assert [cell.text for cell in found.rows[0]][3:6] == ["entropy_nats", "0.01235", "0.02"]
    assert "guards" not in {table.name for table in tables(read_runs([write_run(run.parent / "calm", stages=["grpo"])]))}


def test_a_run_without_a_finished_stage_has_no_table_of_results(tmp_path):
    folder = write_run(tmp_path / "young", stages=["grpo"])
    (folder / "summary.json").unlink()
    assert [table.name for table in tables(read_runs([folder]))] == ["idle"]


def test_a_stage_of_an_older_version_without_the_newer_keys_is_shown(run):
    summary = json.loads((run / "summary.json").read_text())
    for stage in summary["stages"]:
        for key in ("at_k", "by_level", "by_subject", "outcomes", "num_graded_problems", "num_samples", "policy_version", "device_s"):
            stage.pop(key)
        stage["mean_entropy_nats"] = None
    (run / "summary.json").write_text(json.dumps(summary))
    found = tables(read_runs([run]))
    assert [table.name for table in found] == ["stages", "known_results", "idle"]
    stages = found[0]
    cells = dict(zip(stages.columns, stages.rows[0], strict=True))
    assert (cells["problems"].text, cells["nats/token"].text) == ("40", "-")
