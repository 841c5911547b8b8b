import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.weight_sync.errors import BlockError
from mathrl_ray.weight_sync.shared_memory import ALIGNMENT_BYTES, FULLY_SUMMED_PAGES, PAGE_BYTES, BlockReader, SharedMemoryBlock


@pytest.fixture
def weights():
    return {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.tensor([1.5]), "norm": torch.ones(5)}


@pytest.fixture
def block(weights, tmp_path):
    block = SharedMemoryBlock(weights.items(), torch.float32, folder=str(tmp_path))
    yield block
    block.close()


def read(manifest):
    return dict(BlockReader().tensors(manifest.path, manifest.tensors))


def overwrite(path, offset_bytes, content):
    with open(path, "r+b") as file:
        file.seek(offset_bytes)
        file.write(content)


def test_what_was_written_is_read_under_its_name(block, weights):
    manifest = block.write(weights.items(), policy_version=3)
    assert manifest.policy_version == 3
    assert list(read(manifest)) == list(weights)
    assert all(torch.equal(read(manifest)[name], weights[name]) for name in weights)


def test_a_second_write_replaces_the_first_in_the_same_pages(block, weights):
    first = block.write(weights.items(), policy_version=0)
    second = block.write(((name, tensor + 1) for name, tensor in weights.items()), policy_version=1)
    assert second.path == first.path
    assert all(torch.equal(tensor, weights[name] + 1) for name, tensor in read(second).items())


def test_a_reader_that_has_read_one_version_sees_the_next_in_the_memory_that_it_holds(block, weights):
    reader = BlockReader()
    manifest = block.write(weights.items(), policy_version=0)
    before = dict(reader.tensors(manifest.path, manifest.tensors))
    block.write(((name, tensor + 1) for name, tensor in weights.items()), policy_version=1)
    reader.check(manifest.path, 1)
    after = dict(reader.tensors(manifest.path, manifest.tensors))
    assert all(after[name].data_ptr() == before[name].data_ptr() for name in weights)
    assert torch.equal(after["norm"], weights["norm"] + 1)


def test_several_readers_read_the_same_block(block, weights):
    manifest = block.write(weights.items(), policy_version=2)
    for reader in (BlockReader(), BlockReader()):
        reader.check(manifest.path, 2)
        assert torch.equal(dict(reader.tensors(manifest.path, manifest.tensors))["norm"], weights["norm"])


def test_tensors_lie_on_aligned_offsets_behind_the_header(block, weights):
    # 24 bytes, 4 bytes, 20 bytes: each begins a new 64-byte line, the first one on the second page
    offsets = [entry.offset_bytes - PAGE_BYTES for entry in block.write(weights.items(), policy_version=0).tensors]
    assert offsets == [0, ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES]


def test_weights_are_cast_to_the_blocks_dtype(weights, tmp_path):
    block = SharedMemoryBlock(weights.items(), torch.bfloat16, folder=str(tmp_path))
    manifest = block.write(weights.items(), policy_version=0)
    assert {tensor.dtype for tensor in read(manifest).values()} == {torch.bfloat16}


def test_a_missing_tensor_is_refused_and_what_was_written_cannot_be_read(block, weights):
    path = block.write(weights.items(), policy_version=0).path
    del weights["norm"]
    with pytest.raises(ValueError, match=r"1 tensors .*norm"):
        block.write(weights.items(), policy_version=1)
    for version in (0, 1):
        with pytest.raises(BlockError, match=rf"being written, or its writer failed, not policy version {version}"):
            BlockReader().check(path, version)


def test_a_tensor_of_another_shape_is_refused(block, weights):
    with pytest.raises(ValueError, match=r"norm of shape \(4,\)"):
        block.write({**weights, "norm": torch.ones(4)}.items(), policy_version=0)


def test_a_reader_that_is_late_does_not_take_newer_weights_for_older_ones(block, weights):
    late = block.write(weights.items(), policy_version=4)
    block.write(weights.items(), policy_version=5)
    with pytest.raises(BlockError, match="holds policy version 5, not policy version 4"):
        BlockReader().check_version(late.path, late.policy_version)


@given(st.integers(0, 5), st.integers(1, 255))
def test_any_byte_of_a_small_block_that_changed_after_it_was_written_is_found(tensor, difference):
    block = SharedMemoryBlock([(f"{index}", torch.ones(1000)) for index in range(6)], torch.float32)
    try:
        manifest = block.write([(f"{index}", torch.full((1000,), float(index))) for index in range(6)], policy_version=1)
        BlockReader().check(manifest.path, 1)
        offset = manifest.tensors[tensor].offset_bytes + 13
        before = Path(manifest.path).read_bytes()[offset]
        overwrite(manifest.path, offset, bytes([(before + difference) % 256]))
        with pytest.raises(BlockError, match="checksum"):
            BlockReader().check(manifest.path, 1)
    finally:
        block.close()


@pytest.mark.parametrize("policy_version", [0, 1, 100])
def test_one_stale_page_of_a_large_block_is_found(policy_version, tmp_path):
    """The sum takes 8 bytes a page there; a page of the version before differs in them as everywhere."""
    num_pages = FULLY_SUMMED_PAGES + 1
    weights = torch.randn(num_pages * PAGE_BYTES // 4)
    block = SharedMemoryBlock([("w", weights)], torch.float32, folder=str(tmp_path))
    manifest = block.write([("w", weights)], policy_version)
    stale = PAGE_BYTES * (1 + num_pages // 3)  # a page of the content, and what it would have held before
    overwrite(manifest.path, stale, (weights[: PAGE_BYTES // 4] + 1).numpy().tobytes())
    with pytest.raises(BlockError, match="checksum"):
        BlockReader().check(manifest.path, policy_version)


def test_two_pages_in_each_others_place_are_found(tmp_path):
    weights = torch.randn(4 * PAGE_BYTES // 4)
    block = SharedMemoryBlock([("w", weights)], torch.float32, folder=str(tmp_path))
    manifest = block.write([("w", weights)], policy_version=0)
    pages = weights.view(4, -1)
    overwrite(manifest.path, PAGE_BYTES, pages[[1, 0, 2, 3]].numpy().tobytes())
    with pytest.raises(BlockError, match="checksum"):
        BlockReader().check(manifest.path, 0)


def test_a_block_that_is_not_there_is_named_with_the_key_to_change(tmp_path):
    with pytest.raises(BlockError, match=r"gone cannot be read .*driver\.weight_transport"):
        BlockReader().check(str(tmp_path / "gone"), 0)


def test_a_file_that_is_no_block_is_refused(tmp_path):
    (tmp_path / "other").write_bytes(bytes(2 * PAGE_BYTES))
    with pytest.raises(BlockError, match="no block of weights"):
        BlockReader().check(str(tmp_path / "other"), 0)


def test_the_file_is_the_owners_only_and_gone_after_close(block, weights):
    path = Path(block.write(weights.items(), policy_version=0).path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    block.close()
    assert not path.exists()
