"""The live view: what a person sees of a run on a terminal, in place of lines.

Called by console.py. Draws a LiveState at any size: wide terminals get two numbers a line with a curve each, narrow ones one; where there
are too few rows, what is least needed goes first (_Block.rank). It is drawn below the lines that were said, in the terminal's ordinary
screen: when the run ends, however it ends, its last state stays there and can be read.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import rich.console
from rich.cells import cell_len, set_cell_size
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from mathrl_ray.driver.live_state import CURVES, Curve, LiveState, Measured, Series

VARIABLE = "MATHRL_VIEW"
"""Environment variable: "plain" keeps to lines on a terminal too. No key of the recipe: how somebody looks at a run is no setting of it, is
not the same for two people who run it, and must not be what a resumed run is refused for."""
REDRAWS_PER_S = 4
WIDEST, NARROWEST = 100, 20
_LABEL = 10
_TWO_COLUMNS = 76
_LEVELS = "▁▂▃▄▅▆▇"
"""No full block: those of two lines would touch."""
_OUTCOMES = {"correct": "green", "wrong": "red"}


def wants_view(terminal: rich.console.Console, environment: "os._Environ[str] | dict[str, str]") -> bool:
    """Whether there is somebody who watches, on something that can be drawn on: FORCE_COLOR paints a pipe, and makes no terminal of it."""
    if environment.get(VARIABLE, "auto") == "plain" or environment.get("CI"):
        return False
    return terminal.is_terminal and terminal.file.isatty() and not terminal.is_dumb_terminal and terminal.encoding.startswith("utf")


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that are shown together."""

    rank: int
    """0 stays to the last."""
    lines: Sequence[Text]


