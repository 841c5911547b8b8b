"""The tables of results: a run's stages, their levels and subjects, and prompts beside each other.

Called by console.py, which prints them. Knows rich and the entries of summary.json; an entry of an older run lacks what came later. No
table but the stages' is wider than WIDTH: columns that have no room go into a further table, so that no number is wrapped. The stages'
is as wide as its numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mathrl_ray.core.paired_tests import TEST_NAMES, p_text
from mathrl_ray.driver.evaluation_figures import percent_text, shown_problems

Stages = Sequence[Mapping[str, Any]]
WIDTH = 120
_FRAME = 3
"""What a column costs beside its text: a space on each side and a line."""
PARTS_NOTE = "Accuracy of the problems that could be graded, with its 95 % interval below."


def stage_table(stages: Stages, caption: str) -> Table:
    """Each accuracy with its interval and its number of problems (x responses each)."""
    table = _table("Results on held-out problems", caption)
    heads = ("stage", "accuracy (95 %)", "problems", "format", "nats/token", "length", "generated", "updates", "time")
    rows = [_stage_row(stage) for stage in stages]
    for name in heads:
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.width = sum(_width(column) + _FRAME for column in zip(heads, *rows, strict=True)) + 1
    return table


def _stage_row(stage: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        stage["name"],
        percent_text(stage),
        shown_problems(stage),
        f"{100 * stage['format_rate']:.1f} %",
        f"{stage['mean_entropy_nats']:.2f}",
        f"{stage['mean_response_tokens']:.1f}",
        f"{stage['generated_tokens']:,}",
        f"{stage['optimizer_steps']}",
        f"{stage['wall_s']:.0f} s",
    )


def _width(texts: Iterable[str]) -> int:
    """Of the widest line, in a terminal's cells: a Chinese character has two."""
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)


def further_tables(stages: Stages) -> list[Table]:
    """pass@k and maj@k, accuracy by level, and by subject, of what the stages know of these, with intervals."""
    at_k = {stage["name"]: _at_k(stage) for stage in stages}
    levels = {stage["name"]: _parts(stage, "by_level", "level ") for stage in stages}
    subjects = {stage["name"]: _parts(stage, "by_subject", "") for stage in stages}
    return [
        *grid("One of k responses right (pass@k), their majority (maj@k)", at_k),
        *grid("Accuracy by level, of problems (95 %)", levels, "" if any(subjects.values()) else PARTS_NOTE),
        *grid("Accuracy by subject, of problems (95 %)", subjects, PARTS_NOTE),
    ]


def _at_k(stage: Mapping[str, Any]) -> dict[str, str]:
    given = [each for each in stage.get("at_k", ()) if each["k"] > 1]
    names = (("pass@", "pass_at_k"), ("maj@", "maj_at_k"))
    return {f"{name}{each['k']}": f"{100 * each[key]:.1f} %{_of_fewer(each, stage)}" for each in given for name, key in names}


def _of_fewer(at_k: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    """How many problems pass@k rests on, where they are fewer than the accuracy's: some lack k graded samples."""
    return "" if at_k["num_problems"] == stage["num_graded_problems"] else f" of {at_k['num_problems']}"


def _parts(stage: Mapping[str, Any], key: str, head: str) -> dict[str, str]:
    return {f"{head}{part['name']}": _part_text(part) for part in stage.get(key, ())}


def _part_text(part: Mapping[str, Any]) -> str:
    low, high = part["ci95"]
    return f"{100 * part['accuracy']:.1f} % of {part['num_problems']}\n{100 * low:.1f} to {100 * high:.1f}"


def grid(title: str, cells: Mapping[str, Mapping[str, str]], caption: str = "") -> list[Table]:
    """Rows by name, columns by name: as many tables as WIDTH asks for, none without a cell. A row without a cell there has a dash.

    Args:
        title: of the first table; the others have none.
        cells: the texts by row and column, of one line or several; columns stand in the order in which they first come.
        caption: of the last one.
    """
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    widths = [_width([column, *(row.get(column, "-") for row in cells.values())]) for column in columns]
    first = _width(["stage", *cells])
    groups = columns_that_fit(widths, WIDTH - (first + _FRAME + 1))
    tables = []
    for place, group in enumerate(groups):
        table = _table(title if place == 0 else "", caption if place == len(groups) - 1 else "")
        table.show_lines = any("\n" in text for row in cells.values() for text in row.values())
        table.add_column("stage", no_wrap=True)
        for index in group:
            table.add_column(Text(columns[index]), justify="right", no_wrap=True)
        for name, row in cells.items():
            table.add_row(Text(name), *(row.get(columns[index], "-") for index in group))
        tables.append(table)
    return tables


def columns_that_fit(widths: Sequence[int], room: int) -> list[list[int]]:
    """Places of columns, in groups that each fit into `room` with their frames; a column that is too wide alone is alone.

    >>> columns_that_fit([10, 10, 10], 26)
    [[0, 1], [2]]
    """
    groups: list[list[int]] = []
    left = 0
    for index, width in enumerate(widths):
        if not groups or width + _FRAME > left:
            groups.append([])
            left = room
        groups[-1].append(index)
        left -= width + _FRAME
    return groups


def prompts_table(stage: str, entries: Sequence[Mapping[str, Any]], caption: str) -> Table:
    """Prompts of one stage: each beside the first (evaluation_figures.compared_prompts)."""
    table = _table(f"{stage}: the prompts beside each other", f"{caption} {_tests_text(entries)}")
    table.add_column("prompt", overflow="fold")
    for name in ("accuracy (95 %)", "problems", "format", "length", "less the first (95 %)", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(
            Text(entry["name"]),
            percent_text(entry),
            shown_problems(entry),
            f"{100 * entry['format_rate']:.1f} %",
            f"{entry['mean_response_tokens']:.1f}",
            *_difference_texts(entry["difference"]),
        )
    return table


def _difference_texts(difference: Mapping[str, Any] | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    low, high = difference["ci95"]
    return f"{100 * difference['value']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})", p_text(difference["p_value_holm"])


def _tests_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """What the p-values are of."""
    found = [entry["difference"] for entry in entries if entry["difference"]]
    if not found:
        return ""
    tests = " or ".join(dict.fromkeys(TEST_NAMES[each["test"]] for each in found))
    adjusted = f", adjusted for {len(found)} tests at once (Holm)" if len(found) > 1 else ""
    return f"Differences in points, on the same problems; p: {tests}, two-sided{adjusted}."


def _table(title: str, caption: str) -> Table:
    return Table(title=title or None, caption=Text(caption) if caption else None, caption_justify="left", title_justify="left")
