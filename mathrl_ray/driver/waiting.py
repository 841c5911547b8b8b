"""How the loops wait: for each other, until a condition holds, never by polling, never without a limit; and for several things at once.

Called by everything in driver/ that waits for another loop. Knows asyncio only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


class WaitError(RuntimeError):
    """Nothing happened any more while something was waited for; the message says what, how long, and which keys set the limit."""


class _SilenceError(Exception):
    """The limit of a wait has passed."""


@dataclass(eq=False, slots=True)
class _Wait:
    holds: Callable[[], bool]
    limit_s: float
    began_s: float
    future: asyncio.Future[None]
    alarm: asyncio.TimerHandle | None = None


class Changes:
    """One bell for all loops: whoever changes a shared state rings, and who waits for what now holds goes on."""

    def __init__(self) -> None:
        self._waits: list[_Wait] = []
        self._is_looking = False
        self._rung_s = 0.0

    def ring(self) -> None:
        """Look again at what everyone waits for: once, however often it is rung before."""
        if self._waits and not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_looking, self._rung_s = False, asyncio.get_running_loop().time()
        for wait in [wait for wait in self._waits if not wait.future.done()]:
            try:
                if wait.holds():
                    wait.future.set_result(None)
            except Exception as error:  # whatever it is, it is raised where that is waited for
                wait.future.set_exception(error)

    async def until(self, holds: Callable[[], bool], what: Callable[[], str], limit_s: float) -> None:
        """Wait until `holds()` is true.

        Args:
            holds: looked at now and after each ring; what it raises ends the wait.
            what: for the message: what is waited for, what is there, and the key of the limit.
            limit_s: the longest time without any ring: whoever rings has done a piece of work, each of which has a limit of its own.

        Raises:
            WaitError: the limit passed.
        """
        while not holds():  # again after each wait: another who was let go on at the same time may have changed it
            loop = asyncio.get_running_loop()
            wait = _Wait(holds, limit_s, loop.time(), loop.create_future())
            self._waits.append(wait)
            self._set_alarm(wait)
            try:
                await wait.future
            except _SilenceError as error:
                raise WaitError(f"nothing happened in {limit_s:g} s of waiting for {what()}") from error
            finally:
                assert wait.alarm is not None
                wait.alarm.cancel()
                self._waits.remove(wait)

    def _set_alarm(self, wait: _Wait) -> None:
        """For `limit_s` after the last ring, as known now."""
        end_s = max(wait.began_s, self._rung_s) + wait.limit_s
        wait.alarm = asyncio.get_running_loop().call_at(end_s, self._sound, wait, end_s)

    def _sound(self, wait: _Wait, end_s: float) -> None:
        if max(wait.began_s, self._rung_s) + wait.limit_s > end_s:  # it has rung meanwhile
            self._set_alarm(wait)
        elif not wait.future.done():
            wait.future.set_exception(_SilenceError())


async def all_of(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """What each gives, in their order, all done at the same time; the first error ends the others before it is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
