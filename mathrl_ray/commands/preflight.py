"""The preflight: can this recipe run on these machines, how long would it take, and what should change where it cannot.

Called by `python -m mathrl_ray preflight` with a recipe, and by job.py with what a job has loaded already. Starts no engine and loads no
weight. The command joins the cluster of RAY_ADDRESS; without one it looks at this machine and starts no Ray.

    command   recipe -> own functions -> data and golds -> model, tokenizer, prompts -> | machines: processors, memory, KV cache,
    job       (has done these)                                                          | /dev/shm, disk, versions, run root -> estimate
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mathrl_ray.actors.nodes import NodeFacts, cluster_nodes, installed_versions, this_node
from mathrl_ray.actors.own_rewards import check_reward_functions
from mathrl_ray.actors.placement import dashboard_url, engine_cpus, engine_gpus, engine_threads, plan_for, ray_connection
from mathrl_ray.commands.display import busy
from mathrl_ray.commands.findings import Finding, console, table_of, tried
from mathrl_ray.commands.forecast import forecast_table, plan_of
from mathrl_ray.commands.memory_checks import check_memory_needs, run_memory_bytes
from mathrl_ray.commands.mirror_check import check_mirror_takes_files
from mathrl_ray.commands.model_checks import check_model, check_tokenizer, mean_prompt_tokens, mean_tokens
from mathrl_ray.commands.node_checks import check_dashboard, check_root, check_time, check_versions
from mathrl_ray.commands.resource_checks import (
    ModelNeeds,
    check_disk,
    check_processors,
    check_shared_memory,
    check_threads,
)
from mathrl_ray.commands.start_model import StartModel, read_model
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.batching import micro_batches
from mathrl_ray.core.masking import known_secrets
from mathrl_ray.core.run_estimate import StageEstimate, StepForecast, duration
from mathrl_ray.custom import own_functions
from mathrl_ray.device import Device, attention_implementation
from mathrl_ray.driver.console import LOG_WIDTH
from mathrl_ray.driver.environment import PACKAGES
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.sweep_folder import find_sweep
from mathrl_ray.driver.sweep_room import Needs, Room
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import check_local_paths, load_recipe
from mathrl_ray.sections import BUILTIN, StageName
from mathrl_ray.stages.gold_check import check_golds
from mathrl_ray.stages.inputs import Inputs, load_inputs
from mathrl_ray.stages.lengths import check_lengths
from mathrl_ray.sweep_recipe import PlannedRun, count_text, planned_runs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Site:
    """What the checks of machines look at."""

    recipe: Recipe
    stages: Sequence[StageName]
    nodes: Sequence[NodeFacts]
    joined: bool


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """What was typed."""

    recipe: Path
    overrides: Sequence[str] = ()
    price_per_hour: float = 0.0
    """Of all machines of the run together; 0: no cost is shown."""


def preflight(options: PreflightOptions) -> int:
    """Look at everything, print one table with verdicts and the estimate. Returns 0, or 1 where a check failed.

    Raises:
        RecipeError: the recipe itself cannot be read, or holds an unknown key, a value that is not allowed or a contradiction.
    """
    began = time.monotonic()
    recipe = load_recipe(options.recipe, options.overrides)
    runs: Sequence[PlannedRun] = ()
    if recipe.makes_several_runs:
        runs, _ = planned_runs(options.recipe, options.overrides, recipe.study.stages)
    with busy("preflight: the recipe") as tell:
        findings, estimates, together = _look(recipe, recipe.study.stages, tell, runs)
    secrets = known_secrets(os.environ, recipe.model_dump())
    findings = [finding.without(secrets) for finding in findings]
    screen = console(LOG_WIDTH)
    screen.print(table_of(findings, f"Preflight of {options.recipe}: stages {', '.join(recipe.study.stages)}"))
    if estimates:
        screen.print(forecast_table(estimates, options.price_per_hour))
    if together:
        print(f"{count_text(runs)}, of which the table shows one: {together}")
    failed = [finding for finding in findings if finding.verdict == "failed"]
    for finding in failed:  # whole, on one line each: a table cuts what one wants to copy
        print(f"failed: {finding.sentence}")
    num_warnings = sum(finding.verdict == "warning" for finding in findings)
    print(f"{len(findings)} checks in {time.monotonic() - began:.0f} s: {len(failed)} failed, {num_warnings} warnings")
    return 1 if failed else 0


def check_job(
    recipe: Recipe, stages: Sequence[StageName], inputs: Inputs, device: Device, say: Callable[[str], None]
) -> dict[str, StepForecast]:
    """The part that a job has not done by itself, inside of its connection to Ray; a line a warning, and one with the estimate.

    Returns:
        by stage, the forecast that the stage's steps can correct; empty where the model's kind is not known.

    Raises:
        RecipeError: something failed; all such findings, with the keys to change.
    """
    # The built-in model's tokenizer is made beside the engines' imports, and fits: nothing is gained by waiting for it here.
    model = read_model(recipe, with_tokenizer=recipe.model.path != BUILTIN)
    with suppress(OSError):  # it is a finding then; made before it is tried, since another job may begin in it at the same time
        Path(recipe.run.root).mkdir(parents=True, exist_ok=True)
    findings = [*_model_findings(recipe, inputs, model), *_mirror_findings(recipe)]
    site = _attempt(findings, "nodes", lambda: _site(recipe, stages))
    findings += _machine_findings(site) if site else []
    needs, estimates = _needs(recipe, inputs, model), list[StageEstimate]()
    if site and needs:
        estimates = _estimates(site, device, needs, inputs, model)
        findings += _resource_findings(site, device, needs, estimates)
    for finding in findings:
        if finding.verdict == "warning":
            say(f"warning: {finding.sentence}")
    if failed := [finding.sentence for finding in findings if finding.verdict == "failed"]:
        raise RecipeError("preflight: " + "\n".join(failed))
    about = f"about {duration(sum(estimate.total_s for estimate in estimates))} at most" if estimates else "no estimate of the time"
    say(f"preflight: {len(findings)} checks, none failed; {about}")
    return {estimate.name: estimate.forecast() for estimate in estimates}


def _look(
    recipe: Recipe, stages: Sequence[StageName], tell: Callable[[str], None], runs: Sequence[PlannedRun] = ()
) -> tuple[list[Finding], list[StageEstimate], str]:
    """Every check of the command, in order; what cannot be looked at without something that failed is left out.

    Args:
        recipe, stages: of the command line.
        tell: is told what is looked at, which may take a while.
        runs: of a sweep.

    Returns:
        findings, the stages' estimates, and how long all `runs` would take; "" without any.
    """
    findings = [*_recipe_findings(recipe, stages)]
    tell("preflight: data and golds")
    inputs = _attempt(findings, "data", lambda: _data(recipe, stages), _data_text)
    tell("preflight: the model and its tokenizer")
    model = _attempt(findings, "model", lambda: read_model(recipe))
    if model is not None and inputs is not None:
        findings += _model_findings(recipe, inputs, model)
    tell("preflight: the machines")
    with ExitStack() as stack:
        if os.environ.get("RAY_ADDRESS") and _attempt(findings, "cluster", lambda: _join(stack), str) is None:
            return findings, [], ""
        site = _attempt(findings, "nodes", lambda: _site(recipe, stages))
        if site is None:
            return findings, [], ""
        findings += [check_processors(recipe, site.nodes), *_machine_findings(site)]
        device = _device(site)
        if device is None:
            return findings, [], ""
        attention = recipe.learner.attention, device.kind, recipe.model.dtype
        findings += [tried("attention", lambda: ": ".join(attention_implementation(*attention)))]
        if model is None or (needs := _needs(recipe, inputs, model)) is None:
            return findings, [], ""
        estimates = _estimates(site, device, needs, inputs, model) if inputs is not None else []
        recipes = [run.recipe for run in runs]  # each estimated on the sweep's own data and model
        of_runs = [_estimates(replace(site, recipe=each), device, needs, inputs, model) for each in recipes] if inputs is not None else []
        together = _together(site, device, needs, recipes, of_runs) if of_runs else ""
        return [*findings, *_resource_findings(site, device, needs, estimates, recipes, of_runs)], estimates, together


def _together(site: _Site, device: Device, needs: ModelNeeds, recipes: Sequence[Recipe], of_runs: Sequence[Sequence[StageEstimate]]) -> str:
    """How long the runs of a sweep take, and how many fit at once."""
    seconds = [sum(estimate.total_s for estimate in estimates) for estimates in of_runs]
    each = [_run_needs(site, device, needs, recipe) for recipe in recipes]
    total = {"CPU": sum(node.num_cpus for node in site.nodes), "GPU": float(sum(node.num_gpus for node in site.nodes))}
    memory_bytes = sum(node.memory_bytes for node in site.nodes)
    most = Room(lambda: total, lambda: total, memory_bytes, site.recipe.sweep.side_by_side).most(each)
    one_by_one = f"about {duration(sum(seconds))} one after the other"
    return one_by_one if most == 1 else f"{one_by_one}, about {duration(max(sum(seconds) / most, *seconds))} with {most} at once"


def _run_needs(site: _Site, device: Device, needs: ModelNeeds, recipe: Recipe) -> Needs:
    memory_bytes = run_memory_bytes(recipe, device, site.nodes, needs, site.stages)
    return Needs(engine_cpus(recipe), engine_gpus(recipe, device), memory_bytes, engine_threads(recipe))


def _join(stack: ExitStack) -> str:
    """Join the cluster of RAY_ADDRESS for as long as `stack` is open."""
    address = os.environ["RAY_ADDRESS"]
    try:
        stack.enter_context(ray_connection("preflight"))
    except RecipeError:
        raise
    except Exception as error:  # border: Ray raises kinds of its own for a wrong token, another version, ...
        raise RecipeError(f"RAY_ADDRESS = {address} cannot be joined ({type(error).__name__}: {error})") from error
    return f"RAY_ADDRESS = {address} was joined"


def _attempt(findings: list[Finding], name: str, make: Callable[[], T], text: Callable[[T], str] | None = None) -> T | None:
    """What `make` gives, with a finding where `text` has something to say of it; a refusal becomes a finding, and None."""
    try:
        value = make()
    except (RecipeError, OSError, RuntimeError) as error:
        findings.append(Finding(name, "failed", str(error)))
        return None
    if text is not None:
        findings.append(Finding(name, "ok", text(value)))
    return value


def _recipe_findings(recipe: Recipe, stages: Sequence[StageName]) -> Iterator[Finding]:
    def whole() -> str:
        check_stage_settings(recipe, stages)
        return "; ".join(["keys, values and local paths are fine", *check_local_paths(recipe, stages)])

    yield tried("recipe", whole)
    yield tried("batches", lambda: _batch_text(recipe))
    if recipe.loss.function or recipe.advantage.function:
        yield tried("own functions", lambda: ", ".join(f"{section}.function" for section in own_functions(recipe)) + " can be loaded")
    if recipe.reward.function or len(recipe.eval.graders) > 1:
        yield tried("own rewards", _saying("reward.function and eval.graders can be loaded", check_reward_functions, recipe))
    if recipe.run.resume:
        yield tried("resume", lambda: _resumption_text(recipe, stages))
    yield from _mirror_findings(recipe)


def _resumption_text(recipe: Recipe, stages: Sequence[StageName]) -> str:
    if recipe.makes_several_runs:
        place = find_sweep(recipe)
        return f"the sweep goes on in {place}" if place else f"no sweep of {recipe.run.name} in {recipe.run.root}: a new one begins"
    found = find_resumption(recipe, stages)
    return f"goes on in {found.folder}" if found else f"no checkpoint of {recipe.run.name} in {recipe.run.root}: a new run begins"


def _mirror_findings(recipe: Recipe) -> Iterator[Finding]:
    if recipe.run.mirror:
        yield tried("mirror", lambda: check_mirror_takes_files(recipe))


def _saying(text: str, check: Callable[..., None], *arguments: Any) -> Callable[[], str]:
    """A check that raises or says nothing, with what to say where it is fine."""

    def run() -> str:
        check(*arguments)
        return text

    return run


def _batch_text(recipe: Recipe) -> str:
    """The batch arithmetic of a training step, spelled out; contradictions were refused when the recipe was read."""
    grpo, learner = recipe.grpo, recipe.learner
    responses = grpo.prompts_per_step * grpo.group_size
    rows = -(-responses // grpo.minibatches)
    longest = len(micro_batches([recipe.model.max_length] * rows, learner.micro_batch_tokens, learner.num_ranks))
    return (
        f"grpo: {grpo.prompts_per_step} prompts x {grpo.group_size} = {responses} responses a step; updates: {grpo.updates_per_step}, "
        f"of {rows} responses, in at most {longest} micro-batches of {learner.micro_batch_tokens} tokens on learner.num_ranks = "
        f"{learner.num_ranks}; sft: {recipe.sft.batch_size} traces an update"
    )


def _data(recipe: Recipe, stages: Sequence[StageName]) -> Inputs:
    return check_golds(recipe, load_inputs(recipe, stages), lambda _: None)  # what it would say is a remark of the inputs


def _data_text(inputs: Inputs) -> str:
    problems = f"{len(inputs.train)} train, {len(inputs.validation)} validation and {len(inputs.test)} test problems"
    return "; ".join([problems, f"{len(inputs.traces)} traces", *inputs.remarks])


def _model_findings(recipe: Recipe, inputs: Inputs, model: StartModel) -> Iterator[Finding]:
    yield check_model(recipe, model)
    if model.tokenizer is None:
        return
    text = f"prompts and traces fit model.max_length = {recipe.model.max_length} with their responses"
    fits = tried("lengths", _saying(text, check_lengths, recipe, inputs, model.tokenizer))
    yield fits
    if fits.verdict == "ok":  # else a prompt may be one that this tokenizer cannot make
        yield from check_tokenizer(recipe, model, inputs.prompts, (inputs.train or inputs.test)[0].problem)


def _site(recipe: Recipe, stages: Sequence[StageName]) -> _Site:
    """The machines: all nodes of the cluster that was joined, or this one."""
    root, joined = recipe.run.root, bool(os.environ.get("RAY_ADDRESS"))
    return _Site(recipe, stages, cluster_nodes(root, PACKAGES) if joined else [this_node(root, PACKAGES)], joined)


def _machine_findings(site: _Site) -> Iterator[Finding]:
    yield from check_versions(installed_versions(PACKAGES), site.nodes)
    yield check_root(site.recipe, site.nodes)
    yield check_dashboard(dashboard_url() if site.joined else "", joined=site.joined)


def _device(site: _Site) -> Device | None:
    """None where the machines have too little, which is a finding already."""
    num_cpus, num_gpus = sum(node.num_cpus for node in site.nodes), sum(node.num_gpus for node in site.nodes)
    try:
        return plan_for(site.recipe, num_cpus=num_cpus, num_gpus=num_gpus, num_nodes=len(site.nodes))
    except RecipeError:
        return None


def _needs(recipe: Recipe, inputs: Inputs | None, model: StartModel) -> ModelNeeds | None:
    """None where the model's memory is not known beforehand."""
    if model.shape is None:
        return None
    tokens = mean_prompt_tokens(recipe, inputs, model.tokenizer) if inputs is not None else 0.0
    return ModelNeeds(model.shape, model.num_parameters, tokens)


