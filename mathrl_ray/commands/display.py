"""What a person sees of the commands: a progress bar while they work, tables at the end.

Called by grade.py, check_data.py, compare.py and analyse.py. Progress goes to stderr, tables to stdout. A log is no terminal: whole lines
there, at a fixed width, which tables have on a narrow terminal too: they would lose their numbers.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mathrl_ray.commands.audit import Audit
from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.types import UNGRADED, Grade, Outcome

LOG_WIDTH = 126
_WORDS_WIDTH, _WIDEST = 40, 1000
LINE_EVERY_S = 5.0


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how far something is; call what it gives with the number of items that were finished."""
    if not sys.stderr.isatty():
        yield _lines(what, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


def _lines(what: str, total: int) -> Callable[[int], None]:
    began = last_line = time.monotonic()
    done = 0

    def advance(number: int) -> None:
        nonlocal done, last_line
        done += number
        now = time.monotonic()
        if now - last_line >= LINE_EVERY_S or (done == total and last_line > began):
            last_line = now
            left_s = (now - began) / done * (total - done)
            print(f"{what} {done}/{total} ({100 * done / total:.0f} %), {left_s:.0f} s left", file=sys.stderr, flush=True)

    return advance


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
