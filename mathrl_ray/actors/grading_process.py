"""A killable process for math-verify, seen from its owner's side, and the channel to it.

Called by the scorer, in a thread a process: every method blocks, and none longer than its limit. Knows no rewards and no event loop. The
other side is grading_keeper.py, which enforces the limits on an item; here is only what to do when the keeper itself is lost.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from mathrl_ray.types import Outcome

_START_LIMIT_S = 60.0
_KEEPER_GRACE_S = 10.0
"""The keeper answers within limit_s; on a machine so busy that it does not run, within this much more."""
_END_LIMIT_S = 2.0


class GradingProcess:
    """Grades one item at a time, each within its limits, and is started again when it is lost."""

    def __init__(self, limit_s: float, memory_bytes: int) -> None:
        """
        Args:
            limit_s: wall-clock seconds that an item may take.
            memory_bytes: resident memory that the grading of an item may use, the 60 MiB of math-verify itself included.
        """
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._keeper: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def verdict(self, answer: str, gold: str) -> Outcome:
        """What math-verify says of one item, grader_timeout at the limit, grader_error beyond the memory or after a crash.

        Raises:
            RuntimeError: no process could be started.
        """
        channel = self.ready_channel()
        try:
            send(channel, [answer, gold])
            outcome: Outcome | None = receive(channel)
        except OSError:  # the keeper was killed, or hangs (TimeoutError)
            outcome = None
        if outcome is None:
            self.end()
            return "grader_error"
        return outcome

    def ready_channel(self) -> socket.socket:
        """The channel to a keeper that has loaded math-verify (0.4 s on a free core). One that died meanwhile is replaced.

        Raises:
            RuntimeError: no process could be started.
        """
        if self._keeper and self._keeper.poll() is not None:
            self.end()
        if self._channel is None:
            self._channel = self._start()
        return self._channel

    def end(self) -> None:
        """Close the channel, upon which the keeper ends its worker and itself; kill it when it does not."""
        if self._channel:
            self._channel.close()
        if self._keeper:
            try:
                self._keeper.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:  # its worker then ends by itself, a second after the limit of its item
                self._keeper.kill()
                self._keeper.wait()
        self._keeper = self._channel = None

    def _start(self) -> socket.socket:
        channel, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "mathrl_ray.actors.grading_keeper", str(self._limit_s), str(self._memory_bytes)]
        with theirs:
            self._keeper = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), env=_keeper_environment())
        channel.settimeout(_START_LIMIT_S)
        try:
            ready = receive(channel) == "ready"
        except OSError:
            ready = False
        if not ready:
            channel.close()
            self.end()
            raise RuntimeError(
                f"a grading process ended while it started, or was not ready after {_START_LIMIT_S:.0f} s. It was started as "
                f"`{' '.join(command)}`; what it said is on this process's stderr."
            )
        channel.settimeout(self._limit_s + _KEEPER_GRACE_S)
        return channel


def send(channel: socket.socket, message: object) -> None:
    """Send one message: a line of JSON, which keeps any text that Python can hold, lone surrogates too."""
    channel.sendall(json.dumps(message).encode() + b"\n")


def receive(channel: socket.socket) -> Any:
    """The next message; None when the other side is gone. The sides take turns, so nothing ever follows the line."""
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(1 << 16)
        if not part:
            return None
        line += part
    return json.loads(line)


def _keeper_environment() -> dict[str, str]:
    """This process's; but the keeper finds this copy of the package, and sympy's results do not depend on a random hash seed."""
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": search_path, "PYTHONHASHSEED": "0"}
