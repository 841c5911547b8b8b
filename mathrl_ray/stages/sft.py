"""SFT: supervised learning on reasoning traces, with the loss on the response only.

Called by jobs/sft.py and by the study. Read top to bottom: batches, steps, one publication, evaluation, model folder.
"""

from typing import Any

from mathrl_ray.config import num_sft_steps
from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.loops import begin_stage, sync_weights
from mathrl_ray.driver.run import Run
from mathrl_ray.types import SftExample


async def run_sft(run: Run) -> dict[str, Any]:
    """Train the start model on `run.sft_examples`, `sft.epochs` times in a seeded order, then evaluate."""
    settings = run.recipe.sft
    num_steps = num_sft_steps(settings, len(run.sft_examples))
    run.console.begin_stage("sft", f"{len(run.sft_examples)} traces, {num_steps} steps of {settings.batch_size}")
    await begin_stage(run, "sft", learning_rate=settings.learning_rate, num_optimizer_steps=num_steps)
    for step, batch in enumerate(_batches(run), start=1):
        with run.ledger.work("learner"):
            metrics = await run.actors.learner.train_sft(batch)
        run.ledger.optimizer_steps += 1
        run.recorder.metrics("sft", step, run.policy_version, {**metrics, **run.ledger.lap()})
        run.console.step("sft", step, num_steps, {"loss": metrics["loss"], "entropy": metrics["entropy_nats"]})
    sync = await sync_weights(run, policy_version=1)
    run.recorder.metrics("sft", num_steps, run.policy_version, sync)
    figures = await evaluate(run, "sft", step=num_steps)
    await run.actors.learner.save(str(run.recorder.checkpoint_folder("sft", num_steps)))
    return figures


def _batches(run: Run) -> list[list[SftExample]]:
    """The batches of all epochs; an epoch's last one may be smaller."""
    size = run.recipe.sft.batch_size
    batches = []
    for epoch in range(run.recipe.sft.epochs):
        order = epoch_order(len(run.sft_examples), run.recipe.run.seed, epoch)
        batches += [[run.sft_examples[index] for index in order[start : start + size]] for start in range(0, len(order), size)]
    return batches
