"""What each machine of a run has: CPUs, GPUs, memory, disk, versions; and whether all of them see one run root.

Called by commands/preflight, for this machine alone or for every node of the joined cluster. Knows Ray; knows no recipe. Nothing is started
on a GPU, and no engine is imported.
"""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mathrl_ray.actors.gpus import VISIBLE, Gpu, devices_of_raylet, gpu_listing, visible_gpus

SHARED_MEMORY = Path("/dev/shm")
NODE_LIMIT_S = 40.0
"""For all nodes to answer, side by side; a first task on a node starts a process there."""
VISIBLE_LIMIT_S = 5.0
"""How long a file that another node has written may take to appear here (network file systems keep names for seconds)."""
_LOOK_AGAIN_S = 0.1


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
    """Free where the run root is; 0 where that cannot be used."""
    num_gpus: float = 0
    """That a run may use, as Ray counts them."""
    gpus: tuple[Gpu, ...] = ()
    """What is known of them; fewer where the driver's tool does not answer."""
    root_fault: str = ""
    """Why the run root cannot be used there; "" where it can."""


def this_node(root: str, packages: Sequence[str]) -> NodeFacts:
    """This machine. The run root, and what of its path is missing, exists only while it is tried."""
    gpus = visible_gpus(gpu_listing(), os.environ.get(VISIBLE))
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

    Each node writes a marker into a folder that this process has made in the root, which must be there already, and this process reads it.
    Both are gone at the end, and a node that is late finds no folder to write into.

    Raises:
        OSError: this process cannot make the root.
        RuntimeError: a node did not answer in time, or cannot run a task of this package.
    """
    try:
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        with _existing(Path(root)), _marker_folder(Path(root)) as folder:
            answers = _answers(nodes, root, folder.name, packages)
            unseen = _unseen({key: folder / key for key, facts in answers.items() if not facts.root_fault})
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"the cluster does not answer: {_last_line(error)}") from error
    return [_as_ray_has_it(node, answers[key], unseen.get(key, "")) for key, node in nodes.items()]


def _answers(nodes: Mapping[str, Any], root: str, folder: str, packages: Sequence[str]) -> dict[str, NodeFacts]:
    """Of all nodes, side by side."""
    asked = {}
    for key in nodes:
        place = NodeAffinitySchedulingStrategy(key, soft=False)
        task = ray.remote(_marked_facts).options(num_cpus=0, scheduling_strategy=place)
        asked[key] = task.remote(root, folder, key, list(packages))
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=NODE_LIMIT_S)
    answers, faults = {}, []
    for key, reference in asked.items():
        try:
            answers[key] = ray.get(reference, timeout=_LOOK_AGAIN_S)
        except ray.exceptions.RayError as error:
            is_late = isinstance(error, ray.exceptions.GetTimeoutError)
            fault = f"did not answer within {NODE_LIMIT_S:g} s" if is_late else _last_line(error)
            faults.append(f"{nodes[key]['NodeManagerHostname']}: {fault}")
    if faults:
        advice = "look at the dashboard, and install the same on every node: bash cluster/install.sh"
        raise RuntimeError(f"{len(faults)} of {len(nodes)} nodes cannot say what they have ({'; '.join(faults)}): {advice}")
    return answers


def _last_line(error: Exception) -> str:
    """Of an error that Ray has brought from another process: what was raised there, without its traceback."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _as_ray_has_it(node: Mapping[str, Any], facts: NodeFacts, fault: str) -> NodeFacts:
    """With the node's name, CPUs and GPUs as they were given to `ray start`, and what was found out here about its root."""
    num_cpus, num_gpus = (float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
    return replace(
        facts,
        name=node["NodeManagerHostname"],
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        gpus=facts.gpus[: int(num_gpus)],
        root_fault=facts.root_fault or fault,
    )


def _marked_facts(root: str, folder: str, word: str, packages: Sequence[str]) -> NodeFacts:
    """One node's facts, and its marker in the root's folder; runs there."""
    fault, home = "", Path(root) / folder
    if not Path(root).is_dir():
        fault = "is not there, though the job's machine has it: all nodes must see one folder"
    elif not _appears(home.is_dir):
        fault = f"is another folder there than here: {folder}, made here, does not appear there. All nodes must see one folder"
    else:
        try:
            (home / word).write_text(word, encoding="utf-8")
        except OSError as error:
            fault = f"{type(error).__name__}: {error.strerror or error}"
    facts = _machine(root, packages) if not fault else replace(_machine(tempfile.gettempdir(), packages), disk_bytes=0)
    return replace(facts, root_fault=fault or facts.root_fault, gpus=visible_gpus(gpu_listing(), devices_of_raylet()))


def _unseen(markers: Mapping[str, Path]) -> dict[str, str]:
    """Why a marker that a node says to have written, by its word, is not one here; those that are here are left out."""
    missing = dict(markers)

    def all_seen() -> bool:
        for word, marker in list(missing.items()):
            with contextlib.suppress(OSError):
                if marker.read_text(encoding="utf-8") == word:
                    del missing[word]
        return not missing

    _appears(all_seen)
    return dict.fromkeys(missing, "is another folder there than here: its marker does not appear here. All nodes must see one folder")


def _appears(look: Callable[[], bool]) -> bool:
    """Whether it is there within VISIBLE_LIMIT_S."""
    until = time.monotonic() + VISIBLE_LIMIT_S
    while not (found := look()) and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN_S)  # a shared file system tells nobody when another node's file becomes visible
    return found


@contextlib.contextmanager
def _marker_folder(root: Path) -> Iterator[Path]:
    folder = root / _marker_name()
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
