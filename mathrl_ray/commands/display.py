"""What a person sees of the commands: a progress bar while they work, tables at the end.

Called by the commands. Progress goes to stderr, tables to stdout. A log is no terminal (nor is what MATHRL_VIEW=plain, CI or TERM=dumb says
is none): whole lines there, at a fixed width, which tables have on a narrow terminal too: they would lose their numbers.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mathrl_ray.commands.audit import Audit
from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.driver.live_view import wants_view
from mathrl_ray.types import UNGRADED, Grade, Outcome

LOG_WIDTH = 126
_WORDS_WIDTH, _WIDEST = 40, 1000
LINE_EVERY_S, QUIET_S = 10.0, 2.0
"""Of progress: from one line in a log to the next; how long work may take without a bar on a terminal."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how far something is; call what it gives with the number of items that were finished."""
    shown = _Bar(what, total) if _is_watched() else _Lines(what, total)
    try:
        yield shown.advance
    finally:
        shown.close()


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """The same where nobody knows how much there is; call what it gives with what is done from now on."""
    shown = _Bar(what, None) if _is_watched() else _Lines(what, None)
    try:
        yield shown.rename
    finally:
        shown.close()


def _is_watched() -> bool:
    return wants_view(Console(stderr=True), os.environ)


class _Lines:
    """For a log: a line every ten seconds, also while nothing is finished; none where all takes less."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._last_line = time.monotonic()
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._tick, daemon=True, name="progress").start()

    def advance(self, number: int) -> None:
        with self._lock:
            self._done += number
            self._say_if_due(is_end=self._done == self._total)

    def rename(self, what: str) -> None:
        with self._lock:
            self._what = what

    def close(self) -> None:
        self._closed.set()

    def _tick(self) -> None:
        while not self._closed.wait(0.5):
            with self._lock:
                self._say_if_due()

    def _say_if_due(self, *, is_end: bool = False) -> None:
        now = time.monotonic()
        if self._closed.is_set() or not (now - self._last_line >= LINE_EVERY_S or (is_end and self._last_line > self._began)):
            return
        self._last_line = now
        print(f"{self._what}{self._share()}, {self._time(now - self._began)}", file=sys.stderr, flush=True)

    def _share(self) -> str:
        return f" {self._done}/{self._total} ({100 * self._done / self._total:.0f} %)" if self._total else ""

    def _time(self, elapsed_s: float) -> str:
        if self._total and self._done:
            return f"{elapsed_s / self._done * (self._total - self._done):.0f} s left"
        return f"{elapsed_s:.0f} s so far"


class _Bar:
    """For a terminal: a bar on stderr, once the work has taken a while."""

    def __init__(self, what: str, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        known = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        unknown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        columns = unknown if total is None else known
        # Only what goes to the same terminal may be taken out of the bar's way: a pipe's lines have to stay in it.
        self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty(), transient=total is None)
        self._task = self._bar.add_task(escape(what), total=total)
        self._lock, self._closed = threading.Lock(), False
        self._timer = threading.Timer(QUIET_S, self._start)
        self._timer.daemon = True
        self._timer.start()

    def _start(self) -> None:
        with self._lock:
            if not self._closed:
                self._bar.start()

    def advance(self, number: int) -> None:
        self._bar.advance(self._task, number)

    def rename(self, what: str) -> None:
        self._bar.update(self._task, description=escape(what))

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar.live.is_started:
                self._bar.stop()


def print_json(value: Any) -> None:
    """For a program, which may be strict: of a number that JSON has no word for, null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case float() if not isfinite(value):
            return None
        case _:
            return value


def show(table: Table) -> None:
    """Print a table; brackets and colons in its cells are no style. One of numbers is as wide as they are."""
    screen = Console(markup=False, emoji=False)
    width = max(screen.width, LOG_WIDTH) if screen.is_terminal else LOG_WIDTH
    if any(column.no_wrap for column in table.columns):
        width = max(width, screen.measure(table, options=screen.options.update(width=_WIDEST)).maximum)
    screen.width = width
    screen.print(table, crop=False)


def plain_table(*columns: str) -> Table:
    """The first column holds words, the second and third numbers, more of them words again."""
    table = Table()
    for index, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if index in (1, 2) else "left", overflow="fold")
    return table


def number_table(words: str, *numbers: str) -> Table:
    """The first column holds words, and is folded; all others hold numbers, none of which is broken."""
    table = Table()
    table.add_column(Text(words), overflow="fold", max_width=_WORDS_WIDTH)
    for name in numbers:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def show_outcomes(grades: Sequence[Grade], title: str) -> None:
    """Each outcome with its count and share, and below it the accuracy with its Wilson interval."""
    counts = Counter(grade.outcome for grade in grades)
    table = plain_table("outcome", "samples", "share")
    for outcome in get_args(Outcome):
        if counts[outcome]:
            table.add_row(outcome, f"{counts[outcome]:,}", f"{100 * counts[outcome] / len(grades):.1f} %")
    print(title)
    show(table)
    print(accuracy_line(grades))
    num_kept = sum(grade.format_reward for grade in grades)
    num_right = sum(grade.lenient_answer_correct and not grade.format_reward for grade in grades)
    print(f"format kept: {num_kept:.0f} of {len(grades)}; format broken and answer right: {num_right}")


def accuracy_line(grades: Sequence[Grade]) -> str:
    """The accuracy, never without its interval and its number of samples.

    >>> accuracy_line([Grade(1.0, 1.0, 1.0, "correct", "5"), Grade(1.0, 0.0, 0.0, "wrong", "4"), Grade(1.0, 0.0, 0.0, "bad_gold", "4")])
    'accuracy 50.0 % (9.5 to 90.5, 95 % Wilson interval) of 2 graded samples; 1 could not be graded and is not counted'
    """
    num_graded = sum(grade.outcome not in UNGRADED for grade in grades)
    num_correct = sum(grade.outcome == "correct" for grade in grades)
    low, high = wilson_interval(num_correct, num_graded)
    share = f"{100 * num_correct / num_graded:.1f} %" if num_graded else "unknown"
    num_ungraded = len(grades) - num_graded
    left_out = f"; {num_ungraded} could not be graded and {'is' if num_ungraded == 1 else 'are'} not counted" if num_ungraded else ""
    return f"accuracy {share} ({100 * low:.1f} to {100 * high:.1f}, 95 % Wilson interval) of {num_graded} graded samples{left_out}"


def show_audit(audit: Audit, title: str) -> None:
    """The 2x2 table of one other grader, and what it does not tell."""
    counts = audit.counts
    right, wrong = ("answer right", "answer not right") if audit.basis == "answer" else ("we pay", "we refuse")
    table = plain_table("", f"{audit.grader} pays", f"{audit.grader} refuses")
    table.add_row(right, f"{counts['both_pay']:,}", f"{counts['only_we_pay']:,}")
    table.add_row(wrong, f"{counts['only_they_pay']:,}", f"{counts['neither_pays']:,}")
    print(title)
    show(table)
    if audit.num_about_format:
        print(f"{audit.num_about_format} of the {counts['only_they_pay']} that only {audit.grader} pays are about the format alone")
    if counts["no_verdict"]:
        print(f"{counts['no_verdict']} samples have no verdict of one of the two (bad gold, time limit, error, nothing given)")
