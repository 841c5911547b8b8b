"""What a preflight has found, as a person reads it: one row a check, and the table of them.

Called by preflight.py and its checks. Knows rich and the recipe's error; knows nothing of machines and models.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import rich.console
from rich.table import Table
from rich.text import Text

from mathrl_ray.config import RecipeError
from mathrl_ray.core.masking import masked_text

Verdict = Literal["ok", "warning", "failed"]
STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "failed": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer.

    Example: Finding("/dev/shm", "failed", "64 MiB free", "3.1 GB for the weights", "start the container with --shm-size=4g")
    """

    name: str
    verdict: Verdict
    found: str
    needed: str = ""
    change: str = ""
    """The key to change and what would do, or what else a person can do; for failures and warnings."""

    def without(self, secrets: Collection[str]) -> "Finding":
        """The same, without secrets that are known."""
        found, needed, change = (masked_text(text, secrets) for text in (self.found, self.needed, self.change))
        return replace(self, found=found, needed=needed, change=change)

    @property
    def sentence(self) -> str:
        """All of it in one line, for a log or an error; without secrets."""
        needed = f"; needed: {self.needed}" if self.needed else ""
        change = f". {self.change[0].upper()}{self.change[1:]}" if self.change else ""
        return masked_text(f"{self.name}: {self.found}{needed}{change}")


def tried(name: str, check: Callable[[], str]) -> Finding:
    """A check that raises what it refuses, as a finding: its text where it is fine, its error, which names the key, where it is not."""
    try:
        return Finding(name, "ok", check())
    except (RecipeError, OSError) as error:
        return Finding(name, "failed", str(error))


def table_of(findings: Sequence[Finding], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("found", "needed", "to change"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        verdict = Text(finding.verdict, style=STYLES[finding.verdict])
        texts = [Text(masked_text(text)) for text in (finding.found, finding.needed, finding.change)]  # as text: [learner] is no style
        table.add_row(finding.name, verdict, *texts)
    return table


def console(width: int) -> rich.console.Console:
    """A terminal as wide as it is; a log at a fixed width."""
    terminal = rich.console.Console()
    return terminal if terminal.is_terminal else rich.console.Console(width=width)


def gigabytes(num_bytes: float) -> str:
    """In GiB, as the recipe's keys are; MiB below one tenth.

    >>> gigabytes(3 * 2**30), gigabytes(3 * 2**20)
    ('3.0 GiB', '3.0 MiB')
    """
    return f"{num_bytes / 2**30:,.1f} GiB" if abs(num_bytes) >= 0.1 * 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
