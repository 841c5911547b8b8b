"""Settings as a page shows them: which differ from the defaults, and which differ between runs.

Called by page.py and tables.py. Pure: the nested tables of recipe.toml and environment.json in, rows out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl_ray.config import Recipe
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.shown_text import brief
from mathrl_ray.report.table import Cell, Table

_OF_EACH_RUN = {"run.name", "run.root", "run.resume"}
"""Where a run lies, and how it came there: no setting in which two runs differ."""
ABSENT = "(not set)"


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    """section.key"""
    value: str
    default: str
    """ABSENT for a key that has none."""

    @property
    def is_changed(self) -> bool:
        return self.value != self.default


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    values: tuple[str, ...]
    """One a run, in the runs' order."""


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values by their dotted names, as JSON.

    >>> flat({"run": {"seed": 0}, "eval": {"prompts": ["r1_zero"]}, "data": {}})
    {'run.seed': '0', 'eval.prompts': '["r1_zero"]'}
    """
    values: dict[str, str] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
    return values


def settings_of(recipe: Mapping[str, Any]) -> list[Setting]:
    """Every setting beside what it is where a recipe says nothing; the changed ones first, else in the recipe's order.

    What follows from another setting (a method's clip bounds, a stage's learning rate) is given as changed, as recipe.toml writes it out.
    """
    defaults = default_settings()
    settings = [Setting(key, value, defaults.get(key, ABSENT)) for key, value in flat(recipe).items()]
    return sorted(settings, key=lambda setting: not setting.is_changed)


def default_settings() -> dict[str, str]:
    """By key, of a recipe that says nothing."""
    return flat(Recipe().model_dump(mode="json"))


def differences(nested: Sequence[Mapping[str, Any]], defaults: Mapping[str, str] | None = None) -> list[Difference]:
    """The keys whose values are not the same everywhere; none for a single run.

    Args:
        nested: the runs' settings.
        defaults: what a key is where a run does not have it: that of an older version, which had no such key.

    >>> differences([{"run": {"seed": 0, "name": "a"}}, {"run": {"seed": 1, "name": "b"}}])
    [Difference(key='run.seed', values=('0', '1'))]
    """
    known = defaults or {}
    all_values = [flat(each) for each in nested]
    keys = dict.fromkeys(key for values in all_values for key in values if key not in _OF_EACH_RUN)
    rows = [Difference(key, tuple(values.get(key, known.get(key, ABSENT)) for values in all_values)) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def differences_tables(runs: Sequence[RunData]) -> list[Table]:
    """Of the settings and of the environment: a row a key, a column a run."""
    settings = differences([run.recipe for run in runs], default_settings())
    found = {"settings": settings, "environment": differences([run.environment for run in runs])}
    return [_table(runs, what, rows) for what, rows in found.items() if rows]


def _table(runs: Sequence[RunData], what: str, found: Sequence[Difference]) -> Table:
    rows = tuple((Cell(brief(each.key, 120)), *(Cell(brief(value, 160)) for value in each.values)) for each in found)
    columns = ("key", *(brief(run.name, 60) for run in runs))
    caption = "Where a run lies and what it is called is left out." if what == "settings" else "Of environment.json."
    return Table(f"differences_{what}", f"Differences between the runs: {what}", caption, columns, rows)
