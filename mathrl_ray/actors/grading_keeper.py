r"""The program that grades where it can be killed: a keeper, and one worker that it forks whenever it has none.

Started by grading_process.py as `python -m mathrl_ray.actors.grading_keeper LIMIT_S MEMORY_BYTES`, never imported. Knows no recipe.

    owner --functions--> keeper: loads them and the grader ------fork------.
    owner --item-------> keeper -----------item------------------> worker: the grader or a function, which may hang, fill its
          <--answer----         <--------answer-------------------         memory or crash

The items and their answers are those of `GradingProcess.ask`. The keeper itself only waits, so it is always there to end the worker: at the
limit, beyond the memory, when the owner is gone. The next worker is forked from a keeper that has everything loaded, in some 10 ms, where a
new program takes 0.4 s, and over 1 s on busy cores.

A program of its own, because each kind of multiprocessing has a trap here: fork copies the locks of the actor's other threads, while spawn
and forkserver import the caller's `__main__` again, so that a script without a guard would run twice. The fork above has no such trap: the
keeper has one thread, as long as no reward function's file starts one while it is imported.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from mathrl_ray.actors.function_source import Parts, described, load_functions
from mathrl_ray.actors.grading_process import DIED, OUT_OF_MEMORY, TIMED_OUT, receive, send
from mathrl_ray.core.grading.grade import algebraic_verdict, load
from mathrl_ray.core.rewards import Rollout
from mathrl_ray.types import Problem

_WATCH_INTERVAL_S = 0.02
"""How often the worker's memory is looked at; it was seen to grow by at most 0.4 GiB/s, so by 8 MiB between two looks."""
_ADDRESS_SPACE_MARGIN_BYTES = 512 << 20
"""The kernel's own cap lies this far above ours, for what grows faster than we look."""
_SIGNAL_AT_PARENTS_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""
_libc = ctypes.CDLL(None)


class _OwnerGoneError(Exception):
    """Nobody waits for the outcome any more."""


class _Worker:
    """A forked process that answers one item at a time, until it is ended."""

    def __init__(self, owner: socket.socket, functions: Mapping[str, Parts], limit_s: float, memory_bytes: int) -> None:
        self._owner, self._limit_s, self._memory_bytes = owner, limit_s, memory_bytes
        self._channel, theirs = socket.socketpair()
        keeper_pid = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            owner.close()  # else the owner would not notice the keeper's end while this process computes
            self._channel.close()
            _serve(theirs, functions, keeper_pid, memory_bytes)
        theirs.close()
        self._channel.settimeout(limit_s)

    def answer(self, item: list[Any]) -> Any:
        """The worker's answer, or one of TIMED_OUT, OUT_OF_MEMORY and DIED, after which this worker must be ended.

        Raises:
            _OwnerGoneError: while the worker still computes.
        """
        deadline = time.monotonic() + self._limit_s
        try:
            send(self._channel, item)
            return self._wait(deadline) or receive(self._channel) or DIED
        except TimeoutError:
            return TIMED_OUT
        except OSError:  # the worker died: a broken pipe or a reset connection
            return DIED

    def _wait(self, deadline: float) -> str | None:
        """Wait for the reply, or for the worker's end; why it must be ended, when it must."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._owner, 0)  # tells the end of the owner, not a request
        while not (ready := poller.poll(_WATCH_INTERVAL_S * 1e3)):
            if time.monotonic() > deadline:
                return TIMED_OUT
            if self.resident_bytes() > self._memory_bytes:
                return OUT_OF_MEMORY
        if any(descriptor == self._owner.fileno() for descriptor, _ in ready):
            raise _OwnerGoneError
        return None

    def resident_bytes(self) -> int:
        """Memory in use, as Linux tells it, what is shared with the keeper included; 0 once the worker died."""
        resident_pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")

    def has_died(self) -> bool:
        """Whether it ended by itself. It is not reaped yet, so that its pid is still its own in `end`."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> None:
        """End the worker, and whatever a reward function has started there."""
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not come so far as to lead a group
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._channel.close()


