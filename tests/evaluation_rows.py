"""Rows of evaluations for tests, with every column of driver/rows.py."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mathrl_ray.driver.rows import EVALUATION_SCHEMA

RIGHT = {"format_reward": 1.0, "answer_reward": 1.0, "reward": 1.0, "outcome": "correct", "extracted_answer": "2"}
WRONG = {"format_reward": 1.0, "answer_reward": 0.0, "reward": 0.0, "outcome": "wrong", "extracted_answer": "3"}
BROKEN = {"format_reward": 0.0, "answer_reward": 0.0, "reward": 0.0, "outcome": "no_answer", "extracted_answer": None}
UNGRADED = {**WRONG, "outcome": "grader_error"}


def row(problem_id, *changes, **values):
    """One row of a problem whose gold is 2; later changes win."""
    made = {
        "problem_id": problem_id, "problem": f"What is 1+1 in {problem_id}?", "gold": "2", "level": 1, "subject": "algebra",
        "prompt_name": "r1_zero", "prompt": f"User: {problem_id}\nAssistant: <think>", "sample": 0,
        "response": " 1+1 </think> <answer> 2 </answer>", "finish_reason": "stop", "lenient_answer_correct": None,
        "grader": "default", "grading_s": 0.001,
        "num_response_tokens": 10, "mean_token_entropy_nats": 0.1, "policy_version": 0, "temperature": 1.0, "top_p": 1.0,
        "max_tokens": 64, "seed": 7, "graders": [], **RIGHT,
    }  # fmt: skip
    for change in (*changes, values):
        made.update(change)
    return made


def verdicts(text, **values):
    """A row a letter, problems p0, p1, ...: + right, - wrong, ? not gradable."""
    outcomes = {"+": RIGHT, "-": WRONG, "?": UNGRADED}
    return [row(f"p{index}", outcomes[letter], **values) for index, letter in enumerate(text)]


def samples(*texts, **values):
    """Several samples a problem: a text of letters each, as in `verdicts`."""
    return [
        {**made, "problem_id": f"p{index}", "problem": "What is 1+1?", "prompt": "Sum?", "sample": sample}
        for index, text in enumerate(texts)
        for sample, made in enumerate(verdicts(text, **values))
    ]


def write_evaluation(run: Path, name: str, rows):
    """<run>/evaluations/<name>.parquet"""
    path = run / "evaluations" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA), path)
    return path
