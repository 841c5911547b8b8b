"""The report page: one HTML file that needs nothing else, made from run directories at any time, also while they run.

Called by the command `report` (commands/report.py). Gathers what the page shows; how it looks is in templates/. Everything that comes from
a model, a data set or a recipe is escaped by the template engine and has its unseen marks written out (shown_text.py); the page's policy
allows the one style sheet and the one script that stand in it, and no request.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mathrl_ray.core.failure_analysis import TITLES
from mathrl_ray.core.visible_text import visible
from mathrl_ray.report.charts import Chart, chart_of
from mathrl_ray.report.drawing import run_style
from mathrl_ray.report.examples import examples_of
from mathrl_ray.report.failures import failures_of
from mathrl_ray.report.figure import AXES, AXIS_NAMES
from mathrl_ray.report.figures import figures
from mathrl_ray.report.guard_story import guard_story
from mathrl_ray.report.headline import head_of, results_together
from mathrl_ray.report.lanes import MOST_RUNS
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.settings_diff import flat, settings_of
from mathrl_ray.report.shown_text import TextBudget, brief, end_of
from mathrl_ray.report.tables import Table, tables

MOST_RUNS_IN_DETAIL = MOST_RUNS
"""Examples, failures and settings of more runs than have lanes would be most of the page, and nobody's reading."""
SECTION_OF_TABLE = {
    "by_level": "parts",
    "by_subject": "parts",
    "outcomes": "outcomes",
    "guards": "guards",
    "idle": "lanes",
    "differences_settings": "settings",
    "differences_environment": "settings",
}
"""All other tables stand with the results."""
SECTIONS = {
    "results": "Results",
    "curves": "Curves",
    "lanes": "Who worked when",
    "parts": "By level and subject",
    "outcomes": "Outcomes and failures",
    "examples": "Examples",
    "guards": "Guards",
    "settings": "Settings",
}
Advance = Callable[[int], None]


def write_page(runs: Sequence[RunData], output: Path, advance: Advance = lambda _: None) -> None:
    """Write the page, whole or not at all.

    Args:
        runs: at least one.
        output: the file; its folder is made.
        advance: called with 1 for each figure that is drawn.
    """
    page = page_of(runs, advance)
    output.parent.mkdir(parents=True, exist_ok=True)
    writing = output.with_name(f".{output.name}.{os.getpid()}.writing")
    try:
        writing.write_text(page, encoding="utf-8", errors="replace")
        writing.replace(output)
    finally:
        writing.unlink(missing_ok=True)


def page_of(runs: Sequence[RunData], advance: Advance = lambda _: None) -> str:
    """The page as text."""
    style, script = _template("style.css"), _template("page.js")
    values = _figures_and_tables(runs, advance) | _words_and_texts(runs)
    page = _environment().from_string(_template("page.html.j2"))
    return page.render(
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=[run.name for run in runs],
        styles=[run_style(index) for index in range(len(runs))],
        sections=_sections(values),
        **values,
    ).lstrip()  # line ends of the macros


def _figures_and_tables(runs: Sequence[RunData], advance: Advance) -> dict[str, Any]:
    charts = _charts(runs, advance)
    return {
        "charts": charts,
        "axes": [(axis, AXIS_NAMES[axis]) for axis in AXES],
        "numbers": {chart.name: chart.numbers for held in charts.values() for chart in held},
        "tables": _by_section(tables(runs)),
    }


def _words_and_texts(runs: Sequence[RunData]) -> dict[str, Any]:
    budget, detailed = TextBudget(), runs[:MOST_RUNS_IN_DETAIL]
    return {
        "heads": [head_of(run) for run in runs],
        "together": results_together(runs) if len(runs) > 1 else "",
        "is_running": any(run.state == "running" for run in runs),
        "failures": _of_each(detailed, failures_of),
        "kinds": TITLES,
        "examples": _of_each(detailed, lambda run: examples_of(run, budget)),
        "num_left_out": len(runs) - len(detailed),
        "guards": _of_each(runs, lambda run: guard_story(run.guard_events)),
        "settings": [(run.name, settings_of(run.recipe), flat(run.environment)) for run in detailed],
    }


def _sections(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(anchor, name) of those that the page has."""
    charts, held = values["charts"], values["tables"]
    has = {
        "results": True,
        "curves": "curves" in charts,
        "lanes": "lanes" in charts,
        "parts": "parts" in charts or "parts" in held,
        "outcomes": "outcomes" in charts or "outcomes" in held or values["failures"],
        "examples": values["examples"],
        "guards": values["guards"] or "guards" in held,
        "settings": True,
    }
    return [(anchor, name) for anchor, name in SECTIONS.items() if has[anchor]]


def _charts(runs: Sequence[RunData], advance: Advance) -> dict[str, list[Chart]]:
    """By the group that a figure belongs to."""
    groups: dict[str, list[Chart]] = {}
    for figure in figures(runs):
        groups.setdefault(figure.group, []).append(chart_of(figure))
        advance(1)
    return groups


def _by_section(held: Sequence[Table]) -> dict[str, list[Table]]:
    sections: dict[str, list[Table]] = {}
    for table in held:
        sections.setdefault(SECTION_OF_TABLE.get(table.name, "results"), []).append(table)
    return sections


def _of_each(runs: Sequence[RunData], read: Callable[[RunData], Sequence[Any]]) -> list[tuple[str, Sequence[Any]]]:
    """(name, what was found) of the runs in which something was found."""
    found = [(run.name, read(run)) for run in runs]
    return [(name, held) for name, held in found if held]


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printed)
    environment.filters |= {
        "brief": brief,
        "percent": lambda share: f"{100 * share:.1f} %",
        "words": _words,
        "end_of": end_of,
        "drawn": Markup,
        "numeric_columns": _numeric_columns,
    }
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment


def _printed(value: Any) -> Any:
    """Everything that the template prints comes through here, on its way to being escaped."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def _numeric_columns(table: Table) -> list[bool]:
    return [any(row[place].number is not None for row in table.rows) for place in range(len(table.columns))]


def _words(name: Any) -> str:
    return str(name).replace("_", " ")


def _template(name: str) -> str:
    return files("mathrl_ray.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
