"""Weights in a block of shared memory: written by the learner, read by every generator on the node.

Called by actors/learner.py (write) and vllm_engine.py (read). Knows tensors and files, no engine. The block is written in place again
and again, since fresh pages of shared memory are several times slower than reused ones.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path

import torch

from mathrl_ray.types import TensorEntry, WeightManifest

SHARED_MEMORY_FOLDER = "/dev/shm"
ALIGNMENT_BYTES = 64
"""Offsets are multiples of this, so that any dtype can be viewed in place."""


class SharedMemoryBlock:
    """One file of shared memory that holds a set of tensors, laid out once.

    Raises:
        ValueError: a later `write` brings other names, shapes or dtypes than the layout.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, folder: str = SHARED_MEMORY_FOLDER) -> None:
        self._dtype = dtype
        self._entries = tuple(_layout(tensors, dtype))
        size = self._entries[-1].offset_bytes + _num_bytes(self._entries[-1])
        handle, self.path = tempfile.mkstemp(prefix="mathrl-weights-", dir=folder)  # mode 0600
        try:
            os.posix_fallocate(handle, 0, size)  # an overfull /dev/shm is an error here, not a SIGBUS while writing
        except OSError:
            self.close()
            raise
        finally:
            os.close(handle)
        self._bytes = torch.from_file(self.path, shared=True, size=size, dtype=torch.uint8)

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> WeightManifest:
        """Copy the tensors into the block, cast to its dtype, and say where they lie."""
        remaining = {entry.name: entry for entry in self._entries}
        for name, tensor in tensors:
            entry = remaining.pop(name, None)
            if entry is None or entry.shape != tuple(tensor.shape):
                raise ValueError(f"tensor {name} of shape {tuple(tensor.shape)} does not belong to the layout, which has {entry}")
            _view(self._bytes, entry).copy_(tensor)
        if remaining:
            raise ValueError(f"{len(remaining)} tensors of the layout were not written: {sorted(remaining)[:5]}")
        return WeightManifest(policy_version=policy_version, path=self.path, tensors=self._entries)

    def close(self) -> None:
        """Remove the file; readers that hold it keep their view."""
        Path(self.path).unlink(missing_ok=True)


def read_block(path: str, entries: Sequence[TensorEntry]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) for each entry, as views of the shared memory: copy before the next write."""
    size = max(entry.offset_bytes + _num_bytes(entry) for entry in entries)
    data = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    for entry in entries:
        yield entry.name, _view(data, entry)


def _layout(tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> Iterator[TensorEntry]:
    offset = 0
    for name, tensor in tensors:
        entry = TensorEntry(name=name, dtype=str(dtype).removeprefix("torch."), shape=tuple(tensor.shape), offset_bytes=offset)
        yield entry
        offset += -(-_num_bytes(entry) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _num_bytes(entry: TensorEntry) -> int:
    return prod(entry.shape) * _torch_dtype(entry).itemsize


def _torch_dtype(entry: TensorEntry) -> torch.dtype:
    dtype = getattr(torch, entry.dtype)
    assert isinstance(dtype, torch.dtype), entry
    return dtype


def _view(data: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    return data[entry.offset_bytes : entry.offset_bytes + _num_bytes(entry)].view(_torch_dtype(entry)).view(entry.shape)
