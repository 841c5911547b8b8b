import asyncio
import contextlib
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from live_scene import STAGES, training_row
from loop_scene import LoopScene
from rich.cells import cell_len
from samples import recipe_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_rollback import FragileScene
from tiny_terminal import TinyTerminal

from mathrl_ray.driver.console import Console
from mathrl_ray.driver.evaluation_figures import flat_metrics
from mathrl_ray.driver.live_state import MOST_POINTS, LiveState, Measured, Series
from mathrl_ray.driver.live_view import sparkline, view_lines, wants_view
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.stages.grpo import run_grpo
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

REPOSITORY = Path(__file__).parents[3]


def validation_row(step, accuracy=0.5):
    interval = {"validation_ci95_low": accuracy - 0.04, "validation_ci95_high": accuracy + 0.04}
    counts = {"validation_num_problems": 500, "validation_num_ungraded": 3}
    return {"time_s": 1.0, "stage": "grpo", "step": step, "policy_version": step, "validation_accuracy": accuracy, **interval, **counts}


def full_state():
    state = LiveState("my_run", STAGES)
    state.begin_stage("grpo", "40 steps of 32 problems x 8 responses", 100.0)
    for step in range(1, 21):
        state.row(training_row(step))
    state.row(validation_row(20))
    state.at_step(20, 40, 75.0)
    state.take_sample("Start at 9. Down 3. Where?", "9-3=6 </think> <answer> 6 </answer>", "correct")
    state.warn("the first", 90.0)
    state.warn("the second", 130.0)
    state.progress("grpo validation", 64, 500, "responses")
    return state


def shown(state, width=100, height=40, now_s=1000.0):
    return [line.plain for line in view_lines(state, width, height, now_s)]


def test_a_wide_view_shows_everything_with_its_units():
    lines = shown(full_state())
    assert lines[0].startswith("── my_run · grpo, stage 3 of 3 ─")
    assert "16:40" in lines[0]
    text = "\n".join(lines)
    for part in (
        "20 of 40  about 1:15 left",
        "64 of 500, grpo validation",
        "reward    0.4 ",
        "format    0.9 ",
        "entropy   0.05 nats",
        "length    20.5 tokens",
        "accuracy  50.0 % (46.0 to 54.0) of 497, grpo validation at step 20",
        "75 %",
        "25 %",
        "5 %",
        "6 in flight, 1 grading, 2 buffered, 3 free; staleness 0.5, most 1",
        "sample    correct  Start at 9. Down 3. Where?",
        "9-3=6 </think> <answer> 6 </answer>",
        "warning   2:10  the second",
        "1:30  the first",
    ):
        assert part in text, part


@pytest.mark.parametrize(("width", "height", "gone"), [(60, 24, []), (60, 10, ["sample", "groups"]), (40, 8, ["load", "sample", "groups"])])
def test_a_small_terminal_loses_first_what_is_least_needed(width, height, gone):
    lines = shown(full_state(), width, height)
    text = "\n".join(lines)
    assert len(lines) < height
    name, accuracy = "my_run" if width > 40 else "stage 3 of 3", "50.0 % (46.0 to 54.0) of 497"
    for part in (name, "20 of 40", "reward", "accuracy", accuracy[: width - 12]):
        assert part in text, part
    assert not any(part in text for part in gone)


@given(st.integers(1, 200), st.integers(1, 60))
def test_no_line_is_wider_and_no_view_higher_than_the_terminal(width, height):
    lines = shown(full_state(), width, height)
    assert len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= max(20, width - 1) for line in lines)


def test_a_stage_that_has_just_begun_shows_its_plan_and_the_accuracy_before_it():
    state = LiveState("my_run", STAGES)
    assert len(shown(state)) == 1
    state.row({"time_s": 1.0, "stage": "baseline", "step": 0, "accuracy": 0.25, "num_problems": 1500, "num_ungraded": 0})
    state.begin_stage("sft", "128 traces, 4 steps of 32", 5.0)
    lines = shown(state)
    assert lines[1:] == ["plan      128 traces, 4 steps of 32", "accuracy  25.0 % of 1,500, baseline test at step 0"]


def test_a_new_stage_forgets_the_one_before_but_for_its_accuracy_and_the_warnings():
    state = full_state()
    state.begin_stage("grpo", "the next", 200.0)
    text = "\n".join(shown(state))
    assert all(part in text for part in ("the next", "accuracy  50.0 %", "the second"))
    assert not any(part in text for part in ("20 of 40", "64 of 500", "reward", "load", "groups", "sample", "Start at 9"))


