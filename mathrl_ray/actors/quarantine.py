"""The quarantine: inputs that ran into a limit, so that none of them is graded twice.

Called by the scorer, from its event loop and from its threads. Knows a file and outcomes. It grows by at most one input a limit and a
grading process.
"""

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from mathrl_ray.types import GradingStyle, Outcome


@dataclass(frozen=True, slots=True)
class Suspect:
    """What decides how long a grading takes."""

    answer: str
    """The text that is compared with the gold; for a reward function the whole response."""
    gold: str
    function: str = ""


class Quarantine:
    """Outcomes by input; each new one is appended to a file, when there is one, as a line of JSON."""

    def __init__(self, path: Path | None = None) -> None:
        """
        Args:
            path: `<run>/quarantine.jsonl`; several scorers may append to it. What it holds already is known from the start.
        """
        self._path = path
        self._lock = threading.Lock()
        self._outcomes: dict[Suspect, Outcome] = dict(_read(path)) if path and path.exists() else {}

    def outcome(self, suspect: Suspect) -> Outcome | None:
        """What the input came to the last time: grader_timeout or grader_error; None for one that is not here."""
        return self._outcomes.get(suspect)

    def add(self, suspect: Suspect, style: GradingStyle, outcome: Outcome, seconds: float) -> None:
        """Remember an input, and write it down for a person."""
        with self._lock:
            if suspect in self._outcomes:
                return
            self._outcomes[suspect] = outcome
            if self._path is None:
                return
            row = {"answer": suspect.answer, "gold": suspect.gold, "function": suspect.function, "style": style}
            line = json.dumps({**row, "outcome": outcome, "seconds": round(seconds, 3)}) + "\n"
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)


def _read(path: Path) -> list[tuple[Suspect, Outcome]]:
    """The lines of a file; one that was cut off when its writer was killed is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.append((Suspect(row["answer"], row["gold"], row["function"]), row["outcome"]))
    return found
