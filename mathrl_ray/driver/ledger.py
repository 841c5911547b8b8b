"""What was spent: seconds of each role, generated tokens, graded responses, optimizer steps.

Written by the loops, read by the stages for metrics.jsonl and summary.json. Knows a clock and numbers.
"""

import contextlib
import time
from collections.abc import Iterator

ROLES = ("generator", "learner", "scorer")


class Ledger:
    """Counts since the stage began, and since the last `lap`."""

    def __init__(self) -> None:
        self.work_s: dict[str, float] = dict.fromkeys(ROLES, 0.0)
        self.generated_tokens = 0
        self.graded = 0
        self.optimizer_steps = 0
        self._began = self._lap_began = time.monotonic()
        self._lap_work_s = dict.fromkeys(ROLES, 0.0)

    @contextlib.contextmanager
    def work(self, role: str) -> Iterator[None]:
        """Count the block's duration as work of one role."""
        began = time.monotonic()
        try:
            yield
        finally:
            elapsed = time.monotonic() - began
            self.work_s[role] += elapsed
            self._lap_work_s[role] += elapsed

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._began

    def lap(self) -> dict[str, float]:
        """`<role>_work_s` and `<role>_wait_s` since the last lap, and the lap's `step_s`."""
        now = time.monotonic()
        wall_s = now - self._lap_began
        metrics = {"step_s": wall_s}
        for role in ROLES:
            work_s = min(self._lap_work_s[role], wall_s)
            metrics |= {f"{role}_work_s": work_s, f"{role}_wait_s": wall_s - work_s}
        self._lap_began, self._lap_work_s = now, dict.fromkeys(ROLES, 0.0)
        return metrics
