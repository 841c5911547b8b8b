"""What is drawn, artist by artist, beside what figure.data() says of it: a page's numbers are of no use under another picture."""

import json
from math import log
from typing import get_args

import pytest
from made_up_runs import recipe_with, write_run
from matplotlib.collections import FillBetweenPolyCollection, LineCollection, PolyCollection
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Annotation

from mathrl_ray.report.figure import drawn
from mathrl_ray.report.figures import figures
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.types import Outcome


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root / f"seed-{seed}", seed=seed, recipe=recipe_with(run__seed=seed), num_steps=12) for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def one_run(folders):
    return {figure.name: figure for figure in figures(read_runs(folders[:1]))}


@pytest.fixture(scope="module")
def three_seeds(folders):
    return {figure.name: figure for figure in figures(read_runs(folders))}


def panels_of(figure, axis):
    """(stage, axes, what its x was divided by) of each part."""
    found = [(axes, axes.get_label()) for axes in drawn(figure, axis).axes]
    told = [(axes, json.loads(label.removeprefix("panel "))) for axes, label in found if label.startswith("panel ")]
    return [(each["stage"], axes, each["x_unit"]) for axes, each in told]


def only_axes(figure):
    ((_, axes, _),) = panels_of(figure, "")
    return axes


def rounded(pairs):
    return sorted((round(float(x), 4), round(float(y), 6)) for x, y in pairs)


def of_runs(axes):
    """Lines of runs and groups; those without a gid are references."""
    return [line for line in axes.lines if line.get_gid()]


def of_type(axes, kind):
    return [each for each in axes.get_children() if isinstance(each, kind)]


def check_points(figure):
    for axis in figure.axes:
        for stage, axes, unit in panels_of(figure, axis):
            points = [(unit * x, y) for line in of_runs(axes) for x, y in zip(*line.get_data(), strict=True)]
            rows = [row for row in figure.data() if row["stage"] == stage and row[axis] is not None]
            assert rounded(points) == rounded((row[axis], row["value"]) for row in rows), (figure.name, axis, stage)


def test_every_point_of_a_curve_is_drawn_where_its_row_says(one_run, three_seeds):
    held = [figure for found in (one_run, three_seeds) for figure in found.values() if figure.group == "curves"]
    assert len(held) > 20
    for figure in held:
        check_points(figure)


def test_whiskers_reach_from_the_low_to_the_high_end_of_an_interval(one_run):
    for stage, axes, _ in panels_of(one_run["accuracy"], "step"):
        ends = [tuple(end) for lines in of_type(axes, LineCollection) for segment in lines.get_segments() for end in segment]
        rows = [row for row in one_run["accuracy"].data() if row["stage"] == stage and row["low"] is not None]
        assert rounded(ends) == rounded((row["step"], row[end]) for row in rows for end in ("low", "high"))
        assert rows


def test_a_band_over_seeds_reaches_from_low_to_high(three_seeds):
    for stage, axes, unit in panels_of(three_seeds["entropy"], "wall_clock_s"):
        (band,) = of_type(axes, FillBetweenPolyCollection)
        corners = {(round(unit * x, 4), round(y, 6)) for x, y in band.get_paths()[0].vertices}
        rows = [row for row in three_seeds["entropy"].data() if row["stage"] == stage and row["run_index"] < 0]
        assert corners == set(rounded((row["wall_clock_s"], row[end]) for row in rows for end in ("low", "high")))


def test_the_bits_of_an_entropy_are_its_nats_by_ln_2(one_run):
    drawing = drawn(one_run["entropy"], "step")
    drawing.draw_without_rendering()
    for axes in drawing.axes:
        (bits,) = axes.child_axes
        assert bits.get_ylim() == pytest.approx([nats / log(2) for nats in axes.get_ylim()])


def test_the_baseline_is_drawn_at_its_accuracy(one_run):
    baseline = next(row["value"] for row in one_run["stages"].data() if row["stage"] == "baseline")
    for _, axes, _ in panels_of(one_run["accuracy"], "step"):
        (line,) = [line for line in axes.lines if not line.get_gid()]
        assert list(line.get_ydata()) == [baseline, baseline]
        (word,) = of_type(axes, Annotation)
        assert (word.get_text(), word.xy[1]) == ("baseline", baseline)


def test_rollbacks_are_marked_at_their_steps_and_the_first_has_the_word(tmp_path):
    folder = write_run(tmp_path / "saved", stages=["grpo"])
    event = {"kind": "rollback", "stage": "grpo", "time_s": 1.0, "to_step": 4, "remedy": "lower rate", "changes": {}}
    (folder / "guards.jsonl").write_text("".join(json.dumps({**event, "step": step}) + "\n" for step in (9, 10, 9)))
    figure = next(figure for figure in figures(read_runs([folder])) if figure.name == "reward")
    ((_, axes, _),) = panels_of(figure, "step")
    assert [list(line.get_xdata()) for line in axes.lines if list(line.get_ydata()) == [0, 1]] == [[9, 9], [10, 10]]
    (word,) = of_type(axes, Annotation)
    assert (word.get_text(), word.xy[0]) == ("rolled back", 9)


