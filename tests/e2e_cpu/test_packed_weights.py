"""The learner's weights through vLLM's packing into a real CPU engine: afterwards both hold the same policy. Stands for nccl and ipc, whose
own part, between packing and unpacking, needs a GPU."""

import pytest
import torch
from test_weight_sync import SMALL, SyncEngines

from mathrl_ray.core.statistics import max_abs_difference
from mathrl_ray.types import TensorEntry
from mathrl_ray.weight_sync.sender import StagedWeights
from mathrl_ray.weight_sync.shared_memory import SharedMemoryBlock

packed = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")
pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
BUFFER_BYTES = 200_000
"""Less than the model has, so that several chunks are made."""


@pytest.fixture
def engines(start_model, tmp_path):
    made = SyncEngines(start_model, tmp_path, SMALL)
    yield made
    made.stop()


def staged(engine):
    """As the learner's first rank stages them for nccl and ipc (actors/publishing.py)."""
    entries = tuple(TensorEntry(name, "float32", tuple(shape.shape), 0) for name, shape in engine.weight_shapes())
    source = StagedWeights(entries, torch.device("cpu"))
    source.fill(engine.weights())
    return source


def through_vllms_packing(source, chunks):
    tensors = iter(source)
    while (chunk := packed.pack_tensors(tensors, lambda item: item[1], BUFFER_BYTES)) is not None:
        chunks.append(chunk.names)
        yield from packed.unpack_tensor(chunk.packed_tensor.clone(), chunk.names, chunk.shapes, chunk.dtypes, chunk.tensor_sizes)


@pytest.mark.filterwarnings("ignore:Tensor .* has size")  # vLLM's own, for a tensor that is larger than the buffer
def test_weights_that_went_through_vllms_packing_are_the_learners_in_the_generator(engines):
    engines.begin()
    engines.train_one_step()
    engine, chunks = engines.learner._engine, []
    block = SharedMemoryBlock(engine.weight_shapes(), torch.float32)
    try:
        manifest = block.write(through_vllms_packing(staged(engine), chunks), 1)
        engines.run(engines.generator.apply_weights(manifest))
        requests = engines.requests(8)
        completions = engines.run(engines.generator.generate(requests))
    finally:
        block.close()
    assert len(chunks) > 2
    assert {version for completion in completions for version, _ in completion.version_runs} == {1}
    gap = max_abs_difference(engines.learner_logprobs(requests, completions), [each.logprobs for each in completions])
    assert gap < 1e-4  # the tied head too: a stale one is off by more than 1
