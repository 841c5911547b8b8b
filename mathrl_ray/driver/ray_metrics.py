"""What a run shows in Ray's metrics, and through them in Prometheus: each number of its last row (shown_metrics.py has the names).

Made by job.py inside a Ray connection, told by the recorder. Ray forgets a gauge that was not set for two of its export intervals, and
a step may take longer: a thread sets each again until the run ends, or its stage has ended. Whatever fails here costs one warning,
not the run.

    begin      the time alone, of the stage "starting": a run that hangs before its first row is seen to hang
    row        values of its stage noted and set          rewound    all forgotten, as at the beginning: rows written again bring theirs
    linger     at the end, where a Prometheus answers at RAY_PROMETHEUS_HOST: two export intervals, so that it has the last values too
"""

import contextlib
import os
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.shown_metrics import LAST_ROW, SHOWN, STALENESS_BOUND, values_of

LINGER_INTERVALS = 2.0
"""Export intervals: one until the numbers are with Ray's agent, one for whoever scrapes it."""
PROBE_LIMIT_S = 1.0
POLL_S = 0.1
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STARTING = "starting"
"""The stage label while no row has come yet."""


class Gauge(Protocol):
    """Of ray.util.metrics."""

    def set(self, value: float, tags: dict[str, str]) -> None: ...


_Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and the labels beside run and stage."""


class RayMetrics:
    """A recorder's watcher. Several threads may call it."""

    def __init__(
        self, gauges: Mapping[str, Gauge], run: str, *, staleness_bound: int, interval_s: float, say: Callable[[str], None]
    ) -> None:
        """
        Args:
            gauges: one a name of SHOWN.
            run: the run folder's name.
            staleness_bound: driver.max_staleness.
            interval_s: Ray's between two exports.
            say: for the one warning.
        """
        self._gauges, self._run, self._bound, self._interval_s, self._say = gauges, run, staleness_bound, interval_s, say
        self._values: dict[str, dict[_Series, float]] = {}
        """Of each stage that is shown; the present one is the last."""
        self._told_s: dict[str, float] = {}
        """When each stage's last row came."""
        self._begin()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True, name="ray metrics")
        self._thread.start()

    def _begin(self) -> None:
        self._values = {STARTING: {(LAST_ROW, ()): time.time()}}
        self._told_s[STARTING] = time.monotonic()

    def row(self, row: Mapping[str, Any]) -> None:
        """A row was written."""
        stage = row["stage"]
        with self._lock:
            values = self._values.pop(stage, {})
            values |= {(name, tuple(labels.items())): value for name, labels, value in values_of(row)}
            values |= {(LAST_ROW, ()): time.time(), (STALENESS_BOUND, ()): float(self._bound)}
            self._values[stage] = values
            self._told_s[stage] = time.monotonic()
        self._set()

    def evaluated(self, path: Path) -> None:
        """Its numbers come as a row."""

    def rewound(self, metrics_bytes: int) -> None:
        """Rows were taken back: their numbers are not shown again."""
        with self._lock:
            self._begin()

    def close(self) -> None:
        """Set nothing from now on."""
        self._over.set()
        self._thread.join(self._interval_s)

    def _repeat(self) -> None:
        while not self._over.wait(self._interval_s / 2):
            self._set()

    def _set(self) -> None:
        if self._over.is_set():
            return
        try:
            with self._lock:
                self._forget_ended()
                for stage, values in self._values.items():
                    for (name, labels), value in values.items():
                        self._gauges[name].set(value, tags={"run": self._run, "stage": stage, **dict(labels)})
        except Exception as error:  # border: whatever Ray raises, the run goes on without its metrics
            self._over.set()
            self._say(
                f"warning: Ray's metrics are left out from now on: {type(error).__name__}: {error}. The run's own files are complete."
            )

    def _forget_ended(self) -> None:
        """A stage that another has followed is shown for as long as its last values need to be exported and scraped."""
        now_s = time.monotonic()
        for stage in list(self._values)[:-1]:
            if now_s - self._told_s[stage] > LINGER_INTERVALS * self._interval_s:
                del self._values[stage]


@contextlib.contextmanager
def shown_in_ray(
    recorder: Recorder, staleness_bound: int, say: Callable[[str], None], is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Show in Ray's metrics what a recorder writes in the block, and a little longer where somebody scrapes them."""
    try:
        gauges, interval_s = _gauges(), _export_interval_s()
    except Exception as error:  # border: as in RayMetrics._set
        say(f"warning: nothing is shown in Ray's metrics: {type(error).__name__}: {error}")
        yield
        return
    metrics = RayMetrics(gauges, recorder.folder.name, staleness_bound=staleness_bound, interval_s=interval_s, say=say)
    try:
        with recorder.watched(metrics):
            yield
        if is_scraped():
            linger(LINGER_INTERVALS * interval_s, is_stopping)
    finally:
        metrics.close()


def linger(seconds: float, is_stopping: Callable[[], bool]) -> None:
    """Wait, but no longer than until the run is told to stop."""
    deadline_s = time.monotonic() + seconds
    while not is_stopping() and (left_s := deadline_s - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left_s))


def is_scraped(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a Prometheus answers where Ray's dashboard looks for it: a run that nobody watches ends at once."""
    host = environment.get("RAY_PROMETHEUS_HOST", "")
    if not host.startswith(("http://", "https://")):
        return False
    try:
        # Past http_proxy where the address is this machine's, which no proxy reaches.
        handlers = [urllib.request.ProxyHandler({})] if urllib.parse.urlsplit(host).hostname in LOOPBACK else []
        question = f"{host.rstrip('/')}/api/v1/query?query=vector(1)"
        with urllib.request.build_opener(*handlers).open(question, timeout=PROBE_LIMIT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):  # nobody there, or no address
        return False


def _gauges() -> dict[str, Gauge]:
    from ray.util.metrics import Gauge as RayGauge

    return {metric.name: RayGauge(metric.name, metric.help, metric.labels) for metric in SHOWN}


def _export_interval_s() -> float:
    """Ray exports once a second at most."""
    import ray

    return float(max(ray._config.metrics_report_interval_ms(), 1000)) / 1000