def marks_and_ranges(axes):
    """(y, value) of each mark, and (y, low, high) of each range."""
    data = [line.get_data() for line in of_runs(axes)]
    marks = [(ys[place], x) for xs, ys in data if len(xs) != 2 or ys[0] != ys[-1] for place, x in enumerate(xs)]
    ranges = [(ys[0], *xs) for xs, ys in data if len(xs) == 2 and ys[0] == ys[1]]
    ranges += [(start[1], start[0], end[0]) for lines in of_type(axes, LineCollection) for start, end in lines.get_segments()]
    return sorted(marks), sorted(ranges)


@pytest.mark.parametrize("name", ["stages", "by_level", "by_subject", "lengths"])
@pytest.mark.parametrize("several", [False, True])
def test_a_mark_stands_at_its_value_and_its_line_reaches_from_low_to_high(one_run, three_seeds, name, several):
    figure = (three_seeds if several else one_run)[name]
    marks, ranges = marks_and_ranges(only_axes(figure))
    rows = figure.data()
    assert sorted(x for _, x in marks) == pytest.approx(sorted(row["value"] for row in rows))
    told = {(round(row["value"], 9), round(row["low"], 9), round(row["high"], 9)) for row in rows}
    together = zip(marks, ranges, strict=True)  # both from the top to the bottom: nothing stands beside another thing
    assert {(round(x, 9), round(low, 9), round(high, 9)) for (_, x), (_, low, high) in together} == told
    assert [y for y, _ in marks] == [y for y, *_ in ranges]


def test_each_part_stands_in_its_own_row(one_run):
    axes = only_axes(one_run["by_level"])
    names = [label.get_text() for label in axes.get_yticklabels()]
    marks, _ = marks_and_ranges(axes)
    drawn_at = {(names[round(y)], round(x, 9)) for y, x in marks}
    assert drawn_at == {(f"level {row['part']}", round(row["value"], 9)) for row in one_run["by_level"].data()}


def test_a_stages_text_says_its_accuracy_and_times_the_baseline(one_run):
    texts = {each.get_text() for each in of_type(only_axes(one_run["stages"]), Annotation)}
    rows = one_run["stages"].data()
    times = [f"  \N{MULTIPLICATION SIGN}{row['times']:.1f}" if row["times"] else "" for row in rows]
    assert texts == {f"{100 * row['value']:.1f} %{each}" for row, each in zip(rows, times, strict=True)}
    assert "\N{MULTIPLICATION SIGN}: times the baseline" in one_run["stages"].caption


def test_bars_of_outcomes_are_as_wide_as_their_shares_and_follow_each_other(one_run):
    bars = [each for each in of_type(only_axes(one_run["outcomes"]), Rectangle) if each.get_gid()]
    stages = list(dict.fromkeys(row["stage"] for row in one_run["outcomes"].data()))
    for place, stage in enumerate(stages):
        shares = {row["outcome"]: row["value"] for row in one_run["outcomes"].data() if row["stage"] == stage}
        own = sorted((bar.get_x(), bar.get_width()) for bar in bars if round(bar.get_y() + bar.get_height() / 2) == place)
        wanted = [shares[name] for name in get_args(Outcome) if shares.get(name)]
        assert [width for _, width in own if width] == pytest.approx(wanted)
        assert [start for start, _ in own] == pytest.approx([sum(width for _, width in own[:before]) for before in range(len(own))])


def test_a_lane_is_as_high_as_its_actor_was_busy(one_run):
    figure = one_run["lanes-0"]
    lanes = of_type(only_axes(figure), StepPatch)
    actors = list(dict.fromkeys(row["actor"] for row in figure.data()))
    assert len(lanes) == len(actors)
    for actor, lane in zip(actors, lanes, strict=True):
        heights, edges, floor = lane.get_data()
        rows = [row for row in figure.data() if row["actor"] == actor]
        assert (heights - floor) / 0.86 == pytest.approx([row["busy_share"] for row in rows], abs=1e-4)
        assert edges[:-1] == pytest.approx([row["start_s"] for row in rows], abs=1e-3)
        assert max(row["busy_share"] for row in rows) > 0.1 + min(row["busy_share"] for row in rows)


def test_each_piece_of_work_of_the_last_steps_is_a_bar_from_its_start_to_its_end(one_run):
    figure = one_run["lanes-0-last-steps"]
    bars = [path.vertices for each in of_type(only_axes(figure), PolyCollection) for path in each.get_paths()]
    assert rounded((bar[:, 0].min(), bar[:, 0].max()) for bar in bars) == rounded((row["start_s"], row["end_s"]) for row in figure.data())
