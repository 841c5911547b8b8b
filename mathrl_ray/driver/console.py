"""What a person sees while a run goes on: one view on a terminal, lines in a job's log; tables at the end.

Called by the entry and the stages; told of rows by the recorder. Knows rich and plain numbers; the view is in live_view.py, the tables in
result_tables.py. A job's log is no terminal: whole lines only, at a fixed width. Nor are tables narrower on a narrow terminal, where they
would lose their intervals.

    stages tell    begin_stage, step, went_back, say, sample (one response of a step), doing (how far something long is)   to both
    recorder tells row (numbers of a step or an evaluation)                                                                to the view
"""

import contextlib
import io
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import rich.console
from rich.table import Table
from rich.text import Text

from mathrl_ray.config import Recipe
from mathrl_ray.core.masking import masked_text
from mathrl_ray.driver.live_state import LiveState
from mathrl_ray.driver.live_view import LiveView, shown_live, wants_view
from mathrl_ray.driver.result_tables import further_tables, prompts_table, stage_table
from mathrl_ray.recipe_checks import DEFAULT_GRADER

LINE_EVERY_S = 2.0
PROGRESS_EVERY_S = 10.0
LOG_WIDTH = 126
_ALARM = "warning:"
"""How a line begins that the view keeps in sight."""


class Console:
    """Writes to standard output, without secrets."""

    def __init__(
        self,
        secrets: Collection[str] = (),
        *,
        terminal: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            secrets: known ones, which are masked wherever they stand; what looks like one is masked anyway.
            terminal: where to, default standard output.
            clock: seconds.
        """
        self._secrets, self._clock_s = secrets, clock
        self._terminal = terminal = terminal or rich.console.Console(soft_wrap=True)
        if isinstance(terminal.file, io.TextIOWrapper):  # a character that is not in its encoding must not end a run
            terminal.file.reconfigure(errors="backslashreplace")
        width = max(terminal.width, LOG_WIDTH) if terminal.is_terminal else LOG_WIDTH
        settings: dict[str, Any] = {"file": terminal.file, "force_terminal": True} if terminal.is_terminal else {}
        # What others print while the view is shown goes through it too, and is no markup.
        settings |= {"markup": False, "emoji": False, "highlight": False}
        self._rich = rich.console.Console(width=width, soft_wrap=True, no_color=terminal.no_color, **settings)
        self._began = self._told = self._counted_from = clock()
        self._last_step = self._first_step = 0
        """The one that was told last, at `_told`; the first of those that the time left follows from, which began at `_counted_from`."""
        self._last_line = -inf
        self._unsaid = ""
        """The last step's line, where it came too soon after another."""
        self._progressed: dict[str, float] = {}
        """When something long began, or was last spoken of."""
        self._view: LiveState | None = None

    @contextlib.contextmanager
    def live(self, run_name: str, stages: Sequence[str]) -> Iterator[None]:
        """Show the view during the block, where somebody watches; else lines go on as they do outside of it.

        Args:
            run_name: the run folder's.
            stages: all of the job, in order.
        """
        if not wants_view(self._terminal, os.environ):
            yield
            return
        self._view = LiveState(run_name, stages, self._secrets, self._began)
        try:
            with shown_live(LiveView(self._view, self._terminal, self._clock_s), self._rich):
                yield
        finally:
            self._view = None

    @property
    def is_live(self) -> bool:
        """Whether the view is shown: else nobody needs to look for what `sample` takes."""
        return self._view is not None

    def say(self, text: str) -> None:
        """A line; before it that of the step that it follows."""
        self._say_unsaid()
        if text.startswith(_ALARM):
            self._keep_in_sight(text.removeprefix(_ALARM).strip())
        shown = "".join(each for each in masked_text(text, self._secrets) if each.isprintable() or each in "\n\t")
        self._rich.print(Text.assemble((self._clock(), "dim"), "  ", shown))  # in one piece: the view is drawn below it

    def _say_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, ""
        if unsaid:
            self.say(unsaid)

    def _keep_in_sight(self, text: str) -> None:
        if self._view is not None:
            self._view.warn(text, self._clock_s())

    def begin_stage(self, stage: str, plan: str) -> None:
        self._say_unsaid()
        self._told, self._last_line, self._last_step = self._clock_s(), -inf, 0
        if self._view is not None:
            self._view.begin_stage(stage, plan, self._told)
        self._rich.print(Text.assemble((self._clock(), "dim"), "  ", (stage, "bold"), f": {plan}"))

    def step(self, stage: str, step: int, num_steps: int, numbers: Mapping[str, float]) -> None:
        """Step `step` (from 1) is done. A line, at most one every two seconds and before other lines; the first and the last always. In a
        view the last of `num_steps` only.

        The time that is left follows from the steps since the stage began here, which a resumed one did in its middle, or went back.
        """
        now = self._clock_s()
        if not 0 < self._last_step < step:
            self._first_step, self._counted_from = step, self._told
        self._last_step, self._told = step, now
        remaining_s = (now - self._counted_from) / (step - self._first_step + 1) * (num_steps - step)
        if self._view is not None:
            self._view.at_step(step, num_steps, remaining_s)
            if step < num_steps:
                return
        shown = "  ".join(f"{name} {_short(value)}" for name, value in numbers.items())
        self._unsaid = ""
        line = f"{stage} step {step}/{num_steps}  {shown}  {remaining_s:.0f} s left"
        if step < num_steps and now - self._last_line < LINE_EVERY_S:
            self._unsaid = line
            return
        self._last_line = now
        self.say(line)

    def went_back(self, stage: str, step: int, text: str) -> None:
        """The stage goes on after this step (0: from its start); what is shown of later ones does not hold any more."""
        if self._view is not None:
            self._view.went_back(step)
        self._keep_in_sight(f"{stage}: {text}")
        self.say(f"{stage}: {text}")

    def sample(self, problem: str, response: str, outcome: str) -> None:
        """One response of the step that was done last; for the view alone."""
        if self._view is not None:
            self._view.take_sample(problem, response, outcome)

    @contextlib.contextmanager
    def doing(self, what: str, num_all: int, unit: str = "responses") -> Iterator[Callable[[int], None]]:
        """Show how far something long is, which the block does; it calls what it gets with the number that is done."""
        self.progress(what, 0, num_all, unit)
        try:
            yield lambda num_done: self.progress(what, num_done, num_all, unit)
        finally:
            self.progress(what, num_all, num_all, unit)

    def progress(self, what: str, num_done: int, num_all: int, unit: str = "responses") -> None:
        """Of something long (`doing`); in a log a line every ten seconds, none for what takes less."""
        if self._view is not None:
            self._view.progress(what, num_done, num_all, unit)
            return
        now = self._clock_s()
        if num_done >= num_all:
            self._progressed.pop(what, None)
        elif now - self._progressed.setdefault(what, now) >= PROGRESS_EVERY_S:
            self._progressed[what] = now
            self.say(f"{what}: {num_done:,} of {num_all:,} {unit}")

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl was written (recorder.Watcher)."""
        if self._view is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a number that is missing there is none that ends a run here
                self._view.row(row)

    def evaluated(self, path: Path) -> None:
        """Nothing is shown of files."""

    def rewound(self, metrics_bytes: int) -> None:
        """The stage itself says where it went back to (`went_back`)."""

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
        minutes, seconds = divmod(int(self._clock_s() - self._began), 60)
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
