import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise

import pytest
from evaluation_rows import row, write_evaluation
from made_up_runs import metrics_of, recipe_with, write_run
from matplotlib.backends.backend_svg import FigureCanvasSVG

from mathrl_ray.driver.evaluation_figures import figures_of
from mathrl_ray.report.drawing import COLOURS, new_drawing, number_ticks, run_style, short_names, short_number, style
from mathrl_ray.report.figure import AXES, name_of, svg_of
from mathrl_ray.report.figures import figures
from mathrl_ray.report.run_data import read_runs

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    sampling = {
        "data__prompt": "r1_zero", "generator__temperature": 0.9, "generator__top_p": 1.0, "generator__max_tokens": 48,
        "grpo__prompts_per_step": 32, "grpo__group_size": 8, "expert_iteration__questions": 256, "expert_iteration__group_size": 8,
        "expert_iteration__temperatures": [0.8, 1.0, 1.2],
    }  # fmt: skip
    recipes = [recipe_with(run__seed=seed, **sampling) for seed in (0, 1, 2)]
    return [write_run(root / f"seed-{seed}", seed=seed, recipe=recipe, num_steps=12) for seed, recipe in enumerate(recipes)]


@pytest.fixture(scope="module", params=[1, 3])
def drawn(request, folders):
    """(figure, axis, SVG) of each, of one run and of three."""
    return [(figure, axis, svg_of(figure, axis)) for figure in figures(read_runs(folders[: request.param])) for axis in figure.axes]


def own(drawn):
    """Without those of other files."""
    return [each for each in drawn if each[0].group != "lanes"]


def test_every_figure_is_whole_xml_with_words_for_those_who_do_not_see_it(drawn):
    for figure, axis, svg in drawn:
        root = ET.fromstring(svg)
        assert svg.startswith("<svg ")
        assert (root.get("role"), root.get("width")) == ("img", None)
        assert root.find(f"{SVG}title").text == figure.title
        assert root.find(f"{SVG}desc").text == figure.alt
        assert root.get("aria-labelledby") == f"{name_of(figure, axis)}-title {name_of(figure, axis)}-desc"


def test_no_id_comes_twice_in_a_page_and_every_reference_has_its_own(drawn):
    text = "".join(svg for _, _, svg in drawn)
    counts = Counter(re.findall(r'\bid="([^"]*)"', text))
    assert [name for name, number in counts.items() if number > 1] == []
    assert {*re.findall(r"url\(#([^)]*)\)", text), *re.findall(r'href="#([^"]*)"', text)} <= set(counts)


