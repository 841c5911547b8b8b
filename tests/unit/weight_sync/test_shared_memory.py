import os
from pathlib import Path

import pytest
import torch

from mathrl_ray.weight_sync.shared_memory import ALIGNMENT_BYTES, SharedMemoryBlock, read_block


@pytest.fixture
def weights():
    return {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.tensor([1.5]), "norm": torch.ones(5)}


@pytest.fixture
def block(weights, tmp_path):
    block = SharedMemoryBlock(weights.items(), torch.float32, folder=str(tmp_path))
    yield block
    block.close()


def test_what_was_written_is_read_under_its_name(block, weights):
    manifest = block.write(weights.items(), policy_version=3)
    assert manifest.policy_version == 3
    read = dict(read_block(manifest.path, manifest.tensors))
    assert list(read) == list(weights)
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_a_second_write_replaces_the_first_in_the_same_pages(block, weights):
    first = block.write(weights.items(), policy_version=0)
    second = block.write(((name, tensor + 1) for name, tensor in weights.items()), policy_version=1)
    assert second.path == first.path
    assert all(torch.equal(tensor, weights[name] + 1) for name, tensor in read_block(second.path, second.tensors))


def test_tensors_lie_on_aligned_offsets(block, weights):
    # 24 bytes, 4 bytes, 20 bytes: each begins a new 64-byte line
    offsets = [entry.offset_bytes for entry in block.write(weights.items(), policy_version=0).tensors]
    assert offsets == [0, ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES]


def test_weights_are_cast_to_the_blocks_dtype(weights, tmp_path):
    block = SharedMemoryBlock(weights.items(), torch.bfloat16, folder=str(tmp_path))
    manifest = block.write(weights.items(), policy_version=0)
    assert {tensor.dtype for _, tensor in read_block(manifest.path, manifest.tensors)} == {torch.bfloat16}


def test_a_missing_tensor_is_refused(block, weights):
    del weights["norm"]
    with pytest.raises(ValueError, match=r"1 tensors .*norm"):
        block.write(weights.items(), policy_version=0)


def test_a_tensor_of_another_shape_is_refused(block, weights):
    with pytest.raises(ValueError, match=r"norm of shape \(4,\)"):
        block.write({**weights, "norm": torch.ones(4)}.items(), policy_version=0)


def test_the_file_is_the_owners_only_and_gone_after_close(block, weights):
    path = Path(block.write(weights.items(), policy_version=0).path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    block.close()
    assert not path.exists()
