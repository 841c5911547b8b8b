import csv
import re
from pathlib import Path

import pytest
from command_words import refused, said
from made_up_runs import recipe_with, write_run

from mathrl_ray.commands import report as command
from mathrl_ray.commands.report import ReportOptions, output_of
from mathrl_ray.report.export import export
from mathrl_ray.report.figures import figures
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.report.tables import tables


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "one", stages=["baseline", "grpo"], num_steps=6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Once, since it takes seconds: a run, the folder of its figures and tables, what the export said, and what it told of its progress."""
    folder = tmp_path_factory.mktemp("exported")
    runs, done = read_runs([write_run(folder / "one", stages=["baseline", "grpo"], num_steps=6)]), []
    return runs, folder / "figures", export(runs, folder / "figures", done.append), done


def test_the_page_lies_in_the_runs_folder_unless_there_are_several_or_a_place_is_named(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    assert output_of(ReportOptions([one])) == one / "report.html"
    assert str(output_of(ReportOptions([one, other]))) == "report.html"
    assert output_of(ReportOptions([one], output=other / "x.html")) == other / "x.html"


def test_the_command_makes_the_page_and_says_where_it_is(run, capsys):
    told = said(capsys, "report", run)
    assert f"{run}/report.html: " in told
    assert "1 run (1 finished)" in told
    assert (run / "report.html").read_text().lower().startswith("<!doctype html>")


def test_a_damaged_file_is_warned_of_and_the_report_is_made(run, capsys):
    (run / "environment.json").write_text("{")
    assert "warning: one: environment.json is damaged" in said(capsys, "report", run)


def test_what_is_no_run_is_refused_and_nothing_is_written(tmp_path, run, capsys):
    assert "no such run directory" in refused(capsys, "report", run, tmp_path / "nowhere", "--output", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    assert "is a folder" in refused(capsys, "report", run, "--output", tmp_path)
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(capsys, "report", run, "--figures", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_every_figure_and_table_becomes_files_with_a_caption(exported):
    runs, folder, remarks, _ = exported
    assert remarks == []
    names = {path.name for path in folder.iterdir()}
    for figure in figures(runs):
        assert f"{figure.name}.csv" in names
        for axis in figure.axes:
            stem = f"{figure.name}-{axis}" if axis else figure.name
            assert (folder / f"{stem}.svg").read_bytes().startswith(b"<?xml")
            assert (folder / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
            assert (folder / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    for table in tables(runs):
        assert (folder / f"table-{table.name}.md").read_text() == table.to_markdown()
        assert (folder / f"table-{table.name}.tex").read_text() == table.to_latex()
        assert (folder / f"table-{table.name}.csv").read_text() == table.to_csv()
    captions = (folder / "captions.md").read_text().strip().splitlines()
    assert len([line for line in captions if line]) == len(figures(runs)) + len(tables(runs))
    assert all(re.match(r"\*\*.+\*\* \(.+\): .+", line) for line in captions if line)


def test_the_data_beside_a_figure_is_what_it_draws(exported):
    runs, folder, _, _ = exported
    figure = next(figure for figure in figures(runs) if figure.name == "entropy")
    with (folder / "entropy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == [row["value"] for row in figure.data()]


def test_an_export_replaces_its_own_files_and_leaves_others_also_in_the_folder_that_one_is_in(run, tmp_path, monkeypatch):
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "paper.tex").write_text("mine")
    (folder / "captions.md").write_text("old")
    monkeypatch.chdir(folder)
    export(read_runs([run]), Path())
    assert (folder / "paper.tex").read_text() == "mine"
    assert (folder / "captions.md").read_text() != "old"
    assert {"captions.md", "stages.svg"} <= {path.name for path in folder.iterdir()}
    assert not [path for path in (*folder.iterdir(), *tmp_path.iterdir()) if path.name.startswith(".")]


def test_a_wrong_folder_is_refused_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    told = refused(capsys, "report", tmp_path / "no-run", "--figures", tmp_path / "file" / "figures")
    assert f"{tmp_path / 'file'} is a file" in told


def test_an_export_that_fails_leaves_nothing(run, tmp_path):
    runs = read_runs([run])
    calls = []

    def advance(number):
        calls.append(number)
        if len(calls) == 3:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        export(runs, tmp_path / "figures", advance)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_figures_and_progress_agree_on_how_much_there_is(exported):
    runs, _, _, done = exported
    assert sum(done) == command.num_items(runs)


@pytest.mark.slow  # half a minute: each figure looks through all fonts for each sign
def test_names_that_no_font_here_has_are_said(tmp_path):
    folder = write_run(tmp_path / "run \U00013080", stages=["grpo"], num_steps=3)  # a hieroglyph
    other = write_run(tmp_path / "other", stages=["grpo"], num_steps=3, recipe=recipe_with(grpo__num_steps=9))
    (told,) = export(read_runs([folder, other]), tmp_path / "figures")
    assert "no font here" in told