def test_a_page_may_forbid_styles_and_anything_from_elsewhere(drawn):
    for _, _, svg in drawn:
        assert not re.search(r"<style|\sstyle=|<script|<image|<foreignObject|@import", svg)
        assert set(re.findall(r'https?://[^"]*', svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_text_stays_text(drawn):
    for figure, _, svg in drawn:
        assert len(re.findall("<text", svg)) >= 4, figure.name


def test_numbers_on_the_axes_keep_all_their_digits(tmp_path):
    folder = write_run(tmp_path / "one", stages=["grpo"])
    rows = [{**each, "learning_rate": 0.000125 * each["step"]} if "loss" in each else each for each in metrics_of(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    figure = next(figure for figure in figures(read_runs([folder])) if figure.name == "learning_rate")
    with style():
        canvas = FigureCanvasSVG(figure.draw("step"))
        canvas.print_svg(io.StringIO())
        shown = [label.get_text() for label in canvas.figure.axes[0].get_yticklabels() if label.get_text()]
    texts = [element.text for element in ET.fromstring(svg_of(figure, "step")).iter(f"{SVG}text")]
    assert "0.001" in shown
    assert set(shown) & set(texts) >= {"0", "0.001", "0.002"}


def test_text_that_looks_like_an_attribute_is_not_touched(tmp_path):
    name = 'x id="patch_1" style="fill: red" 1.23456'
    folders = [write_run(tmp_path / each, stages=["grpo"], recipe=recipe_with(model__path=each), num_steps=2) for each in (name, "b")]
    figure = next(figure for figure in figures(read_runs(folders)) if figure.name == "entropy")
    assert short_names([name, "b"])[0] in [element.text for element in ET.fromstring(svg_of(figure, "step")).iter(f"{SVG}text")]


def test_every_line_of_a_run_can_be_found_by_its_class(drawn):
    for figure, axis, svg in own(drawn):
        indices = {row["run_index"] for row in figure.data() if axis == "" or row[axis] is not None}
        for index in indices - {-1}:
            assert f'class="run run{index}"' in svg, f"{figure.name} {axis}"
        assert ("group group0" in svg) == (-1 in indices), figure.name


def test_a_point_can_be_found_again_from_the_panels_and_the_data(folders):
    figure = next(figure for figure in figures(read_runs(folders[:1])) if figure.name == "entropy")
    for axis in AXES:
        root = ET.fromstring(svg_of(figure, axis))
        panels = {panel["stage"]: panel for panel in json.loads(root.get("data-panels"))}
        rows = [row for row in figure.data() if row["stage"] == "grpo"]
        panel = panels["grpo"]
        place = list(panels).index("grpo")
        groups = [group for group in root.iter(f"{SVG}g") if (group.get("class") or "").startswith("run ")]
        path = groups[place].find(f"{SVG}path").get("d")
        x, y = map(float, re.match(r"M ([\d.]+) ([\d.]+)", path).groups())
        first = rows[0]
        width, height = panel["right"] - panel["left"], panel["bottom"] - panel["top"]
        across = (first[axis] - panel["x_min"]) / (panel["x_max"] - panel["x_min"])
        up = (first["value"] - panel["y_min"]) / (panel["y_max"] - panel["y_min"])
        assert (x, y) == pytest.approx((panel["left"] + across * width, panel["bottom"] - up * height), abs=0.2)


def test_captions_of_what_is_sampled_say_how(drawn):
    captions = {figure.name: figure.caption for figure, _, _ in drawn}
    for name in ("response_tokens", "truncated", "importance_ratio", "zero_variance", *(each for each in captions if "reward" in each)):
        assert (
            "grpo 32 x 8 responses a step, temperature 0.9; prompt r1_zero, top-p 1, at most 48 tokens, reward default." in captions[name]
        )
    assert "responses a round" not in captions["importance_ratio"]  # expert iteration has no such rows
    assert "expert iteration 256 x 8 responses a round, temperature 0.8, 1, 1.2" in captions["reward"]


def test_validations_have_one_response_each_whatever_the_final_evaluation_has(tmp_path):
    folder = write_run(tmp_path / "four", stages=["baseline", "grpo"], num_samples=4)
    caption = next(figure.caption for figure in figures(read_runs([folder])) if figure.name == "accuracy")
    assert "Lines: n = 498 validation problems, one response each, 95 % Wilson intervals; " in caption
    assert (
        "n = 40 held-out problems, 4 responses each, 95 % bootstrap intervals over problems, at least as wide as Wilson's; prompt"
        in caption
    )
    assert "4 responses a problem" not in caption


def test_validations_of_an_older_version_without_their_n_have_a_caption(tmp_path):
    folder = write_run(tmp_path / "old", stages=["grpo"])
    newer = ("validation_num_problems", "validation_num_ungraded", "validation_ci95_low", "validation_ci95_high")
    rows = [{key: value for key, value in each.items() if key not in newer} for each in metrics_of(folder) if "accuracy" not in each]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "summary.json").unlink()
    caption = next(figure.caption for figure in figures(read_runs([folder])) if figure.name == "accuracy")
    assert caption.startswith("Lines: validation problems, one response each; prompt r1_zero")


def test_times_the_baseline_are_spoken_of_only_where_there_is_one(tmp_path):
    folder = write_run(tmp_path / "alone", stages=["grpo"])
    assert "baseline" not in next(figure.caption for figure in figures(read_runs([folder])) if figure.name == "stages")


def test_outcomes_are_said_in_words(folders):
    assert re.search(r"no answer \d", next(figure.alt for figure in figures(read_runs(folders[:1])) if figure.name == "outcomes"))


def test_captions_of_accuracies_say_n_interval_prompt_temperature_limit_and_grader(drawn):
    for figure, _, _ in own(drawn):
        assert "\n" not in figure.caption
        if figure.name in ("stages", "accuracy", "by_level", "by_subject"):
            for word in ("n = ", "95 %", "prompt r1_zero", "temperature 1", "at most 64 tokens", "grader default"):
                assert word in figure.caption, figure.name


def test_figures_are_the_same_bytes_when_they_are_drawn_again(folders):
    runs = read_runs(folders[:1])
    for figure in figures(runs)[:4]:
        assert svg_of(figure, figure.axes[0]) == svg_of(figure, figure.axes[0])


def test_twenty_eight_runs_look_different_and_neighbours_differ_without_colour_too():
    looks = [run_style(index) for index in range(28)]
    assert len({(look.colour, look.dash) for look in looks}) == 28
    assert all((one.marker, one.dash) != (other.marker, other.dash) for one, other in pairwise(looks))


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_stand_out_from_white_by_3_to_1(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 3.0


def test_names_that_are_no_plain_words_are_drawn_as_they_are(tmp_path):
    name = "a $x_1$ <b>&\"' 数学 run"
    folder = write_run(tmp_path / name, stages=["grpo"])
    other = write_run(tmp_path / "b", stages=["grpo"], recipe=recipe_with(grpo__learning_rate=1.0))
    subject = "<i>代数</i> $\\frac"
    for run in (folder, other):
        rows = [row(f"p{index}", subject=subject, num_response_tokens=5 + index) for index in range(8)]
        write_evaluation(run, "grpo-v3", rows)
        summary = json.loads((run / "summary.json").read_text())
        summary["stages"][0] |= figures_of(rows, seed=0)
        (run / "summary.json").write_text(json.dumps(summary))
    for figure in figures(read_runs([folder, other])):
        for axis in figure.axes:
            texts = [element.text for element in ET.fromstring(svg_of(figure, axis)).iter(f"{SVG}text")]
            if figure.name == "by_subject":
                assert subject in texts
            if figure.name == "reward":
                assert name in texts


def test_a_run_at_work_with_one_step_is_drawn(tmp_path):
    folder = write_run(tmp_path / "young", stages=["grpo"])
    rows = [row for row in metrics_of(folder) if row["step"] <= 1]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "summary.json").unlink()
    found = figures(read_runs([folder]))
    assert {"reward", "entropy", "loss"} <= {figure.name for figure in found}
    assert "stages" not in {figure.name for figure in found}
    for figure in found:
        for axis in figure.axes:
            ET.fromstring(svg_of(figure, axis))


def test_a_run_without_any_row_has_no_figure(tmp_path):
    (tmp_path / "recipe.toml").write_text("[run]\nseed = 3\n")
    assert figures(read_runs([tmp_path])) == []


def test_a_stage_whose_rows_are_gone_is_still_among_the_results(tmp_path):
    folder = write_run(tmp_path / "one", stages=["baseline", "grpo"])
    for path in (folder / "evaluations").iterdir():
        path.unlink()
    names = [figure.name for figure in figures(read_runs([folder]))]
    assert {"stages", "by_level", "outcomes"} <= set(names)
    assert "lengths" not in names


def test_a_rollback_is_marked_where_it_happened(tmp_path):
    folder = write_run(tmp_path / "saved", stages=["grpo"])
    event = {"kind": "rollback", "stage": "grpo", "step": 9, "to_step": 4, "remedy": "lower rate", "changes": {}}
    (folder / "guards.jsonl").write_text(json.dumps(event) + "\n")
    figure = next(figure for figure in figures(read_runs([folder])) if figure.name == "reward")
    assert "rolled back" in svg_of(figure, "step")
    assert "rolled back" not in svg_of(figure, "wall_clock_s")


def test_ratios_that_differ_from_1_by_rounding_are_drawn_as_1(tmp_path):
    folder = write_run(tmp_path / "near", stages=["grpo"])
    near = [{**each, "importance_ratio_mean": 1 + 1e-8 * each["step"]} if "loss" in each else each for each in metrics_of(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in near))
    figure = next(figure for figure in figures(read_runs([folder])) if figure.name == "importance_ratio")
    texts = [element.text for element in ET.fromstring(svg_of(figure, "step")).iter(f"{SVG}text")]
    assert {"0.999", "1", "1.001"} <= set(texts)
    assert texts.count("1") == 1


@pytest.mark.parametrize("ends", [(0.9995, 1.0005), (0.0, 3e-5), (1.1e6, 1.2e6), (-1e-3, 1e-3), (0.0, 0.3)])
def test_a_ticks_number_is_its_place(ends):
    with style():
        axes = new_drawing(2).add_axes((0.1, 0.1, 0.8, 0.8))
        axes.set_ylim(*ends)
        number_ticks(axes, "y", 4)
        texts = [label.get_text().replace("\N{MINUS SIGN}", "-").replace("k", "e3").replace("M", "e6") for label in axes.get_yticklabels()]
        spacing = axes.get_yticks()[1] - axes.get_yticks()[0]
    assert [float(text) for text in texts] == pytest.approx(list(axes.get_yticks()), abs=0.02 * spacing)


def test_numbers_on_an_axis_are_short():
    assert [short_number(value) for value in (0, 1e-6, 2.5e-4, 0.001, 99_000, 2e9)] == ["0", "1e-6", "2.5e-4", "0.001", "99k", "2G"]