def _resource_findings(
    site: _Site,
    device: Device,
    needs: ModelNeeds,
    estimates: Sequence[StageEstimate],
    recipes: Sequence[Recipe] = (),
    of_runs: Sequence[Sequence[StageEstimate]] = (),
) -> Iterator[Finding]:
    """Of the recipe; the disk also holds all runs of a sweep, where there are `recipes` with their estimates."""
    recipe, nodes = site.recipe, site.nodes
    yield from check_threads(recipe, nodes)
    yield from check_memory_needs(recipe, device, nodes, needs, site.stages)
    yield check_shared_memory(recipe, device, nodes, needs)
    tokens = sum(estimate.generated_tokens for run in of_runs or [estimates] for estimate in run)
    if not any(node.root_fault for node in nodes):  # else there is no disk to look at, and a finding that says so
        yield check_disk(recipes or [recipe], nodes, needs, site.stages, generated_tokens=tokens)
    if estimates:
        yield from check_time(recipe, sum(estimate.total_s for estimate in estimates))


def _estimates(site: _Site, device: Device, needs: ModelNeeds, inputs: Inputs, model: StartModel) -> list[StageEstimate]:
    gpus = [gpu.name for node in site.nodes for gpu in node.gpus]
    trace_tokens = mean_tokens(model.tokenizer, [trace.prompt + trace.response for trace in inputs.traces])
    plan = plan_of(site.recipe, device, needs, inputs, site.stages, trace_tokens=trace_tokens, gpu_name=gpus[0] if gpus else "")
    return [plan.stage(stage) for stage in site.stages]
