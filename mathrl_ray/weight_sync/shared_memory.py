"""Weights in a block of shared memory: written by the learner, read by every generator on the node.

Called by actors/publishing.py (write), receiver.py (check) and vllm_engine.py (read). Knows tensors and files, no engine. The block is
written in place again and again, since fresh pages of shared memory are several times slower than reused ones.

    first page   a mark, the policy_version (WRITING while tensors are being written), the checksum
    after it     each tensor at its offset
"""

import functools
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path

import torch

from mathrl_ray.types import TensorEntry, WeightManifest
from mathrl_ray.weight_sync.errors import BlockError

SHARED_MEMORY_FOLDER = "/dev/shm"
PAGE_BYTES = 4096
ALIGNMENT_BYTES = 64
"""Offsets are multiples of this, so that any dtype can be viewed in place."""
FULLY_SUMMED_PAGES = 4096
"""Blocks of up to 16 MiB are summed whole; of larger ones 8 bytes a page, since a whole sum costs half as much as the copy."""
MARK = 0x6D617468726C7731
WRITING = -1


@functools.cache
def block_prefix() -> str:
    """How the names of this process's blocks begin, and no other's: by it they are found when the process was killed."""
    return f"mathrl-weights-{os.getpid()}-{secrets.token_hex(4)}-"


class Pages:
    """A mapped block: its header and its content, as integers."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.bytes = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        pages = self.bytes.view(torch.int64).view(-1, PAGE_BYTES // 8)
        self._header, self._content = pages[0], pages[1:]
        self._weights = 2 * torch.arange(len(self._content), dtype=torch.int64) + 1

    def touch(self) -> None:
        """Write to each page, so that no later write has to wait for one."""
        self.bytes[::PAGE_BYTES] = 0

    def checksum(self, policy_version: int) -> int:
        """sum_p (2 p + 1) s_p modulo 2^64; s_p is the sum of page p's 8-byte numbers; of a large block one of them, another each version.

        It finds pages that were not written, or lie in another's place; a bit that flips by itself only in a block that is summed whole.
        """
        if len(self._content) <= FULLY_SUMMED_PAGES:
            return int((self._content.sum(1) * self._weights).sum())
        return int((self._content[:, 73 * policy_version % (PAGE_BYTES // 8)] * self._weights).sum())

    def begin_writing(self) -> None:
        self._header[0], self._header[1] = MARK, WRITING

    def end_writing(self, policy_version: int) -> None:
        self._header[2] = self.checksum(policy_version)
        self._header[1] = policy_version

    def check_version(self, policy_version: int) -> None:
        mark, version = int(self._header[0]), int(self._header[1])
        if mark != MARK:
            raise BlockError(f"{self.path} is no block of weights")
        if version != policy_version:
            found = "is being written, or its writer failed" if version == WRITING else f"holds policy version {version}"
            raise BlockError(f"{self.path} {found}, not policy version {policy_version} that was announced: nothing of it was used")

    def check_content(self, policy_version: int) -> None:
        found, noted = self.checksum(policy_version), int(self._header[2])
        if found != noted:
            raise BlockError(f"{self.path}: the weights of policy version {policy_version} have checksum {found:x}, their writer {noted:x}")


class SharedMemoryBlock:
    """One file of shared memory that holds a set of tensors, laid out and touched once.

    Raises:
        ValueError: a later `write` brings other names, shapes or dtypes than the layout.
        OSError: there is too little shared memory.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, folder: str = SHARED_MEMORY_FOLDER) -> None:
        self._entries = tuple(_layout(tensors, dtype))
        size = _round_up(self._entries[-1].offset_bytes + _num_bytes(self._entries[-1]), PAGE_BYTES)
        self._pages = new_block(size, folder)
        self.path = self._pages.path
        self._views = {entry.name: _view(self._pages.bytes, entry) for entry in self._entries}

    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> WeightManifest:
        """Copy the tensors into the block, cast to its dtype, and say where they lie. All readers must be done with the last version."""
        remaining = set(self._views)
        self._pages.begin_writing()
        for name, tensor in tensors:
            if name not in remaining or self._views[name].shape != tensor.shape:
                known = tuple(self._views[name].shape) if name in remaining else "none of this name left to write"
                raise ValueError(f"tensor {name} of shape {tuple(tensor.shape)} does not belong to the layout, which has {known}")
            remaining.remove(name)
            self._views[name].copy_(tensor)
        if remaining:
            raise ValueError(f"{len(remaining)} tensors of the layout were not written: {sorted(remaining)[:5]}")
        self._pages.end_writing(policy_version)
        return WeightManifest(policy_version=policy_version, path=self.path, tensors=self._entries)

    def close(self) -> None:
        """Remove the file; readers that hold it keep their view."""
        Path(self.path).unlink(missing_ok=True)


class BlockReader:
    """Reads blocks, and keeps the last one mapped: mapping a large one anew at each version costs time."""

    def __init__(self) -> None:
        self._pages: Pages | None = None

    def check(self, path: str, policy_version: int) -> None:
        """Compare version and checksum of a block with what was announced and noted.

        Raises:
            BlockError: they differ, or the block is not there.
        """
        self.check_version(path, policy_version)
        self._mapped(path).check_content(policy_version)

    def check_version(self, path: str, policy_version: int) -> None:
        """The cheap half of `check`: after a read it shows whether the block stayed as it was.

        Raises:
            BlockError: the block holds another version, or none.
        """
        self._mapped(path).check_version(policy_version)

    def tensors(self, path: str, entries: Sequence[TensorEntry]) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of each entry, as views of the shared memory: they are good until the next write."""
        data = self._mapped(path).bytes
        for entry in entries:
            yield entry.name, _view(data, entry)

    def whole(self, path: str) -> torch.Tensor:
        """[num_bytes] uint8 of a block, its first page too: a view."""
        return self._mapped(path).bytes

    def _mapped(self, path: str) -> Pages:
        if self._pages is None or self._pages.path != path:
            try:
                self._pages = Pages(path, os.path.getsize(path))
            except OSError as error:
                raise BlockError(
                    f"{path} cannot be read ({error.strerror}): its learner has ended or runs on another machine, which "
                    "driver.weight_transport = 'shared_memory' does not reach: 'object_store' does"
                ) from error
        return self._pages


def new_block(size: int, folder: str) -> Pages:
    """A file of shared memory, mapped and touched, with a name that tells whose it is.

    Raises:
        OSError: there is too little shared memory.
    """
    handle, path = tempfile.mkstemp(prefix=block_prefix(), dir=folder)  # mode 0600
    try:
        os.posix_fallocate(handle, 0, size)  # an overfull /dev/shm is an error here, not a SIGBUS while writing
    except OSError:
        Path(path).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    pages = Pages(path, size)
    pages.touch()
    return pages


def _layout(tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> Iterator[TensorEntry]:
    offset = PAGE_BYTES
    for name, tensor in tensors:
        entry = TensorEntry(name=name, dtype=str(dtype).removeprefix("torch."), shape=tuple(tensor.shape), offset_bytes=offset)
        yield entry
        offset += _round_up(_num_bytes(entry), ALIGNMENT_BYTES)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _num_bytes(entry: TensorEntry) -> int:
    return prod(entry.shape) * torch_dtype(entry).itemsize


def torch_dtype(entry: TensorEntry) -> torch.dtype:
    dtype = getattr(torch, entry.dtype)
    assert isinstance(dtype, torch.dtype), entry
    return dtype


def _view(data: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    return data[entry.offset_bytes : entry.offset_bytes + _num_bytes(entry)].view(torch_dtype(entry)).view(entry.shape)
