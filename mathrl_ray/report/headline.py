"""What a reader wants first: which run, what state, what came out, in a sentence. Called by page.py. Pure: RunData in, words out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl_ray.driver.evaluation_figures import percent_text
from mathrl_ray.report.results import model_words
from mathrl_ray.report.run_data import RunData


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run in the page's head."""

    name: str
    state: str
    """running, finished, stopped."""
    progress: str
    """How far it is, or was."""
    model: str
    task: str
    seed: int
    result: str
    """One sentence."""
    warnings: tuple[str, ...]


def head_of(run: RunData) -> RunHead:
    return RunHead(
        name=run.name,
        state=run.state,
        progress=_progress(run),
        model=str(_setting(run, "model", "path") or "unknown model"),
        task=_task(run),
        seed=run.seed,
        result=result_of(run),
        warnings=tuple(run.warnings),
    )


def result_of(run: RunData) -> str:
    """
    The last stage that has ended beside the first, which is the baseline where the study has one.
    """
    ended = [stage for stage in run.stages if stage.summary]
    if not ended:
        return "No stage has ended yet, so there is no result." if run.state == "running" else "No stage ended, so there is no result."
    last = ended[-1].summary or {}
    words = f" ({of})" if (of := model_words(last)) else ""
    told = f"{ended[-1].name}{words} answers {percent_text(last)} of {last['num_problems']:,} held-out problems correctly"
    first = ended[0].summary or {}
    if len(ended) == 1 or not first["accuracy"]:
        return f"{told}."
    beside = f"{last['accuracy'] / first['accuracy']:.1f} times" if last["accuracy"] >= first["accuracy"] else "less than"
    return f"{told}, {beside} the {ended[0].name}'s {100 * first['accuracy']:.1f} %."


def results_together(runs: Sequence[RunData]) -> str:
    """Several runs in a sentence: the range of each stage that all of them have ended."""
    summaries = [{stage.name: stage.summary for stage in run.stages if stage.summary} for run in runs]
    common = [name for name in summaries[0] if all(name in each for each in summaries)]
    if not common:
        return f"The {len(runs)} runs have no finished stage in common."
    told = "; ".join(f"{name} {_range([each[name]['accuracy'] for each in summaries])}" for name in dict.fromkeys((common[0], common[-1])))
    return f"Accuracy, lowest to highest of {len(runs)} runs: {told}."


def _range(accuracies: Sequence[float]) -> str:
    return f"{100 * min(accuracies):.1f} to {100 * max(accuracies):.1f} %"


def _progress(run: RunData) -> str:
    row = run.last_row
    if row is None:
        return "nothing written yet"
    minutes = row.get("time_s", 0.0) / 60
    if run.state == "finished":
        return f"{len(run.stages)} stage{'' if len(run.stages) == 1 else 's'} in {minutes:,.1f} min"
    return f"{_where(run, row)}, after {minutes:,.1f} min"


def _where(run: RunData, row: Mapping[str, Any]) -> str:
    num_steps = _setting(run, "grpo", "num_steps") if row["stage"] == "grpo" else None
    of = f" of at most {num_steps}" if num_steps else ""
    has_ended = any(stage.summary for stage in run.stages if stage.name == row["stage"])
    return f"stage {row['stage']}{' (ended)' if has_ended else ''}, step {row['step']}{of}"


def _task(run: RunData) -> str:
    train, test = _setting(run, "data", "train"), _setting(run, "data", "test")
    if not train:
        return "unknown task"
    return str(train) if test in ("", None, train) else f"{train}, tested on {test}"


def _setting(run: RunData, section: str, key: str) -> Any:
    held = run.recipe.get(section)
    return held.get(key) if isinstance(held, Mapping) else None
