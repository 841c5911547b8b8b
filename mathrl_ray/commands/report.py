"""`python -m mathrl_ray report RUN ...`: one HTML file of one or several runs, and with --figures all figures and tables as files.

Called by arguments.py. Reads runs, also those that are at work; changes nothing in them but report.html.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mathrl_ray.commands.display import progress
from mathrl_ray.report.export import export, num_items
from mathrl_ray.report.figures import figures
from mathrl_ray.report.page import write_page
from mathrl_ray.report.run_data import RunData, read_runs


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """As they are typed."""

    runs: Sequence[Path]
    output: Path | None = None
    figures: Path | None = None


def report(options: ReportOptions) -> int:
    """Make the report; returns 0.

    Raises:
        ValueError: a path is no run directory, or the output cannot lie where it is to.
        OSError: the output cannot be written.
    """
    output = output_of(options)
    if output.is_dir():
        raise ValueError(f"--output {output}: is a folder; name a file in it, for example {output / 'report.html'}")
    if options.figures is not None:
        _check_folder(options.figures)
    with progress("reading runs", len(options.runs)) as advance:
        runs = read_runs(options.runs, advance)
    with progress("drawing the report", len(figures(runs))) as advance:
        write_page(runs, output, advance)
    print(f"{output}: {_size_text(output)}, {_runs_text(runs)}")
    if options.figures is not None:
        with progress("writing figures and tables", num_items(runs)) as advance:
            remarks = export(runs, options.figures, advance)
        print(f"{options.figures}: figures as SVG, PDF and PNG with their data as CSV, tables as Markdown, LaTeX and CSV, captions.md")
        for remark in remarks:
            print(f"warning: {remark}")
    for run in runs:
        for warning in run.warnings:
            print(f"warning: {run.name}: {warning}")
    return 0


def _check_folder(folder: Path) -> None:
    """Before a minute of reading and drawing.

    Raises:
        ValueError: files cannot be written into it, or it cannot be made.
    """
    there = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"--figures {folder}: {there} is a file; name a folder, which is made where it is not there")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--figures {folder}: {there} cannot be written to; name another folder")


def output_of(options: ReportOptions) -> Path:
    """Where the page goes: --output, else report.html in the folder of the run or sweep, of several in the present folder."""
    if options.output is not None:
        return options.output
    return options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html")


def _size_text(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


def _runs_text(runs: Sequence[RunData]) -> str:
    states = [run.state for run in runs]
    told = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'} ({', '.join(told)})"
