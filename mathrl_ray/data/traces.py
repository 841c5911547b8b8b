"""Traces for SFT: a prompt as it is sent to the model, and the response that is learned.

Called by stages/inputs.py. Knows the prompts' texts, to find out which problem a trace answers; knows no tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mathrl_ray.core.prompts import Prompt, question_in
from mathrl_ray.data.columns import GOLD_COLUMNS, gold_and_solution, text
from mathrl_ray.data.rows import DataError, line_of, read_rows
from mathrl_ray.types import Problem

_ID_COLUMNS = ("problem_id", "id", "unique_id", "source")
_PROBLEM_COLUMNS = ("problem", "question")
_REQUIRED = ("prompt", "response")


@dataclass(frozen=True, slots=True)
class SftRow:
    """One trace. Made here or from the built-in task, eaten by stages/sft.py.

    Example: SftRow("gsm8k/train:1", "User: 1+1? Assistant: <think>", " It is 2. </think> <answer> 2 </answer>", gold="2", problem="1+1?")
    """

    problem_id: str
    prompt: str
    """The full text that the model sees."""
    response: str
    gold: str | None = None
    """Needed to keep only what is right; None where nobody says it."""
    problem: str | None = None
    """The question alone; None where the row does not say it and its prompt is none that we know."""


def load_traces(spec: str, *, key: str = "sft.traces", prompts: Sequence[Prompt] = ()) -> list[SftRow]:
    """Read rows of {"prompt", "response"}, where the prompt is the full text (A5's sft.jsonl), with a gold where they have one.

    Args:
        spec: a .jsonl or .parquet file, a folder or a hub name; its split is `train` unless named.
        key: the recipe's key that named it, for messages.
        prompts: templates that the rows' prompts may have been made with; the first that fits tells the question.

    Raises:
        FileNotFoundError, DataError: as `read_rows`; a column is missing; rows with an empty prompt or response, by line and id.
    """
    rows = read_rows(spec, key=key, default_split="train")
    if missing := [column for column in _REQUIRED if column not in rows.columns]:
        raise DataError(f"{key} = {spec}: no column {' and '.join(missing)}; found: {rows.found}")
    rows.refuse(
        [
            f"{line_of(line, _first(row, _ID_COLUMNS))}: {field} is empty"
            for line, row in rows.numbered
            for field in _REQUIRED
            if not text(row.get(field)).strip()
        ]
    )
    # Ids of our own making must not meet those of problems, which would give a trace another problem's gold.
    return [_trace(row, f"traces/{rows.stem}:{line}", prompts) for line, row in rows.numbered]


def _trace(row: Mapping[str, Any], default_id: str, prompts: Sequence[Prompt]) -> SftRow:
    prompt = text(row["prompt"])
    gold, _ = gold_and_solution(_first(row, GOLD_COLUMNS))
    asked = (question for each in prompts if (question := question_in(each, prompt)))
    return SftRow(
        problem_id=_first(row, _ID_COLUMNS) or default_id,
        prompt=prompt,
        response=text(row["response"]),
        gold=gold or None,
        problem=_first(row, _PROBLEM_COLUMNS) or next(asked, None),
    )


def _first(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The first of the columns that says something."""
    return next((value for column in columns if (value := text(row.get(column))).strip()), "")


def with_golds(traces: Sequence[SftRow], problems: Sequence[Problem]) -> list[SftRow]:
    """The traces, each without a gold of its own given that of the problem with its text, else with its id; None stays where none has."""
    by_text = {problem.problem.strip(): problem.gold for problem in problems}
    by_id = {problem.problem_id: problem.gold for problem in problems}
    return [
        trace if trace.gold else replace(trace, gold=by_text.get((trace.problem or "").strip()) or by_id.get(trace.problem_id))
        for trace in traces
    ]
