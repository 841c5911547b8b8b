"""What a figure of the report is, and how it becomes SVG.

Called by figures.py, curves and lanes, which make them, by the page and by the export. Knows matplotlib's object interface; no pyplot.

An inline SVG is made for a page to work on, without a style sheet or a style attribute, so that a strict content policy lets it pass:
    <svg id="reward-step" class="figure" role="img" aria-labelledby="reward-step-title reward-step-desc" viewBox=... data-panels=...>
        with <title> and <desc>; no width and height
    data-panels='[{"stage": "grpo", "left", "right", "top", "bottom", "x_min", "x_max", "y_min", "y_max"}, ...]'
        each panel's frame in viewBox units with the ends of its axes, in the units of `data`: where x is at
        left + (x - x_min) / (x_max - x_min) * (right - left)
    <g class="run run0" id="reward-step-run0-2">   each line, band, bar or point of the run with index 0 (hide it by its class)
    <g class="group group0" id="reward-step-group0-1">   a mean over seeds and its band
"""

import io
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from mathrl_ray.report.drawing import FONT_STACK, style

AXES = ("step", "generated_tokens", "wall_clock_s")
"""What curves are drawn against."""
AXIS_NAMES = {"step": "step", "generated_tokens": "generated tokens", "wall_clock_s": "wall-clock time (s)", "": ""}
_PANEL = "panel "


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; nothing is drawn before `draw` is called."""

    name: str
    """A file's stem, and the prefix of the SVG's ids."""
    title: str
    caption: str
    """One line: what is shown, n, interval; where accuracies are shown also prompt, temperature, limit of tokens and grader."""
    alt: str
    """For a screen reader: first, last and best value of each run."""
    axes: tuple[str, ...]
    """AXES for a curve, ("",) for a figure that has only one form."""
    draw: Callable[[str], Drawing]
    """With one of `axes`, inside drawing.style()."""
    data: Callable[[], list[dict[str, Any]]]
    """What is drawn, one row a point; of a curve: run (name), run_index, group (of seeds) or "", stage, line, step, generated_tokens,
    wall_clock_s, value, and low, high, n where it has an interval. Points of a mean over seeds have run = "" and run_index = -1. An
    x that a point does not have (SFT samples no tokens) is None, and the point is not drawn on that axis."""
    group: str = "curves"
    """Where it belongs: stages, curves, parts (by level and subject), outcomes, lanes."""
    notes: tuple[str, ...] = ()
    """What else a reader may want to know, a sentence each."""


def drawn(figure: Figure, axis: str) -> Drawing:
    """The drawing, made with the report's style."""
    with style(f"{figure.name}-{axis}"):
        return figure.draw(axis)


def name_of(figure: Figure, axis: str) -> str:
    """
    >>> name_of(Figure("reward", "", "", "", AXES, lambda axis: Drawing(), list), "step")
    'reward-step'
    """
    return f"{figure.name}-{axis}" if axis else figure.name


def mark_panel(axes: Axes, stage: str, x_unit: float = 1.0) -> None:
    """Let a part of a drawing be among the SVG's data-panels.

    Args:
        axes: the part.
        stage: what it shows.
        x_unit: by how much the data's x was divided (60 where minutes are drawn).
    """
    axes.set_label(_PANEL + json.dumps({"stage": stage, "x_unit": x_unit}))


