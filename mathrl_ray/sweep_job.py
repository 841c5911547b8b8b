"""A job that is several runs: study.seeds, or a [sweep]. Starts Ray once, each run as a process, and puts their results together.

    folder, where it goes on -> Ray -> what each run needs, and what there is -> new folder -> runs side by side -> summary.json, table

Called by entry.py in place of job.py. Runs no engine itself: a run that fails, leaks or hangs takes nobody else with it. What a run is, its
process knows (job.py); here it is a name, a log and a folder.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mathrl_ray.actors.nodes import NodeFacts, cluster_nodes, this_node
from mathrl_ray.actors.placement import (
    cluster_address,
    cluster_free,
    cluster_total,
    dashboard_url,
    engine_cpus,
    engine_gpus,
    engine_threads,
    entrypoint_cpus,
    plan_device,
    ray_connection,
)
from mathrl_ray.commands.findings import console as table_console
from mathrl_ray.commands.memory_checks import run_memory_bytes
from mathrl_ray.commands.resource_checks import ModelNeeds
from mathrl_ray.commands.start_model import read_model
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import known_secrets
from mathrl_ray.driver.console import LOG_WIDTH, Console
from mathrl_ray.driver.environment import PACKAGES
from mathrl_ray.driver.mirror import check_mirror, mirrored
from mathrl_ray.driver.stopping import StoppedError, Stopping
from mathrl_ray.driver.sweep_child import COMMAND
from mathrl_ray.driver.sweep_folder import SweepFolder, find_sweep
from mathrl_ray.driver.sweep_judge import Rungs, rungs_of, unlike_keys
from mathrl_ray.driver.sweep_room import Needs, Room
from mathrl_ray.driver.sweep_runs import SweepRuns
from mathrl_ray.driver.sweep_summary import VariantsFailedError, failures, settings_of, summary_of
from mathrl_ray.driver.sweep_table import CAPTION, sentences, sweep_table
from mathrl_ray.report.last_report import write_report
from mathrl_ray.sections import StageName
from mathrl_ray.sweep_recipe import PlannedRun, count_text

Say = Callable[[str], None]
Connection = Callable[[str, Say], contextlib.AbstractContextManager[Mapping[str, str]]]
Look = Callable[[Recipe, Sequence[PlannedRun], Sequence[StageName]], tuple[dict[str, Needs], Room]]


def run_sweep(
    recipe: Recipe,
    stages: Sequence[StageName],
    runs: Sequence[PlannedRun],
    stopping: Stopping,
    *,
    command: Sequence[str] = COMMAND,
    connection: Connection | None = None,
    look: Look | None = None,
) -> None:
    """Do all runs, and leave the sweep's folder.

    Args:
        recipe: of the sweep.
        stages: of each run, in order.
        runs: the variants, each with its recipe.
        stopping: hears signals already.
        command: starts one run (driver/sweep_child.py).
        connection: joins or starts Ray during a block, and yields what the runs need in their environment to join it too.
        look: of each run what it needs, and the room for them.

    Raises:
        KeyboardInterrupt, StoppedError: it was told to stop, before and after runs were started; they have saved what they had.
        RecipeError: the folder, the cluster or the recipe do not allow it; nothing was started.
        VariantsFailedError: at least one run failed; the others have ended as they should.
    """
    say = Console(secrets=known_secrets(os.environ, recipe.model_dump())).say
    if recipe.run.mirror:
        check_mirror(recipe.run.mirror, Path(recipe.run.root))
    place = find_sweep(recipe)
    if recipe.run.resume == "auto" and place is None:
        say(f'run.resume = "auto": no sweep of {recipe.run.name} in {recipe.run.root}; a new one begins')
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(contextlib.closing(SweepFolder.go_on(place, recipe, runs, stages))) if place else None
        environment = stack.enter_context((connection or ray_for_all)(recipe.run.name, say))
        stopping.listen()
        needs, room = (look or _look)(recipe, runs, stages)
        if folder is None:
            folder = stack.enter_context(contextlib.closing(SweepFolder.create(recipe, runs, stages)))
        _say_what_begins(recipe, folder, runs, room, [needs[run.name] for run in runs], say)
        sweep = SweepRuns(folder, runs, stages, Path(recipe.run.root), room, needs, say, command=command, environment=environment)
        sweep.rungs, sweep.keep, sweep.seed_sd = _rungs(recipe, runs, stages, say), recipe.sweep.keep, recipe.sweep.seed_sd
        try:
            asyncio.run(_until_the_end(recipe, sweep, stopping, say))
        except StoppedError:
            say(f"to go on, start the same again with run.resume={folder.folder}; what is finished stays")
            raise
    _report(folder, runs, say)


async def _until_the_end(recipe: Recipe, sweep: SweepRuns, stopping: Stopping, say: Say) -> None:
    """All runs, and the sweep's summary, while its own folder is mirrored as each of them mirrors its own."""
    async with mirrored(recipe.run.mirror, sweep.folder.folder, say, lambda: stopping.requested):
        try:
            await stopping.interruptible(sweep.work(), sweep.stop, say)
        finally:  # whatever it was (a full disk), the runs save while their Ray is there; nothing where they have ended
            await sweep.stop()
        sweep.folder.summary(summary_of(settings_of(sweep.folder, sweep.runs), is_swept=bool(recipe.sweep.lists)))
        if recipe.run.report:
            await write_report([sweep.folder.folder], sweep.folder.folder / "report.html", say)


