"""How the loops wait: for each other, until a condition holds, never by polling, never without a limit; and for several things at once.

Called by everything in driver/ that waits for another loop. Knows asyncio only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


class WaitError(RuntimeError):
    """Nothing happened any more while something was waited for; the message says what, how long, and which keys set the limit."""


class Changes:
    """One bell for all loops: whoever changes a shared state rings, whoever waits looks again."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Let everyone who waits look again."""
        rung, self._bell = self._bell, asyncio.Event()
        rung.set()

    async def until(self, holds: Callable[[], bool], what: Callable[[], str], limit_s: float) -> None:
        """Wait until `holds()` is true.

        Args:
            holds: looked at now and after each ring; what it raises ends the wait.
            what: for the message: what is waited for, what is there, and the key of the limit.
            limit_s: the longest time without any ring: whoever rings has done a piece of work, each of which has a limit of its own.

        Raises:
            WaitError: the limit passed.
        """
        while not holds():
            try:
                async with asyncio.timeout(limit_s):
                    await self._bell.wait()
            except TimeoutError as error:
                raise WaitError(f"nothing happened in {limit_s:g} s of waiting for {what()}") from error


async def all_of(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """What each gives, in their order, all done at the same time; the first error ends the others before it is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
