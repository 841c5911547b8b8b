"""The rows of a run's evaluation files, as examples.py and failures.py want them. Called by these.

A file that is being written, is torn or is of another kind has no rows here: a report of a running run goes without it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
"""One (problem, sample)."""
NEEDED = (
    "problem_id", "problem", "gold", "level", "subject", "prompt_name", "prompt", "sample", "response", "finish_reason", "extracted_answer",
    "format_reward", "answer_reward", "reward", "outcome", "grader", "num_response_tokens", "policy_version", "temperature", "top_p",
    "max_tokens",
)  # fmt: skip


def held_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, [] where it cannot be read or lacks a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):  # border: gone, torn or no Parquet
        return []
    if not set(NEEDED) <= set(table.column_names):
        return []
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
