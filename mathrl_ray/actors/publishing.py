"""How a learner's weights leave it: written into shared memory, or sent from GPU to GPU.

Called by learner.py, on every rank, with the engine whose weights are meant. Knows weight_sync/; knows no generator.
"""

from dataclasses import replace
from typing import Any, Protocol

from mathrl_ray.actors.process_group import free_port
from mathrl_ray.types import TensorEntry, WeightManifest, WeightMeeting, WeightTransport


class Publisher(Protocol):
    """One rank's part in publications. `engine` is a deepspeed_engine.Engine."""

    def invite(self, num_generators: int) -> WeightMeeting: ...

    def meet(self, meeting: WeightMeeting, engine: Any) -> None: ...

    def publish(self, policy_version: int, engine: Any) -> WeightManifest | None:
        """The manifest on the first rank, None on the others; shared memory is written here."""
        ...

    def send(self, manifest: WeightManifest) -> None: ...

    def close(self) -> None: ...


def publisher_for(transport: WeightTransport, *, rank: int, dtype: str, host: str, limit_s: float) -> Publisher:
    """
    Args:
        transport: how.
        rank: of this learner actor.
        dtype: model.dtype, in which the weights go.
        host: this machine's address for generators.
        limit_s: driver.sync_limit_s.
    """
    if transport in ("shared_memory", "object_store"):
        return SharedMemoryPublisher(transport, rank, dtype)
    return SendingPublisher(transport, rank, dtype, host, limit_s)


def go_through(engine: Any) -> None:
    """The first rank reads weights that the ranks may hold in parts, so the others go through them too, and keep none."""
    for _ in engine.weights():
        pass


class SharedMemoryPublisher:
    """Writes whole; nobody has to meet, and generators read by themselves. All of them must have applied before the next `publish`."""

    def __init__(self, transport: WeightTransport, rank: int, dtype: str) -> None:
        self._transport, self._rank, self._dtype = transport, rank, dtype
        self._block: Any = None

    def invite(self, num_generators: int) -> WeightMeeting:
        return WeightMeeting(self._transport, num_generators=num_generators)

    def meet(self, meeting: WeightMeeting, engine: Any) -> None:
        pass

    def publish(self, policy_version: int, engine: Any) -> WeightManifest | None:
        import torch

        from mathrl_ray.weight_sync.shared_memory import SharedMemoryBlock

        if self._rank != 0:
            go_through(engine)
            return None
        if self._block is None:
            self._block = SharedMemoryBlock(engine.weight_shapes(), getattr(torch, self._dtype))
        manifest: WeightManifest = self._block.write(engine.weights(), policy_version)
        return replace(manifest, transport=self._transport)

    def send(self, manifest: WeightManifest) -> None:
        pass

    def close(self) -> None:
        if self._block is not None:
            self._block.close()
            self._block = None


class SendingPublisher:
    """Keeps a copy of what is published, then sends it while the generators take it; the first rank alone. A transfer that
    failed can be repeated with the same weights."""

    def __init__(self, transport: WeightTransport, rank: int, dtype: str, host: str, limit_s: float) -> None:
        from mathrl_ray.weight_sync.sender import WeightSender

        self._transport, self._rank, self._dtype = transport, rank, dtype
        self._sender = WeightSender(transport, host, limit_s)
        self._entries: tuple[TensorEntry, ...] = ()
        self._staged: Any = None

    def invite(self, num_generators: int) -> WeightMeeting:
        return self._sender.invite(num_generators) if self._rank == 0 else WeightMeeting(self._transport)

    def meet(self, meeting: WeightMeeting, engine: Any) -> None:
        if self._rank == 0:
            self._stage(engine)
            self._sender.meet(meeting, self._staged, free_port())

    def publish(self, policy_version: int, engine: Any) -> WeightManifest | None:
        if self._rank != 0:
            go_through(engine)
            return None
        self._stage(engine)
        self._staged.fill(engine.weights())
        return WeightManifest(policy_version, "", self._entries, self._transport)

    def _stage(self, engine: Any) -> None:
        """Make room for the copy, once: every stage trains a model of the same shapes."""
        from mathrl_ray.weight_sync.sender import StagedWeights

        if self._staged is None:
            self._entries = tuple(
                TensorEntry(name, self._dtype, tuple(shape.shape), offset_bytes=0) for name, shape in engine.weight_shapes()
            )
            self._staged = StagedWeights(self._entries, engine.device)

    def send(self, manifest: WeightManifest) -> None:
        if self._rank == 0:
            self._sender.send()

    def close(self) -> None:
        self._sender.close()
        self._staged = None