def test_an_accuracy_of_several_responses_a_problem_says_how_many_problems_could_be_graded():
    state = LiveState("my_run", STAGES)
    counts = {"num_problems": 100, "num_ungraded": 120, "num_graded_problems": 98, "num_samples": 4, "at_k": []}
    rates = {"accuracy": 0.5, "format_rate": 1.0, "mean_entropy_nats": 0.1, "mean_response_tokens": 5.0}
    row = {"stage": "grpo", "step": 3, **flat_metrics({**counts, **rates})}
    state.row({**row, "ci95_low": 0.4, "ci95_high": 0.6})
    assert shown(state)[-1] == "accuracy  50.0 % (40.0 to 60.0) of 98 x 4, grpo test at step 3"
    del row["num_graded_problems"]  # of a former version
    state.row(row)
    assert shown(state)[-1] == "accuracy  50.0 % of 100 x 4, grpo test at step 3"


def test_updates_inside_of_a_round_give_the_loss_and_not_the_rounds_entropy():
    state = LiveState("my_run", STAGES)
    state.begin_stage("expert_iteration", "", 0.0)
    for update in (1, 2, 3):
        state.row({"stage": "expert_iteration", "step": 1, "loss": 1.0 / update, "entropy_nats": 9.0, "optimizer_step": update})
    assert state.curves.keys() == {"loss"}
    assert state.curves["loss"].values == [1.0, 0.5, 1.0 / 3]
    state.row({"stage": "expert_iteration", "step": 1, "reward_mean": 0.5, "pool_size": 7})
    state.row({"stage": "expert_iteration", "step": 2, "loss": 0.25, "optimizer_step": 4})
    assert any("loss      0.25 " in line for line in shown(state)), "from the second round on too"
    state.went_back(1)
    assert state.curves["loss"].values == [1.0, 0.5, 1.0 / 3]


def test_a_run_that_goes_back_forgets_the_steps_after_that():
    state = full_state()
    state.row(training_row(11, reward_mean=0.9))
    assert state.curves["reward"].values[-2:] == [0.2, 0.9]


def test_what_is_of_steps_that_were_taken_back_is_not_shown_any_more():
    state = LiveState("my_run", STAGES)
    state.row({"stage": "baseline", "step": 9, "accuracy": 0.25, "num_problems": 1500, "num_ungraded": 0})
    state.begin_stage("grpo", "40 steps", 0.0)
    for step in range(1, 9):
        state.row(training_row(step))
        state.at_step(step, 40, 75.0)
        if step % 2 == 0:
            state.row(validation_row(step, step / 10))
    state.take_sample("Start at 9", "collapsed", "wrong")
    state.went_back(5)
    text = "\n".join(shown(state))
    assert all(part in text for part in ("5 of 40", "40.0 % (36.0 to 44.0) of 497, grpo validation at step 4", "reward    0.1 "))
    assert not any(part in text for part in ("left", "collapsed", "load", "groups"))
    assert len(state.curves["reward"].values) == 5
    state.went_back(0)
    text = "\n".join(shown(state))
    assert "baseline test at step 9" in text
    assert "reward" not in text


def test_a_point_of_a_long_curve_is_the_mean_of_neighbours_and_what_is_written_beside_it_is_the_newest_value():
    series = Series()
    for step in range(1, 1001):
        series = series.followed_by((step, 0), float(step))
    # 401 points become 201 of 2 each, 401 of those 201 of 4: at the end 250 of 4, the first the mean of 1, 2, 3 and 4
    assert series.values == [4 * index + 2.5 for index in range(250)]
    assert series.latest == 1000


@given(st.lists(st.one_of(st.floats(-9, 9), st.just(float("nan"))), max_size=900), st.integers(1, 900))
def test_a_curve_of_a_long_run_stays_short_and_keeps_its_mean(values, back_to):
    series = Series()
    for step, value in enumerate(values, start=1):
        series = series.followed_by((step, 0), value)
    finite = [value for value in values if value == value]
    assert len(series.points) <= MOST_POINTS
    assert sum(point.num for point in series.points) == len(finite)
    assert sum(point.total for point in series.points) == pytest.approx(sum(finite), abs=1e-6)
    assert not values or series.latest == pytest.approx(values[-1], nan_ok=True)
    assert all(point.place[0] <= back_to for point in series.until(back_to).points)


