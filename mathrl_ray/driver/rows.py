"""The Parquet rows of a run directory: which columns, of which type, from which record.

Called by the recorder. The column names are fixed: other people's scripts read them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mathrl_ray.types import Completion, Grade, Problem, SamplingSettings, Trajectory

EVALUATION_SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("problem", pa.string()),
        ("gold", pa.string()),
        ("level", pa.int64()),
        ("subject", pa.string()),
        ("prompt_name", pa.string()),
        ("prompt", pa.string()),
        ("sample", pa.int64()),
        ("response", pa.string()),
        ("finish_reason", pa.string()),
        ("extracted_answer", pa.string()),
        ("format_reward", pa.float64()),
        ("answer_reward", pa.float64()),
        ("reward", pa.float64()),
        ("outcome", pa.string()),
        ("lenient_answer_correct", pa.bool_()),
        ("grader", pa.string()),
        ("grading_s", pa.float64()),
        ("num_response_tokens", pa.int64()),
        ("mean_token_entropy_nats", pa.float64()),
        ("policy_version", pa.int64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("max_tokens", pa.int64()),
        ("seed", pa.int64()),
        ("graders", pa.list_(pa.struct([("grader", pa.string()), ("reward", pa.float64()), ("outcome", pa.string())]))),
    ]
)
"""One row a (problem, sample): all that is needed to grade it again. The columns are the default grader's; `graders` holds what each other
one of eval.graders says of the same response; lenient_answer_correct, whether its answer would be right with the format rule waived."""

TRAJECTORY_SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("sample", pa.int64()),
        ("problem_id", pa.string()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("response_ids", pa.list_(pa.int64())),
        ("generator_logprobs", pa.list_(pa.float64())),
        ("learner_logprobs", pa.list_(pa.float64())),
        ("version_runs", pa.list_(pa.list_(pa.int64()))),
        ("reward", pa.float64()),
        ("reward_parts", pa.struct([("format", pa.float64()), ("answer", pa.float64())])),
        ("advantage", pa.float64()),
        ("outcome", pa.string()),
        ("finish_reason", pa.string()),
        ("consumed_step", pa.int64()),
        ("staleness", pa.int64()),
        ("drop_reason", pa.string()),
        ("num_stale_kv_tokens", pa.int64()),
    ]
)
"""One row a trajectory; learner_logprobs is null where it was dropped before the learner saw it. `trajectory_schema` adds the parts that a
reward function gave."""


def trajectory_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """TRAJECTORY_SCHEMA, with every part of the rows' rewards as a field of reward_parts: format and answer first, then by name."""
    names = {name for row in rows for name in row["reward_parts"]} - {"format", "answer"}
    index = TRAJECTORY_SCHEMA.get_field_index("reward_parts")
    parts = pa.struct([(name, pa.float64()) for name in ("format", "answer", *sorted(names))])
    return TRAJECTORY_SCHEMA.set(index, pa.field("reward_parts", parts))


def evaluation_row(
    problem: Problem,
    completion: Completion,
    grade: Grade,
    sampling: SamplingSettings,
    *,
    prompt_name: str,
    prompt: str,
    sample: int,
    seed: int,
    mean_token_entropy_nats: float | None,
    others: Sequence[tuple[str, Grade]] = (),
) -> dict[str, Any]:
    return {
        "problem_id": problem.problem_id,
        "problem": problem.problem,
        "gold": problem.gold,
        "level": problem.level,
        "subject": problem.subject,
        "prompt_name": prompt_name,
        "prompt": prompt,
        "sample": sample,
        "response": completion.text,
        "finish_reason": completion.finish_reason,
        "extracted_answer": grade.extracted_answer,
        "format_reward": grade.format_reward,
        "answer_reward": grade.answer_reward,
        "reward": grade.reward,
        "outcome": grade.outcome,
        "lenient_answer_correct": grade.lenient_answer_correct,
        "grader": "default",
        "grading_s": grade.grading_s,
        "num_response_tokens": len(completion.token_ids),
        "mean_token_entropy_nats": mean_token_entropy_nats,
        "policy_version": completion.max_policy_version,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": seed,
        "graders": [{"grader": name, "reward": other.reward, "outcome": other.outcome} for name, other in others],
    }


def own_parts(grade: Grade) -> dict[str, float]:
    """The parts of a reward beside format, answer and the whole, which have columns and metrics of their own."""
    return {name: value for name, value in grade.parts.items() if name not in ("format", "answer", "reward")}


def trajectory_row(
    trajectory: Trajectory,
    learner_logprobs: tuple[float, ...] | None,
    *,
    consumed_step: int | None,
    staleness: int,
    keeps_kv: bool = False,
) -> dict[str, Any]:
    """One row.

    Args:
        trajectory: the record.
        learner_logprobs: [T], None where the learner has not seen it.
        consumed_step: the step that trained on its group, None where the whole group was dropped.
        staleness: at that step, or when it was dropped.
        keeps_kv: the KV cache survives updates, so what follows a response's first version was sampled with an older cache.
    """
    completion, grade = trajectory.completion, trajectory.grade
    return {
        "group_id": trajectory.group_id,
        "sample": trajectory.sample,
        "problem_id": trajectory.problem_id,
        "prompt_ids": trajectory.prompt_ids,
        "response_ids": completion.token_ids,
        "generator_logprobs": completion.logprobs,
        "learner_logprobs": learner_logprobs,
        "version_runs": completion.version_runs,
        "reward": grade.reward,
        "reward_parts": {"format": grade.format_reward, "answer": grade.answer_reward, **own_parts(grade)},
        "advantage": trajectory.advantage,
        "outcome": grade.outcome,
        "finish_reason": completion.finish_reason,
        "consumed_step": consumed_step,
        "staleness": staleness,
        "drop_reason": trajectory.drop_reason,
        "num_stale_kv_tokens": sum(num_tokens for _, num_tokens in completion.version_runs[1:]) if keeps_kv else 0,
    }
