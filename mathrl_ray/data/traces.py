"""Traces for SFT: a prompt as it is sent to the model, and the response that is learned.

Called by stages/inputs.py. Knows the prompts' texts, to find out which problem a trace answers, or to make traces of problems that come
with a worked solution; knows no tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mathrl_ray.core.prompts import Prompt, fill, question_in
from mathrl_ray.data.columns import GOLD_COLUMNS, column_names, gold_and_solution, problem_of, text
from mathrl_ray.data.rows import DataError, Rows, line_of, read_rows
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


def load_traces(spec: str, *, key: str = "sft.traces", prompts: Sequence[Prompt] = (), remarks: list[str] | None = None) -> list[SftRow]:
    """Read rows of {"prompt", "response"}, where the prompt is the full text (A5's sft.jsonl), with a gold where they have one.

    Rows of neither, that have a problem and its worked solution (MATH, GSM8K), become traces: the first prompt filled, then the solution.

    Args:
        spec: a .jsonl or .parquet file, a folder or a hub name; its split is `train` unless named.
        key: the recipe's key that named it, for messages.
        prompts: templates that the rows' prompts may have been made with; the first that fits tells the question. The very first is
            that of training.
        remarks: where problems without gold or worked solution may be left out (data.bad_rows = "drop"), it is told of them by name; None
            refuses them.

    Raises:
        FileNotFoundError, DataError: as `read_rows`; a column is missing; rows with an empty prompt or response, by line and id.
    """
    rows = read_rows(spec, key=key, default_split="train")
    if prompts and not rows.columns & set(_REQUIRED):
        return _worked_solutions(rows, prompts[0], remarks)
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


def _worked_solutions(rows: Rows, prompt: Prompt, remarks: list[str] | None) -> list[SftRow]:
    """Raises DataError: as `column_names`; problems without gold or solution, by line and id, unless there are remarks; the chat prompt."""
    if prompt.name == "chat":
        raise DataError(
            f"{rows.key} = {rows.source}: worked solutions are put behind r1_zero, question_only or a text file, "
            'not behind data.prompt = "chat"'
        )
    names = column_names(rows, {})
    problems = [(line, problem_of(row, names, f"traces/{rows.stem}:{line}")) for line, row in rows.numbered]
    faulty = {line: each.problem_id for line, each in problems if not each.gold.strip() or not (each.solution or "").strip()}
    faults = [f"{line_of(line, problem_id)}: has no gold or no worked solution" for line, problem_id in faulty.items()]
    if remarks is None:
        rows.refuse(faults, 'Mend them, or set data.bad_rows = "drop"; rows of prompt and response are taken too.')
    else:
        remarks.extend(f"{rows.key}: left out, {fault}" for fault in faults)
    return [
        SftRow(each.problem_id, fill(prompt, each.problem), worked_response(prompt, each), gold=each.gold, problem=each.problem)
        for line, each in problems
        if line not in faulty
    ]


def worked_response(prompt: Prompt, problem: Problem) -> str:
    r"""A problem's own solution in the form that the prompt asks for: in r1_zero's tags, else as it is, with its box.

    >>> from mathrl_ray.core.prompts import named_prompt
    >>> worked_response(named_prompt("r1_zero"), Problem("a", "1+1?", "2", solution=r"It is $\boxed{2}$."))
    ' It is $\boxed{2}$. </think> <answer> 2 </answer>'
    """
    solution = (problem.solution or "").strip()
    if prompt.style == "r1_zero":
        return f" {solution} </think> <answer> {problem.gold} </answer>"
    return solution if "\\boxed" in solution else f"{solution}\n\\boxed{{{problem.gold}}}"


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
