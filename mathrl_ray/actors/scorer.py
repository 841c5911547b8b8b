"""The scorer: grades responses, whatever they contain, each within a limit.

Called by the driver and by evaluations through `Scorer` in interfaces.py; Ray wraps it at placement. Knows neither Ray nor math-verify.

    request --core/grading/, here, some 20 µs----> grade                  tags, empty and equal texts, plain numbers: most items
                     `--> a thread --> a grading process --> grade        the rest, which may hang or fill the memory; reward functions

There is one thread a grading process, so the threads' queue is the only queue: an item waits until a process is free. What ran into the
limit or the memory is in quarantine.py: the same input is answered at once when it comes again, a reward function's from the third time on.
"""

import asyncio
import hashlib
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.grading_process import OUT_OF_MEMORY, TIMED_OUT, GradingProcess, encoded
from mathrl_ray.actors.quarantine import Quarantine, Suspect
from mathrl_ray.core.grading.extraction import Extraction, extract
from mathrl_ray.core.grading.grade import pay, quick_verdict
from mathrl_ray.core.grading.plain_numbers import number_verdict
from mathrl_ray.core.reward_weights import grade_of_parts, ungraded
from mathrl_ray.types import Grade, Outcome, Problem, ScoreRequest

_SMALLEST_MEMORY_BYTES = 128 << 20
_ITEMS_BETWEEN_YIELDS = 256


@dataclass(frozen=True, slots=True)
class _Item:
    """One request after the quick look; `grade` is None where a grading process must say."""

    request: ScoreRequest
    extraction: Extraction
    suspect: Suspect
    grade: Grade | None
    looking_s: float

    @property
    def message(self) -> list[Any]:
        """As `GradingProcess.ask` wants it."""
        request = self.request
        if not request.function:
            return ["", self.extraction.answer_to_judge or "", request.gold]
        return [request.function, _record(request), request.prompt, request.response, request.step]


class Scorer:
    """Grades batches of responses: one grade a request, in order, rewards always floats.

    An item that runs into the limit gets grader_timeout, one whose process dies or outgrows its memory grader_error, and so does one for
    which a reward function fails; the others do not notice, apart from the wait. All pay 0, and format_reward still says what the tags say.
    """

    name = "scorer"
    """Where Ray gives it no name of its own."""

    def __init__(
        self, limit_s: float = 5.0, memory_bytes: int = 2 << 30, num_processes: int = 1, functions: Sequence[FunctionSource] = ()
    ) -> None:
        """
        Args:
            limit_s: wall-clock seconds that one item may take.
            memory_bytes: resident memory that each grading process may use.
            num_processes: how many items are graded at a time.
            functions: the reward functions that requests may name.

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
        self._functions = {source.spec for source in functions}
        self._quarantine = Quarantine()
        self._idle: queue.SimpleQueue[GradingProcess] = queue.SimpleQueue()
        for _ in range(num_processes):
            self._idle.put(GradingProcess(limit_s, memory_bytes, functions))
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="grading")

    async def setup(self, quarantine_path: str = "") -> None:
        """Start the grading processes and wait until they are ready (0.4 s on a free core); else the first items wait for them.

        Args:
            quarantine_path: a file of JSON lines for the inputs that run into a limit; they are only remembered where there is none.

        Raises:
            RuntimeError: a process did not start.
            RewardFunctionError: a reward function cannot be loaded.
        """
        if quarantine_path:
            self._quarantine = Quarantine(Path(quarantine_path))
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._make_one_ready) for _ in range(self._num_processes)))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        """One grade a request, in the requests' order.

        Cancelling it drops the items that wait; the one that is being graded ends within its limit, and the scorer goes on as before.

        Raises:
            RuntimeError: a grading process could not be started, or the scorer was shut down.
            ValueError: a request names a function that this scorer was not given.
        """
        loop = asyncio.get_running_loop()
        items = []
        for index, request in enumerate(requests):
            items.append(self._quick_look(request))
            if index % _ITEMS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)  # a batch of 10,000 must not hold the event loop for its 0.2 s
        open_items = [item for item in items if item.grade is None]
        grades = iter(await asyncio.gather(*(loop.run_in_executor(self._threads, self._grade, item) for item in open_items)))
        return [item.grade or next(grades) for item in items]

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

    def _quick_look(self, request: ScoreRequest) -> _Item:
        if request.function and request.function not in self._functions:
            raise ValueError(f"{request.function!r} is no reward function of this scorer, which has {sorted(self._functions)}")
        started = time.perf_counter()
        extraction = extract(request.response, request.style)
        suspect = _suspect(request, extraction)
        known = self._quarantine.outcome(suspect)
        verdict = known if known or request.function else _quick_verdict(extraction.answer_to_judge, request.gold)
        looking_s = time.perf_counter() - started
        grade = _grade_of(request, extraction, verdict, looking_s) if verdict else None
        return _Item(request, extraction, suspect, replace(grade, from_quarantine=True) if grade and known else grade, looking_s)

    def _grade(self, item: _Item) -> Grade:
        """Blocks; for the threads."""
        known = self._quarantine.outcome(item.suspect)  # a sibling with the same answer may have hung while this one waited
        if known:
            return replace(_grade_of(item.request, item.extraction, known, item.looking_s), from_quarantine=True)
        with self._free_process() as process:
            process.ready_channel()  # not part of this item's time
            started = time.perf_counter()
            answer = process.ask(item.message)
            seconds = time.perf_counter() - started
        grade = _grade_of(item.request, item.extraction, "grader_error" if answer == OUT_OF_MEMORY else answer, item.looking_s + seconds)
        if answer in (TIMED_OUT, OUT_OF_MEMORY):
            outcome: Outcome = "grader_timeout" if answer == TIMED_OUT else "grader_error"
            self._quarantine.add(item.suspect, item.request.style, outcome, seconds)
        return grade


def _quick_verdict(answer: str | None, gold: str) -> Outcome | None:
    return quick_verdict(answer, gold) or number_verdict(answer or "", gold)


def _suspect(request: ScoreRequest, extraction: Extraction) -> Suspect:
    """The grader sees the answer and the gold only; a function the whole problem and the prompt too."""
    if not request.function:
        return Suspect(extraction.answer_to_judge or "", request.gold)
    record = _record(request)
    given = hashlib.sha256(encoded([record, request.prompt])).hexdigest()
    return Suspect(request.response, request.gold, request.function, record["problem_id"], given)


def _record(request: ScoreRequest) -> dict[str, Any]:
    """The problem as a function is given it. Not asdict, which copies the whole of `extra`."""
    problem = request.problem or Problem(problem_id="", problem="", gold=request.gold)
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}


def _grade_of(request: ScoreRequest, extraction: Extraction, answer: Any, grading_s: float) -> Grade:
    """The grade of an outcome, or of what a reward function's process answered."""
    cut_off = request.finish_reason == "length"
    if not request.function:
        return pay(extraction, answer, grading_s, cut_off=cut_off)
    if isinstance(answer, str):
        outcome: Outcome = "grader_timeout" if answer == TIMED_OUT else "grader_error"
        return ungraded(extraction, outcome, grading_s=grading_s)
    if "error" in answer:
        return ungraded(extraction, "grader_error", grading_s=grading_s, remark=answer["error"])
    return grade_of_parts(extraction, answer["parts"], cut_off=cut_off, grading_s=grading_s)
