"""Processes as /proc shows them: who belongs to whom, and signals that cannot hit a stranger.

Called by cluster/head.py. Knows nothing of Ray. A pid is used again after its process ends, so a process is a pid with its start time,
and every signal is sent only while both still agree.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SESSION, START_TICKS, PARENT, STATE = 3, 19, 1, 0
"""Fields 6, 22, 4 and 3 of /proc/<pid>/stat (proc(5)), counted from 0 after the pid and the name in brackets."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. Example: Process(pid=9116, start_ticks=81734)"""

    pid: int
    start_ticks: int
    """Clock ticks from boot to its start."""


def process(pid: int) -> Process | None:
    """The process with this pid now; None when there is none, or only a zombie."""
    fields = _stat(pid)
    return Process(pid, int(fields[START_TICKS])) if fields and fields[STATE] != "Z" else None


def in_session(session: int) -> list[Process]:
    """All processes, orphans included, whose session id this is."""
    return [found for pid, fields in _all_stats().items() if int(fields[SESSION]) == session and (found := process(pid))]


def descendants(pid: int) -> list[Process]:
    """Children of `pid` and theirs, whatever session they are in; `pid` itself is not among them."""
    parents = {child: int(fields[PARENT]) for child, fields in _all_stats().items()}
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return [found for member in family - {pid} if (found := process(member))]


def started_with(name: str, value: str) -> list[Process]:
    """All processes, of this user, that were started with this environment variable: detached ones and orphans too."""
    entry = f"{name}={value}".encode()
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to someone else
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and (member := process(pid)):
                found.append(member)
    return found


def send(target: Process, signal: int) -> None:
    """Signals this very process; does nothing when it is gone. Never this process or one that it runs under."""
    if process(target.pid) == target and target.pid not in _own_line():
        with contextlib.suppress(ProcessLookupError):  # it ended between the two lines
            os.kill(target.pid, signal)


def wait_until_gone(targets: Iterable[Process], limit_s: float) -> list[Process]:
    """Waits, at most `limit_s`; returns those still there."""
    deadline_s = time.monotonic() + limit_s
    left = list(targets)
    while (left := [each for each in left if process(each.pid) == each]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def listening_folders(processes: Iterable[Process]) -> set[Path]:
    """Folders of the Unix sockets that these processes hold."""
    held = {inode for each in processes for inode in _socket_inodes(each.pid)}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {Path(row[7]).parent for row in rows if len(row) > 7 and row[6] in held}


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name may hold spaces and brackets


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _all_stats() -> dict[int, list[str]]:
    return {pid: fields for pid in _pids() if (fields := _stat(pid))}


def _own_line() -> set[int]:
    """This process and its ancestors."""
    line, pid = set(), os.getpid()
    while pid and (fields := _stat(pid)):
        line.add(pid)
        pid = int(fields[PARENT])
    return line


def _socket_inodes(pid: int) -> list[str]:
    try:
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:  # it ended meanwhile, or belongs to someone else
        return []
    return [link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")]
