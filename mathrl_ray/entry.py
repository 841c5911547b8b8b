"""What every jobs/<stage>.py calls: from a command line to a finished run directory and an exit status.

Order: recipe and paths -> data -> Ray and devices -> run directory -> actors -> stages. Everything that can be refused is refused as early
as it can be known. A recipe that names seeds or a [sweep] is several runs: sweep_job.py starts each as a process, which comes in by
`run_variant`. Knows all layers below; the stages themselves are in their own files.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import known_secrets, masked_text
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.recipe_file import check_local_paths, load_recipe
from mathrl_ray.sections import StageName

if TYPE_CHECKING:
    from mathrl_ray.driver.stopping import Stopping
    from mathrl_ray.sweep_recipe import PlannedRun


def main(job: str, arguments: Sequence[str] | None = None) -> int:
    """Run one job; returns 0 only for success.

    Args:
        job: "study", or the name of a stage.
        arguments: default: the command line's.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Options first: argparse stops to collect overrides at the first option behind them.
    options = _parser(job).parse_args(sorted(arguments, key=lambda argument: not argument.startswith("-")))
    secrets = known_secrets(os.environ)
    try:
        recipe = load_recipe(options.recipe, options.overrides)
        secrets |= known_secrets(recipe.model_dump())
        stages: list[StageName] = recipe.study.stages if job == "study" else [job]  # type: ignore[list-item]  # each job file names a stage
        check_stage_settings(recipe, stages)
        remarks = check_local_paths(recipe, stages)
        runs: Sequence[PlannedRun] = ()
        if recipe.makes_several_runs:
            from mathrl_ray.sweep_recipe import planned_runs  # its arithmetic takes a while to import

            runs, remarks = planned_runs(options.recipe, options.overrides, stages)
    except RecipeError as error:
        return _refuse(error, secrets)
    except Exception as error:  # border: Python's own handler would print it with its secrets
        return _fail(error, secrets)
    if options.check:
        for remark in remarks:
            print(remark)
        print(f"{options.recipe}: fine for {job} (stages {', '.join(stages)}); recipe and local paths were checked, nothing was started")
        if runs:
            from mathrl_ray.sweep_recipe import count_text

            print(masked_text(f"it makes {count_text(runs)}, each checked: {', '.join(run.name for run in runs)}", secrets))
        return 0
    return _run(recipe, stages, secrets, runs)


def run_variant() -> int:
    """What a sweep starts (driver/sweep_child.py): one run, as it is told through standard input. Returns 0 only for success."""
    from mathrl_ray.driver.stopping import Stopping
    from mathrl_ray.driver.sweep_child import follow, told_to_run

    told, line = told_to_run()
    sys.path[:] = told["search_path"]  # functions of the user's own are found where the sweep found them
    stopping = Stopping()
    follow(line, lambda: stopping.since_s if stopping.requested else None)
    recipe = Recipe.model_validate(told["recipe"])
    return _run(recipe, told["stages"], known_secrets(os.environ, recipe.model_dump()), stopping=stopping)


def _run(
    recipe: Recipe,
    stages: Sequence[StageName],
    secrets: frozenset[str],
    runs: "Sequence[PlannedRun]" = (),
    stopping: "Stopping | None" = None,
) -> int:
    """One job; where there are `runs`, those in place of the recipe's own."""
    from mathrl_ray.driver.guards import GuardError
    from mathrl_ray.driver.stopping import StoppedError, Stopping
    from mathrl_ray.driver.sweep_summary import VariantsFailedError
    from mathrl_ray.driver.time_limit import TimeIsUpError

    stopping = stopping or Stopping()
    try:
        with stopping.listening():
            if runs:
                from mathrl_ray.sweep_job import run_sweep

                run_sweep(recipe, stages, runs, stopping)
            else:
                from mathrl_ray.job import run_job

                run_job(recipe, stages, stopping)
    except (RecipeError, FloatingPointError, GuardError, TimeIsUpError, VariantsFailedError) as error:
        return _refuse(error, secrets)
    except StoppedError as error:
        return _refuse(f"{error}; what was written stays in the run directory", secrets)
    except (KeyboardInterrupt, SystemExit):  # the latter from Ray, whose own handler of SIGTERM stands while it starts
        return _refuse("stopped before the engines had started, or after they had ended; what was written stays", secrets)
    except Exception as error:  # border: a dead actor, a failed canary, a full disk, ...; Python's own handler would print its secrets
        return _fail(error, secrets)
    return 0


def _fail(error: Exception, secrets: frozenset[str]) -> int:
    """Not the user's doing: whoever looks for the fault needs the place."""
    print(masked_text("".join(traceback.format_exception(error)), secrets), file=sys.stderr)
    return _refuse(error if isinstance(error, (RuntimeError, ValueError)) else f"{type(error).__name__}: {error}", secrets)


def _refuse(reason: BaseException | str, secrets: frozenset[str]) -> int:
    print(masked_text(f"error: {reason}", secrets), file=sys.stderr)
    return 1


class _Parser(argparse.ArgumentParser):
    """Ends with status 1 for a wrong command line, as every other user error does (argparse's own is 2)."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"error: {message}\n")


def _parser(job: str) -> argparse.ArgumentParser:
    what = "all stages of study.stages, in order" if job == "study" else f"the {job} stage"
    parser = _Parser(
        prog=f"jobs/{job}.py",
        description=f"Runs {what} from one recipe, on the cluster of RAY_ADDRESS if that is set, else on a Ray started for this job.",
        epilog=f"example: python jobs/{job}.py jobs/recipes/arithmetic_cpu.toml run.seed=1 generator.num_threads=2",
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes one setting of the recipe")
    parser.add_argument("--check", action="store_true", help="check the recipe and the local paths that it names, and stop")
    return parser
