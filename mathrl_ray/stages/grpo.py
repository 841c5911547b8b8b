"""GRPO: sample a group of responses a problem, reward them, and learn from how each compares with its siblings.

Called by jobs/grpo.py and by the study. One step: problems -> rollout -> buffer -> advantages and optimizer step -> weights to the
generators. The steps themselves are in driver/loops.py.
"""

from typing import Any

from mathrl_ray.core.sampling import batch_indices
from mathrl_ray.driver.evaluation import accuracy_text, evaluate, is_validation_step, validate
from mathrl_ray.driver.loops import begin_stage, rollout, train_on_buffer
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.step_metrics import rollout_metrics
from mathrl_ray.driver.step_warnings import step_warnings
from mathrl_ray.driver.trajectory_buffer import TrajectoryBuffer


async def run_grpo(run: Run) -> dict[str, Any]:
    """Train the start model for `grpo.num_steps` steps, then evaluate."""
    grpo, num_problems = run.recipe.grpo, len(run.train_problems)
    run.console.begin_stage("grpo", f"{grpo.num_steps} steps of {grpo.prompts_per_step} problems x {grpo.group_size} responses")
    await begin_stage(run, "grpo", learning_rate=grpo.learning_rate, num_optimizer_steps=grpo.num_steps * grpo.updates_per_step)
    buffer = TrajectoryBuffer(capacity_groups=grpo.prompts_per_step, max_staleness=run.recipe.driver.max_staleness)
    warned: set[str] = set()
    for step in range(1, grpo.num_steps + 1):
        chosen = batch_indices(num_problems, grpo.prompts_per_step, step - 1, run.recipe.run.seed)
        groups = await rollout(run, "grpo", step, [run.train_problems[index] for index in chosen])
        warnings = step_warnings(groups, run.recipe)
        for text in (text for kind, text in warnings.items() if kind not in warned):  # again only after a step without
            run.console.say(f"warning: grpo step {step}: {text}")
        warned = set(warnings)
        for group in groups:
            buffer.add(group)
        metrics = {**rollout_metrics(groups), **await train_on_buffer(run, buffer, "grpo", step), **run.ledger.lap()}
        run.recorder.metrics("grpo", step, run.policy_version, metrics)
        shown = {"reward": metrics["reward_mean"], "format": metrics["format_reward_mean"], "tokens": metrics["response_tokens_mean"]}
        run.console.step("grpo", step, grpo.num_steps, shown)
        if is_validation_step(run, step):
            run.console.say(f"grpo step {step}: validation {accuracy_text(await validate(run, 'grpo', step))}")
    figures = await evaluate(run, "grpo", step=grpo.num_steps)
    await run.actors.learner.save(str(run.recorder.checkpoint_folder("grpo", grpo.num_steps)))
    return figures
