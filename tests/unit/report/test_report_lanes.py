"""lane_spans.py and lanes.py: who worked when."""

import json
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import metrics_of, write_run

from mathrl_ray.report.figure import drawn, svg_of
from mathrl_ray.report.lane_spans import Span, Window, actors_of, busy_by_actor, busy_s, busy_shares, last_steps, spans_of, stage_windows
from mathrl_ray.report.lanes import MOST_ACTORS, MOST_RUNS, idle_table, lane_figures
from mathrl_ray.report.run_data import RunData, read_runs

ROWS = [
    {"stage": "baseline", "step": 0, "spans": [["generator-0", "generate", 0.0, 4.0], ["scorer-0", "score", 4.0, 5.0]]},
    {"stage": "grpo", "step": 0},
    {"stage": "grpo", "step": 1, "loss": 0.0, "spans": [["generator-0", "generate", 6.0, 8.0], ["learner-0", "train_policy", 8.0, 9.0]]},
    {"stage": "grpo", "step": 2, "loss": 0.0, "spans": [["generator-0", "canary", 9.0, 10.0], ["generator-0", "generate", 9.5, 10.0]]},
]
spans = st.lists(
    st.tuples(st.sampled_from(["a-0", "b-0"]), st.floats(0, 100), st.floats(0, 50)).map(lambda t: Span(t[0], "x", t[1], t[1] + t[2]))
)


def run_of(rows, name="run"):
    return RunData(Path(name), name, {}, {}, 0, "finished", [], {}, [], [], rows)


def test_stages_reach_from_their_first_work_to_their_last():
    assert stage_windows(ROWS) == [Window("baseline", 0.0, 5.0), Window("grpo", 6.0, 10.0)]


def test_an_actor_that_does_two_things_at_once_is_busy_once():
    busy = busy_by_actor(spans_of(ROWS))
    assert busy["generator-0"] == [(0.0, 4.0), (6.0, 8.0), (9.0, 10.0)]
    # of grpo's 4 s: 2 s of generating and 1 s of the canary with generating inside
    assert busy_s(busy["generator-0"], Window("grpo", 6.0, 10.0)) == 3.0


def test_shares_of_pieces_worked_out_by_hand():
    # pieces of 2 s of [0, 8): busy 0-3 and 5-6, so 2/2, 1/2, 1/2, 0/2
    assert busy_shares([(0, 3), (5, 6)], Window("", 0, 8), 4).tolist() == pytest.approx([1.0, 0.5, 0.5, 0.0])


@given(spans, st.integers(1, 50))
def test_the_pieces_add_up_to_the_busy_time(held, num_bins):
    window = Window("", 0.0, 151.0)
    for busy in busy_by_actor(held).values():
        total_s = busy_shares(busy, window, num_bins).sum() * window.length_s / num_bins
        assert total_s == pytest.approx(busy_s(busy, window), abs=1e-6)


def test_actors_stand_by_role_and_number():
    held = [Span(name, "", 0, 1) for name in ("scorer-0", "learner-0", "generator-10", "generator-2", "judge-1")]
    assert actors_of(held) == ["generator-2", "generator-10", "learner-0", "scorer-0", "judge-1"]


def test_damaged_spans_are_left_out():
    damaged = [["x"], None, ["a", "b", "c", "d"], ["a-0", "b", 5, 4], ["a-0", "b", 5, inf], ["a-0", "b", nan, 4]]
    row = {"stage": "grpo", "step": 1, "spans": [["generator-0", "generate", 0, 1], *damaged]}
    assert spans_of([row, {**row, "spans": None}, {**row, "spans": 3}]) == [Span("generator-0", "generate", 0.0, 1.0)]


def busy_of(folder):
    """Busy seconds of each role in grpo, by the table; and its seconds."""
    rows = [row for row in idle_table(read_runs([folder])).rows if row[0].text == "grpo"]
    return {row[1].text.removesuffix("-0"): row[3].number for row in rows}, rows[0][2].number


def test_work_that_a_rollback_threw_away_was_work_and_adds_up_to_what_the_summary_says(tmp_path):
    folder = write_run(tmp_path / "run", stages=["grpo"], rollbacks=[(12, 5), (13, 0)])
    (stage,) = json.loads((folder / "summary.json").read_text())["stages"]
    # 12 steps, 8 again from step 5, and 20 from the start: 40 of a second each, and twice 2 s between them
    assert stage["device_s"] == pytest.approx({"generator": 36.0, "learner": 22.0, "scorer": 13.6})
    busy, seconds = busy_of(folder)
    assert busy == pytest.approx(stage["device_s"])
    assert seconds == pytest.approx(40 + 2 * 2 - 0.1), "from 0.9 s before the first row to the last"
    whole, steps = lane_figures(read_runs([folder]))
    share = sum(row["busy_share"] for row in whole.data() if row["actor"] == "learner-0") / 240
    assert share == pytest.approx(22 / 43.9, abs=1e-3)
    assert {row["start_s"] for row in steps.data()} <= {span.start_s for span in spans_of(metrics_of(folder)[-7:])}


