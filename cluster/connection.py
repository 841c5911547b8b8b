"""What head.py and submit.py share: the record of this checkout's head, and how to speak to it and to no other.

Read by both; knows Ray's jobs API and where the state file is. Waiting has limits here: Ray's own client waits for ever.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from cluster.processes import Process, process

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ANSWER_LIMIT_S = 30


@dataclass(frozen=True, slots=True)
class Head:
    """The head, as kept in the state file. Written by start, read by status, stop and submit.

    Example: Head(pid=9116, start_ticks=81734, boot_id="3f0c...", dashboard="http://127.0.0.1:40265", temp_dir="/tmp/mr-x1y2z3")
    """

    pid: int
    """Of `ray start --block`; also the id of its session."""
    start_ticks: int
    """Start time of that process, in clock ticks since boot."""
    boot_id: str
    """Which boot: after another one, pids and start times mean nothing."""
    dashboard: str
    temp_dir: str

    @property
    def main_process(self) -> Process:
        return Process(self.pid, self.start_ticks)

    @property
    def is_alive(self) -> bool:
        return self.boot_id == boot_id() and process(self.pid) == self.main_process

    @property
    def gcs(self) -> str | None:
        """host:port for RAY_ADDRESS; None until Ray has written it down, the last thing that it does when starting."""
        try:
            return (Path(self.temp_dir) / "ray_current_cluster").read_text().strip() or None
        except FileNotFoundError:
            return None


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def state_dir() -> Path:
    """Where the state file and the logs are: MATHRL_STATE_DIR, else cluster/.state, which git ignores."""
    return Path(os.environ.get("MATHRL_STATE_DIR") or Path(__file__).parent / ".state").absolute()


def recorded_head() -> Head | None:
    """The head in the state file, alive or not; None where there is no state file."""
    try:
        return Head(**json.loads((state_dir() / "head.json").read_text()))
    except FileNotFoundError:
        return None


@contextmanager
def time_limit(seconds: float, waiting_for: str) -> Iterator[None]:
    """Raises TimeoutError, naming what was waited for, when the body takes longer. Main thread only (SIGALRM), not nested."""

    def on_alarm(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"waited {seconds:g} s for {waiting_for}")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def speak_to_own_head_only() -> None:
    """Prepares this process, and the head it starts. Call before anything imports Ray."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):  # either would override the address given in the code
        os.environ.pop(name, None)
    os.environ["RAY_AUTH_MODE"] = "token"
    for name in ("NO_PROXY", "no_proxy"):  # the dashboard is on the loopback, which no proxy reaches
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))


def connect(dashboard: str) -> "JobSubmissionClient":
    """A client of the jobs API at exactly this address.

    Raises:
        OSError: nothing answers there (ConnectionError), or not in time (TimeoutError).
        RuntimeError: what answers there is not ready, no Ray head, or does not accept the token.
    """
    from ray.job_submission import JobSubmissionClient  # a second of imports, not needed to clean up after a head that is gone

    with time_limit(ANSWER_LIMIT_S, f"an answer of the jobs API at {dashboard}"):
        return JobSubmissionClient(dashboard)
