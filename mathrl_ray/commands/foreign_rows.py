r"""Rows of graded responses, our own and other systems': which column is the response, the gold, the id, and what their grader said.

Called by the command grade. Pure: rows in, texts and numbers out; grades nothing.

    system    recognised by the columns             response                      gold                    their verdict
    plain     none of the below                     response, responses           gold, answer            correct, else answer_reward
    verl      input, output, score                  output                        gts, ground_truth       acc, else score
    verl      responses, reward_model               responses (a list)            reward_model's          none
    TRL       completion, and step or advantage     completion (text or chat)     any common name         each reward column
    lm-eval   doc, resps                            resps[0] (a text or a list)   target                  its metrics, one a filter

The formats are those of verl's trainer.rollout_data_dir and main_generation, of TRL's log_completions, and of lm-eval's --log_samples.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from mathrl_ray.core.grading.extraction import last_single_box
from mathrl_ray.core.reward_weights import RIGHT_ABOVE
from mathrl_ray.data.columns import GOLD_COLUMNS, gold_and_solution, text
from mathrl_ray.data.rows import DataError, Rows
from mathrl_ray.types import FinishReason

System = Literal["plain", "verl", "TRL", "lm-eval"]
ID_COLUMNS = ("id", "problem_id", "source", "doc_id")
_RESPONSES: Mapping[System, tuple[str, ...]] = {
    "plain": ("response", "responses"),
    "verl": ("output", "responses"),
    "TRL": ("completion",),
    "lm-eval": ("resps",),
}
_GOLDS: Mapping[System, tuple[str, ...]] = {
    "plain": ("gold", "answer"),
    "verl": ("gts", "ground_truth", "gold", "answer", "reward_model.ground_truth"),
    "TRL": (*GOLD_COLUMNS, "solution"),
    "lm-eval": ("target",),
}
_NO_REWARD = {"step", "advantage", "advantages", "mode", "id", "level"}
_ABOUT_ANSWERS = re.compile(r"accura|correct|answer|math|verif|exact", re.IGNORECASE)
_ABOUT_FORM = re.compile(r"format|length|len\b|_len|repetition|tag|language", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one file's rows are to be read. Made by `recognise`."""

    system: System
    response: str
    gold: str
    """"" where golds come from elsewhere (--golds)."""
    id_columns: tuple[str, ...]
    reward_columns: tuple[str, ...]
    """Columns that hold a verdict in every row; lm-eval's stand in each row's `metrics`."""

    @property
    def is_foreign(self) -> bool:
        return self.system != "plain"

    def responses(self, row: Mapping[str, Any]) -> tuple[list[str], bool]:
        """The texts to grade, and whether the row holds a list of them."""
        value = _field(row, self.response)
        if self.system == "lm-eval" and self.response == "resps":
            value = value[0] if isinstance(value, Sequence) and value else ""
            if isinstance(value, list) and len(value) == 1:
                value = value[0]
        if isinstance(value, list) and not _is_chat(value):
            return [_response_text(sample) for sample in value], True
        return [_response_text(value)], False

    def golds(self, row: Mapping[str, Any]) -> list[str]:
        """The alternatives, of which any is right; mostly one. [""] where the row has none.

        Other systems' golds may be whole solutions, whose last box then counts; ours are graded as they stand.
        """
        found = gold_texts(_field(row, self.gold)) or [""]
        return [last_single_box(gold) or gold for gold in found] if self.is_foreign else found

    def row_id(self, row: Mapping[str, Any], place: str) -> str:
        """The first id column that says something, else `place` (file:line)."""
        return next((found for name in self.id_columns if (found := text(_field(row, name)))), place)

    def verdicts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the file's own grader gave, by its name: a number or a list of one a sample."""
        if self.system != "lm-eval":
            return {name: row.get(name) for name in self.reward_columns}
        filter_name = text(row.get("filter"))
        return {f"{name},{filter_name}" if filter_name else name: row.get(name) for name in _metrics(row)}


def recognise(rows: Rows, *, response_field: str = "", gold_field: str = "", id_field: str = "", need_gold: bool = True) -> Layout:
    """The layout of a file, by its columns.

    Args:
        rows: what was read.
        response_field: the column to grade, a dot for a column inside a column; "" for the system's own.
        gold_field: likewise.
        id_field: likewise.
        need_gold: whether golds must stand in the rows.

    Raises:
        DataError: a column that is named and not there, or none for response or gold; the columns found are listed.
    """
    system = _system(rows.columns)
    response = _column(rows, "response", response_field, _RESPONSES[system])
    gold = _column(rows, "gold", gold_field, _GOLDS[system]) if need_gold or gold_field else ""
    ids = (_column(rows, "id", id_field, ()),) if id_field else ID_COLUMNS
    return Layout(system, response, gold, ids, _reward_columns(system, rows, used={response, gold, *ids}))


