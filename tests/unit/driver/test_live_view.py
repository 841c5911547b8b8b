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
from tiny_terminal import TinyTerminal

from mathrl_ray.driver.console import Console
from mathrl_ray.driver.live_state import LiveState, Measured
from mathrl_ray.driver.live_view import sparkline, view_lines, wants_view

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
    state.progress("grpo validation", 64, 500)
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


def test_updates_inside_of_a_round_give_the_loss_and_not_the_rounds_entropy():
    state = LiveState("my_run", STAGES)
    state.begin_stage("expert_iteration", "", 0.0)
    for update in (1, 2, 3):
        state.row({"stage": "expert_iteration", "step": 1, "loss": 1.0 / update, "entropy_nats": 9.0, "optimizer_step": update})
    assert state.curves == {"loss": [(1, 1.0), (2, 0.5), (3, 1.0 / 3)]}


def test_a_run_that_goes_back_forgets_the_steps_after_that():
    state = full_state()
    state.row(training_row(11, reward_mean=0.9))
    assert state.curves["reward"][-2:] == [(10, 0.2), (11, 0.9)]


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


@pytest.mark.parametrize(
    ("settings", "environment", "wanted"),
    [
        ({"force_terminal": True}, {}, True),
        ({"force_terminal": True}, {"MATHRL_VIEW": "plain"}, False),
        ({"force_terminal": True}, {"CI": "true"}, False),
        ({"force_terminal": True}, {"NO_COLOR": "1"}, True),
        ({"force_terminal": False}, {}, False),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, {}, False),
    ],
)
def test_the_view_is_for_people_at_a_terminal(settings, environment, wanted):
    assert wants_view(rich.console.Console(file=io.StringIO(), **settings), environment) is wanted


def on_terminal(width=80, height=24, **settings):
    file = io.StringIO()
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
    assert sum("── my_run" in line for line in lines) == 1, "an old frame was left"
    assert lines[-2].endswith("after")


def test_a_view_that_cannot_be_drawn_says_so_and_ends_nothing(nobody_sees):
    console, file = on_terminal()
    with console.live("my_run", STAGES):
        console.begin_stage("grpo", "")
        console._view.measured = Measured("x", None, None, None, 1, 1)
        console.say("goes on")
    assert "the live view cannot be drawn (TypeError" in file.getvalue()


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


def test_time_left_of_a_stage_that_goes_on_in_its_middle_follows_from_its_own_steps(capsys):
    now = [0.0]
    console = Console(clock=lambda: now[0])
    console.begin_stage("grpo", "")
    for step in (31, 32):
        now[0] += 10.0
        console.step("grpo", step, 40, {})
    assert capsys.readouterr().out.splitlines()[1:] == ["0:10  grpo step 31/40    90 s left", "0:20  grpo step 32/40    80 s left"]


def test_a_stages_loops_feed_the_view(tmp_path, nobody_sees):
    scene = LoopScene(tmp_path, eval={"validate_every": 2})
    console, _ = on_terminal()
    scene.run.console, seen = console, []
    told = console.progress
    console.progress = lambda *arguments: (seen.append(arguments), told(*arguments))
    with console.live("my_run", ["grpo"]), scene.run.recorder.watched(console):
        console.begin_stage("grpo", "6 steps")
        asyncio.run(scene.train())
        scene.run.show_sample(())
        lines = shown(console._view)
    text = "\n".join(lines)
    for part in ("reward", "load", "generator", "in flight", "grpo validation at step 6"):
        assert part in text, part
    assert seen[0] == ("grpo validation", 0, 8)
    assert seen[-1] == ("grpo validation", 8, 8)


CODE = """
import os, signal, subprocess, sys, time
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


def in_a_terminal(end, *, width=80, height=24, told=None, **variables):
    """What a real terminal of that size got, and the status."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "MATHRL_VIEW", "NO_COLOR", "COLUMNS", "LINES")}
    tests = str(Path(__file__).parent), str(REPOSITORY / "tests"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")
    environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(tests), **variables}
    code = CODE.format(tests=tests[0], end=end)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
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
        ("os._exit(1)", 1, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
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