def test_texts_of_strangers_are_one_line_without_secrets():
    state = LiveState("my_run", STAGES, secrets={"sesame-42-open"})
    state.begin_stage("grpo", "", 0.0)
    state.take_sample("a\x1b[2J\nb sesame-42-open", "x" * 100_000 + "\nthe \x1b]0;end\x07", "wrong")
    state.warn("two\nlines \x1b[31m sesame-42-open", 1.0)
    assert state.sample.problem == "a[2J b *masked*"
    assert state.sample.response.endswith("x the ]0;end")
    text = "\n".join(shown(state))
    assert "sesame" not in text
    assert "\x1b" not in text
    assert "two lines [31m *masked*" in text


def test_curves_are_drawn_from_zero_and_shorten_by_means():
    assert sparkline([0, 1, 2, 3], 8) == "▁▃▅▇"
    assert sparkline([1, 1, 3, 3, 2, 2], 3) == "▃▇▅"  # of 3: 1/3 x 6 = 2, 6, 2/3 x 6 = 4
    assert sparkline([0.5], 4, most=1.0) == "▄"  # half of 6
    assert sparkline([], 5) == ""
    assert sparkline([0.0, float("nan"), float("inf")], 5) == "▁"
    assert sparkline([-1.0, 0.0, 1.0], 5) == "▁▄▇"


class Screen(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("settings", "environment", "wanted"),
    [
        ({"_environ": {"FORCE_COLOR": "1"}, "file": io.StringIO()}, {"FORCE_COLOR": "1"}, False),
        ({"_environ": {"TTY_COMPATIBLE": "1"}, "file": io.StringIO()}, {"TTY_COMPATIBLE": "1"}, False),
        ({"force_terminal": True}, {}, True),
        ({"force_terminal": True}, {"MATHRL_VIEW": "plain"}, False),
        ({"force_terminal": True}, {"CI": "true"}, False),
        ({"force_terminal": True}, {"NO_COLOR": "1"}, True),
        ({"force_terminal": False}, {}, False),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, {}, False),
    ],
)
def test_the_view_is_for_people_at_a_terminal(settings, environment, wanted):
    assert wants_view(rich.console.Console(**{"file": Screen(), **settings}), environment) is wanted


def on_terminal(width=80, height=24, **settings):
    file = Screen()
    terminal = rich.console.Console(file=file, force_terminal=True, width=width, height=height, _environ={}, **settings)
    return Console({"sesame-42-open"}, terminal=terminal), file


@pytest.fixture
def nobody_sees(monkeypatch):
    for name in ("CI", "MATHRL_VIEW", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_lines_stand_above_the_view_whose_last_state_stays(nobody_sees):
    console, file = on_terminal()
    console.say("before")
    with console.live("my_run", STAGES):
        console.begin_stage("grpo", "2 steps")
        console.say("warning: grpo step 1: careful, sesame-42-open")
        console.row(training_row(1))
        console.step("grpo", 1, 2, {"reward": 0.5})
        print("printed by a library")
        console.row(training_row(2))
        console.step("grpo", 2, 2, {"reward": 0.75})
    console.say("after")
    screen = TinyTerminal(80, 24)
    screen.feed(file.getvalue())
    lines = screen.text()
    assert screen.is_cursor_visible
    assert not screen.is_alternate
    above = lines.index(next(line for line in lines if line.startswith("── my_run")))
    assert [line.partition("  ")[2] for line in lines[: above - 2]] == [
        "before",
        "grpo: 2 steps",
        "warning: grpo step 1: careful, *masked*",
    ]
    assert lines[above - 2] == "printed by a library"
    assert "grpo step 2/2  reward 0.75  0 s left" in lines[above - 1]
    assert "2 of 2" in lines[above + 1]
    assert "warning   0:00  grpo step 1: careful, *masked*" in lines[above:], "a warning is kept in sight"
    assert sum("── my_run" in line for line in lines) == 1, "an old frame was left"
    assert lines[-2].endswith("after")


def test_a_view_that_cannot_be_drawn_says_so_and_ends_nothing(nobody_sees):
    console, file = on_terminal()
    with console.live("my_run", STAGES):
        console.begin_stage("grpo", "")
        console._view.accuracies.append(Measured("x", None, None, None, 1, 1))
        console.say("goes on")
    assert "the live view cannot be drawn (TypeError" in file.getvalue()


def test_a_stage_that_goes_back_says_so_and_shows_where_it_is(nobody_sees):
    console, _ = on_terminal()
    with console.live("my_run", STAGES):
        console.begin_stage("grpo", "")
        for step in (1, 2, 3):
            console.row(training_row(step))
            console.step("grpo", step, 40, {})
        console.went_back("grpo", 1, "back from step 3")
        lines = shown(console._view)
        assert len(console._view.curves["reward"].values) == 1
    assert any(line.endswith("  1 of 40") for line in lines)
    assert "warning   0:00  grpo: back from step 3" in lines


def test_what_others_print_beside_the_view_is_no_markup(nobody_sees):
    console, file = on_terminal()
    with console.live("my_run", STAGES):
        print("see [/INST] [bold]here[/bold] :smile:", end="", flush=True)
    assert "see [/INST] [bold]here[/bold] :smile:" in file.getvalue()


def test_a_character_that_the_terminal_does_not_know_ends_no_run(monkeypatch):
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="latin-1", write_through=True))
    console = Console()
    console.say("warning: 题-1 is dropped")
    assert stream.getvalue() == b"0:00  warning: \\u9898-1 is dropped\n"


