"""A copy of the learner's block on another machine: what reads the learner's reads the copy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mathrl_ray.weight_sync.carried_block import CarriedBlock, block_bytes
from mathrl_ray.weight_sync.errors import BlockError
from mathrl_ray.weight_sync.shared_memory import BlockReader, SharedMemoryBlock

SHAPES = [("embed.weight", torch.empty(5, 3, device="meta")), ("norm.weight", torch.empty(7, device="meta"))]


def weights(version):
    return [(name, torch.full(shape.shape, float(version))) for name, shape in SHAPES]


@pytest.fixture
def block():
    made = SharedMemoryBlock(SHAPES, torch.float32)
    yield made
    made.close()


@pytest.fixture
def copy(tmp_path):
    made = CarriedBlock(str(tmp_path))
    yield made
    made.close()


def values(manifest):
    reader = BlockReader()
    reader.check(manifest.path, manifest.policy_version)
    return {name: tensor.clone() for name, tensor in reader.tensors(manifest.path, manifest.tensors)}


def test_the_copy_is_read_like_the_block_version_for_version_in_one_place(block, copy):
    paths = set()
    for version in (1, 2, 3):
        manifest = block.write(weights(version), version)
        there = copy.take(manifest, np.array(block_bytes(manifest)))
        paths.add(there.path)
        assert there == replace(manifest, path=there.path)
        assert all(torch.equal(values(there)[name], tensor) for name, tensor in weights(version))
    assert len(paths) == 1  # no fresh memory for each version
    assert manifest.path not in paths


def test_bytes_that_were_changed_on_their_way_are_found(block, copy):
    manifest = block.write(weights(1), 1)
    changed = np.array(block_bytes(manifest))
    changed[-60] ^= 1
    there = copy.take(manifest, changed)
    with pytest.raises(BlockError, match="checksum"):
        BlockReader().check(there.path, 1)


def test_a_copy_that_broke_off_is_no_version(block, copy):
    manifest = block.write(weights(1), 1)
    there = copy.take(manifest, np.array(block_bytes(manifest)))

    class Broken(np.ndarray):
        def __getitem__(self, key):
            raise OSError("the object was lost")

    with pytest.raises(OSError, match="lost"):
        copy.take(replace(manifest, policy_version=2), np.array(block_bytes(manifest)).view(Broken))
    for version in (1, 2):
        with pytest.raises(BlockError, match="is being written"):
            BlockReader().check(there.path, version)


def test_a_block_that_holds_another_version_is_not_sent(block):
    manifest = block.write(weights(1), 1)
    with pytest.raises(BlockError, match="holds policy version 1, not policy version 2"):
        block_bytes(replace(manifest, policy_version=2))


def test_a_larger_model_gets_a_larger_copy_and_closing_removes_it(block, copy, tmp_path):
    manifest = block.write(weights(1), 1)
    first = copy.take(manifest, np.array(block_bytes(manifest)))
    large = SharedMemoryBlock([("w", torch.empty(9000, device="meta"))], torch.float32)
    try:
        published = large.write([("w", torch.ones(9000))], 1)
        second = copy.take(published, np.array(block_bytes(published)))
        assert torch.equal(values(second)["w"], torch.ones(9000))
    finally:
        large.close()
    assert first.path != second.path
    assert [str(path) for path in tmp_path.iterdir()] == [second.path]
    copy.close()
    assert list(tmp_path.iterdir()) == []
