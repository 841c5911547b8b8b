import json
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import metrics_of, recipe_with, write_run

from mathrl_ray.report.curve_figures import curve_figures
from mathrl_ray.report.curves import Point, Series
from mathrl_ray.report.drawing import REFERENCE
from mathrl_ray.report.figure import drawn
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.report.seed_groups import SeedGroup, group_means, seed_groups, thinned

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


def points(numbers):
    return [Point(float(place), None, None, value) for place, value in enumerate(numbers)]


@given(values, st.integers(4, 50))
def test_thinning_keeps_first_last_lowest_and_highest_in_order_and_no_more_than_asked(numbers, most):
    kept = thinned(points(numbers), most)
    steps = [point.step for point in kept]
    assert len(kept) <= most or len(kept) == len(numbers) <= most
    assert steps == sorted(set(steps))
    assert (kept[0].step, kept[-1].step) == (0, len(numbers) - 1)
    assert min(point.value for point in kept) == min(numbers)
    assert max(point.value for point in kept) == max(numbers)
    assert all(numbers[int(point.step)] == point.value for point in kept)


def seeds_of(*runs):
    return [Series(index, 0, "grpo", "", tuple(given)) for index, given in enumerate(runs)]


def test_a_mean_over_three_seeds_has_students_interval_and_the_steps_that_all_have():
    runs = [[Point(1, 100, 2, 0.4), Point(2, 200, 4, 0.5)], [Point(1, 200, 3, 0.5)], [Point(1, 300, 7, 0.6)]]
    (mean,) = group_means([SeedGroup((0, 1, 2), "mean of 3 seeds")], seeds_of(*runs), (0.0, 1.0), 400)
    (point,) = mean.points  # step 2 is one seed's only
    # sd 0.1, t(2 degrees, 97.5 %) 4.3027: 0.5 -+ 4.3027 * 0.1 / sqrt(3) = 0.2516 and 0.7484
    assert (point.step, point.generated_tokens, point.wall_clock_s, point.value, point.n) == (1, 200, 4, pytest.approx(0.5), 3)
    assert (point.low, point.high) == (pytest.approx(0.2516, abs=1e-4), pytest.approx(0.7484, abs=1e-4))
    assert (mean.run_index, mean.group_index) == (-1, 0)


def test_a_stage_that_one_seed_does_not_have_has_no_mean():
    given_series = [Series(0, 0, "grpo", "", tuple(points([0.1]))), Series(1, 0, "sft", "", tuple(points([0.2])))]
    assert group_means([SeedGroup((0, 1), "")], given_series, (0.0, 1.0), 400) == []


def test_a_band_cannot_leave_the_bounds_of_a_share():
    (mean,) = group_means([SeedGroup((0, 1), "")], seeds_of(points([0.9]), points([1.0])), (0.0, 1.0), 400)
    assert mean.points[0].high == 1.0


def runs_with(tmp_path, *recipes):
    folders = []
    for number, changes in enumerate(recipes):
        recipe = recipe_with(**changes)
        folders.append(write_run(tmp_path / f"run{number}", seed=number, stages=["grpo"], recipe=recipe, num_steps=3))
    return read_runs(folders)


def test_runs_are_one_group_when_only_seed_name_and_what_changes_nothing_differ(tmp_path):
    same = {"run__name": "b", "run__seed": 1, "run__root": "/elsewhere", "run__resume": "auto", "study__seeds": [1, 2]}
    other = {"grpo__learning_rate": 2e-3, "run__seed": 2}
    repeated = {"run__seed": 1}
    assert [group.members for group in seed_groups(runs_with(tmp_path, {}, same, other, repeated))] == [(0, 1)]


def test_of_two_runs_with_one_seed_the_one_that_got_farther_is_in_the_group(tmp_path):
    dead, other, whole = runs_with(tmp_path, {}, {"run__seed": 1}, {})
    (dead.folder / "summary.json").write_text('{"stages": []}')
    runs = read_runs([run.folder for run in (dead, other, whole)])
    assert [group.members for group in seed_groups(runs)] == [(1, 2)]
    (whole.folder / "summary.json").write_text('{"stages": []}')
    assert [group.members for group in seed_groups(read_runs([run.folder for run in runs]))] == [(0, 1)], "where all is equal the first"
    (dead.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics_of(dead.folder)[:-1]))
    assert [group.members for group in seed_groups(read_runs([run.folder for run in runs]))] == [(1, 2)], "else the one with more rows"


