"""The grader as a judge of golds, in processes that can be ended: a gold that somebody made to hang costs its limit, not the command.

Called by `check-data` and before a job starts. Knows pairs of texts only.
"""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from mathrl_ray.actors.grading_process import GradingProcess
from mathrl_ray.types import Outcome

_MEMORY_BYTES = 2 << 30
_AT_ONCE = 32
"""Pairs that a thread takes at a time; a task a pair would cost as much as most pairs do."""


class GoldJudge:
    """Verdicts on pairs of an answer and a gold; remembers them. A context manager, which ends the processes."""

    def __init__(self, num_processes: int, limit_s: float) -> None:
        """
        Args:
            num_processes: how many pairs are judged at a time.
            limit_s: wall-clock seconds of one pair.
        """
        self._known: dict[tuple[str, str], Outcome] = {}
        self._idle: queue.SimpleQueue[GradingProcess] = queue.SimpleQueue()
        for _ in range(num_processes):
            self._idle.put(GradingProcess(limit_s, _MEMORY_BYTES))
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="golds")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get_nowait().end()

    def verdict(self, answer: str, gold: str) -> Outcome:
        """As core's `algebraic_verdict`, but for grader_timeout at the limit and grader_error where the process was lost.

        Raises:
            RuntimeError: no process could be started.
        """
        pair = (answer, gold)
        if pair not in self._known:
            self._judge([pair])
        return self._known[pair]

    def judge(self, pairs: Sequence[tuple[str, str]], advance: Callable[[int], None]) -> None:
        """Judge many pairs at once, for `verdict` to know.

        Args:
            pairs: (answer, gold).
            advance: is told how many more are done.

        Raises:
            RuntimeError: no process could be started.
        """
        for batch in self._threads.map(self._judge, [pairs[start : start + _AT_ONCE] for start in range(0, len(pairs), _AT_ONCE)]):
            advance(batch)

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> int:
        """In a thread, of which there are as many as processes; or in the caller's, while no thread works."""
        process = self._idle.get_nowait()
        try:
            for pair in pairs:
                self._known[pair] = process.verdict(*pair)
        finally:
            self._idle.put(process)
        return len(pairs)
