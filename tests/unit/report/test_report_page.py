"""page.py and charts.py without a browser: what the file holds, and that it appears whole."""

import json
import re

import pytest
from evaluation_rows import verdicts
from report_scene import metrics_rows, write_run

from mathrl_ray.report.charts import curve_numbers, row_numbers
from mathrl_ray.report.page import MOST_RUNS_IN_DETAIL, page_of, write_page
from mathrl_ray.report.run_data import read_runs


def plain_rows(version):
    return [{**each, "policy_version": version} for each in verdicts("+++-" if version else "+---")]


def page_text(*folders):
    return page_of(read_runs(folders))


def numbers_in(page):
    found = re.search(r'<script type="application/json" id="page-numbers">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory):
    return page_text(write_run(tmp_path_factory.mktemp("runs") / "plain", rows_of=plain_rows, guards=()))


def test_the_page_names_no_other_place(plain_page):
    names = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")  # of the SVG's language: nothing is fetched from there
    tags = "".join(re.findall(r"<[a-zA-Z][^>]*>|<style>.*?</style>", plain_page, re.DOTALL))
    for name in names:
        tags = tags.replace(f'"{name}"', "")
    assert not re.search(r"https?:|@import|url\((?!#)|<link|<iframe|<base| src=|href=\"(?!#)", tags)


def test_the_policy_allows_the_one_style_and_the_one_script(plain_page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', plain_page)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"<[^>]* (style|on[a-z]+)=", plain_page.split("<body>")[1].split("<script")[0])


def test_the_numbers_behind_the_curves_are_those_of_the_metrics(plain_page):
    held = numbers_in(plain_page)["grad_norm"]
    series = next(each for each in held["series"] if each["stage"] == "grpo")
    points = {held["xs"][point[0]][0]: point[1] for point in series["points"]}
    assert points == {row["step"]: pytest.approx(row["grad_norm"], rel=1e-4) for row in metrics_rows(20) if "grad_norm" in row}
    # a row stands at its time less that of the stage's first row, which is 15 s: 10 * 3 + 5 - 15 = 20 s at step 3
    assert next(x for x in held["xs"] if x[0] == 3) == [3, 3000, 20.0]


def test_a_finished_run_says_what_came_out(plain_page):
    assert "grpo answers 75.0 %" in plain_page
    assert "3.0 times the baseline" in plain_page
    assert "Guards" not in plain_page


def test_a_run_at_work_has_a_page_that_says_where_it_is(tmp_path):
    page = page_text(write_run(tmp_path / "r", num_steps=7, rows_of=plain_rows, is_finished=False))
    assert "while the run is at work" in page
    assert "stage grpo, step 7 of at most 7" in page


def test_a_run_that_has_written_nothing_but_its_recipe_has_a_page(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "recipe.toml").write_text('[run]\nname = "r"\n')
    page = page_text(tmp_path / "r")
    assert "nothing written yet" in page
    assert "No stage has ended" in page


def test_what_guards_did_is_told(tmp_path):
    page = page_text(write_run(tmp_path / "r", rows_of=plain_rows))
    assert "Went back" in page
    assert "learner.learning_rate</code>: 0.002 to 0.0005" in page
    assert "Helped" in page


def test_differences_between_runs_are_listed_and_many_runs_have_examples_of_the_first_only(tmp_path):
    folders = [write_run(tmp_path / f"r{seed}", num_steps=2, seed=seed, rows_of=plain_rows) for seed in range(MOST_RUNS_IN_DETAIL + 1)]
    page = page_text(*folders)
    assert "Differences between the runs: settings" in page
    assert re.findall(r"([A-Z]\w+) of the first 4 runs; 1 further run is left out here", page) == [
        "Lanes",
        "Failures",
        "Examples",
        "Settings",
    ]
    assert page.count("Most changed: baseline to grpo") == MOST_RUNS_IN_DETAIL


def test_the_file_appears_whole_or_not_at_all(tmp_path):
    run = read_runs([write_run(tmp_path / "r", num_steps=2, rows_of=plain_rows)])
    output = tmp_path / "new" / "folder" / "report.html"
    steps = []
    write_page(run, output, steps.append)
    assert output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert set(steps) == {1}
    output.write_text("before")

    def breaks(_):
        raise RuntimeError("stopped in the middle")

    with pytest.raises(RuntimeError):
        write_page(run, output, breaks)
    assert output.read_text() == "before"
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def test_points_of_several_lines_share_their_places():
    row = {"run": "a", "run_index": 0, "group": "", "stage": "grpo", "step": 1, "generated_tokens": None, "wall_clock_s": 2.345}
    held = curve_numbers([{**row, "line": "mean", "value": 1 / 3}, {**row, "line": "max", "value": 2.0, "low": 1.0, "high": 3.0, "n": 5}])
    assert held["xs"] == [[1, None, 2.3]]
    assert [(each["line"], each["points"]) for each in held["series"]] == [("mean", [[0, 0.33333]]), ("max", [[0, 2.0, 1.0, 3.0, 5]])]


def test_updates_of_a_round_keep_their_places():
    row = {"run": "a", "run_index": 0, "group": "", "stage": "expert_iteration", "line": "", "generated_tokens": None, "wall_clock_s": 1.0}
    held = curve_numbers([{**row, "step": step, "value": 1.0} for step in (1 / 32, 2 / 32, 1 / 3)])
    assert [x[0] for x in held["xs"]] == [0.0312, 0.0625, 0.3333]


def test_numbers_that_json_has_not_are_left_out_and_unseen_marks_are_shown():
    held = row_numbers([{"name": "a\u202eb", "value": float("nan")}, {"value": float("inf"), "other": [1]}])
    assert held == {"columns": ["name", "value", "other"], "rows": [["a⟦U+202E⟧b", None, None], [None, None, "[1]"]], "num_rows": 2}