def test_without_a_terminal_the_lines_are_what_they_were(capsys):
    console = Console()
    with console.live("my_run", STAGES):
        assert not console.is_live
        console.begin_stage("grpo", "6 steps [of] 2")
        console.row(training_row(1))
        console.sample("a", "b", "wrong")
        console.step("grpo", 1, 6, {"reward": 0.5, "tokens": 20})
        console.step("grpo", 2, 6, {"reward": 0.5})
        console.step("grpo", 6, 6, {"reward": 0.25})
        console.say("a [bold]line[/bold] :smile: of 1,234 'tokens'")
    assert capsys.readouterr().out.splitlines() == [
        "0:00  grpo: 6 steps [of] 2",
        "0:00  grpo step 1/6  reward 0.5  tokens 20  0 s left",
        "0:00  grpo step 6/6  reward 0.25  0 s left",
        "0:00  a [bold]line[/bold] :smile: of 1,234 'tokens'",
    ]


def test_a_long_evaluation_gives_a_line_every_ten_seconds_in_a_log_and_a_short_one_none(capsys):
    now = [0.0]
    console = Console(clock=lambda: now[0])
    for what, each_s in (("baseline evaluation", 4.0), ("grpo validation", 0.5)):
        for num_done in range(0, 301, 60):
            console.progress(what, num_done, 300)
            now[0] += each_s
    # told at 0, 4, 8, 12, 16, 20 s of 0, 60, ..., 300 responses: at 12 s of 180; at 20 s all are there
    assert capsys.readouterr().out == "0:12  baseline evaluation: 180 of 300 responses\n"


def test_two_things_that_go_on_at_once_are_each_spoken_of(capsys):
    now = [0.0]
    console = Console(clock=lambda: now[0])
    with console.doing("grpo validation", 90) as validated, console.doing("round 1", 6, "updates") as updated:
        for num_done in range(1, 6):
            now[0] += 6.0
            updated(num_done)
            validated(10 * num_done)
    assert capsys.readouterr().out.splitlines() == [
        "0:12  round 1: 2 of 6 updates",
        "0:12  grpo validation: 20 of 90 responses",
        "0:24  round 1: 4 of 6 updates",
        "0:24  grpo validation: 40 of 90 responses",
    ]


def test_what_fails_does_not_stay_in_the_view_as_if_it_went_on(nobody_sees):
    console, _ = on_terminal()
    with console.live("my_run", STAGES):
        with contextlib.suppress(KeyError), console.doing("grpo validation", 90) as tell:
            tell(30)
            assert console._view.doing == {"grpo validation": (30, 90, "responses")}
            raise KeyError
        assert not console._view.doing


def test_time_left_of_a_stage_that_goes_on_in_its_middle_follows_from_its_own_steps(capsys):
    now = [0.0]
    console = Console(clock=lambda: now[0])
    console.begin_stage("grpo", "")
    for step in (31, 32):
        now[0] += 10.0
        console.step("grpo", step, 40, {})
    assert capsys.readouterr().out.splitlines()[1:] == ["0:10  grpo step 31/40    90 s left", "0:20  grpo step 32/40    80 s left"]


