"""SFT: supervised learning on reasoning traces, with the loss on the response only.

Called by jobs/sft.py and by the study, as the stage sft or sft_filtered. Read top to bottom: which traces, training, evaluation, folder.
"""

from typing import Any, Literal

from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.run import Run
from mathrl_ray.stages.sft_sweep import sweep_sizes
from mathrl_ray.stages.sft_training import train_on
from mathrl_ray.stages.trace_selection import select_traces


async def run_sft(run: Run, stage: Literal["sft", "sft_filtered"] = "sft") -> dict[str, Any]:
    """Train the start model on `run.traces`, `sft.epochs` times in a seeded order, then evaluate.

    The stage sft takes the traces that sft.keep says, and where sft.sizes names some, one model a size, of which the best on the
    validation problems is evaluated and saved. sft_filtered takes all traces that are right, whatever these keys say, and no sizes.
    """
    settings = run.recipe.sft
    keep = settings.keep if stage == "sft" else "correct"
    traces = await select_traces(run, stage, keep)
    if stage == "sft" and settings.sizes:
        step = await sweep_sizes(run, stage, traces)
    else:
        step = await train_on(run, stage, traces)
    figures = await evaluate(run, stage, step=step)
    await run.actors.learner.save(str(run.recorder.checkpoint_folder(stage, step)))
    return figures