def svg_of(figure: Figure, axis: str) -> str:
    """An SVG element to put into a page: ids that no other figure has, text as text, no XML head."""
    file = io.StringIO()
    with style(f"{figure.name}-{axis}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # text stays text: who reads it may have the font
        drawing = figure.draw(axis)
        FigureCanvasSVG(drawing).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = _body(file.getvalue(), name_of(figure, axis))
    name, width, height = name_of(figure, axis), *(72 * drawing.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" id="{escape(name)}" class="figure" role="img" '
        f'aria-labelledby="{escape(name)}-title {escape(name)}-desc" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'stroke-linejoin="round" font-family="{escape(FONT_STACK)}" data-panels="{escape(json.dumps(_panels(drawing)))}">'
    )
    told = f'<title id="{escape(name)}-title">{escape(figure.title)}</title><desc id="{escape(name)}-desc">{escape(figure.alt)}</desc>'
    return f"{head}{told}{body}</svg>"


def _panels(drawing: Drawing) -> list[dict[str, Any]]:
    width, height = 72 * drawing.get_size_inches()
    found = []
    for axes in drawing.axes:
        if str(axes.get_label()).startswith(_PANEL):
            told = json.loads(str(axes.get_label()).removeprefix(_PANEL))
            box, (x_min, x_max), (y_min, y_max) = axes.get_position(), axes.get_xlim(), axes.get_ylim()
            frame = {"left": width * box.x0, "right": width * box.x1, "top": height * (1 - box.y1), "bottom": height * (1 - box.y0)}
            found.append(
                {"stage": told["stage"], **{key: round(float(value), 2) for key, value in frame.items()}}
                | {"x_min": float(x_min) * told["x_unit"], "x_max": float(x_max) * told["x_unit"]}
                | {"y_min": float(y_min), "y_max": float(y_max)}
            )
    return found


_INNER = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)
_USELESS = re.compile(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<[a-zA-Z][^>]*>")
_ID = re.compile(r' id="([^"]*)"')
_STYLE = re.compile(r' style="([^"]*)"')
_PATH = re.compile(r' d="([^"]*)"')
_LONG_NUMBER = re.compile(r"(\d+\.\d{2})\d+")
_NUMBER = re.compile(r"-?\d+\.\d+")
_SPACES = re.compile(r">\s+<")
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*\)"')


def _body(svg: str, name: str) -> str:
    """What stands inside matplotlib's <svg>, with fewer ids and digits, and attributes in place of styles. Its texts stay as they are."""
    found = _INNER.search(svg)
    assert found is not None, "matplotlib wrote no svg element"
    inner = _TAG.sub(lambda tag: _short_tag(tag[0], name), _USELESS.sub("", found[1]))
    return _SPACES.sub("><", inner).strip()


def _short_tag(tag: str, name: str) -> str:
    """
    >>> _short_tag('<path id="patch_2" d="M 1.2345 2 " style="fill: none" x="3.14159"/>', "reward-step")
    '<path d="M 1.2 2" fill="none" x="3.14"/>'
    """
    tag = _NO_TURN.sub("", _ID.sub(lambda match: _kept_id(match[1], name), tag))
    tag = _STYLE.sub(lambda match: _attributes(match[1]), tag)
    return _LONG_NUMBER.sub(r"\1", _PATH.sub(lambda match: f' d="{_short_path(match[1])}"', tag))


def _kept_id(identifier: str, name: str) -> str:
    """Those of runs and groups, with their classes, and those of definitions, which begin with a letter and a hash of name and content."""
    own = re.fullmatch(rf"{re.escape(name)}-(run|group)(\d+)-\d+", identifier)
    if own:
        return f' id="{identifier}" class="{own[1]} {own[1]}{own[2]}"'
    return f' id="{identifier}"' if re.fullmatch(r"[a-zA-Z][0-9a-f]{9,}", identifier) else ""


def _attributes(style_text: str) -> str:
    """Presentation attributes; the family stands at the root once.

    >>> _attributes("font-weight: 700; font-size: 10.5px; font-family: 'Arial'; fill: #222222")
    ' font-weight="700" font-size="10.5px" fill="#222222"'
    """
    pairs = [pair.strip().partition(": ") for pair in style_text.split(";")]
    return "".join(f' {key}="{value}"' for key, _, value in pairs if key and key != "font-family")


def _short_path(path: str) -> str:
    """A tenth of a point is less than anybody sees."""
    return _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), path).replace(" \n", " ").replace("\n", " ").strip()
