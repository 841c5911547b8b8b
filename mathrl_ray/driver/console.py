"""What a person sees while a run goes on: a line now and then, tables at the end.

Called by the entry and the stages. Knows rich and plain numbers; the tables are in result_tables.py. A job's log is no terminal: whole
lines only, at a fixed width. Nor are tables narrower on a narrow terminal, where they would lose their intervals.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import rich.console
from rich.table import Table

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import masked_text
from mathrl_ray.driver.result_tables import further_tables, prompts_table, stage_table
from mathrl_ray.recipe_checks import DEFAULT_GRADER

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
        width = max(terminal.width, LOG_WIDTH) if terminal.is_terminal else LOG_WIDTH
        self._rich = rich.console.Console(width=width, soft_wrap=True)
        self._began = time.monotonic()
        self._stage_began = self._last_line = 0.0

    def say(self, text: str) -> None:
        self._rich.print(f"[dim]{self._clock()}[/dim]  ", end="", highlight=False)
        self._rich.print(masked_text(text, self._secrets), markup=False, highlight=False, emoji=False)

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
        shown = "  ".join(f"{name} {_short(value)}" for name, value in numbers.items())
        self.say(f"{stage} step {step}/{num_steps}  {shown}  {remaining_s:.0f} s left")

    def table(self, stages: Sequence[Mapping[str, Any]], caption: str) -> None:
        """The stages' results, each accuracy with its interval and its number of problems; below, by level and by subject where known."""
        for table in (stage_table(stages, caption), *further_tables(stages)):
            self._show(table)

    def prompts(self, stage: str, entries: Sequence[Mapping[str, Any]], caption: str) -> None:
        """Several prompts of one stage, each beside the first."""
        self._show(prompts_table(stage, entries, caption))

    def _show(self, table: Table) -> None:
        self._rich.print()
        self._rich.print(table, soft_wrap=False, crop=False)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes:d}:{seconds:02d}"


def _short(value: float) -> str:
    """Whole numbers whole, and three digits of others."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def protocol(recipe: Recipe) -> str:
    """What an accuracy must never be shown without."""
    evaluation = recipe.eval
    return (
        f"Prompt {evaluation.prompts[0]}, {_settings(recipe)} Problems that could not be graded are not counted. nats/token: mean entropy "
        "over all tokens of the responses, from the learner, over the full distribution at temperature 1. Generated: tokens sampled for "
        "learning."
    )


def prompt_protocol(recipe: Recipe) -> str:
    """The same for a table that compares prompts."""
    return f"Prompts {', '.join(recipe.eval.prompts)}; {_settings(recipe)}"


def _settings(recipe: Recipe) -> str:
    evaluation = recipe.eval
    answers = "one answer a problem" if evaluation.num_samples == 1 else f"{evaluation.num_samples} answers a problem"
    intervals = "Wilson intervals" if evaluation.num_samples == 1 else "intervals from the bootstrap over problems"
    return (
        f"temperature {evaluation.temperature:g}, top-p {evaluation.top_p:g}, at most {evaluation.max_tokens} tokens, {answers}, grader "
        f"{DEFAULT_GRADER}, run.seed {recipe.run.seed}; {intervals}."
    )
