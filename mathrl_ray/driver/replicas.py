"""Actors that can stand in for each other: who gets the next piece of work, and what happens when one fails.

Called by the loops and the evaluations, for generators and scorers alike. Knows the Protocols' names and errors; no Ray.

    a call        goes to the replica with the least load; fails there -> another, or the same one replaced; max_tries times in all
    the last try  runs alone on its replica, so that a prompt is never given up for what its neighbours did
    a replica     that failed is replaced once, however many calls it took down, and gets no work meanwhile
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.waiting import Changes
from mathrl_ray.sections import DriverSection


class _Named(Protocol):
    name: str

    async def restart(self) -> None: ...


Actor = TypeVar("Actor", bound=_Named)
Answer = TypeVar("Answer")


class GivenUpError(RuntimeError):
    """A piece of work that failed at every try; the message has the last reason."""


@dataclass(eq=False)
class Replica(Generic[Actor]):
    """One actor with what is going on in it."""

    actor: Actor
    load: int = 0
    """Responses that it has been asked for and has not given."""
    taken: bool = False
    """By a last try, which is to be alone."""
    pinned: bool = False
    """By an evaluation: gets neither other work nor other weights (weights.py)."""
    incarnation: int = 0
    """How often it was replaced."""
    down: bool = False
    """It failed, and no fresh actor stands in its place yet."""
    reviving: asyncio.Task[None] | None = None
    """What makes it usable again: a fresh actor, and what that needs before it can work."""

    @property
    def free(self) -> bool:
        return self.reviving is None and not self.taken and not self.pinned


class Replicas(Generic[Actor]):
    """All actors of one role. Waits end with an error when a replica cannot be replaced."""

    def __init__(
        self,
        actors: Sequence[Actor],
        changes: Changes,
        ledger: Ledger,
        settings: DriverSection,
        *,
        room: int,
        limit_s: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """
        Args:
            actors: of one role.
            changes: rung whenever a replica's state has changed.
            ledger: where their work is counted.
            settings: max_tries, max_restarts and start_limit_s.
            room: responses that one replica works on at once; what is more waits here, where it can still go to another.
            limit_s: the longest that one piece of work may take; bounds the wait for a replica.
            say: tells a person of each replacement.
        """
        self._replicas = [Replica(actor) for actor in actors]
        self._changes, self._ledger, self._settings, self._room = changes, ledger, settings, room
        self.limit_s = settings.max_tries * limit_s + settings.start_limit_s
        """The longest wait for a replica, which each wait has for itself."""
        ledger.enrol(*(actor.name for actor in actors))
        self._say = say
        self._failure: Exception | None = None
        self._held = self._waiting_alone = 0
        self._revivals: set[asyncio.Task[None]] = set()
        self.num_restarts = 0
        self.revive: Callable[[Replica[Actor]], Awaitable[None]] = self.restart
        """What makes a failed actor usable again; generators also need the present weights (weights.py)."""

    def __iter__(self) -> Iterator[Replica[Actor]]:
        return iter(self._replicas)

    @property
    def actors(self) -> list[Actor]:
        return [replica.actor for replica in self._replicas]

    def least_loaded(self, size: int, *, alone: bool = False) -> Replica[Actor] | None:
        """The replica that takes `size` more responses now, with the least to do; None where none has room.

        Args:
            size: responses that it would be asked for.
            alone: only one that has nothing to do at all.

        Raises:
            ActorError: a replica could not be replaced.
        """
        self.check()
        fitting = [replica for replica in self._replicas if self._takes(replica, size, alone=alone)]
        return min(fitting, key=lambda replica: replica.load, default=None)

    def _takes(self, replica: Replica[Actor], size: int, *, alone: bool) -> bool:
        if self._held or (self._waiting_alone and not alone):  # what waits to be alone goes first, or it would never be
            return False
        return replica.free and (replica.load == 0 or (not alone and replica.load + size <= self._room))

    async def call(self, size: int, ask: Callable[[Actor], Awaitable[Answer]], what: str, first: Replica[Actor] | None = None) -> Answer:
        """What `ask` gives on some replica; tried again on an error, at most max_tries times.

        Args:
            size: responses that are asked for.
            ask: must be safe to repeat.
            what: the kind of work, for the ledger's spans.
            first: the replica of the first try, which had room when the caller looked.

        Raises:
            GivenUpError: every try failed.
            ActorError, WaitError: a replica cannot be replaced, or none became free.
        """
        max_tries = self._settings.max_tries
        reason: Exception | None = None
        for number in range(1, max_tries + 1):
            alone = number == max_tries > 1
            if first is not None and self._takes(first, size, alone=alone):
                replica = first
            else:
                replica = await self._free_replica(size, alone=alone)
            first = None
            with self._taken(replica) if alone else nullcontext():
                try:
                    return await self.ask(replica, size, ask, what)
                except (ActorError, ValueError) as error:  # a dead or silent actor, or a request that it refuses
                    reason = error
            self._ledger.counts.redone += number < max_tries
        raise GivenUpError(f"{reason} (tried {max_tries} times, driver.max_tries)") from reason

    async def ask(self, replica: Replica[Actor], size: int, ask: Callable[[Actor], Awaitable[Answer]], what: str) -> Answer:
        """One try on one replica, which is replaced where its actor fails."""
        incarnation = replica.incarnation
        replica.load += size
        try:
            with self._ledger.work(replica.actor.name, what):
                return await ask(replica.actor)
        except ActorError as error:
            if replica.incarnation == incarnation:  # else another call has seen the same failure before
                self._replace(replica, error)
            raise
        finally:
            replica.load -= size
            self._changes.ring()

    @contextmanager
    def _taken(self, replica: Replica[Actor]) -> Iterator[None]:
        replica.taken = True
        try:
            yield
        finally:
            replica.taken = False
            self._changes.ring()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give no new work to any replica during the block."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._changes.ring()

    async def drained(self) -> None:
        """Wait until no replica works on anything, apart from one that is pinned."""
        await self._until(lambda: not any(replica.load for replica in self if not replica.pinned), "the responses in flight to end")

    async def revived(self) -> None:
        """Wait until every replica that failed is back."""
        await self._until(lambda: not any(replica.reviving for replica in self), "replacements of failed actors")

    async def one_ready(self) -> None:
        """Wait until a replica is neither pinned nor being replaced."""
        await self._until(lambda: any(replica.reviving is None and not replica.pinned for replica in self), "a replacement")

    def check(self) -> None:
        """
        Raises:
            ActorError: a replica failed and could not be replaced.
        """
        if self._failure is not None:
            raise self._failure

    async def _free_replica(self, size: int, *, alone: bool) -> Replica[Actor]:
        """The least loaded replica with room; for a last try one that has nothing else to do and gets nothing else."""
        names = ", ".join(actor.name for actor in self.actors)
        self._waiting_alone += alone
        try:
            await self._until(lambda: self.least_loaded(size, alone=alone) is not None, f"one of {names} to have room")
        finally:
            self._waiting_alone -= alone
            if alone:  # others were kept back meanwhile, also by one that was cancelled
                self._changes.ring()
        replica = self.least_loaded(size, alone=alone)
        assert replica is not None
        return replica

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        limits = "driver.max_tries times the limit of one piece of work, and driver.start_limit_s"

        def look() -> bool:
            self.check()
            return holds()

        await self._changes.until(look, lambda: f"{what} ({limits})", self.limit_s)

    def _replace(self, replica: Replica[Actor], error: ActorError) -> None:
        if self.num_restarts >= self._settings.max_restarts:
            limit = f"driver.max_restarts = {self._settings.max_restarts} replacements were made"
            self._failure = ActorError(f"{limit}, and {replica.actor.name} failed again: {error}")
            return
        self.num_restarts += 1
        of = f"{self.num_restarts} of driver.max_restarts = {self._settings.max_restarts}"
        self._say(f"warning: {replica.actor.name} is replaced ({of}): {error}")
        replica.incarnation += 1
        replica.down = True
        replica.reviving = asyncio.create_task(self._revive(replica))
        self._revivals.add(replica.reviving)
        replica.reviving.add_done_callback(self._revivals.discard)

    async def restart(self, replica: Replica[Actor]) -> None:
        """Put a fresh actor in a failed one's place."""
        await replica.actor.restart()
        replica.down = False
        self._changes.ring()

    async def _revive(self, replica: Replica[Actor]) -> None:
        try:
            await self.revive(replica)
        except Exception as error:  # whatever it is, everyone who waits for this role must hear of it
            self._failure = error
        else:
            if replica.reviving is asyncio.current_task():  # else it failed again meanwhile, and another revival goes on
                replica.reviving = None
        self._changes.ring()

    async def close(self) -> None:
        """End replacements that still go on."""
        tasks = list(self._revivals)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
