"""How a run ends when it is told to: in order and within a limit by the first signal, at once by a second one.

Signals are SIGTERM (`ray job stop`), SIGINT (Ctrl-C) and SIGHUP (a closed terminal). What the first one does depends on where the job is:

    loading   data, golds, the start of Ray: nothing to save             KeyboardInterrupt where it is
    at work   engines start, stages run: a task under `interruptible`    farewell, the task is cancelled, StoppedError
    ending    actors and Ray are being ended                             nothing: that is what it asks for

    farewell  generation aborted -> partial responses written -> state saved (Run.save_now), all while the stage's loops still stand

A second signal, or FORCE_LIMIT_S after the first, ends the process without another word: Ray then ends the actors, and their watchdogs
(actors/watchdog.py) remove what they leave. Called by entry.py and job.py; knows the run and asyncio, no Ray.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Literal, TypeVar

from mathrl_ray.driver.run import Run

Result = TypeVar("Result")

ABORT_LIMIT_S = 3.0
SAVE_LIMIT_S = 20.0
"""From the signal to the end of the save; a save that takes longer is given up."""
END_LIMIT_S = 2.0
"""What each actor gets to end by itself afterwards."""
FORCE_LIMIT_S = 27.0
"""From the signal; 30 s are promised until nothing of the job is left, and ending by force takes a moment too."""
SAME_SIGNAL_S = 1.0
"""A signal that comes again so soon is no second word: `timeout`, for one, signals both a process and its group."""
_CANCEL_LIMIT_S = 3.0

_Phase = Literal["loading", "at work", "ending"]


class StoppedError(RuntimeError):
    """The job was told to stop, and did; the message says by what."""


class Stopping:
    """What a job was told, and what it is about to do. One a process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, end_at_once: Callable[[str], None] | None = None) -> None:
        """
        Args:
            clock: seconds.
            end_at_once: ends the process, given a reason.
        """
        self._clock, self._end_at_once = clock, end_at_once or _end_process
        self._phase: _Phase = "loading"
        self._signal = ""
        self._signalled_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Event | None = None
        self._force: threading.Timer | None = None

    @property
    def requested(self) -> bool:
        """Whether the job was told to stop."""
        return bool(self._signal)

    @property
    def since_s(self) -> float:
        """Seconds since it was told."""
        return self._clock() - self._signalled_s

    def check(self) -> None:
        """For work in a thread, which nobody can cancel.

        Raises:
            StoppedError: the job was told to stop.
        """
        if self.requested:
            raise StoppedError(f"stopped by {self._signal}")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear signals during the block. Main thread only."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        self.listen()
        try:
            yield
        finally:
            if self._force is not None:
                self._force.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals (again): ray.init puts a handler of its own in the place of SIGTERM's."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            ignored = signal.getsignal(number) == signal.SIG_IGN  # by nohup, or by a shell for what it starts in the background
            if number == signal.SIGTERM or not ignored:
                signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        """The handler."""
        if self._signal:
            if self.since_s >= SAME_SIGNAL_S:
                self._end_at_once(f"{signal.Signals(number).name} after {self._signal}")
            return
        self._signal, self._signalled_s = signal.Signals(number).name, self._clock()
        self._force = threading.Timer(FORCE_LIMIT_S, self._end_at_once, [f"not ended {FORCE_LIMIT_S:g} s after {self._signal}"])
        self._force.daemon = True
        self._force.start()
        if self._phase == "loading":
            raise KeyboardInterrupt
        if self._loop is not None and self._asked is not None:
            self._loop.call_soon_threadsafe(self._asked.set)  # a handler runs between any two steps of the loop: only this is safe

    async def interruptible(
        self, work: Coroutine[Any, Any, Result], farewell: Callable[[], Awaitable[None]], say: Callable[[str], None]
    ) -> Result:
        """What `work` gives; where a signal comes first, `farewell`, and then the end of `work`, wherever it is.

        Args:
            work: what may be ended at every await.
            farewell: what is done before, while `work` still stands.
            say: for the lines that a person reads.

        Raises:
            StoppedError: a signal came first.
        """
        assert self._phase == "loading", "once a job"
        self._loop, self._asked, task = asyncio.get_running_loop(), asyncio.Event(), asyncio.ensure_future(work)
        self._phase = "at work"
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            say(f"{self._signal}: stopping; a second one ends the job at once")
            await farewell()
            raise StoppedError(f"stopped by {self._signal}")
        finally:
            self._phase = "ending"
            asked.cancel()
            await _cancelled(task, say)


async def _cancelled(task: asyncio.Future[Any], say: Callable[[str], None]) -> None:
    if task.done():
        return
    task.cancel()
    await asyncio.wait((task,), timeout=_CANCEL_LIMIT_S)
    if not task.done():
        say(f"warning: the stage did not end within {_CANCEL_LIMIT_S:g} s of being cancelled; its actors are ended now")
    elif not task.cancelled() and (error := task.exception()) is not None:
        say(f"warning: while it was stopped, the stage failed: {error}")


async def farewell(run: Run, stopping: Stopping) -> None:
    """End generation, keep what there is of the responses, and save. Never fails; what could not be done is said."""
    await _abort_generation(run)
    if run.stopped_groups:
        _keep_partial(run)
    if run.save_now is not None:
        await _save(run, run.save_now, SAVE_LIMIT_S - stopping.since_s)


def _keep_partial(run: Run) -> None:
    groups = run.stopped_groups
    try:
        path = run.recorder.partial(run.recipe.generator.kv_on_update == "keep", groups)
    except OSError as error:  # a full disk, which may still hold the state
        run.console.say(f"warning: the responses of {len(groups)} groups in flight could not be written: {error}")
    else:
        run.console.say(f"{len(groups)} groups were in flight; what there is of their responses: {path}")


async def _abort_generation(run: Run) -> None:
    async def abort() -> None:
        answers = await asyncio.gather(*(replica.actor.abort() for replica in run.generators), return_exceptions=True)
        for replica, answer in zip(run.generators, answers, strict=True):
            if isinstance(answer, BaseException):
                run.console.say(f"warning: {replica.actor.name} did not abort: {answer}")
        await run.generators.drained()  # until the last aborted response is here

    try:
        async with asyncio.timeout(ABORT_LIMIT_S):
            await abort()
    except TimeoutError:
        run.console.say(f"warning: generation did not end within {ABORT_LIMIT_S:g} s of being aborted; those responses are lost")
    except RuntimeError as error:  # border: a dying engine must not keep the rest from being saved
        run.console.say(f"warning: generation was not aborted: {error}")


async def _save(run: Run, save_now: Callable[[], Awaitable[None]], limit_s: float) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            await save_now()
    except TimeoutError:
        run.console.say(f"warning: the save did not end in time (after {time.monotonic() - began:.0f} s); the last one before it stays")
    except Exception as error:  # border: whatever it is, the actors must be ended all the same
        run.console.say(f"warning: nothing was saved: {type(error).__name__}: {error}")


def _end_process(reason: str) -> None:
    """No clean-up at all: what was printed is not even flushed."""
    os.write(2, f"\nerror: ended at once ({reason}); nothing more is saved\n".encode())
    os._exit(1)
