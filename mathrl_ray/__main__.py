"""The command line beside the jobs: `python -m mathrl_ray COMMAND`. Each command reads run directories; none needs a cluster."""

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.config import Recipe
from mathrl_ray.driver.console import Console, protocol


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 1 for an error of its user."""
    parser = argparse.ArgumentParser(
        prog="python -m mathrl_ray",
        description="Looks at runs. Runs themselves are started by jobs/<stage>.py, see README.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summary = commands.add_parser("summary", help="the table of results of a run, finished or not", description=summarise.__doc__)
    summary.add_argument("run", type=Path, metavar="RUN", help="a run directory, <run.root>/<run.name>")
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    try:
        summarise(options.run)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def summarise(run: Path) -> None:
    """Prints the results of the stages that a run has finished so far."""
    recipe = Recipe.model_validate(tomllib.loads(_read(run, "recipe.toml")))
    stages: list[dict[str, Any]] = json.loads(_read(run, "summary.json"))["stages"]
    Console().table(stages, caption=protocol(recipe))


def _read(run: Path, name: str) -> str:
    if not run.is_dir():
        raise ValueError(f"{run}: no such run directory")
    try:
        return (run / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{run}: holds no {name}, so it is no run directory, or no stage of it has finished yet") from error


if __name__ == "__main__":
    raise SystemExit(main())
