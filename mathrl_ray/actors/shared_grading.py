"""One grading process for whoever has a response in hand and no scorer: a script, a notebook, A5's reward functions.

Called by cs336.py. The process is started by the first pair that needs algebra, serves one pair at a time, and ends with this one.
"""

import atexit
import os
import threading

from mathrl_ray.actors.grading_process import GradingProcess
from mathrl_ray.core.grading.grade import quick_verdict
from mathrl_ray.core.grading.plain_numbers import number_verdict
from mathrl_ray.types import Outcome

LIMIT_S = 5.0
_MEMORY_BYTES = 2 << 30


class _Shared:
    """The process, and the lock that lets one thread at a time talk to it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.lock = threading.Lock()
        self.process = GradingProcess(LIMIT_S, _MEMORY_BYTES)

    def begin_again(self) -> None:
        """In a forked child: the parent's process is not ours, and another thread may have held the lock."""
        self.process.forget()
        self.begin()


_shared = _Shared()
os.register_at_fork(after_in_child=_shared.begin_again)


def end_shared_process() -> None:
    """End the process; the next verdict starts another. Called at exit, and by tests that count processes."""
    with _shared.lock:
        _shared.process.end()


atexit.register(end_shared_process)


def isolated_verdict(answer: str | None, gold: str) -> Outcome:
    r"""The grader's verdict on an answer, within 5 s and 2 GiB, from any thread.

    What is settled without algebra never waits; everything else waits for the pairs of other threads before it.

    Raises:
        RuntimeError: the grading process could not be started.

    >>> isolated_verdict("0.5", r"\frac{1}{2}"), isolated_verdict(None, "5")
    ('correct', 'no_answer')
    """
    verdict = quick_verdict(answer, gold) or number_verdict(answer or "", gold)
    if verdict is not None:
        return verdict
    with _shared.lock:
        return _shared.process.verdict(answer or "", gold)
