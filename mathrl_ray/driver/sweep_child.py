"""The process of one variant, and the line between it and its sweep.

    sweep ---- one line of JSON: stages, recipe ----> the variant's standard input, which stays open
          ---- "stop" -----------------------------> it sends itself SIGTERM: saves, and ends
          ---- the line breaks: the sweep is gone -> the same, and FORCE_LIMIT_S later the process is ended. Where the sweep had
                                                     started Ray itself, that is gone too (actors/watchdog.py): nothing can be saved
                                                     then, and the run goes on from its last checkpoint
          <--- its output: a file, which the sweep reads as it grows

The recipe goes through the line and not by a file and overrides, so that a variant that waits for hours runs what was checked, whatever
became of the file, and secrets are neither on disk nor in a list of processes. The process has a session of its own: Ctrl-C in the sweep's
terminal does not reach it. `ray job stop` does, though: it signals every descendant. So the sweep stops its variants by the line, where
being told twice is no second word (stopping.py), and not by a signal. Output goes to a file and not through a pipe, which would break under
a variant that still saves when its sweep has been killed.

Called by sweep_runs.py (Child) and by entry.py in the new process (told_to_run, follow). Knows processes; no recipe and no Ray.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from mathrl_ray.driver.stopping import FORCE_LIMIT_S, SAME_SIGNAL_S

COMMAND = (sys.executable, "-P", "-c", "from mathrl_ray.entry import run_variant; raise SystemExit(run_variant())")
"""Works from a checkout and inside of `ray job submit`, where no file of jobs/ need be known: the package is found through PYTHONPATH."""
_STOP = b"stop\n"
_AFTER_FORCE_S = 5.0
MOST_BYTES = 1 << 17
"""That are looked at in one call of `lines`: a sweep that has to stop must not read and mask for long. The log has all."""
MOST_LINES = 200
MOST_CHARACTERS = 2000
"""Of a line."""
NUM_LAST_LINES = 5
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,10}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)?|.)?")


class Child:
    """The sweep's end."""

    def __init__(self, command: Sequence[str], message: Mapping[str, Any], log: Path, lock: TextIO, environment: Mapping[str, str]) -> None:
        """
        Args:
            command: what to start.
            message: plain values for `told_to_run`.
            log: its output is appended.
            lock: an open file that it inherits, and so keeps locked; closed here.
            environment: on top of this process's own.

        Raises:
            OSError: it could not be started.
        """
        self.log, self.began_s = log, time.monotonic()
        self._rest = b""
        self._is_stopped = False
        with lock, log.open("ab") as output:
            self._position = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_package(), **environment},
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._line = self._process.stdin
        self._say(json.dumps(message).encode() + b"\n")

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Tell it to save and to end; once, however often this is called."""
        if not self._is_stopped:
            self._say(_STOP)
        self._is_stopped = True

    def kill(self) -> None:
        self._process.kill()

    def lines(self) -> list[str]:
        """What it has printed since the last call, in whole lines without empty ones; after its end the rest too. Where that is too much
        (MOST_BYTES, MOST_LINES), the end of it, with a line that says how much is in the log alone."""
        has_ended = self.status is not None
        with self.log.open("rb") as file:
            num_new = os.fstat(file.fileno()).st_size - self._position
            num_skipped = max(0, num_new - MOST_BYTES)
            file.seek(self._position + num_skipped)
            new = file.read(MOST_BYTES)
            self._position = file.tell()
        *whole, rest = ((b"" if num_skipped else self._rest) + new).replace(b"\r", b"\n").split(b"\n")
        self._rest = rest[: 4 * MOST_CHARACTERS]
        if has_ended:
            whole, self._rest = [*whole, self._rest], b""
        shown = [text for line in whole if (text := _plain(line))]
        if num_skipped:
            shown.insert(0, f"... {num_skipped:,} bytes more in the log")
        if len(shown) > MOST_LINES:
            shown[MOST_LINES - NUM_LAST_LINES : -NUM_LAST_LINES] = [f"... {len(shown) - MOST_LINES:,} lines more in the log"]
        return shown

    def close(self) -> None:
        """Forget it; it has ended."""
        with contextlib.suppress(OSError):
            self._line.close()
        self._process.wait()

    def _say(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended: its status says so
            self._line.write(message)
            self._line.flush()


def _plain(line: bytes) -> str:
    """A line for a log: no longer than MOST_CHARACTERS, without what moves a terminal's cursor or paints.

    >>> _plain(b"\\x1b[31mloss\\x1b[0m\\tnan\\x07 ")
    'loss\\tnan'
    """
    text = _ESCAPES.sub("", line[: 4 * MOST_CHARACTERS].decode(errors="replace"))
    text = "".join(character for character in text if character.isprintable() or character == "\t").rstrip()
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ... (the rest is in the log)"


def _package() -> dict[str, str]:
    """Where the new process finds this package: the copy that runs here, be it installed or uploaded."""
    package = str(Path(__file__).parent.parent.parent)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}


def told_to_run() -> tuple[dict[str, Any], BinaryIO]:
    """In the new process: what it is told, and the line, which nothing else in it reads any more."""
    line = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return json.loads(line.readline()), line


def follow(line: BinaryIO, since_told_s: Callable[[], float | None] = lambda: None) -> None:
    """Listen to the line from now on, in a thread: end this process as a signal would where it says so, or breaks.

    Args:
        line: of `told_to_run`.
        since_told_s: seconds since this process was told to stop; None where it was not.
    """
    threading.Thread(target=_listen, args=[line, since_told_s], daemon=True, name="sweep").start()


def _listen(line: BinaryIO, since_told_s: Callable[[], float | None]) -> None:
    while line.readline() == _STOP:
        if since_told_s() is None:
            os.kill(os.getpid(), signal.SIGTERM)
    told_s = since_told_s()
    if told_s is None or told_s > SAME_SIGNAL_S:  # else it has heard of it in another way, and ends
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FORCE_LIMIT_S + _AFTER_FORCE_S)  # a handler needs the main thread, which may hang in a library
    os.write(2, b"\nerror: the sweep of this run is gone, and it did not end by itself\n")
    os._exit(1)
