"""What each machine of a run has: CPUs, GPUs, memory, disk, versions; and whether all of them see one run root.

Called by commands/preflight, for this machine alone or for every node of the joined cluster. Knows Ray; knows no recipe. Nothing is started
on a GPU, and no engine is imported.
"""

import contextlib
import csv
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SHARED_MEMORY = Path("/dev/shm")
NODE_LIMIT_S = 40.0
"""For all nodes to answer, side by side; a first task on a node starts a process there."""
VISIBLE_LIMIT_S = 5.0
"""How long a file that another node has written may take to appear here (network file systems keep names for seconds)."""
_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that a run may use."""

    name: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One machine. Made there, read by the preflight; plain values, since it travels.

    Example: NodeFacts("gpu-1", {"python": "3.11.9", "ray": "2.60.0"}, num_cpus=32, memory_bytes=2**38, shm_bytes=2**37, disk_bytes=2**40)
    """

    name: str
    versions: dict[str, str]
    """Of Python and of the packages that are installed."""
    num_cpus: float
    memory_bytes: int
    """Free, within the limit of the container that this is, if any."""
    shm_bytes: int
    """Free in /dev/shm."""
    disk_bytes: int
    """Free where the run root is."""
    num_gpus: float = 0
    """That a run may use, as Ray counts them."""
    gpus: tuple[Gpu, ...] = ()
    """What is known of them; fewer where the driver's tool does not answer."""
    root_fault: str = ""
    """Why the run root cannot be used there; "" where it can."""


def this_node(root: str, packages: Sequence[str]) -> NodeFacts:
    """This machine. The run root, and what of its path is missing, exists only while it is tried."""
    gpus = visible_gpus(_gpu_listing(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return replace(_machine(root, packages), gpus=gpus, num_gpus=len(gpus))


def _machine(root: str, packages: Sequence[str]) -> NodeFacts:
    fault = ""
    try:
        with _existing(Path(root)):
            _write_marker(Path(root) / _marker_name(), "")
            disk_bytes = shutil.disk_usage(root).free
    except OSError as error:
        fault, disk_bytes = f"{type(error).__name__}: {error.strerror or error}", 0
    return NodeFacts(
        name=socket.gethostname(),
        versions=installed_versions(packages),
        num_cpus=float(ray._private.utils.get_num_cpus()),  # what `ray.init` will count; it has no public call for it
        memory_bytes=_free_memory(),
        shm_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        disk_bytes=disk_bytes,
        root_fault=fault,
    )


def cluster_nodes(root: str, packages: Sequence[str]) -> list[NodeFacts]:
    """Every node that is alive, after `ray.init`; this machine's view of the root is proved to be theirs.

    Each node writes a marker of its own into the root, which must be there already, and this process reads it.

    Raises:
        OSError: this process cannot make the root.
        RuntimeError: a node did not answer in time.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    with _existing(Path(root)):
        asked = []
        for node in nodes:
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name, word = _marker_name(), uuid.uuid4().hex
            task = ray.remote(_marked_facts).options(num_cpus=0, scheduling_strategy=place)
            asked.append((node, Path(root) / name, word, task.remote(root, name, word, list(packages))))
        try:
            answers = ray.get([reference for *_, reference in asked], timeout=NODE_LIMIT_S)
        except ray.exceptions.GetTimeoutError:
            raise RuntimeError(f"not all of {len(nodes)} nodes answered within {NODE_LIMIT_S:g} s: look at the dashboard") from None
        found = []
        for (node, marker, word, _), facts in zip(asked, answers, strict=True):
            fault = facts.root_fault or _unseen(marker, word)
            num_cpus, num_gpus = (float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
            own = {"name": node["NodeManagerHostname"], "num_cpus": num_cpus, "num_gpus": num_gpus, "gpus": facts.gpus[: int(num_gpus)]}
            found.append(replace(facts, root_fault=fault, **own))
            marker.unlink(missing_ok=True)
    return found


def _marked_facts(root: str, name: str, word: str, packages: Sequence[str]) -> NodeFacts:
    """One node's facts, and its marker in the root; runs there."""
    fault = ""
    if not Path(root).is_dir():
        fault = "is not there, though the job's machine has it: all nodes must see one folder"
    else:
        try:
            (Path(root) / name).write_text(word, encoding="utf-8")
        except OSError as error:
            fault = f"{type(error).__name__}: {error.strerror or error}"
    facts = _machine(root, packages) if not fault else replace(_machine(tempfile.gettempdir(), packages), disk_bytes=0)
    gpus = visible_gpus(_gpu_listing(), None)  # Ray hides them all from a task that asks for none
    return replace(facts, root_fault=fault or facts.root_fault, gpus=gpus)


def _unseen(marker: Path, word: str) -> str:
    """Why a marker that a node says to have written is not the one here; "" where it is."""
    until = time.monotonic() + VISIBLE_LIMIT_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if marker.read_text(encoding="utf-8") == word:
                return ""
        time.sleep(_LOOK_AGAIN_S)
    return f"is another folder there than here: its marker {marker.name} does not appear here. All nodes must see one folder"


@contextlib.contextmanager
def _existing(root: Path) -> Iterator[None]:
    """The root is there inside; what was made for it is removed again where it stayed empty."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # a run has begun in it meanwhile
                folder.rmdir()


def _write_marker(path: Path, word: str) -> None:
    try:
        path.write_text(word, encoding="utf-8")
    finally:
        path.unlink(missing_ok=True)


def _marker_name() -> str:
    return f".preflight-{uuid.uuid4().hex}"


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Of this Python and of those packages that it has."""
    found = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _free_memory() -> int:
    """What the machine has free, or what a container's limit (cgroup v2) leaves, whichever is less."""
    free: int = psutil.virtual_memory().available
    folder = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no such file outside of a container; "max" is no limit
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        reclaimable = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines()).get("inactive_file", "0")
        free = min(free, limit - used + int(reclaimable))
    return max(0, free)


def _gpu_listing() -> str:
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
        visible: CUDA_VISIBLE_DEVICES: indices or the beginnings of uuids; None: all.

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
        match = next(named, None)
        if match is None:
            break  # CUDA sees none behind the first that is not there
        chosen.append(match)
    return tuple(chosen)


def _mib(text: str) -> int:
    """Bytes of a number of MiB; 0 where the tool says "[N/A]"."""
    return int(text) * 2**20 if text.isdigit() else 0
