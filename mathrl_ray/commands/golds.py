"""Golds for rows that hold none: a data set's problem whose text stands in the row's prompt.

Called by grade.py for `--golds`. TRL's completion tables are of this kind: they hold the prompt, and the gold only where a reward function
logged it.
"""

from collections.abc import Mapping
from typing import Any

from mathrl_ray.data.problems import read_problems
from mathrl_ray.data.rows import DataError, Rows

OPTION = "--golds"
_PROMPT_COLUMNS = ("prompt", "input", "problem", "question")


def golds_by_prompt(rows: Rows, spec: str) -> list[list[str]]:
    """The gold of each row in a list, [""] where no problem's text stands in its prompt; of several the longest text counts.

    Args:
        rows: with a prompt (or input, problem, question), a text or a chat.
        spec: a data set, as data.train names one.

    Raises:
        FileNotFoundError: there is no such data set.
        DataError: it cannot be read, or none of its problems is asked in the rows.
    """
    problems, _ = read_problems(spec, key=OPTION, columns={}, bad_rows="drop", default_split="train")
    golds = {problem.problem.strip(): problem.gold for problem in problems}
    longest_first = sorted(golds, key=len, reverse=True)
    found: dict[str, list[str]] = {}
    for prompt in {_prompt_text(row) for _, row in rows.numbered}:
        question = prompt.strip() if prompt.strip() in golds else next((text for text in longest_first if text in prompt), None)
        found[prompt] = [""] if question is None else [golds[question]]
    if all(gold == [""] for gold in found.values()):
        columns = ", ".join(_PROMPT_COLUMNS)
        raise DataError(f"{OPTION} = {spec}: none of its problems stands in the prompts of {rows.source} (columns looked at: {columns})")
    return [found[_prompt_text(row)] for _, row in rows.numbered]


def _prompt_text(row: Mapping[str, Any]) -> str:
    """All of a chat's messages, one after the other."""
    value = next((row[name] for name in _PROMPT_COLUMNS if row.get(name) is not None), "")
    if isinstance(value, list):
        return "\n".join(str(message.get("content")) if isinstance(message, Mapping) else str(message) for message in value)
    return str(value)
