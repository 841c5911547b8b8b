"""The command `show`: what a run sampled, also while it is at work.

Called by __main__.py. Light: no torch, no engine; a run's Parquet files appear whole, so what is there is read. How it looks is in
show_text.py.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from mathrl_ray.commands.display import print_json
from mathrl_ray.commands.run_files import STAGES, SampleFile, check_run, metrics_rows, recipe_of, sample_files
from mathrl_ray.commands.run_samples import Row, Sample, files_of_step, missing_problem, outcomes_of, rows_of, sample_of
from mathrl_ray.commands.run_tokenizer import decoder
from mathrl_ray.commands.show_overview import show_overview
from mathrl_ray.commands.show_text import Page, print_samples
from mathrl_ray.core.visible_text import counted
from mathrl_ray.types import Outcome

LIMIT, LIMIT_OF_A_PROBLEM = 10, 40
OUTCOMES = get_args(Outcome)
MEANS = {"reward_mean": "reward", "format_reward_mean": "format", "response_tokens_mean": "tokens", "entropy_nats": "entropy (nats)"}
"""Of a step, by their names in metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """What the command line says."""

    run: Path
    stage: str = ""
    step: int | None = None
    problem: str = ""
    outcome: str = ""
    limit: int | None = None
    """None: LIMIT, of a problem LIMIT_OF_A_PROBLEM; 0: all."""
    full: bool = False
    json: bool = False


Found = Sequence[tuple[SampleFile, Row]]


def show(options: ShowOptions) -> int:
    """Run the command.

    Raises:
        ValueError: no such run, stage, step, problem or outcome; it says which there are.
    """
    check_run(options.run)
    _check_outcome(options.outcome)
    files = _files(options)
    if not (options.step or options.problem or options.outcome):
        return _overview(options, files)
    if not files:
        raise ValueError(f"{options.run}: holds no responses yet")
    asked = _asked(options, files)
    found = [(file, row) for file in asked for row in rows_of(file, options.problem, options.outcome)]
    if options.problem and not found and not any(rows_of(file, options.problem) for file in asked):
        raise missing_problem(options.run, asked, options.problem)
    if options.json:
        print_json([_plain(sample) for sample in _samples(options, found[: options.limit or None])])
    else:
        _print(options, asked, found)
    return 0


def _check_outcome(outcome: str) -> None:
    if outcome and outcome not in OUTCOMES:
        nearest = get_close_matches(outcome, OUTCOMES, n=1, cutoff=0.0)
        raise ValueError(f"--outcome {outcome}: the nearest is {nearest[0]}; there are {', '.join(OUTCOMES)}")


def _files(options: ShowOptions) -> list[SampleFile]:
    """Of all stages, or of the one that is named.

    Raises:
        ValueError: no such stage, or nothing of it is there.
    """
    files, stage = sample_files(options.run), options.stage
    if not stage:
        return files
    if stage not in STAGES:
        raise ValueError(
            f"--stage {stage}: the nearest is {get_close_matches(stage, STAGES, n=1, cutoff=0.0)[0]}; there are {', '.join(STAGES)}"
        )
    if found := [file for file in files if file.stage == stage]:
        return found
    there = ", ".join(dict.fromkeys(file.stage for file in files))
    raise ValueError(f"{options.run}: holds no responses of {stage}; it has those of {there or 'no stage yet'}")


def _asked(options: ShowOptions, files: Sequence[SampleFile]) -> Sequence[SampleFile]:
    """The files that may hold what is asked for: of a step, through the whole run, or the newest."""
    if options.step is not None:
        return files_of_step(options.run, files, options.step)
    return files if options.problem else files[-1:]


def _samples(options: ShowOptions, found: Found) -> list[Sample]:
    decode = decoder(options.run, recipe_of(options.run))
    return [sample_of(file, row, decode) for file, row in found]


def _print(options: ShowOptions, looked: Sequence[SampleFile], found: Found) -> None:
    limit = options.limit if options.limit is not None else (LIMIT_OF_A_PROBLEM if options.problem else LIMIT)
    chosen = found[: limit or None]
    page = Page.of(recipe_of(options.run), full=options.full)
    print_samples(page, _samples(options, chosen), dict(_heads(options, chosen)))
    if len(chosen) < len(found):
        print(f"\n{len(chosen):,} of {len(found):,} responses; --limit 0 prints all, --json all with every field")
    if not found:
        there = [row["outcome"] for file in looked for row in rows_of(file, options.problem)]
        where = looked[-1].title if len(looked) == 1 else f"{len(looked)} files"
        problem = f" to {options.problem}" if options.problem else ""
        print(f"no response{problem} is {options.outcome} in {where}; what is there: {counted(Counter(there)) or 'nothing'}")


def _heads(options: ShowOptions, found: Found) -> Iterator[tuple[Path, str]]:
    """What stands over each file's samples: its name, its outcomes, and what the run logged of it."""
    logged = {(row["stage"], row["step"]): row for row in metrics_rows(options.run) if "reward_mean" in row}
    for file in dict.fromkeys(file for file, _ in found):
        row = logged.get((file.stage, file.step), {}) if file.kind == "trajectories" else {}
        told = [f"{text} {row[name]:.3g}" for name, text in MEANS.items() if isinstance(row.get(name), float)]
        yield file.path, f"{file.title}: {counted(outcomes_of(file))}" + (f"; mean {', '.join(told)}" if told else "")


def _overview(options: ShowOptions, files: Sequence[SampleFile]) -> int:
    newest = files[-1:]
    rows = [(file, row) for file in newest for row in rows_of(file)]
    right = [each for each in rows if each[1]["outcome"] == "correct"][:1]
    wrong = [each for each in rows if each[1]["outcome"] != "correct"][:1]
    samples = _samples(options, [*right, *wrong])
    if options.json:
        name, files_there = options.run.resolve().name, [_plain_file(file) for file in files]
        print_json({"run": name, "files": files_there, "samples": [_plain(each) for each in samples]})
        return 0
    recipe = recipe_of(options.run)
    page = Page.of(recipe, full=options.full)
    show_overview(page, options.run, recipe, sample_files(options.run))  # of all stages, whichever the samples are of
    if samples:
        print_samples(page, samples, dict(_heads(options, rows[:1])))
        _say_more(options, files)
    return 0


def _say_more(options: ShowOptions, files: Sequence[SampleFile]) -> None:
    command, last = f"python -m mathrl_ray show {shlex.quote(str(options.run))}", files[-1]
    steps = [file for file in files if file.kind == "trajectories"]
    print("\nmore:")
    if steps:
        print(f"  {command} --stage {steps[-1].stage} --step {steps[-1].step}")
    first = rows_of(last)[0]["problem_id"]
    print(f"  {command}{f' --stage {options.stage}' if options.stage else ''} --outcome wrong")
    print(f"  {command} --problem {shlex.quote(first) if first.isprintable() else 'ID'}")


def _plain_file(file: SampleFile) -> dict[str, Any]:
    return {**asdict(file), "path": str(file.path)}


def _plain(sample: Sample) -> dict[str, Any]:
    return {**asdict(sample), "file": _plain_file(sample.file)}
