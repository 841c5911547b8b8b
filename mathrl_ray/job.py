"""One job from data to table: the order in which things are loaded, started and ended.

Called by entry.py. Bad data is refused before Ray starts, and what the cluster cannot give before a model loads.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.actors.own_rewards import check_reward_functions
from mathrl_ray.actors.placement import Placement, dashboard_url, placement, plan_device, ray_connection
from mathrl_ray.config import BUILTIN, Recipe, StageName
from mathrl_ray.custom import own_functions
from mathrl_ray.device import Device
from mathrl_ray.driver.canary import canary_requests
from mathrl_ray.driver.console import Console, protocol
from mathrl_ray.driver.environment import describe_environment
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.run import Run
from mathrl_ray.stages.gold_check import check_golds
from mathrl_ray.stages.inputs import Inputs, check_memory, load_inputs, prepare_model
from mathrl_ray.stages.lengths import check_lengths
from mathrl_ray.stages.study import run_study


async def run_job(recipe: Recipe, stages: Sequence[StageName]) -> None:
    """Run the stages and leave a run directory.

    Raises:
        RecipeError: data, model, cluster or a function of the user's own do not fit the recipe; no engine was started.
        ActorError, CanaryError, FloatingPointError: a stage failed; what was written before stays.
    """
    console = Console()
    own = own_functions(recipe)
    check_reward_functions(recipe)
    inputs = load_inputs(recipe, stages)
    for remark in inputs.remarks:
        console.say(remark)
    inputs = check_golds(recipe, inputs, console.say)
    if recipe.model.path != BUILTIN:  # the built-in model is made later, beside the engines' imports
        check_lengths(recipe, inputs, _tokenizer(prepare_model(recipe, console.say)))
    with ray_connection(recipe.run.name):
        device = plan_device(recipe)
        check_memory(recipe, device)
        with contextlib.closing(Recorder.create(recipe)) as recorder:
            console.say(f"run directory {recorder.folder}")
            console.say(f"dashboard {dashboard_url() or 'is off'}; engines on {device.kind}, since {device.reason}")
            async with placement(recipe, device) as placed:
                run = await _prepare_run(recipe, device, console, inputs, recorder, placed)
                run.advantage_function = own.get("advantage")
                try:
                    await run_study(run, stages)
                finally:
                    await run.close()
    console.table(run.stages, caption=protocol(recipe))
    console.say(f"run directory {recorder.folder}")


async def _prepare_run(recipe: Recipe, device: Device, console: Console, inputs: Inputs, recorder: Recorder, placed: Placement) -> Run:
    """The start model, then the engines on it."""
    model_folder = await asyncio.to_thread(prepare_model, recipe, console.say)
    tokenizer = await asyncio.to_thread(_tokenizer, model_folder)
    if recipe.model.path == BUILTIN:
        check_lengths(recipe, inputs, tokenizer)
    console.say("starting the engines")
    actors, learner_facts = await placed.start(str(model_folder), str(recorder.folder / "quarantine.jsonl"))
    recorder.environment({**describe_environment(recipe, device, learner_facts), "data": inputs.remarks})
    run = Run(
        recipe=recipe,
        actors=actors,
        recorder=recorder,
        console=console,
        tokenizer=tokenizer,
        model_folder=str(model_folder),
        train_problems=inputs.train,
        test_problems=inputs.test,
        traces=inputs.traces,
        validation_problems=inputs.validation,
        prompts=inputs.prompts,
    )
    run.canary_requests = canary_requests(run)
    return run


def _tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)
