"""Baseline: what the start model can do before any training.

Called by jobs/baseline.py and by the study.
"""

from typing import Any

from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.run import Run


async def run_baseline(run: Run) -> dict[str, Any]:
    """Evaluate the start model; nothing is trained and nothing saved."""
    run.console.begin_stage("baseline", "the start model as it is")
    await begin_stage(run, "baseline", learning_rate=run.recipe.learner.learning_rate, num_optimizer_steps=1)
    return await evaluate(run, "baseline", step=0)
