"""Short values that tell whether something is still what it was: a run's data, the files of a checkpoint, settings that are masked.

Called by checkpoint.py, resume.py and the job. Knows files and plain values; knows no run.
"""

import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import masked

FileDigests = dict[str, list[int]]
"""File name -> [bytes, CRC-32]: finds damage, not deceit, at the speed of reading."""
_CHUNK_BYTES = 1 << 20


def run_digests(
    recipe: Recipe, *, train: Iterable[Any], traces: Iterable[Any], validation: Iterable[Any], test: Iterable[Any]
) -> dict[str, dict[str, str]]:
    """What a run keeps to be compared when it goes on: "data" by set, "masked" by key of the recipe."""
    sets = {"train": train, "traces": traces, "validation": validation, "test": test}
    return {"data": {name: data_digest(rows) for name, rows in sets.items()}, "masked": masked_digests(recipe.model_dump(mode="json"))}


def data_digest(rows: Iterable[Any]) -> str:
    """Of problems or traces: their order, ids and texts; "" where there are none.

    >>> data_digest(["a", "b"]) == data_digest(["b", "a"]), data_digest([])
    (False, '')
    """
    digest, is_empty = hashlib.blake2b(digest_size=16), True
    for row in rows:
        is_empty = False
        digest.update(repr(row).encode("utf-8", "surrogatepass") + b"\n")
    return "" if is_empty else digest.hexdigest()


def masked_digests(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of each key of a recipe whose value is not written as it is. Two bytes that are slow to make: enough to see a change, and a secret
    cannot be found from them, since one in 65536 of all guesses fits."""
    return {
        f"{section}.{name}": _slow_digest(value, salt=f"{section}.{name}")
        for section, values in recipe.items()
        for name, value in values.items()
        if masked(value, name) != value
    }


def _slow_digest(value: Any, *, salt: str) -> str:
    text = json.dumps(value, sort_keys=True).encode()
    return hashlib.scrypt(text, salt=salt.encode(), n=2**12, r=8, p=1, dklen=2).hex()


def file_digests(folder: Path) -> FileDigests:
    """Of all files in a folder, by their path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _crc32(path)] for path in files}


def check_files(folder: Path, digests: Mapping[str, Collection[int]], read: Collection[str] | None = None) -> None:
    """
    Args:
        folder: where the files should be; others beside them are no one's business.
        digests: as `file_digests` gave them.
        read: which are read whole; of the others only the length is looked at. None: all are read.

    Raises:
        ValueError: one is missing, or not as it was; it is named.
        OSError: one cannot be read.
    """
    for name, (num_bytes, crc32) in digests.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        if (length := path.stat().st_size) != num_bytes:
            raise ValueError(f"{path} has {length} bytes, {num_bytes} were written")
        if (read is None or name in read) and _crc32(path) != crc32:
            raise ValueError(f"{path} is damaged: what is in it is not what was written")


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        ValueError: it holds something else; the file is named.
        OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: a JSON object was written, there is a {type(value).__name__}")
    return value
