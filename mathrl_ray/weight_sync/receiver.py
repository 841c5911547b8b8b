"""A generator's side of a weight update: the calls of vLLM's weight-transfer interface, in the order that the transport needs.

Called by actors/generator.py. Knows AsyncLLM's methods and the two ways that weights come: from a block of
shared memory, or on a GPU by the learner's orders (channel.py). The second way was not run on a GPU yet.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from mathrl_ray.types import WeightManifest, WeightMeeting, WeightTransport
from mathrl_ray.weight_sync.channel import LearnerLine
from mathrl_ray.weight_sync.errors import TransferError
from mathrl_ray.weight_sync.shared_memory import BlockReader


class Receiver(Protocol):
    """What the generator asks for, whatever the transport. `engine` is vLLM's AsyncLLM."""

    async def meet(self, engine: Any, meeting: WeightMeeting, index: int) -> None:
        """Join the learner as generator number `index`, in place of an earlier meeting."""
        ...

    async def prepare(self, manifest: WeightManifest) -> None:
        """Wait and look, while the engine still generates: nothing is changed.

        Raises:
            BlockError: the published weights are not what was announced.
            TransferError: the learner does not begin.
        """
        ...

    async def update(self, engine: Any, manifest: WeightManifest) -> None:
        """Load the weights and set the engine's version, after `prepare`. After an error the engine may hold a mix of old and new."""
        ...

    async def refuse(self, reason: str) -> None:
        """Tell a learner that is about to send that nothing will be taken."""
        ...

    def close(self) -> None: ...


def receiver_for(transport: WeightTransport, limit_s: float) -> Receiver:
    """limit_s: the longest wait for the learner (driver.sync_limit_s)."""
    return SharedMemoryReceiver() if transport in ("shared_memory", "object_store") else OrderedReceiver(limit_s)


class SharedMemoryReceiver:
    """The learner has written everything before: nobody to meet, nobody to wait for."""

    def __init__(self) -> None:
        self._reader = BlockReader()

    async def meet(self, engine: Any, meeting: WeightMeeting, index: int) -> None:
        pass

    async def prepare(self, manifest: WeightManifest) -> None:
        self._reader.check(manifest.path, manifest.policy_version)

    async def update(self, engine: Any, manifest: WeightManifest) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        place = {"path": manifest.path, "policy_version": manifest.policy_version, "tensors": [asdict(entry) for entry in manifest.tensors]}
        await engine.start_weight_update()
        await engine.update_weights(WeightTransferUpdateRequest(update_info=place))
        await engine.finish_weight_update(str(manifest.policy_version))

    async def refuse(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


class OrderedReceiver:
    """nccl and ipc: vLLM's trainer side, in the learner, gives the orders, and this hands them to vLLM's worker side."""

    def __init__(self, limit_s: float) -> None:
        self._line = LearnerLine(limit_s)
        self._begun: tuple[str, dict[str, Any]] | None = None

    async def meet(self, engine: Any, meeting: WeightMeeting, index: int) -> None:
        """
        Raises:
            TransferError: the learner was not there, or ordered something else than to join.
        """
        await engine.shutdown_weight_transfer_engine()  # leaves the group of an earlier meeting, if there was one
        self._begun = None
        await self._line.connect(meeting, index)
        method, argument = await self._line.next_order()
        if method != "init_weight_transfer_engine":
            raise TransferError(f"the learner ordered {method} at a meeting")
        await self._obey(engine, method, argument, version="")

    async def prepare(self, manifest: WeightManifest) -> None:
        self._begun = await self._line.next_order()  # the learner may have to end a step first

    async def update(self, engine: Any, manifest: WeightManifest) -> None:
        """
        Raises:
            TransferError: the learner is gone, or sent other tensors than were announced.
        """
        received: set[str] = set()
        method = ""
        while method != "finish_weight_update":
            method, argument = self._begun or await self._line.next_order()
            self._begun = None
            received.update(argument.get("names", ()))
            if method == "finish_weight_update" and received != manifest.names:
                reason = f"{len(manifest.names ^ received)} tensors are not as announced: {sorted(manifest.names ^ received)[:5]}"
                await self._line.answer(reason)
                raise TransferError(reason)
            await self._obey(engine, method, argument, version=str(manifest.policy_version))

    async def _obey(self, engine: Any, method: str, argument: Mapping[str, Any], *, version: str) -> None:
        try:
            await _call(engine, method, dict(argument), version)
        except Exception as error:  # the learner must hear of it, whatever it is
            await self._line.answer(f"{type(error).__name__}: {error}")
            raise
        await self._line.answer()

    async def refuse(self, reason: str) -> None:
        with contextlib.suppress(TransferError):  # a learner that is gone need not be told
            await self._line.answer(reason)

    def close(self) -> None:
        self._line.close()


async def _call(engine: Any, method: str, argument: dict[str, Any], version: str) -> None:
    """One order, as AsyncLLM wants it."""
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

    match method:
        case "init_weight_transfer_engine":
            await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=argument))
        case "start_weight_update":
            await engine.start_weight_update()
        case "update_weights":
            await engine.update_weights(WeightTransferUpdateRequest(update_info=argument))
        case "finish_weight_update":
            await engine.finish_weight_update(version)
        case _:
            raise TransferError(f"the learner ordered {method}, which is no part of a weight update")
