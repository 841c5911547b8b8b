"""The learner's weights through vLLM's own packing, as its nccl and ipc engines call it, on the CPU: what is sent is what arrives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.types import TensorEntry
from mathrl_ray.weight_sync.sender import StagedWeights

packed = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def sent_and_received(source, buffer_bytes):
    """Each chunk packed from the source and unpacked by what the update's message says. Returns (tensors in order, number of chunks)."""
    tensors, received, num_chunks = iter(source), [], 0
    while (chunk := packed.pack_tensors(tensors, lambda item: item[1], buffer_bytes)) is not None:
        copy = chunk.packed_tensor.clone()  # another process's memory
        received += packed.unpack_tensor(copy, chunk.names, chunk.shapes, chunk.dtypes, chunk.tensor_sizes)
        num_chunks += 1
    return received, num_chunks


def staged(shapes, dtype, draw):
    entries = [TensorEntry(f"layer.{index}.weight", dtype, shape, 0) for index, shape in enumerate(shapes)]
    weights = {entry.name: torch.randn(entry.shape, generator=draw) for entry in entries}
    source = StagedWeights(entries, torch.device("cpu"))
    source.fill(weights.items())
    return source, weights


@pytest.mark.filterwarnings("ignore:Tensor .* has size")  # vLLM's own, for one that is larger than the buffer
@given(
    shapes=st.lists(st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple), min_size=1, max_size=8),
    dtype=st.sampled_from(sorted(DTYPES)),
    buffer_bytes=st.integers(1, 400),
)
def test_every_tensor_arrives_once_in_order_with_name_shape_and_value_whatever_the_buffer(shapes, dtype, buffer_bytes):
    source, weights = staged(shapes, dtype, torch.Generator().manual_seed(0))
    received, _ = sent_and_received(source, buffer_bytes)
    assert [name for name, _ in received] == list(weights) == [entry.name for entry in source.metadata()]
    for (name, tensor), entry in zip(received, source.metadata(), strict=True):
        assert (tensor.dtype, tuple(tensor.shape)) == (DTYPES[dtype], entry.shape)
        assert torch.equal(tensor, weights[name].to(DTYPES[dtype]))


def test_a_buffer_smaller_than_the_model_makes_several_chunks_and_a_larger_one_makes_one():
    source, _ = staged([(8, 8)] * 6, "bfloat16", torch.Generator().manual_seed(0))  # 128 bytes each
    assert sent_and_received(source, 300)[1] == 2  # 3 x 128 is more than 300, and closes a chunk
    assert sent_and_received(source, 10_000)[1] == 1


def test_what_the_learner_trains_on_meanwhile_does_not_reach_the_staged_copy():
    source, weights = staged([(4,), (2, 2)], "float32", torch.Generator().manual_seed(0))
    published = {name: tensor.clone() for name, tensor in weights.items()}
    for tensor in weights.values():
        tensor.add_(1.0)
    for name, tensor in sent_and_received(source, 8)[0]:
        assert torch.equal(tensor, published[name])
