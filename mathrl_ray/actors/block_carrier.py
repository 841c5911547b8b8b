"""Published weights for generators on other nodes than learner-0: one object in Ray's object store, which Ray brings to each node once.

Called by remote.py. Knows handles of Ray's; knows no tensor. The learner's block stays what it is, and generators on its node read it as
ever; for the others:

    learner-0 copies its block into its node's object store -> Ray brings it to a generator's node
        -> the generator writes it into that node's shared memory (weight_sync/carried_block.py) -> vLLM reads it there

The object is made in the call after `publish`, before the learner trains on, and is let go before the next one is made: there is at most
one. A generator that was replaced takes the same object; where there is none for it yet (its predecessor was on the learner's node), it is
made from the learner's block, which stays until the next publication, when the learner has time for it: it may be training on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mathrl_ray.types import WeightManifest


class BlockCarrier:
    """Shared by a run's learner and generators, in the driver."""

    def __init__(self, learner: Any, node: str, is_needed: Callable[[], bool], wait: Callable[[Any, bool], Awaitable[Any]]) -> None:
        """
        Args:
            learner: the handle of learner-0.
            node: where that is.
            is_needed: whether any generator is on another node at present.
            wait: waits for a call of it, with a limit, the longer one where it may have to train first (True); raises ActorError.
        """
        self.node = node
        self._learner, self._is_needed, self._wait = learner, is_needed, wait
        self._making = asyncio.Lock()
        self._manifest: WeightManifest | None = None
        self._block: Any = None

    async def published(self, manifest: WeightManifest) -> None:
        """To be called when the learner has published, before anything else is asked of it.

        Raises:
            ActorError: the learner is gone.
        """
        self._manifest = self._block = None
        if self._is_needed():
            await self._made(manifest, late=False)

    async def block(self, manifest: WeightManifest) -> Any:
        """The reference of a publication's bytes; of the last publication only.

        Raises:
            ActorError: the learner is gone, or has published something else since.
        """
        return await self._made(manifest, late=True)

    async def _made(self, manifest: WeightManifest, *, late: bool) -> Any:
        async with self._making:
            if self._manifest is not manifest:
                self._manifest = self._block = None
                version, block = self._learner.published_block.options(num_returns=2).remote(manifest)
                await self._wait(version, late)  # the small half of the answer: the weights themselves are not brought here
                self._manifest, self._block = manifest, block
            return self._block
