"""The responses of a run: those that are asked for, from trajectories and evaluations alike.

Called by show.py. Knows the columns of driver/rows.py. Rows are chosen before anything is decoded, and without the columns of log-probs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mathrl_ray.commands.run_files import SampleFile, numbers, read_rows, sample_files
from mathrl_ray.commands.run_tokenizer import Decode

_TRAJECTORY = [
    *("group_id", "sample", "problem_id", "prompt_ids", "response_ids", "version_runs", "reward", "reward_parts", "advantage", "outcome"),
    *("finish_reason", "consumed_step", "staleness", "drop_reason"),
]
_EVALUATION = [
    *("problem_id", "problem", "gold", "level", "subject", "prompt_name", "prompt", "sample", "response", "finish_reason"),
    *("extracted_answer", "format_reward", "answer_reward", "reward", "outcome", "num_response_tokens", "policy_version"),
]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One response, wherever it is from."""

    file: SampleFile
    problem_id: str
    sample: int
    prompt: str
    response: str
    outcome: str
    finish_reason: str
    num_tokens: int
    reward: float
    parts: Mapping[str, float]
    version_runs: Sequence[tuple[int, int]]
    """(policy_version, num_tokens) in order."""
    group_id: str = ""
    """Of a trajectory, as are the next four."""
    advantage: float | None = None
    staleness: int | None = None
    consumed_step: int | None = None
    drop_reason: str | None = None
    problem: str = ""
    """Of an evaluation, as are the next three; a trajectory's is in its prompt."""
    gold: str | None = None
    extracted_answer: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """level, subject, prompt_name."""


def rows_of(file: SampleFile, problem: str = "", outcome: str = "") -> list[Row]:
    """A file's rows, of one problem or with one outcome where that is asked."""
    wanted = [(name, "=", value) for name, value in (("problem_id", problem), ("outcome", outcome)) if value]
    columns = _TRAJECTORY if file.kind == "trajectories" else _EVALUATION
    return list(read_rows(file, columns=columns, filters=wanted or None))


def sample_of(file: SampleFile, row: Row, decode: Decode) -> Sample:
    common: dict[str, Any] = {name: row[name] for name in ("problem_id", "sample", "outcome", "finish_reason", "reward")}
    if file.kind == "trajectories":
        return Sample(
            file,
            **common,
            prompt=decode(row["prompt_ids"]),
            response=decode(row["response_ids"]),
            num_tokens=len(row["response_ids"]),
            parts={name: value for name, value in row["reward_parts"].items() if value is not None},
            version_runs=[(version, count) for version, count in row["version_runs"]],
            **{name: row[name] for name in ("group_id", "advantage", "staleness", "consumed_step", "drop_reason")},
        )
    return Sample(
        file,
        **common,
        num_tokens=row["num_response_tokens"],
        parts={"format": row["format_reward"], "answer": row["answer_reward"]},
        version_runs=[(row["policy_version"], row["num_response_tokens"])],
        facts={name: row[name] for name in ("level", "subject", "prompt_name")},
        **{name: row[name] for name in ("prompt", "response", "problem", "gold", "extracted_answer")},
    )


def outcomes_of(file: SampleFile) -> Counter[str]:
    """How many responses of each outcome a file has."""
    return Counter(str(row["outcome"]) for row in read_rows(file, columns=["outcome"]))


def files_of_step(run: Path, files: Sequence[SampleFile], step: int) -> list[SampleFile]:
    """The trajectories of a step; of a stage without any, its validation. Of several stages the last one's.

    Raises:
        ValueError: no such step; it says which there are.
    """
    found = [file for file in files if file.step == step and file.kind == "trajectories"] or [file for file in files if file.step == step]
    if found:
        return [file for file in found if file.stage == found[-1].stage]
    stages = list(dict.fromkeys(file.stage for file in files))
    known = {stage: sorted({file.step for file in files if file.stage == stage and file.step is not None}) for stage in stages}
    told = "; ".join(f"{stage} {numbers(steps)}" for stage, steps in known.items() if steps)
    raise ValueError(f"{run}: holds no responses of step {step}; it has steps {told or 'of no stage yet'}")


def missing_problem(run: Path, asked: Sequence[SampleFile], problem: str) -> ValueError:
    """What to say of an id that the files that were looked through do not have: where else it is, or the nearest that there are."""
    files = sample_files(run)
    if elsewhere := [file.title for file in files if rows_of(file, problem)]:
        where = asked[0].title if len(asked) == 1 else f"the {len(asked)} files of {asked[0].stage}"
        more = f" and {len(elsewhere) - 3} more" if len(elsewhere) > 3 else ""
        return ValueError(f"{run}: no response to {problem!r} in {where}; it is in {'; '.join(elsewhere[:3])}{more}")
    ids = dict.fromkeys(row["problem_id"] for file in files for row in read_rows(file, columns=["problem_id"]))
    if not ids:
        return ValueError(f"{run}: holds no responses yet")
    nearest = [each for each in ids if problem in each][:3] or get_close_matches(problem, ids, n=3, cutoff=0.0)
    return ValueError(
        f"{run}: no response to a problem {problem!r} among those to {len(ids):,} problems; the nearest ids: {', '.join(nearest)}"
    )