def _system(columns: set[str]) -> System:
    if {"input", "output", "score"} <= columns or {"responses", "reward_model"} <= columns:
        return "verl"
    if {"doc", "resps"} <= columns:
        return "lm-eval"
    if "completion" in columns and columns & {"step", "advantage"}:
        return "TRL"
    return "plain"


def _column(rows: Rows, what: str, named: str, common: Sequence[str]) -> str:
    for name in (named,) if named else common:
        if any(_has(row, name) for _, row in rows.numbered):
            return name
    looked_for = f"column {named}" if named else f"column for the {what} (looked for {', '.join(common)})"
    golds_hint = ", or --golds FILE where other rows hold the golds" if what == "gold" else ""
    raise DataError(f"{rows.key} = {rows.source}: no {looked_for}; found: {rows.found}. Name it: --{what}-field COLUMN{golds_hint}")


def _reward_columns(system: System, rows: Rows, used: set[str]) -> tuple[str, ...]:
    columns = rows.columns - used
    match system:
        case "plain":
            return tuple(name for name in ("correct", "answer_reward") if name in columns)[:1]
        case "verl":
            return tuple(name for name in ("acc", "score") if name in columns)[:1]
        case "lm-eval":
            return ()
    names = [name for name in dict.fromkeys(name for _, row in rows.numbered for name in row) if name in columns - _NO_REWARD]
    rewards = [name for name in names if all(_is_number_or_none(row.get(name)) for _, row in rows.numbered)]
    about_answers = [name for name in rewards if _ABOUT_ANSWERS.search(name) and not _ABOUT_FORM.search(name)]
    return tuple(about_answers or [name for name in rewards if not _ABOUT_FORM.search(name)])


def _is_number_or_none(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _metrics(row: Mapping[str, Any]) -> list[str]:
    """The names that lm-eval lists in newer versions; else those that it gives answers of mathematics."""
    listed = row.get("metrics")
    names = listed if isinstance(listed, list) else ["exact_match", "math_verify", "acc"]
    return [name for name in names if isinstance(name, str) and name in row]


def paid(value: Any) -> bool | None:
    """Whether a verdict means that the answer is right: above 1/2, be they 0 and 1 or -1 and 1. None for no verdict.

    >>> paid(1), paid(-1.0), paid(True), paid(0.1), paid(None), paid(float("nan"))
    (True, False, True, False, None, None)
    """
    if not isinstance(value, int | float) or value != value:
        return None
    return value > RIGHT_ABOVE


def gold_texts(value: Any) -> list[str]:
    r"""A gold as texts: a number without an exponent, the alternatives of a list, what stands behind GSM8K's `####`.

    >>> gold_texts(0.5), gold_texts([3, "three"]), gold_texts("48/2 = 24\n#### 24"), gold_texts(None)
    (['0.5'], ['3', 'three'], ['24'], [''])
    """
    if isinstance(value, list | tuple):
        return [found for alternative in value for found in gold_texts(alternative)]
    if isinstance(value, float) and value == value:
        return [f"{Decimal(repr(value)):f}"]
    return [gold_and_solution(text(value))[0]]


def finish_reasons(row: Mapping[str, Any], number: int) -> list[FinishReason]:
    """One a sample, from a column `finish_reason`: length where it says so, else stop."""
    value = row.get("finish_reason")
    values = value if isinstance(value, list) else [value] * number
    return ["length" if index < len(values) and values[index] == "length" else "stop" for index in range(number)]


def _response_text(value: Any) -> str:
    """A text, or what the last message of a chat says."""
    if isinstance(value, Mapping):
        return _response_text(value.get("content", value.get("text")))
    if isinstance(value, list):
        if _is_parts(value):
            return "".join(_response_text(part) for part in value)
        return _response_text(value[-1]) if value else ""
    return text(value)


def _is_chat(value: list[Any]) -> bool:
    """[{"role": "assistant", "content": ...}], which is one response."""
    return bool(value) and all(isinstance(message, Mapping) and "content" in message for message in value)


def _is_parts(value: list[Any]) -> bool:
    """[{"type": "text", "text": ...}], a message's content in parts."""
    return bool(value) and all(isinstance(part, Mapping) and "text" in part for part in value)


def _field(row: Mapping[str, Any], name: str) -> Any:
    """A column's value; `a.b` is b inside of a, unless there is a column of that very name."""
    if name in row or "." not in name:
        return row.get(name)
    outer, _, inner = name.partition(".")
    value = row.get(outer)
    return _field(value, inner) if isinstance(value, Mapping) else None


def _has(row: Mapping[str, Any], name: str) -> bool:
    return name in row or _field(row, name) is not None