def test_time_left_of_a_stage_that_went_back_follows_from_its_steps_since(capsys):
    now = [0.0]
    console = Console(clock=lambda: now[0])
    console.begin_stage("grpo", "")
    for step in (31, 32, 30, 31):  # it went on after step 30, and then back behind that
        now[0] += 10.0 if step == 32 else 30.0
        console.step("grpo", step, 40, {})
    # 30 s for 1 step, 40 s for 2; then 30 s for 1, 60 s for 2
    left = [line.split("    ")[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert left == ["270 s left", "160 s left", "300 s left", "270 s left"]


def test_the_step_that_was_the_last_has_its_line_also_where_it_ended_early(capsys):
    console = Console(clock=lambda: 0.0)
    console.begin_stage("grpo", "")
    for step in (1, 2, 3):
        console.step("grpo", step, 40, {})
    console.say("grpo: stopped early after step 3")
    console.say("grpo: evaluating")
    console.step("grpo", 4, 40, {})
    console.begin_stage("sft", "")
    assert [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "grpo step 1/40    0 s left",
        "grpo step 3/40    0 s left",
        "grpo: stopped early after step 3",
        "grpo: evaluating",
        "grpo step 4/40    0 s left",
        "sft: ",
    ]


def test_a_stages_loops_feed_the_view(tmp_path, nobody_sees):
    scene = LoopScene(tmp_path, eval={"validate_every": 2})
    console, _ = on_terminal()
    scene.run.console, seen = console, []
    told = console.progress
    console.progress = lambda *arguments: (seen.append(arguments[:3]), told(*arguments))
    with console.live("my_run", ["grpo"]), scene.run.recorder.watched(console):
        console.begin_stage("grpo", "6 steps")
        asyncio.run(scene.train())
        scene.run.show_sample(())
        lines = shown(console._view)
        problem, completion = scene.run.train_problems[0], Completion("the answer", (1,), (-0.1,), ((0, 1),), "stop")
        sample = Trajectory("g", 0, problem.problem_id, (1,), completion, Grade(1.0, 1.0, 1.0, "correct", "5"))
        scene.run.show_sample([TrajectoryGroup("g", problem.problem_id, (sample,))])
        [first, second] = shown(console._view)[-2:]
        assert (first, second.strip()) == (f"sample    correct  {problem.problem}", "the answer")
    text = "\n".join(lines)
    for part in ("reward", "load", "generator", "in flight", "grpo validation at step 6"):
        assert part in text, part
    assert seen[0] == ("grpo validation", 0, 8)
    assert list(dict.fromkeys(what for what, _, _ in seen)) == [f"grpo validation{what}" for what in ("", ", entropies", ", grading")]
    assert seen[-1] == ("grpo validation, grading", 8, 8)


def test_a_rollback_stays_in_sight_and_what_was_taken_back_does_not(tmp_path, nobody_sees):
    scene = FragileScene(tmp_path)
    scene.run.console, _ = on_terminal()
    with scene.run.console.live("my_run", ["grpo"]), scene.run.recorder.watched(scene.run.console):
        asyncio.run(run_grpo(scene.run))
        view = scene.run.console._view
    assert any(text.startswith("grpo: back from step") for _, text in view.warnings)
    assert view.curves["reward"].values == [0.5] * 30  # as test_rollback.py's steps are, but for the collapse


CODE = """
import logging, os, signal, subprocess, sys, time
logging.basicConfig(format="%(message)s")
sys.path.insert(0, {tests!r})
from live_scene import STAGES, training_row
from mathrl_ray.driver.console import Console
console = Console()
console.say("before")
with console.live("my_run", STAGES):
    console.begin_stage("grpo", "3 steps")
    for step in (1, 2):
        console.row(training_row(step))
        console.step("grpo", step, 3, {{"reward": 0.5}})
        subprocess.run(["echo", "from a subprocess"])
        time.sleep(0.3)
    {end}
console.say("after")
"""


def in_a_terminal(end, *, width=80, height=24, told=None, stderr=None, **variables):
    """What a real terminal of that size got, and the status; stderr: a file in its place."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "MATHRL_VIEW", "NO_COLOR", "COLUMNS", "LINES")}
    tests = str(Path(__file__).parent), str(REPOSITORY / "tests"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")
    environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(tests), **variables}
    code = CODE.format(tests=tests[0], end=end)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=stderr or theirs, env=environment)
    os.close(theirs)
    stream = b""
    with contextlib.suppress(OSError):  # EIO: nobody is at the other end any more
        while part := os.read(ours, 65536):
            stream += part
            if told and b"ready" in stream:
                told(process, ours)
                told = None
    os.close(ours)
    return stream.decode(), process.wait(20)


@pytest.mark.parametrize(
    ("end", "status", "last"),
    [
        ("pass", 0, "after"),
        ("raise RuntimeError('it failed')", 1, "RuntimeError: it failed"),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
        ("time.sleep(1); os._exit(1)", 1, ""),
        ("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_however_a_run_ends_the_cursor_is_there_and_the_last_state_can_be_read(end, status, last):
    stream, ended = in_a_terminal(end)
    assert ended == status
    screen = TinyTerminal(80, 24)
    screen.feed(stream)
    lines = [line for line in screen.text() if line]
    assert screen.is_cursor_visible
    assert not screen.is_alternate
    assert lines[0].endswith("before")
    frame = max(index for index, line in enumerate(lines) if line.startswith("── my_run"))
    assert "2 of 3" in lines[frame + 1]
    assert any("reward    0.04" in line for line in lines[frame:])
    assert last in lines[-1]


def test_what_logging_writes_stands_above_the_view():
    stream, _ = in_a_terminal("logging.warning('by a library'); time.sleep(0.3)")
    screen = TinyTerminal(80, 24)
    screen.feed(stream)
    lines = screen.text()
    frame = max(place for place, line in enumerate(lines) if line.startswith("── my_run"))
    assert "by a library" in lines[:frame]


def test_stderr_that_is_sent_to_a_file_stays_in_it(tmp_path):
    with (tmp_path / "stderr").open("wb") as file:
        stream, _ = in_a_terminal("print('a traceback', file=sys.stderr); logging.warning('by a library')", stderr=file)
    assert (tmp_path / "stderr").read_text().splitlines() == ["a traceback", "by a library"]
    assert "my_run" in stream
    assert not any(text in stream for text in ("a traceback", "by a library"))


def test_it_is_drawn_four_times_a_second_and_again_for_each_line():
    stream, _ = in_a_terminal("time.sleep(2)")
    frames = stream.count("my_run")
    assert 6 <= frames <= 4 * 3.0 + 8  # about 2.6 s, and two lines said; a loaded machine draws less often


def test_a_window_that_is_pulled_smaller_gets_a_view_that_fits():
    def smaller(process, terminal):
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 50, 0, 0))
        process.send_signal(signal.SIGWINCH)

    stream, status = in_a_terminal("print('ready', flush=True); time.sleep(1.2)", width=100, height=40, told=smaller)
    assert status == 0
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", stream).replace("\r", "\n")
    frames = [part.split("\n") for part in plain.split("── my_run")[1:]]
    widths = [max(cell_len(line) for line in frame) + (len("── my_run") if index == 0 else 0) for index, frame in enumerate(frames)]
    assert max(widths) > 80
    last = [line for line in frames[-1] if line and "after" not in line]
    assert max(cell_len(line) for line in last) <= 49
    assert len(last) <= 9


def test_a_dumb_terminal_and_a_pipe_get_lines_only():
    stream, status = in_a_terminal("pass", TERM="dumb")
    assert status == 0
    assert "\x1b" not in stream
    assert "grpo step 1/3  reward 0.5" in stream
    assert "── my_run" not in stream


def test_without_colours_the_view_has_none():
    stream, _ = in_a_terminal("pass", NO_COLOR="1")
    assert "── " in stream
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m", stream)


def test_a_job_shows_what_its_recorder_writes_in_the_view_and_to_trackers(tmp_path, nobody_sees):
    from mathrl_ray.job import shown as shown_in_a_job  # Ray and torch

    recipe = recipe_for(tmp_path, trackers={"wandb": "off"})
    recorder, (console, file) = Recorder.create(recipe), on_terminal()
    with shown_in_a_job(recorder, recipe, ["grpo"], console):
        recorder.metrics("grpo", 1, 1, {"reward_mean": 0.5})
    recorder.close()
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", file.getvalue())
    assert f"── {recorder.folder.name} " in plain
    assert "reward    0.5 " in plain
    reader = EventAccumulator(str(recorder.folder / "tensorboard"))
    reader.Reload()
    assert [event.step for event in reader.Scalars("grpo/reward_mean")] == [1]
