"""The learner's side of a weight transfer between GPUs: vLLM's trainer engines (nccl, ipc) with our own weights and our own client.

Called by actors/publishing.py on the learner's first rank. Not run on a GPU yet: what needs none (numbers of ranks, names, dtypes, orders,
limits) is tested without one, against the classes of vLLM 0.32.

vLLM's own parts that are replaced here: its ModuleSource knows neither ZeRO 3 nor LoRA, and reads weights that may have been trained on
since they were published; its Ray client gives every replica the same rank and waits without limit.
"""

import base64
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mathrl_ray.types import TensorEntry, WeightMeeting, WeightTransport
from mathrl_ray.weight_sync.channel import LIMIT_KEY, GeneratorLines
from mathrl_ray.weight_sync.errors import TransferError
from mathrl_ray.weight_sync.shared_memory import torch_dtype

WORKERS_A_GENERATOR = 1
"""GPUs of one replica: each is a rank of the transfer's group."""
BUFFER_BYTES = 256 * 2**20
"""Tensors are sent packed, this many bytes at once; nccl holds two such buffers on each side, ipc one."""


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """What vLLM calls ParamMeta."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class StagedWeights:
    """What vLLM calls a WeightSource: a copy of the weights as they were published, on the learner's device.

    The copy costs a model's size in model.dtype. It lets a transfer that failed be repeated with the same weights,
    also after the learner's next step.
    """

    def __init__(self, entries: Sequence[TensorEntry], device: torch.device) -> None:
        self._tensors = {entry.name: torch.empty(entry.shape, dtype=torch_dtype(entry), device=device) for entry in entries}

    def fill(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new values, cast.

        Raises:
            ValueError: other names come than were announced.
        """
        remaining = set(self._tensors)
        for name, tensor in weights:
            if name not in remaining:
                raise ValueError(f"tensor {name} comes twice or was not announced")
            remaining.remove(name)
            self._tensors[name].copy_(tensor)
        if remaining:
            raise ValueError(f"{len(remaining)} announced tensors did not come: {sorted(remaining)[:5]}")

    def metadata(self) -> list[SourceTensor]:
        return [SourceTensor(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors.items())


class OrderClient:
    """What vLLM calls a VLLMWeightSyncClient: its four methods, as orders to every generator."""

    def __init__(self, lines: GeneratorLines, num_generators: int, on_failure: Callable[[BaseException], None]) -> None:
        """on_failure: told of a generator's failure at once, since vLLM's engine may wait in a broadcast that will never end."""
        self._lines, self._num_generators, self._on_failure = lines, num_generators, on_failure

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self._order("init_weight_transfer_engine", [for_replica(init_info, index) for index in range(self._num_generators)])

    def start_weight_update(self) -> None:
        self._order("start_weight_update", [{}] * self._num_generators)

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        self._order("update_weights", [plain(update_info)] * self._num_generators)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._order("finish_weight_update", [{}] * self._num_generators)  # each generator knows the version from the manifest

    def _order(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._lines.order(method, arguments)
        except TransferError as error:
            self._on_failure(error)
            raise


def for_replica(init_info: Mapping[str, Any], index: int) -> dict[str, Any]:
    """vLLM's first rank of the workers is the first replica's; each replica's workers come after those of the one before.

    >>> for_replica({"rank_offset": 1, "world_size": 3}, index=1)
    {'rank_offset': 2, 'world_size': 3}
    """
    shifted = dict(init_info)
    if "rank_offset" in shifted:  # ipc has no ranks
        shifted["rank_offset"] += index * WORKERS_A_GENERATOR
    return shifted


def plain(update_info: Mapping[str, Any]) -> dict[str, Any]:
    """The same in JSON's types: handles of GPU memory are pickled, in the form that vLLM's ipc engine takes."""
    handles = update_info.get("ipc_handles")
    if handles is None:
        return dict(update_info)
    others = {name: value for name, value in update_info.items() if name not in ("ipc_handles", "ipc_handles_pickled")}
    return {**others, "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}


def world_size(num_generators: int) -> int:
    """Ranks of the nccl group: the learner's first rank, and every worker of every generator."""
    return 1 + num_generators * WORKERS_A_GENERATOR


class WeightSender:
    """Meetings and transfers. After an error the parties must meet anew, in a new group."""

    def __init__(self, transport: WeightTransport, host: str, limit_s: float) -> None:
        """
        Args:
            transport: nccl or ipc.
            host: this machine's address, where generators can reach it.
            limit_s: driver.sync_limit_s.
        """
        self._transport, self._host, self._limit_s = transport, host, limit_s
        self._lines = GeneratorLines(limit_s)
        self._engine: Any = None
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def invite(self, num_generators: int) -> WeightMeeting:
        """Open a meeting point, and leave the group of an earlier meeting."""
        self.close()
        return self._lines.listen(self._transport, self._host, num_generators)

    def meet(self, meeting: WeightMeeting, source: StagedWeights, group_port: int) -> None:
        """Wait for all generators and form a group with them.

        Args:
            meeting: as `invite` gave it.
            source: what will be sent.
            group_port: a free port of this machine, for NCCL's own meeting.

        Raises:
            TransferError: a generator did not come, or failed; it is named.
        """
        self._within(lambda: self._join(meeting, source, group_port), "the meeting with the generators")

    def _join(self, meeting: WeightMeeting, source: StagedWeights, group_port: int) -> None:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self._lines.accept(meeting.num_generators)
        client = OrderClient(self._lines, meeting.num_generators, lambda error: self._answers.put(error))
        info = trainer_info(meeting, group_port)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)

    def send(self) -> None:
        """Send the staged weights to the generators, which have been told to apply them.

        Raises:
            TransferError: a generator failed, or the limit passed; the group is gone.
        """
        if self._engine is None:
            raise TransferError("learner and generators have not met, or their group has failed: they must meet anew")
        torch.accelerator.synchronize()  # vLLM packs on streams of its own, which do not wait for the one that staged
        self._within(self._engine.send_weights, "sending the weights")

    def _within(self, work: Callable[[], None], what: str) -> None:
        """Run `work` in a thread, at most for the limit: a collective whose partner has died returns only when its group is ended."""
        answers = self._answers = queue.SimpleQueue()
        device = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None

        def run() -> None:
            try:
                if device is not None:
                    torch.accelerator.set_device_index(device)
                work()
            except BaseException as error:  # the end of a thread: whatever it is goes to the waiting one
                answers.put(error)
            else:
                answers.put(None)

        threading.Thread(target=run, daemon=True, name=what).start()
        try:
            error = answers.get(timeout=self._limit_s + 1)  # the lines' own limit is first, and its message names who is missing
        except queue.Empty:
            error = TransferError(f"{what} did not end within {self._limit_s:g} s ({LIMIT_KEY})")
        if error is not None:
            self.close()
            raise error

    def close(self) -> None:
        self._lines.close()
        if self._engine is not None:
            self._engine.shutdown()  # nccl aborts what hangs in the group
            self._engine = None


def trainer_info(meeting: WeightMeeting, group_port: int) -> Any:
    """What vLLM's trainer side starts from. Only the learner's first rank takes part, whatever their number."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    if meeting.transport == "ipc":
        return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=BUFFER_BYTES)
    return NCCLTrainerInitInfo(
        master_address=meeting.address,
        master_port=group_port,
        world_size=world_size(meeting.num_generators),
        rank=0,
        packed_buffer_size_bytes=BUFFER_BYTES,
    )
