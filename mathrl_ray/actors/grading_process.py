"""A killable process for the grader and for reward functions, seen from its owner's side, and the channel to it.

Called by the scorer, in a thread a process, and by shared_grading.py: every method blocks, and none longer than its limit. Knows no rewards
and no event loop. The other side is grading_keeper.py, which enforces the limits on an item; here is only what to do when the keeper itself
is lost.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.types import Outcome

_START_LIMIT_S = 60.0
_KEEPER_GRACE_S = 10.0
"""The keeper answers within limit_s; on a machine so busy that it does not run, within this much more."""
_END_LIMIT_S = 2.0

TIMED_OUT, OUT_OF_MEMORY, DIED = "grader_timeout", "out_of_memory", "grader_error"
"""What `ask` answers for an item that has no answer of its own."""


class RewardFunctionError(ValueError):
    """A reward function that cannot be loaded; the message names the recipe's key and what was raised."""


class GradingProcess:
    """Grades one item at a time, each within its limits, and is started again when it is lost."""

    def __init__(self, limit_s: float, memory_bytes: int, functions: Sequence[FunctionSource] = ()) -> None:
        """
        Args:
            limit_s: wall-clock seconds that an item may take.
            memory_bytes: resident memory that the grading of an item may use, the 60 MiB of math-verify itself included.
            functions: reward functions that `ask` may name.
        """
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._functions = tuple(functions)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def verdict(self, answer: str, gold: str) -> Outcome:
        """What the grader says of one pair, grader_timeout at the limit, grader_error beyond the memory or after a crash.

        Raises:
            RuntimeError: no process could be started.
        """
        outcome: Outcome | str = self.ask(["", answer, gold])
        return "grader_error" if outcome == OUT_OF_MEMORY else outcome  # type: ignore[return-value]  # the keeper sends nothing else

    def ask(self, item: list[Any]) -> Any:
        """The keeper's answer to one item, or TIMED_OUT, OUT_OF_MEMORY or DIED.

        Args:
            item: ["", answer, gold], answered by an outcome; or [spec, problem as a dict, prompt, response, step], answered by
                {"parts": ...} or {"error": text}. What JSON does not know in a problem's other columns is sent as text.

        Raises:
            RuntimeError: no process could be started.
            RewardFunctionError: a reward function cannot be loaded.
        """
        channel = self.ready_channel()
        try:
            send(channel, item)
            answer = receive(channel)
        except OSError:  # the keeper was killed, or hangs (TimeoutError)
            answer = None
        if answer is None:
            self.end()
            return DIED
        return answer

    def ready_channel(self) -> socket.socket:
        """The channel to a keeper that has loaded the grader and the functions (0.4 s and theirs). One that died meanwhile is replaced.

        Raises:
            RuntimeError: no process could be started.
            RewardFunctionError: a reward function cannot be loaded.
        """
        if self._keeper and self._keeper.poll() is not None:
            self.end()
        if self._channel is None:
            self._channel = self._start()
        return self._channel

    def forget(self) -> None:
        """Let go of a keeper that is another process's, after a fork, without ending it."""
        if self._channel:
            self._channel.close()  # this process's copy: with it open, the keeper would not notice its owner's end
        self._keeper = self._channel = None

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
            send(channel, {"functions": {source.spec: asdict(source) for source in self._functions}, "search_path": sys.path})
            answer = receive(channel)
        except OSError:
            answer = None
        if answer != "ready":
            channel.close()
            self.end()
            if answer is not None:
                raise RewardFunctionError(answer)
            raise RuntimeError(
                f"a grading process ended while it started, or was not ready after {_START_LIMIT_S:.0f} s. It was started as "
                f"`{' '.join(command)}`; what it said is on this process's stderr."
            )
        channel.settimeout(self._limit_s + _KEEPER_GRACE_S)
        return channel


def send(channel: socket.socket, message: object) -> None:
    """Send one message: a line of JSON."""
    channel.sendall(encoded(message) + b"\n")


def encoded(message: object) -> bytes:
    """What the other side gets: JSON, which keeps any text that Python can hold, lone surrogates too."""
    return json.dumps(message, default=_plain).encode()


def _plain(value: Any) -> Any:
    """What stands in a data row and JSON does not know: arrays as lists, dates and the like as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


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
