"""The GPUs of one machine, as nvidia-smi tells of them and CUDA_VISIBLE_DEVICES shows them.

Called by nodes.py. Knows no Ray but the name of its process, and starts nothing on a GPU.
"""

import contextlib
import csv
import subprocess
from dataclasses import dataclass

import psutil

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that a run may use."""

    name: str
    memory_bytes: int | None
    """None where nvidia-smi does not know it: of a part of a GPU (MIG), or of one that shares the host's memory."""
    free_bytes: int | None


def gpu_listing() -> str:
    """What the driver's own tool says of all GPUs; "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver here, so no GPU
        return ""
    return answer.stdout


def visible_gpus(listing: str, visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's lines `index, uuid, name, total MiB, free MiB` that are visible, in the order that they are named.

    Args:
        listing: nvidia-smi's answer.
        visible: CUDA_VISIBLE_DEVICES: indices, the beginnings of uuids, or MIG-... for a part of one; None: all. As Ray counts, there are
            no more parts than whole GPUs.

    >>> [gpu.name for gpu in visible_gpus("0, GPU-a, A, 10, 9\\n1, GPU-b, B, 10, 9", "1")]
    ['B']
    """
    rows = [row for row in csv.reader(listing.splitlines(), skipinitialspace=True) if len(row) == 5]
    gpus = {(index, key): Gpu(name, _mib(total), _mib(free)) for index, key, name, total, free in rows}
    if visible is None:
        return tuple(gpus.values())
    chosen = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        named = (gpu for (index, key), gpu in gpus.items() if word == index or (word.startswith("GPU-") and key.startswith(word)))
        match = Gpu(word, None, None) if word.startswith("MIG-") else next(named, None)
        if match is None:
            break  # CUDA sees none behind the first that is not there
        chosen.append(match)
    return tuple(chosen[: len(gpus)])


def _mib(text: str) -> int | None:
    """Bytes of a number of MiB; None where the tool says "[N/A]"."""
    return int(text) * 2**20 if text.isdigit() else None


def devices_of_raylet() -> str | None:
    """CUDA_VISIBLE_DEVICES as Ray's own process of this node has it: a task that asks for no GPU sees none. None where it names none."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            if process.name() == "raylet":
                found: str | None = process.environ().get(VISIBLE)
                return found
    return None
