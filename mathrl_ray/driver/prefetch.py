"""Items made ahead by a thread, so that who eats them does not wait.

Called by stages/sft.py, whose batches are tokenised while the learner trains on the one before. Knows threads and a clock; knows no
tokenizer. Memory is bounded: at most `depth` finished items wait, and one more is in the making.

    thread     takes an iterator's items    gives a bounded queue    waits for room, or the end of the block
    consumer   takes the queue              gives items, in order    waits for an item, at most limit_s, without holding the event loop
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _End:
    """What stands in the queue behind the last item."""

    error: BaseException | None
    """What the iterator raised, for the consumer to raise."""


class Prefetch(Generic[Item]):
    """An asynchronous iterator over the items of a plain one, in their order.

    Use it as `with Prefetch(...) as items: async for item in items:`. However the block ends, its thread has ended with it, once the
    item in the making is made.
    """

    def __init__(self, items: Iterable[Item], *, what: str, limit_s: float, depth: int = 4) -> None:
        """
        Args:
            items: iterated in the thread, and nowhere else.
            what: names the items, and the key of the limit, in messages.
            limit_s: longest wait for one item.
            depth: finished items that may wait.
        """
        self._items, self._what, self._limit_s = items, what, limit_s
        self._queue: queue.Queue[Item | _End] = queue.Queue(maxsize=depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._make, name="prefetch", daemon=True)
        self.last_wait_s = 0.0
        """Seconds that the consumer waited for the last item."""

    def __enter__(self) -> "Prefetch[Item]":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopped.set()
        self._empty_the_queue()  # a thread that waits for room goes on, and sees that it is to stop
        self._thread.join(self._limit_s)
        self._empty_the_queue()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_End(None))  # wakes a consumer that was cancelled while it waited, whose thread would wait on
        if self._thread.is_alive() and error is None:
            raise TimeoutError(f"the making of {self._what} did not end within {self._limit_s:g} s of being told to")

    def __aiter__(self) -> "Prefetch[Item]":
        return self

    async def __anext__(self) -> Item:
        """The next item.

        Raises:
            TimeoutError: there was none within limit_s.
            Exception: whatever the iterator raised, in its place in the order.
        """
        began = time.monotonic()
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            item = await self._wait()
        self.last_wait_s = time.monotonic() - began
        if not isinstance(item, _End):
            return item
        self._queue.put(item)  # so that asking again gives the same answer; there is room, since the thread puts nothing more
        if item.error is not None:
            raise item.error
        raise StopAsyncIteration

    async def _wait(self) -> Item | _End:
        try:
            return await asyncio.to_thread(self._queue.get, timeout=self._limit_s)
        except queue.Empty as error:
            raise TimeoutError(f"no {self._what} came within {self._limit_s:g} s") from error

    def _make(self) -> None:
        end = _End(None)
        try:
            for item in self._items:
                if self._stopped.is_set():
                    return
                self._queue.put(item)
                if self._stopped.is_set():
                    return
        except BaseException as error:  # border: a thread's error would be lost; the consumer raises it
            end = _End(error)
        if not self._stopped.is_set():
            self._queue.put(end)

    def _empty_the_queue(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return
