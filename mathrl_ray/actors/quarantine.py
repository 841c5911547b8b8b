"""The quarantine: inputs that ran into a limit, so that none of them costs its limit again and again.

Called by the scorer, from its event loop and from its threads. Knows a file and outcomes. It grows by at most one input a limit and a
grading process.

The grader is deterministic: what hung once hangs again. A function of the user's own may have waited for a busy machine or a service, so it
is given a second try of the same input before the input is given up.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mathrl_ray.types import GradingStyle, Outcome

_TRIES_OF_A_FUNCTION = 2


@dataclass(frozen=True, slots=True)
class Suspect:
    """All that decides how long a grading takes, the training step apart."""

    answer: str
    """The text that is compared with the gold; for a reward function the whole response."""
    gold: str
    function: str = ""
    problem_id: str = ""
    """For a person; a function's only, as the following."""
    given: str = ""
    """A digest of all else that the function is given: the problem with its other columns, and the prompt."""


class Quarantine:
    """Outcomes by input; each time that one runs into a limit is appended to a file, when there is one, as a line of JSON."""

    def __init__(self, path: Path | None = None) -> None:
        """
        Args:
            path: `<run>/quarantine.jsonl`; several scorers may append to it. What it holds already is known from the start.
        """
        self._path = path
        self._lock = threading.Lock()
        self._outcomes: dict[Suspect, Outcome] = {}
        self._times: Counter[Suspect] = Counter()
        for suspect, outcome in _read(path) if path and path.exists() else ():
            self._count(suspect, outcome)

    def outcome(self, suspect: Suspect) -> Outcome | None:
        """What the input came to the last time: grader_timeout or grader_error; None for one that is to be graded."""
        return self._outcomes.get(suspect)

    def add(self, suspect: Suspect, style: GradingStyle, outcome: Outcome, seconds: float) -> None:
        """Remember that an input ran into a limit, and write it down for a person."""
        with self._lock:
            if suspect in self._outcomes:
                return
            self._count(suspect, outcome)
            if self._path is None:
                return
            row = {"answer": suspect.answer, "gold": suspect.gold, "function": suspect.function, "style": style}
            of_function = {"problem_id": suspect.problem_id, "given": suspect.given} if suspect.function else {}
            line = json.dumps({**row, **of_function, "outcome": outcome, "seconds": round(seconds, 3)}) + "\n"
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _count(self, suspect: Suspect, outcome: Outcome) -> None:
        self._times[suspect] += 1
        if self._times[suspect] >= (_TRIES_OF_A_FUNCTION if suspect.function else 1):
            self._outcomes[suspect] = outcome


def _read(path: Path) -> Iterator[tuple[Suspect, Outcome]]:
    """The lines of a file; one that was cut off when its writer was killed is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        suspect = Suspect(row["answer"], row["gold"], row["function"], row.get("problem_id", ""), row.get("given", ""))
        yield suspect, row["outcome"]
