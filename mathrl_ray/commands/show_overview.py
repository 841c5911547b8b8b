"""What a run has, for somebody who looks at it for the first time: its settings in a line, its stages in a table, its guards' words.

Called by show.py. Knows files of a run directory.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from mathrl_ray.commands.display import show as show_table
from mathrl_ray.commands.run_files import STAGES, SampleFile, checkpoint_names, metrics_rows, numbers
from mathrl_ray.commands.show_text import Page
from mathrl_ray.config import Recipe
from mathrl_ray.core.one_line import one_line
from mathrl_ray.driver.file_names import GUARDS_FILE


def show_overview(page: Page, run: Path, recipe: Recipe, files: Sequence[SampleFile]) -> None:
    """Print it."""
    name, model, prompt = (one_line(text) for text in (run.resolve().name, recipe.model.path, Path(recipe.data.prompt).stem))
    page.say(f"{name}: {model}, prompt {prompt}, seed {recipe.run.seed}")
    summaries = _summaries(run)
    stages = [stage for stage in STAGES if stage in summaries or any(file.stage == stage for file in files)]
    if not stages:
        page.say("nothing is sampled yet: responses are written with each training step, evaluations at the end of a stage")
        return
    checkpoints = checkpoint_names(run)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))  # a terminal of 80 columns holds it
    for name in ("stage", "sampled in", "validated", "saved", "test accuracy (95 %)", "problems"):
        table.add_column(Text(name), no_wrap=True)
    for stage in stages:
        of_stage = [file for file in files if file.stage == stage]
        saved = [int(name.rpartition("-")[2]) for name in checkpoints if name.rpartition("-")[0] == stage]
        table.add_row(
            stage,
            _steps([file for file in of_stage if file.kind == "trajectories"]),
            _steps([file for file in of_stage if file.kind == "validation"]),
            numbers(saved) or "-",
            *_accuracy(summaries.get(stage)),
        )
    show_table(table)
    _show_guards(page, run)


def _steps(files: Sequence[SampleFile]) -> str:
    return numbers(sorted({file.step for file in files if file.step is not None})) or "-"


def _accuracy(summary: dict[str, Any] | None) -> tuple[str, str]:
    """With its number of problems."""
    if summary is None:
        return "not yet", "-"
    low, high = summary["ci95"]
    return f"{100 * summary['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})", f"{summary['num_problems']:,}"


def _summaries(run: Path) -> dict[str, dict[str, Any]]:
    """By stage; written after each, whole."""
    file = run / "summary.json"
    stages: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["stages"] if file.is_file() else []
    return {stage["name"]: stage for stage in stages}


def _show_guards(page: Page, run: Path) -> None:
    rows = list(metrics_rows(run, GUARDS_FILE))
    if not rows:
        return
    kinds = [row.get("kind") for row in rows]
    num_rollbacks = kinds.count("rollback")
    page.say(f"guards: {kinds.count('fired')} fired, {num_rollbacks} rollback{'' if num_rollbacks == 1 else 's'}; the last words:")
    for row in rows[-3:]:
        page.say(f"{one_line(row['stage'])} step {row['step']}: {one_line(str(row.get('text', '')), most=300)}", 2)
