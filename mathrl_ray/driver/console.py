"""What a person sees while a run goes on: a line now and then, a table at the end.

Called by the entry and the stages. Knows rich and plain numbers. A job's log is no terminal: whole lines only, at a fixed width.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import rich.console
from rich.table import Table

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import masked_text

LINE_EVERY_S = 2.0
LOG_WIDTH = 126


class Console:
    """Writes to standard output, without secrets."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        """
        Args:
            secrets: known ones, which are masked wherever they stand; what looks like one is masked anyway.
        """
        self._secrets = secrets
        terminal = rich.console.Console(soft_wrap=True)
        self._rich = terminal if terminal.is_terminal else rich.console.Console(width=LOG_WIDTH, soft_wrap=True)
        self._began = time.monotonic()
        self._stage_began = self._last_line = 0.0

    def say(self, text: str) -> None:
        self._rich.print(f"[dim]{self._clock()}[/dim]  ", end="", highlight=False)
        self._rich.print(masked_text(text, self._secrets), markup=False, highlight=False)

    def begin_stage(self, stage: str, plan: str) -> None:
        self._stage_began, self._last_line = time.monotonic(), 0.0
        self._rich.print(f"[dim]{self._clock()}[/dim]  [bold]{stage}[/bold]: {plan}", highlight=False)

    def step(self, stage: str, step: int, num_steps: int, numbers: Mapping[str, float]) -> None:
        """A line for step `step` (from 1), at most one every two seconds, the first and the last always."""
        now = time.monotonic()
        if step < num_steps and now - self._last_line < LINE_EVERY_S:
            return
        self._last_line = now
        remaining_s = (now - self._stage_began) / step * (num_steps - step)
        shown = "  ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        self.say(f"{stage} step {step}/{num_steps}  {shown}  {remaining_s:.0f} s left")

    def table(self, stages: Sequence[Mapping[str, Any]], caption: str) -> None:
        """The stages' results, each accuracy with its interval and its number of problems."""
        table = Table(title="Results on held-out problems", caption=caption, caption_justify="left", title_justify="left")
        table.add_column("stage", no_wrap=True)
        for name in ("accuracy (95 %)", "problems", "format", "nats/token", "length", "generated", "updates", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for stage in stages:
            low, high = stage["ci95"]
            table.add_row(
                stage["name"],
                f"{100 * stage['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
                f"{stage['num_problems'] - stage['num_ungraded']}",
                f"{100 * stage['format_rate']:.1f} %",
                f"{stage['mean_entropy_nats']:.2f}",
                f"{stage['mean_response_tokens']:.1f}",
                f"{stage['generated_tokens']:,}",
                f"{stage['optimizer_steps']}",
                f"{stage['wall_s']:.0f} s",
            )
        self._rich.print()
        self._rich.print(table, soft_wrap=False)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes:d}:{seconds:02d}"


def protocol(recipe: Recipe) -> str:
    """What an accuracy must never be shown without."""
    evaluation = recipe.eval
    return (
        f"Prompt {evaluation.prompts[0]}, temperature {evaluation.temperature:g}, top-p {evaluation.top_p:g}, at most "
        f"{evaluation.max_tokens} tokens, one answer a problem, run.seed {recipe.run.seed}; Wilson intervals. Problems that could not be "
        "graded are not counted. Generated: tokens sampled for learning."
    )