def test_work_that_a_resumed_run_does_again_is_counted_once_since_its_clock_was_set_back(tmp_path):
    folder = write_run(tmp_path / "run", stages=["grpo"], rollbacks=[(12, 5)])
    before = busy_of(folder)
    aside = folder / "superseded-2"
    aside.mkdir()
    rows = [row for row in metrics_of(folder) if row["step"] > 15 and "loss" in row]
    for row in rows:  # half a second later each: in gaps of what was done again
        row["time_s"] += 0.5
        row["spans"] = [[actor, what, start_s + 0.5, end_s + 0.5] for actor, what, start_s, end_s in row["spans"]]
    (aside / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_runs([folder])[0].stages[0].superseded[1].rows) == 5
    assert busy_of(folder) == before


def test_the_last_steps_are_of_the_stage_that_samples_in_its_steps():
    assert last_steps([*ROWS, {"stage": "sft", "step": 3, "loss": 1.0, "spans": [["learner-0", "train_sft", 11, 12]]}], 2) == Window(
        "grpo, steps 1 to 2", 6.0, 10.0
    )
    assert last_steps([{"stage": "grpo", "step": 1}], 2) is None


def test_each_run_has_two_figures_and_the_data_adds_up_to_the_idle_time():
    whole, steps = lane_figures([run_of(ROWS)])
    # the generator worked 4 + 2 + 1 of 10 s
    assert "generator-0 idle 30 %" in whole.caption
    assert "learner-0 idle 90 %" in whole.caption
    rows = [row for row in whole.data() if row["actor"] == "generator-0"]
    assert sum(row["busy_share"] * (row["end_s"] - row["start_s"]) for row in rows) == pytest.approx(7.0, abs=0.01)
    assert [(row["what"], row["start_s"]) for row in steps.data()] == [
        ("generate", 6.0), ("train_policy", 8.0), ("canary", 9.0), ("generate", 9.5),
    ]  # fmt: skip


def test_what_is_drawn_is_how_busy_each_was():
    whole, steps = lane_figures([run_of(ROWS)])
    shares = {}
    for row in whole.data():
        shares.setdefault(row["actor"], []).append(row["busy_share"])
    drawing = drawn(whole, "")
    for floor, (actor, held) in enumerate(reversed(shares.items())):
        heights = drawing.axes[0].patches[len(shares) - 1 - floor].get_data().values - floor
        assert heights == pytest.approx([0.86 * share for share in held], abs=1e-4), actor
    bars = [path.get_extents() for pieces in drawn(steps, "").axes[0].collections for path in pieces.get_paths()]
    # the first lane on top: generator at 1, learner at 0
    floors = {"generator-0": 1, "learner-0": 0}
    expected = [(row["start_s"], row["end_s"], floors[row["actor"]]) for row in steps.data()]
    assert sorted((bar.x0, bar.x1, bar.y0) for bar in bars) == sorted(expected)


def test_the_table_gives_each_actor_in_each_stage():
    table = idle_table([run_of(ROWS)])
    found = {(row[0].text, row[1].text): row[5].number for row in table.rows}
    # baseline lasts 5 s, of which the scorer worked 1; grpo 4 s, of which the learner worked 1
    assert found[("baseline", "scorer-0")] == pytest.approx(0.8)
    assert found[("grpo", "learner-0")] == pytest.approx(0.75)
    assert found[("whole run", "generator-0")] == pytest.approx(0.3)
    assert idle_table([run_of([])]) is None


def test_both_figures_are_drawn_with_their_frame_for_the_readout():
    for figure in lane_figures([run_of(ROWS)]):
        svg = svg_of(figure, "")
        assert "generator-0" in svg
        assert "idle" in svg
        assert "x_min" in svg


def test_a_name_that_looks_like_a_formula_is_drawn_as_text():
    rows = [{"stage": "grpo", "step": 1, "loss": 0, "spans": [["$x_{-0", "$\\frac{", 0, 1]]}]
    assert all("$x_{-0" in svg_of(figure, "") for figure in lane_figures([run_of(rows)]))


def test_many_actors_and_runs_are_cut_with_a_word():
    rows = [{"stage": "grpo", "step": 1, "loss": 0, "spans": [[f"scorer-{number}", "score", 0, 1] for number in range(MOST_ACTORS + 3)]}]
    assert "3 further actors are not shown" in lane_figures([run_of(rows)])[0].caption
    assert len(lane_figures([run_of(ROWS)] * (MOST_RUNS + 2))) == 2 * MOST_RUNS
    assert "The further 2 runs are left out" in idle_table([run_of(ROWS)] * (MOST_RUNS + 2)).caption


def test_a_stage_of_no_length_is_drawn():
    rows = [{"stage": "grpo", "step": 1, "loss": 0, "spans": [["learner-0", "start_stage", 1.0, 1.0]]}]
    assert all(svg_of(figure, "") for figure in lane_figures([run_of(rows)]))