def main(limit_s: float, memory_bytes: int) -> None:
    """Answer the owner's items until the owner is gone."""
    owner = _take_over_the_channel()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the owner decides when this program ends
    worker = None
    try:
        functions = _load_everything(owner)
        while functions is not None and (item := receive(owner)):
            if worker and worker.has_died():
                worker.end()
                worker = None
            worker = worker or _Worker(owner, functions, limit_s, memory_bytes)
            answer = worker.answer(item)
            # Half of the memory is kept free: what one item left behind must not cost the next one its grade.
            if answer in (TIMED_OUT, OUT_OF_MEMORY, DIED) or worker.resident_bytes() > memory_bytes // 2:
                worker.end()
                worker = None
            send(owner, answer)
    except (_OwnerGoneError, ConnectionError):  # the owner's end, at another moment than between two items
        pass
    finally:
        if worker:
            worker.end()


def _load_everything(owner: socket.socket) -> Mapping[str, Parts] | None:
    """The reward functions, the grader and sympy, so that no worker has to. None where it cannot be, which the owner has been told."""
    wanted = receive(owner)
    if wanted is None:
        return None
    load()
    try:
        functions = load_functions(wanted["functions"], wanted["search_path"])
    except ValueError as error:
        send(owner, str(error))
        return None
    gc.freeze()  # else the worker's first collection copies all that it shares with this process
    send(owner, "ready")
    return functions


def _take_over_the_channel() -> socket.socket:
    """The owner's socket, which is our stdin and stdout, for the protocol alone: what a library prints goes to stderr."""
    owner = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return owner


def _serve(keeper: socket.socket, functions: Mapping[str, Parts], keeper_pid: int, memory_bytes: int) -> NoReturn:
    """The worker's life, which ends with its keeper's, whatever it computes."""
    try:
        os.setpgid(0, 0)  # what a function starts is ended with this process
        _die_with(keeper_pid)
        _cap_address_space(memory_bytes + _ADDRESS_SPACE_MARGIN_BYTES)
        while item := receive(keeper):
            send(keeper, _answer(functions, *item))
    finally:
        os._exit(1)  # whatever happened: never back into the keeper's code, of which this process is a copy


def _answer(functions: Mapping[str, Parts], spec: str, *arguments: Any) -> Any:
    try:
        return _parts(functions[spec], *arguments) if spec else algebraic_verdict(*arguments)
    except MemoryError:
        return OUT_OF_MEMORY


def _parts(function: Parts, problem: dict[str, Any], prompt: str, response: str, step: int) -> dict[str, Any]:
    try:
        return {"parts": function(Rollout(Problem(**problem), prompt, response, step))}
    except MemoryError:
        raise
    except BaseException as error:  # border: a stranger's function; SystemExit and what derives from BaseException only are its errors too
        return {"error": described(error)}


def _die_with(keeper_pid: int) -> None:
    """For a worker whose keeper was killed: ended by the kernel, even inside one long call into C.

    No alarm does it: math-verify's own time limit, which a reward function may use, sets and clears the one that there is.
    """
    _libc.prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper_pid:  # it died in the meantime
        os._exit(1)


def _cap_address_space(more_bytes: int) -> None:
    """Beyond it an allocation raises MemoryError, whatever the keeper has noticed. A lower limit that was inherited stays.

    It counts from what is mapped already: the libraries that a reward function imports map far more than they use.
    """
    mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = mapped_pages * os.sysconf("SC_PAGE_SIZE") + more_bytes
    _, inherited = resource.getrlimit(resource.RLIMIT_AS)
    if inherited == resource.RLIM_INFINITY or limit_bytes < inherited:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, inherited))


if __name__ == "__main__":
    main(limit_s=float(sys.argv[1]), memory_bytes=int(sys.argv[2]))
