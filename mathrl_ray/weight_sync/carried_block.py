"""A block of published weights on a machine that does not see the learner's shared memory: the bytes come, and a copy of the block is made.

Called by learner.py (block_bytes) and generator.py (CarriedBlock). How the bytes travel is actors/block_carrier.py's; this knows shared
memory, no Ray and no engine. The copy is a block like the learner's, mark, version and checksum included, so that what reads it
(receiver.py, vllm_engine.py) is the same on every node; and like it, is written in place at each version.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mathrl_ray.types import WeightManifest
from mathrl_ray.weight_sync.shared_memory import PAGE_BYTES, SHARED_MEMORY_FOLDER, BlockReader, Pages, new_block


def block_bytes(manifest: WeightManifest) -> Any:
    """The whole block, its first page too: a numpy array [num_bytes] of uint8, a view of the shared memory until the next publication.

    Raises:
        BlockError: the block is not there, or holds another version.
    """
    reader = BlockReader()
    reader.check_version(manifest.path, manifest.policy_version)
    return reader.whole(manifest.path).numpy()


class CarriedBlock:
    """This process's copy of the learner's block. The update before must have ended: it reads the same memory."""

    def __init__(self, folder: str = SHARED_MEMORY_FOLDER) -> None:
        self._folder = folder
        self._pages: Pages | None = None

    def take(self, manifest: WeightManifest, block: Any) -> WeightManifest:
        """Write the bytes over the copy, and say where they lie now. The first page comes last: a reader that comes in between, or after a
        failure, finds a block that is being written.

        Args:
            manifest: of the publication.
            block: its bytes, as `block_bytes` gives them; may be read-only.

        Raises:
            OSError: there is too little shared memory here.
        """
        if self._pages is None or len(self._pages.bytes) != len(block):
            self.close()
            self._pages = new_block(len(block), self._folder)
        self._pages.begin_writing()
        copy = self._pages.bytes.numpy()
        copy[PAGE_BYTES:] = block[PAGE_BYTES:]
        copy[:PAGE_BYTES] = block[:PAGE_BYTES]
        return replace(manifest, path=self._pages.path)

    def close(self) -> None:
        """Remove the copy; who holds it keeps its view."""
        if self._pages is not None:
            Path(self._pages.path).unlink(missing_ok=True)
            self._pages = None
