"""The scorer: grades responses, whatever they contain, each within a limit.

Called by the driver and by evaluations through `Scorer` in interfaces.py; Ray wraps it at placement. Knows neither Ray nor math-verify.

    request --core/grading/, here, some 20 µs----> grade                  tags, empty and equal texts, whole numbers: most items
                     `--> a thread --> a grading process --> grade        the rest: math-verify, which may hang or fill the memory

There is one thread a grading process, so the threads' queue is the only queue: an item waits until a process is free.
"""

import asyncio
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mathrl_ray.actors.grading_process import GradingProcess
from mathrl_ray.core.grading.extraction import Extraction, extract
from mathrl_ray.core.grading.grade import pay, quick_verdict
from mathrl_ray.types import Grade, Outcome, ScoreRequest

_SMALLEST_MEMORY_BYTES = 128 << 20
_ITEMS_BETWEEN_YIELDS = 256


@dataclass(frozen=True, slots=True)
class _Item:
    """One request after the quick look; `verdict`, on the answer to judge, is None where math-verify must say."""

    extraction: Extraction
    gold: str
    verdict: Outcome | None
    is_cut_off: bool
    grading_s: float

    def paid(self, verdict: Outcome, grading_s: float) -> Grade:
        return pay(self.extraction, verdict, grading_s, cut_off=self.is_cut_off)


class Scorer:
    """Grades batches of responses: one grade a request, in order, rewards always floats.

    An item that runs into the limit gets grader_timeout, one whose process dies or outgrows its memory grader_error; the others do not
    notice, apart from the wait. Both pay 0, and format_reward still says what the tags say.
    """

    def __init__(self, limit_s: float = 5.0, memory_bytes: int = 2 << 30, num_processes: int = 1) -> None:
        """
        Args:
            limit_s: wall-clock seconds that math-verify may spend on one item.
            memory_bytes: resident memory that each grading process may use.
            num_processes: how many items are with math-verify at a time.

        Raises:
            ValueError: a limit with which no item could be graded.
        """
        if limit_s <= 0:
            raise ValueError(f"limit_s = {limit_s}: the limit of one grading must be above 0 seconds; 5 is usual")
        if memory_bytes < _SMALLEST_MEMORY_BYTES:
            raise ValueError(
                f"memory_bytes = {memory_bytes}: a grading process needs at least {_SMALLEST_MEMORY_BYTES} bytes (128 MiB), "
                "60 MiB of them for math-verify itself; 2 GiB is usual"
            )
        if num_processes < 1:
            raise ValueError(f"num_processes = {num_processes}: a scorer needs at least 1 grading process")
        self._num_processes = num_processes
        self._idle: queue.SimpleQueue[GradingProcess] = queue.SimpleQueue()
        for _ in range(num_processes):
            self._idle.put(GradingProcess(limit_s, memory_bytes))
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="grading")

    async def setup(self) -> None:
        """Start the grading processes and wait until they are ready (0.4 s on a free core); else the first items wait for them.

        Raises:
            RuntimeError: a process did not start.
        """
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._make_one_ready) for _ in range(self._num_processes)))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        """One grade a request, in the requests' order.

        Cancelling it drops the items that wait; the one that is being graded ends within its limit, and the scorer goes on as before.

        Raises:
            RuntimeError: a grading process could not be started, or the scorer was shut down.
        """
        loop = asyncio.get_running_loop()
        items = []
        for index, request in enumerate(requests):
            items.append(_quick_look(request))
            if index % _ITEMS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)  # a batch of 10,000 must not hold the event loop for its 0.2 s
        open_items = [item for item in items if item.verdict is None]
        verdicts = iter(await asyncio.gather(*(loop.run_in_executor(self._threads, self._grade, item) for item in open_items)))
        return [item.paid(item.verdict, item.grading_s) if item.verdict else next(verdicts) for item in items]

    async def shutdown(self) -> None:
        """End the grading processes, after the items that are being graded (within their limit). Items that wait are cancelled."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get_nowait().end()

    @contextmanager
    def _free_process(self) -> Iterator[GradingProcess]:
        """Used in the threads only, of which there are as many as processes: one is always free."""
        process = self._idle.get_nowait()
        try:
            yield process
        finally:
            self._idle.put(process)

    def _make_one_ready(self) -> None:
        with self._free_process() as process:
            process.ready_channel()

    def _grade(self, item: _Item) -> Grade:
        with self._free_process() as process:
            process.ready_channel()  # not part of this item's time
            started = time.perf_counter()
            verdict = process.verdict(item.extraction.answer_to_judge or "", item.gold)
        return item.paid(verdict, item.grading_s + time.perf_counter() - started)


def _quick_look(request: ScoreRequest) -> _Item:
    started = time.perf_counter()
    extraction = extract(request.response, request.style)
    verdict = quick_verdict(extraction.answer_to_judge, request.gold)
    return _Item(extraction, request.gold, verdict, request.finish_reason == "length", time.perf_counter() - started)
