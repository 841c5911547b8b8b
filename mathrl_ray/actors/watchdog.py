"""A small process beside an actor that removes what the actor leaves when it is killed, or dies with its driver.

    actor --what it has started and opened--> watchdog: waits until the actor is gone --> ends those processes, removes those files

Ray ends the actors of a dead driver, but nobody ends an engine's processes that have lost their parent, or removes files in shared memory.
Started by the generator and by the learner on themselves, and by a driver that has started Ray itself, whose agents would outlive it for
a minute. As a program it is `python -m mathrl_ray.actors.watchdog PID CREATED_S`. It is nobody's child and in a session of its own, so that
neither Ctrl-C nor Ray's end of a worker's children reaches it; nor does cluster/down.sh, which ends all that has its head's mark and
leaves the watchdogs to clean up and end by themselves. Knows processes and files; knows no Ray and no engine.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from mathrl_ray.actors.footprint import Footprint, erase, is_alive, own_files, process_id, processes_that_name, still_there, whole_footprint

_LOOK_AGAIN_S = 0.25
_LOOK_FOR_FILES_S = 2.0
"""How often it looks by itself for shared memory of what was noted: an engine that ends with its actor tells nobody what it made since."""
_TRACKERS_LIMIT_S = 2.0
"""What Python's helpers for shared memory get to remove by themselves what they know of, once their processes are gone."""
_START_LIMIT_S = 10.0
_DONE, _LOOK = "done", "look"
_NOT_INHERITED = ("VLLM_RPC_BASE_PATH", "MATHRL_HEAD")
"""What marks processes as an engine's, and as those under a head (cluster/stopping.py): it is to outlive both."""


class Watchdog:
    """The actor's end."""

    def __init__(self, patterns: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
        """
        Args:
            patterns: of files that only this process makes (absolute, for Path.glob), whenever it makes them.
            folders: of its sockets, as footprint.py takes them; their names are unique, and processes that name them are its own.

        Raises:
            OSError: the process could not be started.
        """
        self._process = process_id(os.getpid())
        self._before = whole_footprint(self._process)
        command = [sys.executable, "-P", "-m", "mathrl_ray.actors.watchdog", *map(str, self._process)]
        started = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/", env=_environment())
        assert started.stdin is not None
        self._line = started.stdin
        self._say({"patterns": list(patterns), "folders": list(folders)})
        with contextlib.suppress(subprocess.TimeoutExpired):  # on a machine that busy it comes later
            started.wait(_START_LIMIT_S)  # it has a child, which stays and has no parent any more

    def note(self) -> None:
        """Tell it all that this process has now and had not before: to be called whenever something was added."""
        has = whole_footprint(self._process)
        self._say(_plain(Footprint(has.processes - self._before.processes, has.files - self._before.files)))

    def dismiss(self) -> None:
        """Let it end and remove nothing. Nothing may be noted any more."""
        self._say(_DONE)
        with contextlib.suppress(OSError):
            self._line.close()

    def _say(self, message: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was killed, or dismissed: then there is nobody to tell
            self._line.write(json.dumps(message).encode() + b"\n")
            self._line.flush()


def _environment() -> dict[str, str]:
    """Its own code, wherever the actor found it, and no mark of those that are ended."""
    package = str(Path(__file__).parent.parent.parent)
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return inherited | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}


def _plain(found: Footprint) -> dict[str, list[Any]]:
    return {name: sorted(values) for name, values in asdict(found).items()}


def main(pid: int, created_s: float) -> None:
    """Wait for the actor's end, then clean up, unless it said that there is nothing to do."""
    if os.fork():
        os._exit(0)
    patterns: list[str] = []
    left = Footprint()
    for message in _messages(pid, created_s):
        if message == _DONE:
            return
        if message == _LOOK:
            left |= Footprint(files=_files_of(left.processes))
            continue
        patterns += message.pop("patterns", [])
        left |= Footprint(**{name: frozenset(map(_hashable, values)) for name, values in message.items()})
    _clean_up(left, patterns, (pid, created_s))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _messages(pid: int, created_s: float) -> Iterator[Any]:
    """What the actor says, until it is gone; its last words too. In between, now and then, that it is time to look."""
    line, text, looked_s = sys.stdin.fileno(), b"", time.monotonic()
    while True:
        alive = is_alive(pid, created_s)  # before reading: what it said before its death is read after it
        while line >= 0 and select.select([line], [], [], _LOOK_AGAIN_S)[0]:
            got = os.read(line, 1 << 16)
            *whole, text = (text + got).split(b"\n")
            yield from map(json.loads, whole)
            if not got:
                line = -1
        if not alive:
            return
        if time.monotonic() - looked_s >= _LOOK_FOR_FILES_S:
            yield _LOOK
            looked_s = time.monotonic()
        if line < 0:
            select.select([], [], [], _LOOK_AGAIN_S)


def _clean_up(left: Footprint, patterns: Sequence[str], actor: tuple[int, float]) -> None:
    """Processes first, since they hold the files open and could make more."""
    processes = left.processes | {process for folder in left.folders for process in processes_that_name(folder)}
    files = left.files | _files_of(processes)
    trackers = frozenset(process for process in processes if _is_tracker(process))
    erase(Footprint(processes - trackers), actor)
    still_there(trackers, _TRACKERS_LIMIT_S)
    files |= {str(file) for pattern in patterns for file in Path("/").glob(pattern.lstrip("/"))}
    erase(Footprint(trackers, files, left.folders), actor)


def _files_of(processes: Iterable[tuple[int, float]]) -> frozenset[str]:
    return frozenset(file for process in processes for file in own_files(process))


def _is_tracker(process: tuple[int, float]) -> bool:
    with contextlib.suppress(psutil.Error):
        return is_alive(*process) and any("resource_tracker" in word for word in psutil.Process(process[0]).cmdline())
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