@contextlib.contextmanager
def ray_for_all(namespace: str, say: Say) -> Iterator[dict[str, str]]:
    """Ray during the block; yields the RAY_ADDRESS at which the runs join it.

    Under `ray job submit` it is the job's own, whose settings (RAY_JOB_CONFIG_JSON_ENV_VAR) the runs inherit: they are drivers of the
    same job, and their actors run in the same uploaded copy. A token is in the user's home or in the environment, where they find it.
    """
    with ray_connection(namespace):
        say(f"dashboard {dashboard_url() or 'is off'}")
        yield {"RAY_ADDRESS": os.environ.get("RAY_ADDRESS") or cluster_address()}


def _look(recipe: Recipe, runs: Sequence[PlannedRun], stages: Sequence[StageName]) -> tuple[dict[str, Needs], Room]:
    """
    Raises:
        RecipeError: a run needs more than all machines have, or more than this job's own process leaves of that.
    """
    root, own_cpus = recipe.run.root, entrypoint_cpus()
    Path(root).mkdir(parents=True, exist_ok=True)
    nodes = cluster_nodes(root, PACKAGES) if os.environ.get("RAY_ADDRESS") else [this_node(root, PACKAGES)]
    needs = {}
    for run in runs:
        try:
            device = plan_device(run.recipe)
        except RecipeError as error:
            raise RecipeError(f"variant {run.name}: {error}") from error
        memory_bytes, cpus = _memory_bytes(run.recipe, stages, nodes), engine_cpus(run.recipe)
        if cpus > (num_cpus := cluster_total().get("CPU", 0.0)) - own_cpus:
            raise RecipeError(
                f"variant {run.name}: it needs {cpus} CPUs, and of the cluster's {num_cpus:g} this job's own process keeps {own_cpus:g} "
                "(--entrypoint-num-cpus) for as long as it waits: submit it without, or add a node."
            )
        needs[run.name] = Needs(cpus, engine_gpus(run.recipe, device), memory_bytes, engine_threads(run.recipe))
    memory_bytes = sum(node.memory_bytes for node in nodes)
    return needs, Room(cluster_total, cluster_free, memory_bytes, recipe.sweep.side_by_side)


def _memory_bytes(recipe: Recipe, stages: Sequence[StageName], nodes: Sequence[NodeFacts]) -> int:
    """0 where it cannot be known: the run's own preflight says why."""
    try:
        model, device = read_model(recipe, with_tokenizer=False), plan_device(recipe)
    except (RecipeError, OSError):
        return 0
    return run_memory_bytes(recipe, device, nodes, ModelNeeds(model.shape, model.num_parameters, 0.0), stages) if model.shape else 0


def _rungs(recipe: Recipe, runs: Sequence[PlannedRun], stages: Sequence[StageName], say: Say) -> dict[str, Rungs]:
    """Of each run; none where nothing ends early."""
    if recipe.sweep.end_early == "never" or len({run.setting for run in runs}) < 2:
        return {}
    if unlike := unlike_keys(recipe.sweep.lists):
        say(f"{', '.join(unlike)}: settings differ in what a step costs, or in how they are validated: nothing ends early")
        return {}
    found = {run.name: rungs_of(run.recipe, stages) for run in runs}
    rungs = {name: each for name, each in found.items() if each is not None}
    if len(rungs) < len(found) or len({each.stage for each in rungs.values()}) > 1:
        say('sweep.end_early = "halving" needs at least two validations of one stage: set eval.validate_every; nothing ends early now')
        return {}
    return rungs


def _say_what_begins(recipe: Recipe, folder: SweepFolder, runs: Sequence[PlannedRun], room: Room, needs: Sequence[Needs], say: Say) -> None:
    most = room.most(needs)
    done = [entry.name for entry in folder.entries if entry.status in ("finished", "ended_early")]
    say(f"sweep directory {folder.folder}")
    say(f"{count_text(runs)}, room for {most} at once; {' or '.join(dict.fromkeys(each.text for each in needs))} each")
    for remark in folder.remarks:
        say(remark)
    if done:
        say(f"done already: {', '.join(done)}")
    if recipe.run.max_hours:
        say(f"run.max_hours = {recipe.run.max_hours:g} is each run's own limit, not that of all together")


def _report(folder: SweepFolder, runs: Sequence[PlannedRun], say: Say) -> None:
    """
    Raises:
        VariantsFailedError: at least one run failed.
    """
    settings = settings_of(folder, runs)
    if any(setting["stages"] for setting in settings):
        screen = table_console(LOG_WIDTH)
        screen.print()
        screen.print(sweep_table(settings, CAPTION))
        for sentence in sentences(settings):
            say(sentence)
    for entry in folder.entries:
        if entry.status in ("ended_early", "stopped"):
            say(f"{entry.name} {entry.status.replace('_', ' ')}: {entry.reason}")
    say(f"sweep directory {folder.folder}")
    if text := failures(folder):
        raise VariantsFailedError(f"{text}\nTo run these again, start the same with run.resume={folder.folder}; what is finished stays")
