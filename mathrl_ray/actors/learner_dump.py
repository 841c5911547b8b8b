"""What is kept of a batch whose loss or gradient was no finite number, so that a person can look for the cause.

Called by learner.py on rank 0.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


def write_dump(path: Path, totals: Mapping[str, float], batch: Sequence[Any]) -> None:
    """One JSON file: the batch's totals and every row of it, as the records of types.py have it. NaN and infinity stand as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"totals": dict(totals), "batch": [asdict(row) for row in batch]}
    path.write_text(json.dumps(_finite(content)) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Floats that JSON has no word for become text."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if value != value or abs(value) == float("inf"):
            return str(value)
        case _:
            return value
