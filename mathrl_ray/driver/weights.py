"""From the learner's weights to every generator: meeting, publication, update, pins, and a failed engine's way back.

Called by the loops and the evaluations. Knows the Protocols; what each transport does is in weight_sync/.

    order   optimizer step -> publish -> all generators applied -> policy_version moves
    again   a generator that fails in an update is replaced; it rejoins with the weights that were published last
    group   where weights go from GPU to GPU all generators take part in a transfer, or none: a failure of one is followed
            by a new meeting of all, and a transfer to all
    pin     an evaluation keeps one version: with one generator, or a group, updates wait; else one of the generators steps aside
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from mathrl_ray.actors.interfaces import ActorError, Generator, Learner
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.replicas import Replica, Replicas
from mathrl_ray.driver.waiting import Changes
from mathrl_ray.sections import DriverSection
from mathrl_ray.types import WeightManifest, WeightMeeting


class Weights:
    """What the learner has published, and which version the generators hold."""

    def __init__(
        self, learner: Learner, generators: Replicas[Generator], changes: Changes, ledger: Ledger, settings: DriverSection
    ) -> None:
        self._learner, self._generators, self._changes = learner, generators, changes
        self._ledger, self._settings = ledger, settings
        self._moving, self._pinning = asyncio.Lock(), asyncio.Lock()
        self._published: WeightManifest | None = None
        self._delivered: WeightManifest | None = None
        """What all members of a group hold."""
        self._met: tuple[int, ...] = ()
        self.policy_version = 0
        """Of the weights that the generators hold: publications since the stage began."""
        generators.revive = self._revive

    async def publish(self, policy_version: int) -> WeightManifest:
        """Write the learner's weights where generators read them. The update before must have ended: it reads the same memory."""
        async with self._moving:
            with self._ledger.work("learner-0", "publish"):
                self._published = await self._learner.publish(policy_version)
        return self._published

    async def apply(self, manifest: WeightManifest) -> dict[str, float]:
        """Give every generator the published weights; policy_version moves when all have them.

        Returns:
            sync_s, the longest that a generator stood still; update_s, all of it; update_wait_s, how much of that was waiting for a pin,
            for a replaced generator's own update or, without driver.in_flight_updates, for the responses in flight.
        """
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._pinning)
            if not self._settings.in_flight_updates:
                stack.enter_context(self._generators.held())
                await self._generators.drained()
            await stack.enter_async_context(self._moving)
            waited_s = time.monotonic() - began
            pauses_s = await self._to_those_ready(manifest)
        if _in_group(manifest):  # a failure took the whole group down, and its revival sends the weights to all
            await self._generators.revived()
        self.policy_version = manifest.policy_version
        return {"sync_s": max(pauses_s, default=0.0), "update_s": time.monotonic() - began, "update_wait_s": waited_s}

    async def _to_those_ready(self, manifest: WeightManifest) -> list[float]:
        """One update of the generators that can take it; a revival gives it to the others."""
        ready = [replica for replica in self._generators if replica.reviving is None and not replica.pinned]
        if _in_group(manifest) and len(ready) < len(self._generators.actors):
            return []
        has_met = not _in_group(manifest) or await self._meet()
        return await self._transfer(ready, manifest) if has_met else []

    async def _transfer(self, replicas: Sequence[Replica[Generator]], manifest: WeightManifest) -> list[float]:
        """One update of these generators; each one that fails is being replaced afterwards. Returns the pauses of the others.

        Raises:
            ActorError: the learner failed, or a generator did that cannot be replaced.
            ValueError: the weights are not those that the generators expect.
        """
        asked = (self._generators.ask(replica, 0, lambda actor: actor.apply_weights(manifest), "apply_weights") for replica in replicas)
        sent, *answers = await asyncio.gather(self._learner.send_weights(manifest), *asked, return_exceptions=True)
        await self._raise_all_but_failed_generators(sent, answers)
        pauses_s = [answer for answer in answers if isinstance(answer, (int, float))]
        if len(pauses_s) == len(self._generators.actors):
            self._delivered = manifest
        return pauses_s

    async def _raise_all_but_failed_generators(self, of_learner: object, of_generators: Iterable[object]) -> None:
        errors = [answer for answer in of_generators if isinstance(answer, BaseException)]
        if not errors and isinstance(of_learner, BaseException):
            raise of_learner
        for error in (*errors, of_learner):
            if isinstance(error, BaseException) and not isinstance(error, ActorError):
                raise error
        self._generators.check()
        if errors and isinstance(of_learner, ActorError):  # without its partners it fails too, through no fault of its own; or is it gone?
            await self._learner.invite(len(self._generators.actors))

    async def _meet(self) -> bool:
        """The members of a group find each other: at first, and after any of them was replaced.

        Returns:
            False where a generator failed: it is being replaced.
        """
        incarnations = self._incarnations()
        if incarnations == self._met:
            return True
        meeting = await self._learner.invite(len(incarnations))
        joins = (self._join(replica, meeting, index) for index, replica in enumerate(self._generators))
        met, *answers = await asyncio.gather(self._learner.meet(meeting), *joins, return_exceptions=True)
        await self._raise_all_but_failed_generators(met, answers)
        if incarnations == self._incarnations():
            self._met = incarnations
        return incarnations == self._met

    def _join(self, replica: Replica[Generator], meeting: WeightMeeting, index: int) -> Awaitable[None]:
        return self._generators.ask(replica, 0, lambda actor: actor.meet(meeting, index), "meet")

    def _incarnations(self) -> tuple[int, ...]:
        return tuple(replica.incarnation for replica in self._generators)

    async def _revive(self, replica: Replica[Generator]) -> None:
        """A fresh engine in a failed one's place, with the weights that were published last."""
        incarnation = replica.incarnation
        await self._generators.restart(replica)
        is_done = False
        while not is_done and replica.incarnation == incarnation:  # one that fails again has a revival of its own
            if self._published is not None and _in_group(self._published):
                await self._all_up()
            async with self._moving:
                is_done = await self._bring_up_to_date(replica)

    async def _all_up(self) -> None:
        def holds() -> bool:
            self._generators.check()
            return not any(replica.down for replica in self._generators)

        what = "other generators to start (driver.start_limit_s)"
        await self._changes.until(holds, lambda: what, self._settings.start_limit_s)

    async def _bring_up_to_date(self, replica: Replica[Generator]) -> bool:
        """Whether a fresh generator holds what was published last, or need not."""
        manifest = self._published
        if manifest is None:
            return True
        if not _in_group(manifest):
            return bool(await self._transfer([replica], manifest))
        if self._delivered is manifest and self._met == self._incarnations():
            return True  # another one's revival has sent it to this one too
        if any(each.down for each in self._generators):
            return False
        if await self._meet():
            await self._transfer(list(self._generators), manifest)
        return self._delivered is manifest and self._met == self._incarnations()

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator[Replica[Generator] | None]:
        """Keep the present weights for the block.

        With several generators one gets no other work for the block and no update; it is yielded, and takes what was published meanwhile
        when the block ends. With one, or where weights go to all of a group at once, updates wait; None is yielded. A second pin waits for
        the first one's end.
        """
        if len(self._generators.actors) == 1 or (self._published is not None and _in_group(self._published)):
            async with self._pinning:
                yield None
            return
        replica, version = await self._set_aside()
        run_ends = False
        try:
            yield replica
        except asyncio.CancelledError:
            run_ends = True
            raise
        finally:
            if not run_ends:  # an update would hold the end up
                await self._take_back(replica, version)

    async def _set_aside(self) -> tuple[Replica[Generator], int]:
        """The last of the generators that can, and the version that it holds."""

        def candidate() -> Replica[Generator] | None:
            self._generators.check()
            if any(replica.pinned for replica in self._generators):
                return None
            return next((replica for replica in reversed(list(self._generators)) if replica.free), None)

        what = "a generator that an evaluation can have (driver.max_tries times the limit of one piece of work, driver.start_limit_s)"
        while True:
            await self._changes.until(lambda: candidate() is not None, lambda: what, self._generators.limit_s)
            async with self._pinning:  # not in the middle of an update
                replica = candidate()
                if replica is not None:
                    replica.pinned = True
                    return replica, self.policy_version

    async def _take_back(self, replica: Replica[Generator], version: int) -> None:
        async with self._pinning, self._moving:
            if self._published is not None and self.policy_version != version and replica.reviving is None:
                await self._transfer([replica], self._published)
            replica.pinned = False
        self._changes.ring()


def _in_group(manifest: WeightManifest) -> bool:
    """Whether learner and generators meet for a transfer, which all of them take part in."""
    return manifest.is_for_all_at_once
