"""The receiving end of a weight update, inside vLLM's worker process: vLLM's own weight-transfer interface, fed from shared memory.

vLLM imports this module in each worker because the generator names `WorkerExtension` as `worker_extension_cls`; the import registers
the engine. Knows vLLM and shared_memory.py, nothing of Ray or of the learner.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from mathrl_ray.types import TensorEntry
from mathrl_ray.weight_sync.shared_memory import BlockReader

BACKEND = "mathrl_shared_memory"
WORKER_EXTENSION = "mathrl_ray.weight_sync.vllm_engine.WorkerExtension"


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Shared memory needs no meeting point."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """Where one publication lies: `WeightManifest` as plain values, since vLLM sends it as a dictionary."""

    path: str
    policy_version: int
    tensors: list[dict[str, Any]]
    """One `TensorEntry` each, as a dictionary."""


class SharedMemoryTransferEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Loads a whole model from a block of shared memory through vLLM's layerwise reload (weights are packed after loading)."""

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Named now: a parameter that is shared (tied head) is listed once, while a reload has taken the sharing apart.
        self._parameter_names = {name for name, _ in self.model.named_parameters()}
        self._reader = BlockReader()
        self._loading: SharedMemoryUpdateInfo | None = None

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class also waits for an accelerator, which a CPU has not; copies from shared memory into the model are waited for
        # by finalize_layerwise_reload's own copies on every device.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        self._loading = update_info
        self._reader.check_version(update_info.path, update_info.policy_version)
        loaded = self.model.load_weights(self._weights(update_info))
        missing = self._parameter_names - set(loaded)
        if missing:
            raise ValueError(f"{len(missing)} parameters of the generator's model were not sent: {sorted(missing)[:5]}")

    def _weights(self, update_info: SharedMemoryUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        """Views, not copies: each layer copies what it takes, at the latest in finish_weight_update, and the block stays until then."""
        entries = [TensorEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in update_info.tensors]
        return self._reader.tensors(update_info.path, entries)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_head(self.model)
        assert self._loading is not None
        self._reader.check_version(self._loading.path, self._loading.policy_version)  # the block stayed as it was while it was read

    def shutdown(self) -> None:
        pass


def repack_tied_head(model: torch.nn.Module) -> None:
    """Pack the output head again where it shares the embedding's weight.

    The reload replaces the embedding's tensor but not the packed copy that the head computes with (vLLM 0.32 on the CPU), so the head
    would go on with the old weights, silently. Where nothing is packed (GPU) this does nothing.
    """
    head = getattr(model, "lm_head", None)
    quant_method = getattr(head, "quant_method", None)
    if quant_method is not None:
        quant_method.process_weights_after_loading(head)


class WorkerExtension:
    """Adds nothing to vLLM's worker; naming it makes the worker import this module."""


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryTransferEngine)
