r"""The program that runs math-verify where it can be killed: a keeper, and one worker that it forks whenever it has none.

Started by grading_process.py as `python -m mathrl_ray.actors.grading_keeper LIMIT_S MEMORY_BYTES`, never imported. Knows no rewards.

    owner --[answer, gold]--> keeper --[answer, gold]--> worker: math-verify, which may hang, fill its memory or crash
          <----outcome-------        <----outcome-------

The keeper itself only waits, so it is always there to end the worker: at the limit, beyond the memory, when the owner is gone. The next
worker is forked from a keeper that has math-verify loaded, in some 10 ms, where a new program takes 0.4 s, and over 1 s on busy cores.

A program of its own, because each kind of multiprocessing has a trap here: fork copies the locks of the actor's other threads, while spawn
and forkserver import the caller's `__main__` again, so that a script without a guard would run twice. The fork above has no such trap: the
keeper has one thread.
"""

import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from mathrl_ray.actors.grading_process import receive, send
from mathrl_ray.core.grading.grade import algebraic_verdict, load

_WATCH_INTERVAL_S = 0.02
"""How often the worker's memory is looked at; it was seen to grow by at most 0.4 GiB/s, so by 8 MiB between two looks."""
_ADDRESS_SPACE_MARGIN_BYTES = 512 << 20
"""The kernel's own cap lies this far above ours, for what grows faster than we look."""


class _OwnerGoneError(Exception):
    """Nobody waits for the outcome any more."""


class _Worker:
    """A forked process that grades one item at a time, until it is ended."""

    def __init__(self, owner: socket.socket, limit_s: float, memory_bytes: int) -> None:
        self._owner, self._limit_s, self._memory_bytes = owner, limit_s, memory_bytes
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            owner.close()  # else the owner would not notice the keeper's end while this process computes
            self._channel.close()
            _serve(theirs, limit_s, memory_bytes)
        theirs.close()
        self._channel.settimeout(limit_s)

    def outcome(self, item: list[str]) -> str:
        """math-verify's outcome, or grader_timeout or grader_error, after which this worker must be ended.

        Raises:
            _OwnerGoneError: while the worker still computes.
        """
        deadline = time.monotonic() + self._limit_s
        try:
            send(self._channel, item)
            return self._wait(deadline) or receive(self._channel) or "grader_error"
        except TimeoutError:
            return "grader_timeout"
        except OSError:  # the worker died: a broken pipe or a reset connection
            return "grader_error"

    def _wait(self, deadline: float) -> str | None:
        """Wait for the reply, or for the worker's end; why it must be ended, when it must."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._owner, 0)  # tells the end of the owner, not a request
        while not (ready := poller.poll(_WATCH_INTERVAL_S * 1e3)):
            if time.monotonic() > deadline:
                return "grader_timeout"
            if self.resident_bytes() > self._memory_bytes:
                return "grader_error"
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
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._channel.close()


def main(limit_s: float, memory_bytes: int) -> None:
    """Answer the owner's items until the owner is gone."""
    owner = _take_over_the_channel()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the owner decides when this program ends
    load()  # math-verify and sympy, so that no worker has to
    gc.freeze()  # else the worker's first collection copies all that it shares with this process
    worker = None
    try:
        send(owner, "ready")
        while item := receive(owner):
            if worker and worker.has_died():
                worker.end()
                worker = None
            worker = worker or _Worker(owner, limit_s, memory_bytes)
            outcome = worker.outcome(item)
            # Half of the memory is kept free: what one item left behind must not cost the next one its grade.
            if outcome in ("grader_timeout", "grader_error") or worker.resident_bytes() > memory_bytes // 2:
                worker.end()
                worker = None
            send(owner, outcome)
    except (_OwnerGoneError, ConnectionError):  # the owner's end, at another moment than between two items
        pass
    finally:
        if worker:
            worker.end()


def _take_over_the_channel() -> socket.socket:
    """The owner's socket, which is our stdin and stdout, for the protocol alone: what a library prints goes to stderr."""
    owner = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return owner


def _serve(keeper: socket.socket, limit_s: float, memory_bytes: int) -> NoReturn:
    """The worker's life. It ends with its keeper: at once while it waits, a second after the limit while it computes."""
    try:
        _let_the_alarm_kill()
        _cap_address_space(memory_bytes + _ADDRESS_SPACE_MARGIN_BYTES)
        while item := receive(keeper):
            signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
            outcome = algebraic_verdict(*item)
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(keeper, outcome)
    finally:
        os._exit(1)  # whatever happened, MemoryError too: never back into the keeper's code, of which this process is a copy


def _let_the_alarm_kill() -> None:
    """For a worker whose keeper was killed: ended by the kernel, even inside one long call into C.

    Whoever started us may have left the signal blocked or ignored; both are inherited.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})


def _cap_address_space(limit_bytes: int) -> None:
    """Beyond it an allocation raises MemoryError, whatever the keeper has noticed. A lower limit that was inherited stays."""
    _, inherited = resource.getrlimit(resource.RLIMIT_AS)
    if inherited == resource.RLIM_INFINITY or limit_bytes < inherited:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, inherited))


if __name__ == "__main__":
    main(limit_s=float(sys.argv[1]), memory_bytes=int(sys.argv[2]))
