"""A planted fault for test_engines.py: a transfer engine that leaves the packed output head as it was, as vLLM's own reload does.

vLLM's worker imports this module because the test names it as the worker extension.
"""

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

from mathrl_ray.weight_sync.vllm_engine import SharedMemoryTransferEngine

BACKEND = "stale_head"


class StaleHeadEngine(SharedMemoryTransferEngine):
    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)


class Extension:
    pass


WeightTransferEngineFactory.register_engine(BACKEND, StaleHeadEngine)
