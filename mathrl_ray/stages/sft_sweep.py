"""How many traces are enough: one SFT a size, each from the same start model, compared on the validation problems.

Called by sft.py where the recipe names sft.sizes (CS336 assignment 5: 128, 256, 512, 1024 and all). Test problems are not touched: a
choice among models is made here, so their figure would be too good.
"""

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rich.console
from rich.table import Table

from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.canary import sync_weights
from mathrl_ray.driver.console import LOG_WIDTH
from mathrl_ray.driver.evaluation import validate
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageEnd
from mathrl_ray.sections import StageName
from mathrl_ray.stages.sft_training import train_on
from mathrl_ray.types import StageSettings

SUBSET_EPOCH = -1
"""Stands for the epoch in the order that subsets are cut from, so that it is no epoch's own."""


@dataclass(frozen=True, slots=True)
class SizeResult:
    """One model of the sweep, on the validation problems."""

    num_traces: int
    num_steps: int
    policy_version: int
    figures: dict[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For summary.json."""


async def sweep_sizes(run: Run, stage: StageName, traces: Sequence[SftRow]) -> StageEnd:
    """Train one model a size of sft.sizes; afterwards learner and generators hold the best one, whose number of steps is returned.

    The best has the highest validation accuracy, and of equal ones the fewest traces. Subsets are nested, so that a larger size differs
    by what it has more, not by luck.
    """
    numbers = sorted(len(traces) if size == "all" else size for size in run.recipe.sft.sizes)
    results: list[SizeResult] = []
    # The model that leads so far is kept on disk; a hidden folder is no checkpoint.
    kept = run.recorder.checkpoint_folder(stage, 0).with_name(f".{stage}-best-size")
    try:
        for num_traces in dict.fromkeys(numbers):
            results.append(await _train_size(run, stage, nested_subset(traces, num_traces, run.recipe.run.seed)))
            if best_size(results) is results[-1]:
                shutil.rmtree(kept, ignore_errors=True)
                await run.actors.learner.save(str(kept))
        best = best_size(results)
        run.console.say(f"{stage}: sizes on {len(run.validation_problems)} validation problems\n{_table(results)}")
        if best is not results[-1]:
            await _bring_back(run, stage, kept, best)
    finally:
        shutil.rmtree(kept, ignore_errors=True)
    return StageEnd(best.num_steps, best.facts)


async def _train_size(run: Run, stage: StageName, traces: Sequence[SftRow]) -> SizeResult:
    part, facts = f"size{len(traces)}", {"sft_size": len(traces)}
    end = await train_on(run, stage, traces, part=part, facts=facts)
    figures = await validate(run, stage, end.step, part=part, facts=facts)
    return SizeResult(len(traces), end.step, run.policy_version, figures, end.facts)


async def _bring_back(run: Run, stage: str, folder: Path, best: SizeResult) -> None:
    """Load a saved model into the learner and the generators, as the policy version that it was."""
    settings = StageSettings(model_path=str(folder), learning_rate=run.recipe.sft.learning_rate, num_optimizer_steps=1, stage=stage)
    with run.ledger.work("learner-0", "start_stage"):
        await run.actors.learner.start_stage(settings)
    sync = await sync_weights(run, policy_version=best.policy_version)
    run.recorder.metrics(stage, best.num_steps, best.policy_version, {"sft_size": best.num_traces, **sync})


def nested_subset(traces: Sequence[SftRow], num_traces: int, seed: int) -> list[SftRow]:
    """`num_traces` of the traces, in their order; a smaller number gives a subset of a larger one's, and all gives all."""
    chosen = epoch_order(len(traces), seed, SUBSET_EPOCH)[:num_traces]
    return [traces[index] for index in sorted(chosen)]


def best_size(results: Sequence[SizeResult]) -> SizeResult:
    """The highest accuracy, and of equal ones the smallest size."""
    return max(results, key=lambda result: (result.figures["accuracy"], -result.num_traces))


def _table(results: Sequence[SizeResult]) -> str:
    best = best_size(results)
    table = Table()
    for name in ("traces", "steps", "validation accuracy (95 %)", "format", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        accuracy, (low, high) = result.figures["accuracy"], result.figures["ci95"]
        table.add_row(
            str(result.num_traces),
            str(result.num_steps),
            f"{100 * accuracy:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
            f"{100 * result.figures['format_rate']:.1f} %",
            "evaluated on test" if result is best else "",
        )
    text = io.StringIO()
    rich.console.Console(file=text, width=LOG_WIDTH).print(table)
    return text.getvalue().rstrip()
