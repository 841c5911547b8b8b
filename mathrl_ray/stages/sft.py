"""SFT: supervised learning on reasoning traces, with the loss on the response only.

Called by jobs/sft.py and by the study, as the stage sft or sft_filtered. Read top to bottom: which traces, training, evaluation, folder.
"""

from typing import Any, Literal

from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.resume import go_on, take_checkpoint
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageEnd
from mathrl_ray.stages.sft_sweep import sweep_sizes
from mathrl_ray.stages.sft_training import save_trained, train_on
from mathrl_ray.stages.trace_selection import select_traces


async def run_sft(run: Run, stage: Literal["sft", "sft_filtered"] = "sft") -> dict[str, Any]:
    """Train the start model on `run.traces`, `sft.epochs` times in a seeded order, then evaluate.

    The stage sft takes the traces that sft.keep says, and where sft.sizes names some, one model a size, of which the best on the
    validation problems is evaluated and saved. sft_filtered takes all traces that are right, whatever these keys say, and no sizes.
    """
    checkpoint = take_checkpoint(run, stage)
    if checkpoint is None:
        end = await _from_the_start(run, stage)
    elif stage == "sft" and run.recipe.sft.sizes:  # written when the best size was found: only the evaluation is left
        await go_on(run, checkpoint, learning_rate=run.recipe.sft.learning_rate, num_optimizer_steps=1)
        end = StageEnd(checkpoint.step, checkpoint.facts.get("summary", {}))
    else:
        chosen = checkpoint.facts["traces"]
        traces = run.traces if chosen is None else [run.traces[place] for place in chosen]
        end = await train_on(run, stage, traces, checkpoint=checkpoint)
    return {**await evaluate(run, stage, step=end.step), **end.facts}


async def _from_the_start(run: Run, stage: Literal["sft", "sft_filtered"]) -> StageEnd:
    settings = run.recipe.sft
    keep = settings.keep if stage == "sft" else "correct"
    traces = await select_traces(run, stage, keep)
    if stage == "sft" and settings.sizes:
        end = await sweep_sizes(run, stage, traces)
        await save_trained(run, stage, end)
        return end
    return await train_on(run, stage, traces)
