"""What learner and generators say to each other while weights move on a GPU: one line a generator, over which the learner gives orders.

Used by nccl, over TCP, and ipc, over a socket file that only its owner can open. The weights themselves go another way. The learner's end
blocks and runs in a thread (sender.py); a generator's end is asynchronous (receiver.py). Knows sockets; knows no engine.

    learner     {"method": "update_weights", "argument": {...}}   as length (4 bytes, big end first) and JSON
    generator   {} for done, {"error": "..."} for failed

Like NCCL's own meeting point, the TCP port trusts whoever reaches it: a cluster's network is taken to be the cluster's own.
"""

import asyncio
import json
import socket
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.types import WeightMeeting, WeightTransport
from mathrl_ray.weight_sync.errors import TransferError

LENGTH = struct.Struct(">I")
LIMIT_KEY = "driver.sync_limit_s"


class GeneratorLines:
    """The learner's end of all lines. After any error all are closed, and the parties must meet anew."""

    def __init__(self, limit_s: float) -> None:
        """limit_s: the longest wait for all generators, in each call."""
        self._limit_s = limit_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: socket.socket | None = None
        self._lines: dict[int, socket.socket] = {}

    def listen(self, transport: WeightTransport, host: str, num_generators: int) -> WeightMeeting:
        """Open a new meeting point, in place of what was open before; returns at once."""
        self.close()
        if transport == "ipc":
            self._folder = tempfile.TemporaryDirectory(prefix="mathrl-", ignore_cleanup_errors=True)  # mode 0700
            address, port = str(Path(self._folder.name, "meeting")), 0
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(address)
            self._server.listen(num_generators)
        else:
            self._server = socket.create_server((host, 0), backlog=num_generators)
            address, port = host, self._server.getsockname()[1]
        return WeightMeeting(transport, address, port, num_generators)

    def accept(self, num_generators: int) -> None:
        """Wait for all generators; each says its number.

        Raises:
            TransferError: some did not come in time; they are named.
        """
        assert self._server is not None, "listen() comes first"
        deadline = time.monotonic() + self._limit_s
        while missing := sorted(set(range(num_generators)) - self._lines.keys()):
            self._server.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                line, _ = self._server.accept()
                self._lines[_receive(line, deadline)["index"]] = line
            except (OSError, ValueError, KeyError) as error:  # TimeoutError is an OSError
                self.close()
                names = ", ".join(f"generator-{index}" for index in missing)
                raise TransferError(f"{names} did not come to the meeting within {self._limit_s:g} s ({LIMIT_KEY}): {error}") from error

    def order(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        """Give each generator an order, and wait until all have done it.

        Args:
            method: of vLLM's weight-transfer interface.
            arguments: one a generator, by its number.

        Raises:
            TransferError: a generator failed, ended, or did not answer in time.
        """
        deadline = time.monotonic() + self._limit_s
        try:
            for index, argument in enumerate(arguments):
                self._ask(index, method, argument)
            for index in range(len(arguments)):
                self._hear(index, method, deadline)
        except TransferError:
            self.close()
            raise

    def _ask(self, index: int, method: str, argument: Mapping[str, Any]) -> None:
        line = self._lines.get(index)
        if line is None:
            raise TransferError(f"generator-{index} has no line to the learner: they must meet first")
        try:
            line.settimeout(self._limit_s)
            line.sendall(_frame({"method": method, "argument": argument}))
        except OSError as error:
            raise TransferError(f"generator-{index} was gone before {method}: {error}") from error

    def _hear(self, index: int, method: str, deadline: float) -> None:
        try:
            answer = _receive(self._lines[index], deadline)
        except TimeoutError as error:
            raise TransferError(f"generator-{index} did not answer {method} within {self._limit_s:g} s ({LIMIT_KEY})") from error
        except OSError as error:
            raise TransferError(f"generator-{index} was gone in {method}: {error}") from error
        if "error" in answer:
            raise TransferError(f"generator-{index} failed in {method}: {answer['error']}")

    def close(self) -> None:
        for each in (*self._lines.values(), *([self._server] if self._server else [])):
            each.close()
        self._lines, self._server = {}, None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class LearnerLine:
    """A generator's end of its line."""

    def __init__(self, limit_s: float) -> None:
        """limit_s: the longest wait for the learner, in each call."""
        self._limit_s = limit_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, meeting: WeightMeeting, index: int) -> None:
        """Go to the meeting point as number `index`, in place of an earlier line.

        Raises:
            TransferError: nobody is there.
        """
        self.close()
        opening = asyncio.open_connection(meeting.address, meeting.port) if meeting.port else asyncio.open_unix_connection(meeting.address)
        try:
            self._reader, self._writer = await asyncio.wait_for(opening, self._limit_s)
            await self._send({"index": index})
        except (OSError, TimeoutError) as error:
            raise TransferError(f"the learner was not at the meeting point {meeting.address}:{meeting.port}: {error}") from error

    async def next_order(self) -> tuple[str, dict[str, Any]]:
        """(method, argument) of the learner's next order.

        Raises:
            TransferError: the learner gave none in time, or is gone.
        """
        if self._reader is None:
            raise TransferError("this generator has no line to the learner: they must meet first")
        try:
            length = await asyncio.wait_for(self._reader.readexactly(LENGTH.size), self._limit_s)
            message = json.loads(await asyncio.wait_for(self._reader.readexactly(LENGTH.unpack(length)[0]), self._limit_s))
        except TimeoutError as error:
            raise TransferError(f"the learner gave no order within {self._limit_s:g} s ({LIMIT_KEY})") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise TransferError(f"the learner was gone: {error}") from error
        return message["method"], message["argument"]

    async def answer(self, error: str = "") -> None:
        """Say that the order is done, or why it failed.

        Raises:
            TransferError: the learner is gone.
        """
        if self._writer is None:
            raise TransferError("this generator has no line to the learner")
        try:
            await self._send({"error": error} if error else {})
        except OSError as gone:
            raise TransferError(f"the learner was gone: {gone}") from gone

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(_frame(message))
        await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def _frame(message: Mapping[str, Any]) -> bytes:
    content = json.dumps(message).encode()
    return LENGTH.pack(len(content)) + content


def _receive(line: socket.socket, deadline: float) -> dict[str, Any]:
    (length,) = LENGTH.unpack(_exactly(line, LENGTH.size, deadline))
    message: dict[str, Any] = json.loads(_exactly(line, length, deadline))
    return message


def _exactly(line: socket.socket, num_bytes: int, deadline: float) -> bytes:
    parts = b""
    while len(parts) < num_bytes:
        line.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = line.recv(num_bytes - len(parts))
        if not part:
            raise ConnectionError("it closed the line")
        parts += part
    return parts
