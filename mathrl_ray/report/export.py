"""A report's figures and tables as files: for a paper, a slide, a notebook.

    NAME[-AXIS].svg, .pdf, .png    each figure, a curve against each of its axes
    NAME.csv                       what it draws, a row a point
    NAME.md, .tex, .csv            each table
    captions.md                    title and one-line caption of each

Called by `python -m mathrl_ray report --figures DIR`. Writes into a folder aside, in DIR or beside
one that is not there yet, whose files are moved when all of it is there.
"""

import csv
import io
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG

from mathrl_ray.report.drawing import style
from mathrl_ray.report.figure import Figure, name_of
from mathrl_ray.report.figures import figures
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.table import markdown_text
from mathrl_ray.report.tables import tables

PNG_DPI = 200
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def export(runs: Sequence[RunData], folder: Path, advance: Callable[[int], None] = lambda _: None) -> list[str]:
    """Write all figures and tables; returns what a person should know (characters that no font here has).

    Files of an earlier export are replaced, others in the folder stay: `folder` may hold a paper.

    Args:
        runs: at least one.
        folder: made where it is not there.
        advance: called with 1 for each figure and table.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder.resolve()  # "." has no name
    aside = folder / ".writing" if folder.is_dir() else folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        remarks = _write_all(runs, aside, advance)
        folder.mkdir(exist_ok=True)
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return remarks


def num_items(runs: Sequence[RunData]) -> int:
    """How often `export` advances."""
    return len(figures(runs)) + len(tables(runs))


def _write_all(runs: Sequence[RunData], folder: Path, advance: Callable[[int], None]) -> list[str]:
    captions: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph .* missing")
        for figure in figures(runs):
            _write_figure(figure, folder)
            captions.append(_caption(figure.title, [f"{name_of(figure, axis)}.svg" for axis in figure.axes], figure.caption))
            advance(1)
    for table in tables(runs):
        for suffix, text in (("md", table.to_markdown()), ("tex", table.to_latex()), ("csv", table.to_csv())):
            (folder / f"table-{table.name}.{suffix}").write_text(text, encoding="utf-8")
        captions.append(_caption(table.title, [f"table-{table.name}.md"], table.caption))
        advance(1)
    (folder / "captions.md").write_text("\n".join(captions), encoding="utf-8")
    num_missing = len({str(each.message) for each in caught if "Glyph" in str(each.message)})
    return [_MISSING.format(num_missing)] if num_missing else []


_MISSING = "{} characters of names have no font here, and are boxes in the PDF and PNG files: install a CJK font, e.g. fonts-noto-cjk"


def _caption(title: str, files: Sequence[str], caption: str) -> str:
    return f"**{markdown_text(title)}** ({', '.join(files)}): {markdown_text(caption)}\n"


def _write_figure(figure: Figure, folder: Path) -> None:
    for axis in figure.axes:
        path = folder / name_of(figure, axis)
        with style(path.name):
            drawing = figure.draw(axis)
            FigureCanvasSVG(drawing).print_svg(f"{path}.svg", metadata=_NO_DATE["svg"])
            FigureCanvasPdf(drawing).print_pdf(f"{path}.pdf", metadata={**_NO_DATE["pdf"], "Title": figure.title})
            FigureCanvasAgg(drawing)
            drawing.set_dpi(PNG_DPI)
            FigureCanvasAgg(drawing).print_png(f"{path}.png", metadata={"Title": figure.title})
    (folder / f"{figure.name}.csv").write_text(csv_of(figure.data()), encoding="utf-8")


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """
    >>> csv_of([{"run": "a", "value": 0.5}, {"run": "b", "n": 3}])
    'run,value,n\\na,0.5,\\nb,,3\\n'
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(_keys(rows))), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return file.getvalue()


def _keys(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield from row
