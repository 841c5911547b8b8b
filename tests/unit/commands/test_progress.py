"""What the commands and the scripts say while they work."""

import contextlib
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import psutil
from tiny_terminal import TinyTerminal

from mathrl_ray.commands import display

REPOSITORY = Path(__file__).parents[3]


def test_a_log_hears_of_work_that_finishes_nothing_for_long(monkeypatch, capsys):
    monkeypatch.setattr(display, "LINE_EVERY_S", 0.6)
    with display.progress("reading golds", 4) as advance:
        time.sleep(1.6)  # the work itself, long enough for two of the lines
        advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading golds 0/4 (0 %), 1 s so far"


def test_work_of_unknown_length_says_what_is_done_now(monkeypatch, capsys):
    monkeypatch.setattr(display, "LINE_EVERY_S", 0.6)
    with display.busy("preflight: data") as tell:
        tell("preflight: the model")
        time.sleep(1.6)  # the work itself, long enough for two of the lines
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "preflight: the model, 1 s so far"
    assert captured.out == ""


def test_short_work_says_nothing(capsys):
    with display.progress("grading", 2) as advance:
        advance(1)
        advance(1)
    with display.busy("writing"):
        pass
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def in_a_terminal(code, **variables):
    """What a terminal as stderr got, while stdout is a pipe; and what came through that."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "MATHRL_VIEW", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(REPOSITORY), **variables}
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time\nfrom mathrl_ray.commands import display\n{code}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        text=True,
    )
    os.close(theirs)
    stream = b""
    with contextlib.suppress(OSError):  # EIO: the process has ended
        while part := os.read(ours, 65536):
            stream += part
    os.close(ours)
    return stream.decode(), process.communicate(timeout=20)[0]


LONG = "with display.progress('grading [all]', 4) as advance:\n    time.sleep(2.6); advance(4); print('a result'); time.sleep(0.3)"


def test_a_terminal_gets_a_bar_after_two_seconds_and_a_pipe_beside_it_its_lines():
    stream, piped = in_a_terminal(LONG)
    screen = TinyTerminal(80, 24)
    screen.feed(stream)
    [line] = [line for line in screen.text() if line]
    assert line.startswith("grading [all] ━")
    assert "4/4" in line
    assert piped == "a result\n"
    assert screen.is_cursor_visible


def test_a_terminal_gets_nothing_for_short_work_nor_where_lines_are_wanted():
    assert in_a_terminal("with display.busy('writing'):\n    pass") == ("", "")
    assert in_a_terminal(LONG, MATHRL_VIEW="plain") == ("", "a result\n")


def script(end):
    return f"""
set -euo pipefail
source {REPOSITORY}/cluster/progress.sh
phase install "downloading"
sleep 1.6
phase install "linking"
sleep 0.7
phase_end
sleep 0.8
phase install "importing"
{end}
"""


def test_scripts_say_what_goes_on_and_leave_no_process_however_they_end():
    for end, status in (("true", 0), ("exit 3", 3), ("kill -9 $$", -9), ("false", 1)):
        environment = os.environ | {"MATHRL_PROGRESS_S": "0.5"}
        ended = subprocess.run(["bash", "-c", script(end)], env=environment, capture_output=True, text=True, timeout=30)
        assert ended.returncode == status
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        assert lines[0].startswith("install: downloading, ")
        assert lines[0].endswith(" s so far")
        assert any(line.startswith("install: linking, ") for line in lines)
        assert [line.split()[1] for line in lines] == sorted(
            (line.split()[1] for line in lines), key="downloading, linking, importing,".index
        )
        deadline = time.monotonic() + 10  # a killed script's last wait may go on for half a second
        while any("progress.sh" in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])):
            assert time.monotonic() < deadline
            time.sleep(0.1)
