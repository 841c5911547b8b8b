"""GRPO: sample a group of responses a problem, reward them, and learn from how each compares with its siblings.

Called by jobs/grpo.py and by the study. One step: problems -> groups of responses -> rewards and advantages -> optimizer step -> weights to
the generators. The loops that do it, in turns or at the same time, are in driver/loops.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.checkpoint import Checkpoint
from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.loop_state import LoopState
from mathrl_ray.driver.loops import AfterStep, PolicyLoops
from mathrl_ray.driver.resume import go_on, take_checkpoint
from mathrl_ray.driver.rollback import go_back
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageAverage, StageEnd, use_best
from mathrl_ray.driver.step_warnings import step_warnings
from mathrl_ray.recipe_checks import num_grpo_steps
from mathrl_ray.types import TrajectoryGroup


async def run_grpo(run: Run) -> dict[str, Any]:
    """Train the start model for `grpo.num_steps` steps or `grpo.num_epochs` epochs, then evaluate."""
    checkpoint, grpo = take_checkpoint(run, "grpo"), run.recipe.grpo
    num_steps = num_grpo_steps(grpo, len(run.train_problems))
    run.console.begin_stage("grpo", f"{num_steps} steps of {grpo.prompts_per_step} problems x {grpo.group_size} responses{run.budget_text}")
    schedule = num_steps * grpo.updates_per_step
    if checkpoint is None:
        await begin_stage(run, "grpo", learning_rate=grpo.learning_rate, num_optimizer_steps=schedule)
    else:
        await go_on(run, checkpoint, learning_rate=grpo.learning_rate, num_optimizer_steps=schedule)
    after_step, state = _teller(run, num_steps), checkpoint.loops() if checkpoint else None
    average = StageAverage.going_on(run, "grpo", checkpoint.facts if checkpoint else {})
    loops = PolicyLoops(run, "grpo", num_steps, after_step, state, average)
    num_done = await loops.train()

    def stand(at: Checkpoint | None) -> tuple[LoopState, Mapping[str, Any]]:
        start = PolicyLoops(run, "grpo", num_steps, after_step).state()
        return (at.loops().with_all_in_flight(), at.facts) if at else (start, {})

    while run.guards.setback is not None:
        checkpoint = await go_back(run, "grpo", stand, num_optimizer_steps=schedule)
        loops = PolicyLoops(run, "grpo", num_steps, after_step, checkpoint.loops())
        num_done = await loops.train()
    end = StageEnd(num_done, loops.average.summary())
    if loops.validations.early.has_stopped:
        end = await use_best(run, "grpo", loops.validations.early, step=num_done, is_saved=loops.is_saved)
    else:
        _say_what_ended_it(run, num_done, num_steps)
    return {**await evaluate(run, "grpo", step=end.step), **end.facts}


def _teller(run: Run, num_steps: int) -> AfterStep:
    """Tells a person of each step."""
    warned: set[str] = set()

    def after_step(step: int, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]) -> None:
        warnings = step_warnings(groups, run.recipe)
        for text in (text for kind, text in warnings.items() if kind not in warned):  # again only after a step without
            run.console.say(f"warning: grpo step {step}: {text}")
        warned.clear()
        warned.update(warnings)
        shown = {"reward": metrics["reward_mean"], "format": metrics["format_reward_mean"], "tokens": metrics["response_tokens_mean"]}
        shown |= {"entropy": metrics["entropy_nats"]} if "entropy_nats" in metrics else {}  # not of a step that trained on nothing
        run.show_sample(groups)
        run.console.step("grpo", step, step + run.steps_left(step, num_steps, metrics["consumed_tokens_total"]), shown)

    return after_step


def _say_what_ended_it(run: Run, num_done: int, num_steps: int) -> None:
    if run.is_budget_spent:
        run.console.say(f"grpo: {run.sampled_text} are sampled after step {num_done}")
    elif num_done < num_steps and run.recipe.run.max_hours:
        run.console.say(f"grpo: run.max_hours = {run.recipe.run.max_hours:g} left room for {num_done} of {num_steps} steps")
    elif run.token_budget:
        key = "grpo.num_epochs" if run.recipe.grpo.num_epochs else "grpo.num_steps"
        run.console.say(f"grpo: {key} ended it at step {num_done}, after {run.sampled_text}: raise it to spend all of them")
