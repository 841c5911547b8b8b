"""What the guards did, as a story: what fired, what was tried then, whether it helped. Called by page.py. Pure: rows of guards.jsonl in.

A rollback belongs to the firings before it, an outcome to the rollback before it. Rows of kinds that are not known here are told as they
are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
_HEADS = {"fired": "Fired", "rollback": "Went back", "outcome": "Outcome"}


@dataclass(frozen=True, slots=True)
class Told:
    """One event."""

    head: str
    """Fired, Went back, Helped, Did not help."""
    where: str
    text: str
    changes: tuple[tuple[str, str, str], ...] = ()
    """(key, old, new) of what a remedy changed, of what the text does not name."""


def guard_story(events: Sequence[Event]) -> list[list[Told]]:
    """A chapter for each time that something fired, or several things did: with what was tried then, and how that went."""
    chapters: list[list[Told]] = []
    last_rollback: list[Told] | None = None
    before: Event = {}
    for event in events:
        kind = event.get("kind")
        goes_on = before and event.get("stage") == before.get("stage") and (kind != "fired" or before.get("kind") == "fired")
        if kind == "outcome" and last_rollback is not None:
            last_rollback.append(_told(event))  # where a guard fires again, this comes after that firing
            continue
        if not goes_on:
            chapters.append([])
        chapters[-1].append(_told(event))
        last_rollback = chapters[-1] if kind == "rollback" else last_rollback
        before = event
    return chapters


def _told(event: Event) -> Told:
    kind = str(event.get("kind", ""))
    head = _HEADS.get(kind, kind)
    if kind == "outcome":
        head = "Helped" if event.get("helped") else "Did not help"
    where = f"{event.get('stage', '')}, step {event.get('step', '?')}"
    if kind == "rollback":
        where += f" to step {event.get('to_step', '?')}"
    text = _text(event)
    changes = tuple((key, str(old), str(new)) for key, (old, new) in event.get("changes", {}).items() if key not in text)
    return Told(head, where, text, changes)


def _text(event: Event) -> str:
    text = str(event.get("text", ""))
    lost = event.get("tokens_lost")
    return f"{text} ({lost:,} generated tokens lost)" if isinstance(lost, int) and lost else text
