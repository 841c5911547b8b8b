"""What an actor has on its machine besides itself: child processes, and files that nobody removes after a kill.

Called by remote.py before and after it ends an actor, on the actor's machine, and by watchdog.py. Knows processes and files; knows no Ray
and no engine.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

GONE_LIMIT_S = 10.0
"""A killed process that is still there after this hangs in the kernel."""
LEAVING_LIMIT_S = 3.0
_LOOK_AGAIN_S = 0.02
_SHARED_MEMORY = ("/dev/shm/psm_", "/dev/shm/sem.mp-", "/dev/shm/deepspeed_allreduce_buffer_")
"""What Python's multiprocessing names its shared memory and semaphores, and DeepSpeed the buffers that its ranks share and never remove;
published weights, which others own, are named otherwise."""
_SOCKETS_VARIABLE = "VLLM_RPC_BASE_PATH"
_OWN_FOLDER = "mathrl-"
"""The folder of the engine's sockets, which generator.py makes for one engine alone and its processes inherit, and how its name begins."""
_SAME_TIME_S = 2.0
"""The creation time of one process, as told to several readers, may differ by a rounding."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Processes and files; plain values, since it is taken on one machine and kept on another."""

    processes: frozenset[tuple[int, float]] = frozenset()
    """(pid, creation time in s): a pid alone may be somebody else's by the time that it is used."""
    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()

    def __or__(self, other: "Footprint") -> "Footprint":
        return Footprint(self.processes | other.processes, self.files | other.files, self.folders | other.folders)


def process_id(pid: int) -> tuple[int, float]:
    """A running process, so that it is not mistaken for a later one with its pid."""
    return pid, psutil.Process(pid).create_time()


def whole_footprint(process: tuple[int, float]) -> Footprint:
    """As `footprint`, with the shared memory that the process itself has mapped."""
    return footprint(process) | Footprint(files=own_files(process))


def own_files(process: tuple[int, float]) -> frozenset[str]:
    """Shared memory that a process has mapped; nothing once it has ended."""
    with contextlib.suppress(OSError):
        return frozenset(_mapped_files(process[0]) if is_alive(*process) else ())
    return frozenset()


def processes_that_name(folder: str) -> Iterator[tuple[int, float]]:
    """This user's processes that were started with this folder of sockets, whoever their parent has become."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if folder in _sockets_folder(process):
                yield process_id(process.pid)


def footprint(process: tuple[int, float]) -> Footprint:
    """What a process has now; nothing once it has ended, which is why it is asked for as soon as there is something."""
    found = Footprint()
    for child in _children(process[0]) if is_alive(*process) else []:
        with contextlib.suppress(psutil.Error, OSError):  # a helper that has ended meanwhile has nothing
            found |= Footprint(frozenset({process_id(child.pid)}), frozenset(_mapped_files(child.pid)), _sockets_folder(child))
    return found


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _sockets_folder(child: psutil.Process) -> frozenset[str]:
    folder = child.environ().get(_SOCKETS_VARIABLE, "")
    return frozenset({folder} if Path(folder).name.startswith(_OWN_FOLDER) else ())


def _mapped_files(pid: int) -> Iterator[str]:
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith(_SHARED_MEMORY) and not path.endswith(" (deleted)"):
            yield path


def is_alive(pid: int, created_s: float) -> bool:
    """Whether it runs; one that has ended and whose parent has not noticed yet does not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created_s) < _SAME_TIME_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def erase(left: Footprint, leaving: tuple[int, float]) -> list[int]:
    """End the processes at once, wait until they are gone, then remove the files. Returns the pids that would not go.

    Args:
        left: what is to go.
        leaving: their parent, which was told to end: it gets LEAVING_LIMIT_S to do so, since Ray calls a sudden death an error.
    """
    still_there([leaving], LEAVING_LIMIT_S)
    processes = [leaving, *left.processes]
    for pid, created_s in processes:
        if is_alive(pid, created_s):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    stuck = still_there(processes, GONE_LIMIT_S)
    for file in left.files:
        Path(file).unlink(missing_ok=True)
    for folder in left.folders:
        _remove_sockets(Path(folder))
    return stuck


def still_there(processes: Collection[tuple[int, float]], limit_s: float) -> list[int]:
    """Wait until all are gone, at most the limit; who is left then."""
    deadline = time.monotonic() + limit_s
    # They are not this process's children, so there is nothing to wait on: looked at again and again.
    while (alive := [pid for pid, created_s in processes if is_alive(pid, created_s)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return alive


def _remove_sockets(folder: Path) -> None:
    """Sockets only, and the folder if that empties it: its name was read from an environment, so it may be anybody's."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            if file.is_socket():
                file.unlink(missing_ok=True)
        folder.rmdir()