class LiveView:
    """Draws the state whenever rich asks for it."""

    def __init__(self, state: LiveState, terminal: rich.console.Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._terminal, self._clock = state, terminal, clock

    def __rich_console__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Iterator[Text]:
        try:
            width, height = self._terminal.size  # asked each time: somebody may pull at the window
            yield from view_lines(self._state, width, height, self._clock())
        except Exception as error:  # border: a view that cannot be drawn must not end a run
            yield Text(f"the live view cannot be drawn ({type(error).__name__}: {error})", no_wrap=True, overflow="ellipsis")


def view_lines(state: LiveState, width: int, height: int, now_s: float) -> list[Text]:
    """Lines of at most `width` cells, fewer than `height` of them.

    Args:
        state: what to show.
        width, height: of the terminal.
        now_s: by the clock of the state's times.
    """
    width = max(NARROWEST, min(width - 1, WIDEST))  # a line as wide as the terminal would be two when that gets narrower
    lines = [line for block in _that_fit(list(_blocks(state, width, now_s)), height - 1) for line in block.lines]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        line.truncate(width, overflow="ellipsis")
    return lines


def _that_fit(blocks: list[_Block], num_rows: int) -> list[_Block]:
    while sum(len(block.lines) for block in blocks) > max(1, num_rows) and len(blocks) > 1:
        blocks.remove(max(blocks, key=lambda block: block.rank))
    return blocks


def _blocks(state: LiveState, width: int, now_s: float) -> Iterator[_Block]:
    """From top to bottom."""
    yield _Block(0, [_head(state, width, now_s)])
    if state.num_steps:
        yield _Block(1, [_steps(state, width)])
    elif state.plan:
        yield _Block(1, [_labelled("plan", Text(state.plan))])
    for what, (num_done, num_all, unit) in list(state.doing.items()):
        yield _Block(2, [_doing(what, num_done, num_all, unit, width)])
    yield from _numbers(state, width)
    if state.measured:
        yield _Block(3, [_labelled("accuracy", _accuracy(state.measured))])
    if state.load:
        yield _Block(6, [_labelled("load", _load(state, width))])
    if state.queue or state.staleness:
        yield _Block(8, [_labelled("groups", _queue(state, width))])
    if state.sample:
        yield _Block(9, _sample(state, width))
    for age, (time_s, text) in enumerate(reversed(list(state.warnings))):
        line = _labelled("" if age else "warning", Text(f"{clock_text(time_s)}  {text}", "yellow"))
        yield _Block(9 + age if age else 5, [line])


def _head(state: LiveState, width: int, now_s: float) -> Text:
    """A thin line that sets the view apart from what was said above it."""
    place = ""
    if state.stage:
        place = f" · {state.stage}"
        if len(state.stages) > 1 and state.stage in state.stages:
            place += f", stage {list(state.stages).index(state.stage) + 1} of {len(state.stages)}"
    clock = f" {clock_text(now_s - state.began_s)} "
    room = width - 6 - cell_len(place) - cell_len(clock)
    name = state.run_name if cell_len(state.run_name) <= room else f"{set_cell_size(state.run_name, max(1, room - 1)).rstrip()}…"
    rest = max(1, width - 4 - cell_len(name) - cell_len(place) - cell_len(clock) - 1)
    return Text.assemble(("── ", "dim"), (name, "bold"), place, " ", ("─" * rest, "dim"), (clock, "dim"), ("─", "dim"))


def _steps(state: LiveState, width: int) -> Text:
    left = "" if state.remaining_s is None or state.step >= state.num_steps else f"  about {clock_text(state.remaining_s)} left"
    text = f"  {state.step} of {state.num_steps}{left}"
    bar = _bar(state.step / state.num_steps, min(60, max(4, width - _LABEL - cell_len(text))), "cyan")
    return _labelled("step", bar.append(text))


def _doing(what: str, num_done: int, num_all: int, unit: str, width: int) -> Text:
    text = f"  {num_done:,} of {num_all:,}, {what}"
    room = max(4, min(24, width - _LABEL - cell_len(text)))
    return _labelled(unit, _bar(num_done / num_all, room, "magenta").append(text))


def _numbers(state: LiveState, width: int) -> Iterator[_Block]:
    """The curves that the stage has, two a line where there is room. A policy's loss says little, that of learning from a pool does."""
    curves = state.curves
    hidden = {"loss"} if "reward" in curves and "pool" not in curves else set()
    shown = [curve for curve in CURVES if curve.label in curves and curve.label not in hidden]
    at_once = 2 if width >= _TWO_COLUMNS else 1
    cell = (width - 2) // at_once
    for start in range(0, len(shown), at_once):
        line = Text()
        for place, curve in enumerate(shown[start : start + at_once]):
            line.append(" " * (place * (cell + 2) - cell_len(line.plain)))
            line.append_text(_number(curve, curves[curve.label], cell))
        yield _Block(2 if start == 0 else 4 + start // at_once, [line])


def _number(curve: Curve, series: Series, cell: int) -> Text:
    text = f"{_short(series.latest)} {curve.unit}".rstrip()
    line = _labelled(curve.label, Text(f"{text:<16}"))
    room = cell - cell_len(line.plain) - 1
    drawn = sparkline(series.values, min(20, room), most=1.0 if curve.is_fraction else 0.0) if room >= 4 else ""
    return line.append(drawn, style="cyan")


def sparkline(values: Sequence[float], width: int, *, most: float = 0.0) -> str:
    """All values in at most `width` characters, each the mean of its share of them; from 0 to the largest of them, or to `most`.

    >>> sparkline([0, 1, 2, 3], 8), sparkline([0, 0, 7, 7], 2), sparkline([0.5], 4, most=1.0)
    ('▁▃▅▇', '▁▇', '▄')
    """
    finite = [value for value in values if abs(value) < float("inf")]  # nor is NaN
    num = min(width, len(finite))
    shares = [finite[len(finite) * place // num : len(finite) * (place + 1) // num] for place in range(num)]
    means = [sum(share) / len(share) for share in shares]
    top = max([most, *means], default=0.0)
    low = min([0.0, *means])
    if top <= low:
        return _LEVELS[0] * num
    return "".join(_LEVELS[round((mean - low) / (top - low) * (len(_LEVELS) - 1))] for mean in means)


def _accuracy(measured: Measured) -> Text:
    interval = "" if measured.low is None or measured.high is None else f" ({100 * measured.low:.1f} to {100 * measured.high:.1f})"
    text = Text(f"{100 * measured.accuracy:.1f} %", "bold")
    each = f" x {measured.num_samples}" if measured.num_samples > 1 else ""
    return text.append(f"{interval} of {measured.num_problems:,}{each}, {measured.what} at step {measured.step}", style="not bold")


def _load(state: LiveState, width: int) -> Text:
    """What of the last step each role worked; with bars where there is room for all of them."""
    each = (width - _LABEL) // len(state.load)
    room = each - max(len(role) for role in state.load) - len("  100 %") - 2
    line = Text()
    for place, (role, share) in enumerate(state.load.items()):
        line.append(" " * (place * each - cell_len(line.plain)) if room >= 3 else ", " * min(1, place))
        line.append(f"{role} ")
        if room >= 3:
            line.append_text(_bar(share, min(10, room), "green")).append(" ")
        line.append(f"{100 * share:.0f} %")
    return line


def _queue(state: LiveState, width: int) -> Text:
    shown = [f"{number} {name}" for name, number in state.queue.items() if width >= _TWO_COLUMNS or name in ("in flight", "buffered")]
    parts = [", ".join(shown)] if shown else []
    if state.staleness:
        parts.append(f"staleness {_short(state.staleness[0])}, most {_short(state.staleness[1])}")
    return Text("; ".join(parts))


def _sample(state: LiveState, width: int) -> list[Text]:
    """The problem's start and the response's end, where its answer is."""
    assert state.sample is not None
    sample, room = state.sample, width - _LABEL
    response = sample.response
    while cell_len(response) > room:
        response = f"…{response[max(2, len(response) - room + 1 + (cell_len(response) - len(response)) // 2) :]}"
    first = Text.assemble((sample.outcome, _OUTCOMES.get(sample.outcome, "yellow")), "  ", sample.problem)
    return [_labelled("sample", first), _labelled("", Text(response, "dim"))]


def _labelled(label: str, text: Text) -> Text:
    return Text.assemble((f"{label:<{_LABEL - 1}} ", "dim"), text)


def _bar(share: float, width: int, style: str) -> Text:
    full = round(max(0.0, min(1.0, share)) * width)
    return Text.assemble(("━" * full, style), ("─" * (width - full), "dim"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


def clock_text(seconds: float) -> str:
    """
    >>> clock_text(75), clock_text(3_675)
    ('1:15', '1:01:15')
    """
    minutes, whole = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


@contextlib.contextmanager
def shown_live(view: LiveView, on: rich.console.Console) -> Iterator[None]:
    """Draw a view during the block, below all that is printed to `on`, to sys.stdout, or to the same terminal by sys.stderr or logging.

    The cursor stays visible: a process that is killed, or ends at once on a second Ctrl-C, could not bring it back.
    """
    is_there = _is_same_terminal(sys.stderr, on.file)  # where stderr is sent to a file, it has to stay in it
    live = Live(view, console=on, refresh_per_second=REDRAWS_PER_S, vertical_overflow="crop", redirect_stderr=is_there)
    live.start(refresh=True)
    on.show_cursor(True)
    try:
        with _logging_redirected():
            yield
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            live.stop()


def _is_same_terminal(one: Any, other: Any) -> bool:
    try:
        return os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except (OSError, ValueError, AttributeError):  # one is no terminal, closed or None
        return False


@contextlib.contextmanager
def _logging_redirected() -> Iterator[None]:
    """Handlers that took sys.stderr before the view began would write into it."""
    loggers = [logging.root, *(each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger))]
    pairs = ((sys.__stdout__, sys.stdout), (sys.__stderr__, sys.stderr))
    streams = {stream: proxy for stream, proxy in pairs if isinstance(proxy, FileProxy)}
    handlers = {
        handler: handler.stream
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams
    }
    for handler, stream in handlers.items():
        handler.setStream(streams[stream])
    try:
        yield
    finally:
        for handler, stream in handlers.items():
            handler.setStream(stream)
