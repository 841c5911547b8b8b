"""What a vLLM engine says of itself at each of its steps: kept for the driver, and shown in Ray's metrics beside the run's own.

Made by generator.py, asked once a training step. Knows the fields of vLLM's statistics and Ray's metrics; knows no request. vLLM calls
these statistics unstable, so a field that is not there any more counts as 0 and ends nothing.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from mathrl_ray.types import EngineStatistics


class EngineNotes:
    """vLLM's stat logger, as its StatLoggerBase has it: one engine's numbers since they were last taken. Two threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._usage = 0.0
        self._preemptions = self._queries = self._hits = self._running = self._waiting = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        """Called by vLLM's output loop, once an engine step: it must be fast."""
        with self._lock:
            if scheduler_stats is not None:
                self._usage = max(self._usage, getattr(scheduler_stats, "kv_cache_usage", 0.0))
                self._running = max(self._running, getattr(scheduler_stats, "num_running_reqs", 0))
                self._waiting = max(self._waiting, getattr(scheduler_stats, "num_waiting_reqs", 0))
                prefix = getattr(scheduler_stats, "prefix_cache_stats", None)
                self._queries += getattr(prefix, "queries", 0)
                self._hits += getattr(prefix, "hits", 0)
            if iteration_stats is not None:
                self._preemptions += getattr(iteration_stats, "num_preempted_reqs", 0)

    def take(self) -> EngineStatistics:
        """What came since the last call."""
        with self._lock:
            taken = EngineStatistics(self._usage, self._preemptions, self._queries, self._hits, self._running, self._waiting)
            self._forget()
        return taken

    def log_engine_initialized(self) -> None:
        """vLLM asks for it; there is nothing to say."""

    def log(self) -> None:
        """As above."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """As above."""


def stat_loggers(notes: EngineNotes) -> list[Callable[..., Any]]:
    """What an engine is started with: the notes, and inside a Ray actor vLLM's own logger into Ray's metrics."""
    return [lambda vllm_config, engine_index: notes, *_ray_loggers()]


def _ray_loggers() -> Sequence[Callable[..., Any]]:
    import ray

    if not ray.is_initialized():  # an engine without Ray around it has nobody to export to
        return ()
    from ray.util import metrics
    from vllm.v1.metrics import ray_wrappers

    # vLLM gives up Ray's metrics where Ray Serve cannot be imported, which needs further packages; it then needs no more of it than this.
    ray_wrappers.ray_metrics = metrics
    return (ray_wrappers.RayPrometheusStatLogger,)
