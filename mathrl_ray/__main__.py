"""The command line beside the jobs: `python -m mathrl_ray COMMAND`. None of its commands needs a cluster or starts an engine.

One function a command; each imports what it needs, so that none waits for another's libraries.
"""

import argparse
import inspect
import io
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mathrl_ray.commands import arguments
from mathrl_ray.config import Recipe

CHECK_LOSS_EPILOG = '''
example, my_loss.py:

    import torch

    def tilted(batch, power=0.5):
        """REINFORCE whose tokens count less the older they are; the mean over the batch's response tokens."""
        age = batch.learner_version - batch.policy_versions
        per_token = -batch.advantages * batch.learner_logprobs / (1 + age) ** power
        return torch.where(batch.mask, per_token, 0.0).sum() / batch.num_tokens

    python -m mathrl_ray check-loss my_loss.py power=1.0

A recipe then says loss.function = "my_loss.py:tilted" and loss.kwargs = {power = 1.0}. What a batch holds, and how to log numbers beside
the loss, is in mathrl_ray/core/loss_batch.py.
'''


class _Parser(argparse.ArgumentParser):
    """Ends with status 1 for a wrong command line, as every other user error does (argparse's own is 2)."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"error: {message}\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns 0 for success, 1 for an error of its user or a fault that the command found."""
    words = sys.argv[1:] if words is None else words
    parser = _parser()
    if not words:
        parser.print_help()
        return 0
    options = _parsed(parser, words)
    _print_anything()
    try:
        status = _run(options)
        print(end="", flush=True)  # so that a reader who has left is noticed here
        return status
    except BrokenPipeError:  # who read what is printed has enough (| head): nothing failed, and nobody would read of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's own flush at the end is then silent too
    except (ValueError, OSError, RuntimeError) as error:  # a wrong option or file, a disk that is full, a process that cannot start
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 1


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The options; overrides of a recipe may also stand behind an option, where argparse no longer looks for them."""
    options, rest = parser.parse_known_args(words)
    if rest and hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides = [*options.overrides, *rest]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _print_anything() -> None:
    """Let an id or a path that the terminal's encoding cannot show (half of a surrogate pair) appear with escapes, and end no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "summary":
            return summarise(options.run)
        case "grade":
            return arguments.grade(options)
        case "check-data":
            return arguments.check_data(options)
        case "preflight":
            return arguments.preflight(options)
        case "compare":
            return arguments.compare(options)
        case "analyse":
            return arguments.analyse(options)
        case "report":
            return arguments.report(options)
        case "show":
            return arguments.show(options)
        case "replay":
            return arguments.replay(options)
        case "export":
            return arguments.export(options)
        case _:
            return check_loss(options.function, options.kwargs)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mathrl_ray",
        description="Looks at runs and at parts of them. Runs themselves are started by jobs/<stage>.py, see README.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summary = commands.add_parser("summary", help="the table of results of a run, finished or not", description=summarise.__doc__)
    summary.add_argument("run", type=Path, metavar="RUN", help="a run directory, <run.root>/<run.name>")
    check = commands.add_parser(
        "check-loss",
        help="try a loss of your own: gradient, micro-batches, mask, NaN",
        description=inspect.getdoc(check_loss),
        epilog=CHECK_LOSS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("function", metavar="FILE[:FUNCTION]", help="path/file.py, path/file.py:function or module:function")
    check.add_argument("kwargs", nargs="*", default=[], metavar="name=value", help="keyword arguments of the function, as in loss.kwargs")
    arguments.add_grade(commands)
    arguments.add_check_data(commands)
    arguments.add_preflight(commands)
    arguments.add_compare(commands)
    arguments.add_analyse(commands)
    arguments.add_report(commands)
    arguments.add_show(commands)
    arguments.add_replay(commands)
    arguments.add_export(commands)
    return parser


def summarise(run: Path) -> int:
    """Prints the results of the stages that a run has finished so far."""
    from mathrl_ray.driver.console import Console, protocol

    if (run / "sweep.json").is_file():
        return _summarise_sweep(run)
    recipe = Recipe.model_validate(tomllib.loads(_read(run, "recipe.toml")))
    stages: list[dict[str, Any]] = json.loads(_read(run, "summary.json"))["stages"]
    Console().table(stages, caption=protocol(recipe))
    return 0


def _summarise_sweep(run: Path) -> int:
    """The same of a study over seeds or of a sweep, and its runs."""
    from mathrl_ray.commands.display import show
    from mathrl_ray.commands.evaluation_files import runs_of_sweep
    from mathrl_ray.driver.sweep_table import CAPTION, sentences, sweep_table

    if not (run / "summary.json").is_file():
        raise ValueError(f"{runs_of_sweep(run)}; it has no summary.json before all have ended")
    summary = json.loads(_read(run, "summary.json"))
    settings = summary.get("settings", [{"setting": "", **summary}])
    show(sweep_table(settings, CAPTION))
    print("\n".join(sentences(settings)))
    return 0


def check_loss(spec: str, keywords: Sequence[str] = ()) -> int:
    """Tries a loss of your own on a small batch in float64, within seconds: does it push the right way, does it detach what it must, does
    it not depend on how the batch is cut, does it keep to the mask, does it stay finite. Status 0 only if no fault was found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mathrl_ray.commands.named_losses import loss_function
    from mathrl_ray.core import loss_check

    name, function = loss_function(spec, keywords, key="check-loss")
    findings = loss_check.check_loss(function)
    table = Table(title=Text(name), title_justify="left")
    table.add_column("try", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what to do")
    for finding in findings:
        table.add_row(finding.name, finding.verdict, Text(finding.text))  # as text: a message's [mask] is no style
    Console().print(table)
    num_faults = sum(finding.verdict == "fault" for finding in findings)
    print(f"{name}: {num_faults} of {len(findings)} tries found a fault")
    return 1 if num_faults else 0


def _read(run: Path, name: str) -> str:
    if not run.is_dir():
        raise ValueError(f"{run}: no such run directory")
    try:
        return (run / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{run}: holds no {name}, so it is no run directory, or no stage of it has finished yet") from error


if __name__ == "__main__":
    raise SystemExit(main())
