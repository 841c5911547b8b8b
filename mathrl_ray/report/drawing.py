"""How all figures look: sizes, type, colours that colour-blind people tell apart, and a style for each run.

Called by whoever draws a figure, and by the page for the swatches beside its checkboxes. Knows matplotlib's object interface only; rcParams
are set inside `style()` and nowhere else.

Figures are narrow (WIDTH) with large type, so that the same drawing reads well across a phone and in a column of a paper.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis  # the public name of its module has none
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator

WIDTH = 5.6
"""Inches."""
INK, SOFT, GRID, REFERENCE = "#222222", "#555555", "#e4e4e4", "#767676"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#3B9AD6", "#8C564B")
"""After Okabe and Ito 2008, the light ones darkened: at least 3 to 1 against white."""
DASHES = ("solid", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LATIN = ("Liberation Sans", "Arial", "Helvetica", "DejaVu Sans")
_CJK = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "WenQuanYi Micro Hei", "SimHei")
FONT_STACK = ", ".join(f"'{name}'" for name in (*_LATIN, *_CJK)) + ", sans-serif"
"""For an SVG, whose text is set where it is read."""
_LONGEST_NAME = 26
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class RunStyle:
    """How one run is drawn everywhere: by colour, and by dashes and marker for those who do not see it."""

    colour: str
    dash: Any
    marker: str

    @property
    def dash_array(self) -> str:
        """Of an SVG stroke of width 2; "" for a solid line."""
        return "" if self.dash == "solid" else " ".join(f"{2 * length:g}" for length in self.dash[1])


def run_style(index: int) -> RunStyle:
    """The first seven runs differ by colour and marker; every two of the first 28 by colour or dashes.

    >>> run_style(0).colour, run_style(1).marker, run_style(8).dash_array
    ('#0072B2', 's', '10 3.2')
    """
    round_number, place = divmod(index, len(COLOURS))
    # The marker moves on by one each round, so that a run of the next round shares no more than its colour with one of the round before.
    return RunStyle(COLOURS[place], DASHES[round_number % len(DASHES)], MARKERS[(place + round_number) % len(MARKERS)])


@contextmanager
def style(salt: str = "") -> Iterator[None]:
    """All settings that differ from matplotlib's; `salt` makes the ids of an SVG's definitions its own."""
    with matplotlib.rc_context(
        {
            "font.family": list(_fonts()),
            "font.size": 10.5,
            "axes.labelsize": 10.5,
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": REFERENCE,
            "axes.labelcolor": SOFT,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "text.color": INK,
            "xtick.color": SOFT,
            "ytick.color": SOFT,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "xtick.major.size": 3,
            "ytick.major.size": 0,
            "ytick.major.pad": 5,
            "legend.frameon": False,
            "legend.fontsize": 10,
            "lines.linewidth": 1.6,
            "svg.fonttype": "none",
            "svg.hashsalt": salt or "mathrl_ray",
            "pdf.fonttype": 42,
            "path.simplify": True,
            "savefig.dpi": 200,
            "axes.unicode_minus": True,
        }
    ):
        yield


@cache
def _fonts() -> tuple[str, ...]:
    """Those that are here: matplotlib measures with them, and warns of every other one."""
    here = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in (*_LATIN, *_CJK) if name in here) or ("DejaVu Sans",)


def short_names(names: Sequence[str]) -> list[str]:
    """Names for a legend: without the words that all begin with, and cut in the middle where they are still long.

    >>> short_names(["cpu_seeds-seed-0", "cpu_seeds-seed-1"]), short_names(["grpo"])
    (['seed-0', 'seed-1'], ['grpo'])
    """
    start = 0
    if len(names) > 1:
        shared = _shared_start(names)
        whole_words = shared.removesuffix("seed-")  # what tells them apart should be a word, and not its end
        start = max(whole_words.rfind("/"), whole_words.rfind("_"), whole_words.rfind("-")) + 1
    return [_cut(name[start:] or name) for name in names]


def _shared_start(names: Sequence[str]) -> str:
    """
    >>> _shared_start(["abc", "abd"])
    'ab'
    """
    lowest, highest = min(names), max(names)
    return next((lowest[:place] for place, letter in enumerate(lowest) if place >= len(highest) or letter != highest[place]), lowest)


def _cut(name: str) -> str:
    """
    >>> _cut("a" * 20 + "b" * 20)
    'aaaaaaaaaaaa…bbbbbbbbbbbb'
    """
    half = _LONGEST_NAME // 2 - 1
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def row_by_row(keys: Sequence[Key], num_columns: int) -> list[Key]:
    """In an order that reads row after row in a legend, which fills its columns one after the other.

    >>> row_by_row("abcd", 3), row_by_row("abcdefg", 3)
    (['a', 'd', 'b', 'c'], ['a', 'd', 'g', 'b', 'e', 'c', 'f'])
    """
    return [key for column in range(num_columns) for key in keys[column::num_columns]]


def plain(text: str) -> str:
    """A name as text: matplotlib reads what stands between dollar signs as a formula."""
    return text.replace("$", r"\$")


def short_number(value: float, digits: int = 4) -> str:
    """A tick's number, at most 5 characters where that can be.

    >>> [short_number(value) for value in (0, 0.0005, 0.25, 250_000, 1_500_000, 12.0, 1e-5)]
    ['0', '5e-4', '0.25', '250k', '1.5M', '12', '1e-5']
    """
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.{digits}g}{letter}"
    if 0 < size < 1e-3:
        factor, power = f"{value:.{digits - 2}e}".split("e")
        return f"{float(factor):g}e{int(power)}"
    return f"{value:.{digits}g}"


class _ShortNumbers(Formatter):
    """Ticks in as few digits as say where they are: ratios may differ from 1 by little."""

    def format_ticks(self, values: Iterable[float]) -> list[str]:
        held = list(values)
        off = 0.01 * min((after - before for before, after in pairwise(held)), default=1.0)
        digits = next((few for few in range(4, 9) if all(abs(float(f"{value:.{few - 1}g}") - value) < off for value in held)), 9)
        return [short_number(value, digits).replace("-", "\N{MINUS SIGN}") for value in held]


def number_ticks(axes: Axes | SecondaryAxis, which: str, most: int = 5, *, whole: bool = False) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(most, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_ShortNumbers())


def percent_ticks(axes: Axes, which: str, most: int = 5) -> None:
    """Of a fraction; the unit stands at each number."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def new_drawing(height: float) -> Drawing:
    return Drawing(figsize=(WIDTH, height), facecolor="white")
