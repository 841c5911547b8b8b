"""The study: the stages of a recipe one after the other, each from the same start model, with one ledger.

Called by entry.py; a job of a single stage is a study of one.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, assert_never

from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.run import Run
from mathrl_ray.recipe_checks import RIVALS, token_budget
from mathrl_ray.sections import StageName
from mathrl_ray.stages.baseline import run_baseline
from mathrl_ray.stages.comparisons import compare_stages
from mathrl_ray.stages.expert_iteration import run_expert_iteration
from mathrl_ray.stages.grpo import run_grpo
from mathrl_ray.stages.sft import run_sft


async def run_study(run: Run, stages: Sequence[StageName]) -> None:
    """Run the stages in order; summary.json is written after each, so a later failure loses nothing."""
    _take_budget(run, stages)
    for stage in stages[len(run.stages) :]:  # the others are done, in a run that goes on
        run.time_limit.begin_stage(stage)
        run.ledger.begin_stage()
        run.change_recipe({})  # what a guard has changed holds for its stage
        figures = await _run_stage(run, stage)
        await _save_at_last(run)
        run.stages.append({"name": stage, "policy_version": run.policy_version, **figures, **_spent(run.ledger), **_cut(run)})
        low, high = figures["ci95"]
        run.console.say(f"{stage}: accuracy {100 * figures['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})")
        run.recorder.summary(run.stages, compare_stages(run) if len(run.stages) == len(stages) else None)


def _take_budget(run: Run, stages: Sequence[StageName]) -> None:
    run.token_budget, asked = token_budget(run.recipe, stages), run.recipe.study.generated_tokens
    if asked and not run.token_budget and RIVALS & set(stages):
        run.console.say(f"study.generated_tokens = {asked:,} is not used: it is for a study of both {' and '.join(sorted(RIVALS))}")


async def _save_at_last(run: Run) -> None:
    """The stage's last checkpoint, where it could not be written before the evaluation.

    Raises:
        OSError, ActorError: nor can it now. The stage is not finished then: a resumed run does again what was not saved.
    """
    if run.save_now is not None:
        await run.save_now()
    run.save_now = None


async def _run_stage(run: Run, stage: StageName) -> dict[str, Any]:
    match stage:
        case "baseline":
            return await run_baseline(run)
        case "sft" | "sft_filtered":
            return await run_sft(run, stage)
        case "expert_iteration":
            return await run_expert_iteration(run)
        case "grpo":
            return await run_grpo(run)
        case _:
            assert_never(stage)


def _cut(run: Run) -> dict[str, str]:
    """What ended the stage before its last step, where that was run.max_hours: it may go on (driver/sweep_folder.py)."""
    return {"ended_by": "max_hours"} if run.time_limit.has_ended_stage else {}


def _spent(ledger: Ledger) -> dict[str, Any]:
    return {
        **asdict(ledger.counts),
        "wall_s": round(ledger.wall_s, 3),
        "device_s": {role: round(seconds, 3) for role, seconds in sorted(ledger.work_s.items())},
    }
