"""One job from data to table: the order in which things are loaded, started and ended.

Called by entry.py. Bad data is refused before Ray starts, and what the cluster cannot give before a model loads.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mathrl_ray.actors.model_folder import load_tokenizer
from mathrl_ray.actors.own_rewards import check_reward_functions
from mathrl_ray.actors.placement import Placement, dashboard_url, free_namespace, placement, plan_device, ray_connection
from mathrl_ray.commands.preflight import check_job
from mathrl_ray.config import Recipe
from mathrl_ray.core.advantages import AdvantageFunction
from mathrl_ray.core.masking import known_secrets
from mathrl_ray.core.run_estimate import StepForecast
from mathrl_ray.custom import own_functions
from mathrl_ray.device import Device
from mathrl_ray.driver.canary import canary_requests
from mathrl_ray.driver.console import Console, protocol
from mathrl_ray.driver.digests import run_digests
from mathrl_ray.driver.environment import describe_environment
from mathrl_ray.driver.mirror import check_mirror, mirrored
from mathrl_ray.driver.ray_metrics import shown_in_ray
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.resume import Resumption, find_resumption
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stopping import END_LIMIT_S, Stopping, farewell
from mathrl_ray.driver.time_limit import TimeLimit
from mathrl_ray.driver.trackers import tracking
from mathrl_ray.report.last_report import write_report
from mathrl_ray.sections import BUILTIN, StageName
from mathrl_ray.stages.gold_check import check_golds
from mathrl_ray.stages.inputs import Inputs, load_inputs, prepare_model
from mathrl_ray.stages.lengths import check_lengths
from mathrl_ray.stages.study import run_study


@dataclass
class _Job:
    """What the parts of a job share."""

    recipe: Recipe
    stages: Sequence[StageName]
    console: Console
    inputs: Inputs
    stopping: Stopping
    time_limit: TimeLimit
    advantage_function: AdvantageFunction | None
    resumption: Resumption | None
    forecasts: Mapping[str, StepForecast] = field(default_factory=dict)
    """By stage; empty where the preflight had none."""


def run_job(recipe: Recipe, stages: Sequence[StageName], stopping: Stopping) -> None:
    """Run the stages and leave a run directory.

    Args:
        recipe: what to do.
        stages: which, in order.
        stopping: hears signals already.

    Raises:
        KeyboardInterrupt, StoppedError: it was told to stop, before and after the actors were created.
        TimeIsUpError: run.max_hours left no time for a stage.
        RecipeError: data, model, cluster or a function of the user's own do not fit the recipe; no engine was started.
        ActorError, CanaryError, FloatingPointError: a stage failed; what was written before stays.
    """
    began_s = time.monotonic()
    console = Console(secrets=known_secrets(os.environ, recipe.model_dump()))
    own = own_functions(recipe)
    check_reward_functions(recipe)
    if recipe.run.mirror:
        check_mirror(recipe.run.mirror, Path(recipe.run.root))
    resumption = find_resumption(recipe, stages)
    if recipe.run.resume == "auto" and resumption is None:
        console.say(f'run.resume = "auto": no checkpoint of {recipe.run.name} in {recipe.run.root}; a new run begins')
    inputs = load_inputs(recipe, stages)
    for remark in inputs.remarks:
        console.say(remark)
    inputs = check_golds(recipe, inputs, console.say)
    if recipe.model.path != BUILTIN:  # the built-in model is made later, beside the engines' imports
        check_lengths(recipe, inputs, _tokenizer(recipe, prepare_model(recipe, with_weights=False)))
    if resumption:
        resumption.check_data(recipe, _digests(recipe, inputs))
        if len(resumption.finished) == len(stages):
            resumption.open(recipe, stages, console.say).close()
            console.table(resumption.finished, caption=protocol(recipe))
            return
    num_evaluated = len(inputs.test) * recipe.eval.num_samples
    limit = TimeLimit(recipe.run.max_hours, num_evaluated=num_evaluated, num_prompts=len(recipe.eval.prompts), began_s=began_s)
    job = _Job(recipe, stages, console, inputs, stopping, limit, own.get("advantage"), resumption)
    with ray_connection(recipe.run.name):
        stopping.listen()
        device = plan_device(recipe)
        job.forecasts = check_job(recipe, stages, inputs, device, console.say)
        with contextlib.closing(resumption.open(recipe, stages, console.say) if resumption else Recorder.create(recipe)) as recorder:
            recorder.digests(_digests(recipe, inputs))
            console.say(f"run directory {recorder.folder}")
            console.say(f"dashboard {dashboard_url() or 'is off'}; engines on {device.kind}, since {device.reason}")
            in_ray = shown_in_ray(recorder, recipe.driver.max_staleness, console.say, lambda: stopping.requested)
            with in_ray, shown(recorder, recipe, stages, console, lambda: stopping.requested):
                summaries = asyncio.run(_with_actors(job, device, recorder))
    console.table(summaries, caption=protocol(recipe))
    console.say(f"run directory {recorder.folder}")


@contextlib.contextmanager
def shown(
    recorder: Recorder, recipe: Recipe, stages: Sequence[StageName], console: Console, is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Let those who watch see what a run writes in the block: in the view, and in trackers."""
    view, followed = console.live(recorder.folder.name, stages), tracking(recorder, recipe, console.say, is_stopping)
    with view, recorder.watched(console), followed:
        yield


async def _with_actors(job: _Job, device: Device, recorder: Recorder) -> list[dict[str, Any]]:
    """Create the actors, run the stages, end the actors; also where a signal comes in between. Returns the stages' summaries."""
    recipe, say, run = job.recipe, job.console.say, None

    async def work() -> list[dict[str, Any]]:
        nonlocal run
        run = await _prepare_run(job, device, recorder, placed)
        try:
            await run_study(run, job.stages)
        finally:
            await run.close()
        return run.stages

    async def before_the_end() -> None:
        placed.shutdown_limit_s = END_LIMIT_S
        if run is not None:
            await farewell(run, job.stopping)

    namespace = free_namespace(recorder.folder.name)
    async with mirrored(recipe.run.mirror, recorder.folder, say, lambda: job.stopping.requested):
        async with placement(recipe, device, namespace) as placed:
            summaries = await job.stopping.interruptible(work(), before_the_end, say)
        if recipe.run.report:
            await write_report([recorder.folder], recorder.folder / "report.html", say)
    return summaries


async def _prepare_run(job: _Job, device: Device, recorder: Recorder, placed: Placement) -> Run:
    """The start model, then the engines on it."""
    recipe, console, inputs = job.recipe, job.console, job.inputs
    model_folder = await asyncio.to_thread(prepare_model, recipe, console.say, job.stopping.check)
    tokenizer = await asyncio.to_thread(_tokenizer, recipe, model_folder)
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
        advantage_function=job.advantage_function,
        time_limit=job.time_limit,
        forecasts=job.forecasts,
    )
    run.canary_requests = canary_requests(run)
    if job.resumption:
        job.resumption.restore(run)
    return run


def _digests(recipe: Recipe, inputs: Inputs) -> dict[str, dict[str, str]]:
    return run_digests(recipe, train=inputs.train, traces=inputs.traces, validation=inputs.validation, test=inputs.test)


def _tokenizer(recipe: Recipe, model_folder: Path) -> Any:
    return load_tokenizer(str(model_folder), trust_remote_code=recipe.model.trust_remote_code)
