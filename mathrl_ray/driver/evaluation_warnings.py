"""What a person should hear about an evaluation's responses, where its figures say less about the model than about a setting.

Called by evaluation.py, which says it. Pure: rows in, sentences out. What a training step's responses warn of is in step_warnings.py.
"""

from typing import Any

from mathrl_ray.core.breakdown import Row, Rows
from mathrl_ray.core.one_line import one_line
from mathrl_ray.driver.step_warnings import MOST_CUT_OFF

_SHOWN_AT_EACH_END = 150


def evaluation_warnings(rows: Rows) -> list[str]:
    """A sentence where no response passed the format check, and one where more than half were cut off; each shows one response and names
    the setting to change."""
    return [text for text in (_no_format(rows), _cut_off(rows)) if text]


def _no_format(rows: Rows) -> str:
    if any(row["format_reward"] > 0 for row in rows):
        return ""
    return (
        f"none of {len(rows)} responses passed the format check of the prompt {rows[0]['prompt_name']}, so none counts as right. One of "
        f"them: {_shown(rows[0])}. Name a prompt that fits the model in eval.prompts; `python -m mathrl_ray analyse` says how many would "
        "be right without the format."
    )


def _cut_off(rows: Rows) -> str:
    cut_off: list[Any] = [row for row in rows if row["finish_reason"] == "length"]
    if len(cut_off) <= MOST_CUT_OFF * len(rows):
        return ""
    return (
        f"{len(cut_off)} of {len(rows)} responses were cut off at eval.max_tokens = {rows[0]['max_tokens']}. One of them: "
        f"{_shown(cut_off[0])}. Raise eval.max_tokens (and model.max_length with it)."
    )


def _shown(row: Row) -> str:
    text: str = row["response"]
    if len(text) > 2 * _SHOWN_AT_EACH_END:
        text = f"{text[:_SHOWN_AT_EACH_END]} [...] {text[-_SHOWN_AT_EACH_END:]}"
    return f"{one_line(row['problem_id'])} {text!r}"
