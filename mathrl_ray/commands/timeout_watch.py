"""One early line when a second grader hangs on everything: what is slow, and how long it will take at worst.

Called by grade.py while the second grader grades. Counts; ends nothing.
"""

import sys
from collections.abc import Sequence

from mathrl_ray.types import Grade

TIMEOUTS_IN_A_ROW = 3


class TimeoutWatch:
    """Sees each grade as it comes, and says once, after three timeouts in a row, what that means for the rest."""

    def __init__(self, grader: str, limit_s: float, num_requests: int, num_workers: int) -> None:
        """
        Args:
            grader: as --compare names it.
            limit_s: of one answer.
            num_requests: how many answers there are in all.
            num_workers: how many are graded at a time.
        """
        self._grader, self._limit_s, self._num_left, self._num_workers = grader, limit_s, num_requests, num_workers
        self._in_a_row = 0
        self._has_spoken = False

    def see(self, grades: Sequence[Grade]) -> None:
        """Grades in the order in which they were finished. One that was known to hang cost no time, and says nothing."""
        for grade in grades:
            self._num_left -= 1
            if not grade.from_quarantine:
                self._in_a_row = self._in_a_row + 1 if grade.outcome == "grader_timeout" else 0
            if self._in_a_row == TIMEOUTS_IN_A_ROW and not self._has_spoken:
                self._has_spoken = True
                print(self._message(), file=sys.stderr, flush=True)

    def _message(self) -> str:
        worst_s = self._num_left * self._limit_s / self._num_workers
        return (
            f"warning: {self._grader} ran into the limit of {self._limit_s:g} s for {TIMEOUTS_IN_A_ROW} answers in a row; if it does so "
            f"for all of the {self._num_left:,} left, they take {duration(worst_s)} with {self._num_workers} processes. "
            "A lower --limit-s makes it less; Ctrl-C writes what our grader found"
        )


def duration(seconds: float) -> str:
    """For a person.

    >>> duration(8.4), duration(150), duration(7300)
    ('8 s', '2.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