def test_other_code_is_another_group(tmp_path):
    assert seed_groups(runs_with(tmp_path, {}, {"run__commit": "def", "run__seed": 1})) == []


def figure_named(found, name):
    return next(figure for figure in found if figure.name == name)


def test_updates_of_expert_iteration_lie_inside_their_round(tmp_path):
    folder = write_run(tmp_path / "ei", stages=["expert_iteration"])
    rows = figure_named(curve_figures(read_runs([folder])), "loss").data()
    assert [row["step"] for row in rows[:6]] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    assert [row["generated_tokens"] for row in rows[:4]] == [1000, 1000, 1000, 2000]


def test_updates_that_were_moved_aside_stand_at_the_tokens_of_their_own_round(tmp_path):
    folder = write_run(tmp_path / "ei", stages=["expert_iteration"])
    aside = folder / "superseded-1"
    aside.mkdir()
    rows = [row for row in metrics_of(folder) if row["step"] == 4]
    rows = [{**row, "consumed_tokens_total": 3500} if "consumed_tokens_total" in row else row for row in rows]
    (aside / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [row for row in figure_named(curve_figures(read_runs([folder])), "loss").data() if row["line"] == "superseded-1"]
    assert [row["generated_tokens"] for row in found] == [3500] * 3
    assert [row["step"] for row in found] == pytest.approx([10 / 3, 11 / 3, 4])


def test_sft_samples_nothing_and_so_is_not_drawn_against_tokens(tmp_path):
    folder = write_run(tmp_path / "sft", stages=["sft"])
    figure = figure_named(curve_figures(read_runs([folder])), "loss")
    assert {row["generated_tokens"] for row in figure.data()} == {None}
    assert figure.axes == ("step", "wall_clock_s")


def test_time_is_counted_from_the_stages_first_row(tmp_path):
    folder = write_run(tmp_path / "one", stages=["sft", "grpo"])
    first = next(row for row in metrics_of(folder) if row["stage"] == "grpo")
    row = next(row for row in figure_named(curve_figures(read_runs([folder])), "reward").data() if row["step"] == 4)
    logged = next(each for each in metrics_of(folder) if each["stage"] == "grpo" and each["step"] == 4 and "loss" in each)
    assert row["wall_clock_s"] == pytest.approx(logged["time_s"] - first["time_s"])


def test_each_rollback_leaves_a_line_of_its_own_at_the_tokens_and_times_of_its_rows(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"], rollbacks=[(12, 5), (13, 0)])
    found = curve_figures(read_runs([folder]))
    began = metrics_of(folder / "superseded-2")[0]["time_s"]
    for name, key in (("reward", "reward_mean"), ("accuracy", "validation_accuracy")):
        rows = figure_named(found, name).data()
        for line, where in (("superseded-1", "superseded-1"), ("superseded-2", "superseded-2"), ("", ".")):
            logged = [row for row in metrics_of(folder / where) if key in row]
            drawn_rows = [row for row in rows if row["line"] == line]
            assert [row["step"] for row in drawn_rows] == [row["step"] for row in logged]
            assert [row["generated_tokens"] for row in drawn_rows] == [row["consumed_tokens_total"] for row in logged]
            assert [row["wall_clock_s"] for row in drawn_rows] == pytest.approx([row["time_s"] - began for row in logged])
    rewards = figure_named(found, "reward").data()
    # 12 steps, 8 again from step 5: the third try begins after 20 steps of 1,000 tokens and a second, and twice 2 s
    third = next(row for row in rewards if row["line"] == "" and row["step"] == 1)
    assert (third["generated_tokens"], third["wall_clock_s"]) == (21_000, pytest.approx(25.0))


def test_a_stage_that_stopped_early_has_its_diamond_at_the_step_whose_model_it_is(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"])
    diamond = final_of(folder)
    assert (diamond["step"], diamond["generated_tokens"]) == (20, 20_000)
    (stage,) = json.loads((folder / "summary.json").read_text())["stages"]
    stage |= {"ended_by": "early stopping", "best_step": 10, "last_step": 20}
    (folder / "summary.json").write_text(json.dumps({"stages": [stage]}))
    assert final_of(folder)["step"] == 20, "its checkpoint could not be used, so that the last weights were evaluated"
    rows = [{**row, "step": 10} if "accuracy" in row else row for row in metrics_of(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    diamond = final_of(folder)
    assert (diamond["step"], diamond["generated_tokens"], diamond["wall_clock_s"]) == (10, 10_000, 10.0)
    assert diamond["value"] == stage["accuracy"]


def final_of(folder):
    return next(row for row in figure_named(curve_figures(read_runs([folder])), "accuracy").data() if row["line"] == "test")


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    folder = write_run(tmp_path / "nan", stages=["grpo"])
    rows = metrics_of(folder)
    for row in rows:
        if row["step"] in (3, 4) and "loss" in row:
            row["loss"] = float("nan") if row["step"] == 3 else float("inf")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = figure_named(curve_figures(read_runs([folder])), "loss").data()
    assert [row["step"] for row in found[:3]] == [1, 2, 5]


def test_a_sweep_of_sft_sizes_has_a_line_a_size(tmp_path):
    folder = write_run(tmp_path / "sizes", stages=["sft"])
    rows = metrics_of(folder)
    training = [row for row in rows if "loss" in row]
    small, large = ([{**row, "sft_size": size} for row in training] for size in (128, 256))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in small + large))
    found = figure_named(curve_figures(read_runs([folder])), "loss").data()
    assert {(row["line"]) for row in found} == {"128 traces", "256 traces"}
    assert [row["step"] for row in found if row["line"] == "256 traces"] == list(range(1, 21))


def test_a_long_run_is_thinned_and_the_caption_says_so(tmp_path):
    folder = write_run(tmp_path / "long", stages=["grpo"], num_steps=1000, validate=0)
    figure = figure_named(curve_figures(read_runs([folder])), "grad_norm")
    logged = [row["grad_norm"] for row in metrics_of(folder) if "grad_norm" in row]
    drawn = [row["value"] for row in figure.data()]
    assert len(drawn) <= 400
    assert (drawn[0], drawn[-1], max(drawn), min(drawn)) == (logged[0], logged[-1], max(logged), min(logged))
    assert "Thinned to 400 points a line" in figure.caption
    short = write_run(tmp_path / "short", stages=["grpo"])
    assert "Thinned" not in figure_named(curve_figures(read_runs([short])), "grad_norm").caption


def test_several_runs_have_a_figure_a_line_and_one_run_has_one(tmp_path):
    one, other = (write_run(tmp_path / f"s{seed}", seed=seed, stages=["grpo"], num_steps=5) for seed in (0, 1))
    assert {"reward", "staleness"} <= {figure.name for figure in curve_figures(read_runs([one]))}
    names = {figure.name for figure in curve_figures(read_runs([one, other]))}
    assert {"reward", "reward_format", "reward_answer", "staleness_mean", "staleness_max"} <= names


def test_the_words_for_a_screen_reader_say_first_last_lowest_and_highest(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"])
    rewards = [row["reward_mean"] for row in metrics_of(folder) if "reward_mean" in row]
    told = figure_named(curve_figures(read_runs([folder])), "reward").alt
    first, last, low, high = (f"{value:.3g}" for value in (rewards[0], rewards[-1], min(rewards), max(rewards)))
    assert f"grpo: first {first}, last {last}, lowest {low}, highest {high}." in told


def test_the_band_in_the_data_is_that_of_the_logged_numbers(tmp_path):
    folders = [write_run(tmp_path / f"seed-{seed}", seed=seed, stages=["grpo"]) for seed in range(3)]
    for folder in folders:
        text = (folder / "recipe.toml").read_text().replace(f'name = "{folder.name}"', 'name = "x"')
        (folder / "recipe.toml").write_text(text)
    found = figure_named(curve_figures(read_runs(folders)), "entropy").data()
    mean = next(row for row in found if row["run_index"] == -1 and row["step"] == 7)
    logged = [row["entropy_nats"] for folder in folders for row in metrics_of(folder) if row.get("step") == 7 and "loss" in row]
    spread = (sum((value - fmean(logged)) ** 2 for value in logged) / 2 / 3) ** 0.5 * 4.302652729911275
    assert (mean["value"], mean["low"], mean["high"]) == pytest.approx((fmean(logged), fmean(logged) - spread, fmean(logged) + spread))
    assert (mean["n"], mean["group"]) == (3, "mean of 3 seeds")


def lines_of(axes, word):
    """By their ids: of what begins with the word."""
    return [line for line in axes.get_lines() if str(line.get_gid()).startswith(word)]


def xy(rows, axis="step", unit=1.0):
    return [(row[axis] / unit, row["value"]) for row in rows]


def drawn_xy(line):
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_the_lines_that_are_drawn_are_the_rows_of_the_data_on_every_axis(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"], rollbacks=[(12, 5)], num_steps=250)
    mark = [(12.0, 0.0), (12.0, 1.0)]  # of the rollback
    for name in ("reward", "accuracy", "grad_norm"):
        figure = figure_named(curve_figures(read_runs([folder])), name)
        rows = {}
        for row in figure.data():
            rows.setdefault(row["line"], []).append(row)
        for axis in figure.axes:
            (axes, *_) = drawn(figure, axis).axes
            expected = [xy(held, axis, 60.0 if axis == "wall_clock_s" else 1.0) for held in rows.values()]
            found = [held for line in lines_of(axes, f"{name}-{axis}-run0") if (held := drawn_xy(line)) != mark]
            assert sorted(found) == sorted(map(sorted, expected))


def test_the_axis_of_bits_and_the_mark_of_a_rollback_are_where_they_belong(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"], rollbacks=[(12, 5)])
    axes = drawn(figure_named(curve_figures(read_runs([folder])), "entropy"), "step").axes[0]
    (bits,) = axes.child_axes
    bits.apply_aspect()
    # 1 nat is 1.442695 bits
    assert bits.get_ylim()[1] == pytest.approx(1.442695 * axes.get_ylim()[1])
    (mark,) = lines_of(axes, "entropy-step-run0-9")
    assert list(mark.get_xdata()) == [12, 12]


def test_the_baseline_and_the_intervals_of_validations_are_drawn_at_their_numbers(tmp_path):
    folder = write_run(tmp_path / "one", stages=["baseline", "grpo"], rollbacks=[(6, 0)])
    figure = figure_named(curve_figures(read_runs([folder])), "accuracy")
    axes = drawn(figure, "step").axes[0]
    baseline = json.loads((folder / "summary.json").read_text())["stages"][0]["accuracy"]
    assert [list(line.get_ydata()) for line in axes.get_lines() if line.get_gid() is None] == [[baseline, baseline]]
    intervals = [segment.tolist() for held in axes.collections for segment in held.get_segments()]
    assert intervals == [[[row["step"], row["low"]], [row["step"], row["high"]]] for row in figure.data()]
    assert len(intervals) == 4 + 1 + 1, "of validations, of the one that was moved aside, of the final evaluation"


@pytest.mark.parametrize("name", ["entropy", "grad_norm"])
def test_the_band_over_seeds_reaches_from_its_low_to_its_high_and_ends_where_a_logarithmic_axis_does(tmp_path, name):
    folders = [write_run(tmp_path / f"s{seed}", seed=seed, stages=["grpo"], recipe=recipe_with(run__seed=seed)) for seed in range(3)]
    figure = figure_named(curve_figures(read_runs(folders)), name)
    axes = drawn(figure, "step").axes[0]
    (band,) = [held for held in axes.collections if "group0" in str(held.get_gid())]
    floor = axes.get_ylim()[0] if name == "grad_norm" else -math.inf
    means = [row for row in figure.data() if row["run_index"] == -1]
    drawn_ends = {tuple(vertex) for vertex in band.get_paths()[0].vertices.tolist()}
    assert drawn_ends == {(row["step"], max(end, floor)) for row in means for end in (row["low"], row["high"])}
    if name == "grad_norm":
        assert axes.get_yscale() == "log"
        assert min(row["low"] for row in means) < 0 < floor, "three seeds that differ by a factor"
        assert floor < min(row["value"] for row in figure.data())
        assert axes.get_ylim()[1] > max(row["high"] for row in means)


def test_a_single_validation_that_was_moved_aside_is_seen(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"], rollbacks=[(6, 0)])
    axes = drawn(figure_named(curve_figures(read_runs([folder])), "accuracy"), "step").axes[0]
    (line,) = [line for line in lines_of(axes, "accuracy-step-run0") if len(line.get_xdata()) == 1 and line.get_marker() != "D"]
    assert (list(line.get_xdata()), line.get_marker(), line.get_color()) == ([5], ".", REFERENCE)
