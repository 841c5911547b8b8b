"""What a tracker shows of a run: each number of metrics.jsonl under a tag, at a step; a few responses as text.

Called by trackers.py. Pure but for `sample_text`, which reads one Parquet file; knows no tracker.

    row of metrics.jsonl                 tag                                     step
    a training step, a round, a sync     grpo/reward_mean                        the row's
      what of it tells of the machine    grpo_system/step_s                      the row's
    a validation                         grpo/validation_accuracy                the row's
    an evaluation of the test problems   grpo/test_accuracy                      the row's: at the same step as training, and another number
    an update inside of a round          expert_iteration/sft_loss               its optimizer_step: a round has many; a skipped one is left
                                                                                 out, since it has that of the one before it
    the average of a stage's weights     grpo/average_relative_distance          the row's: the last step's, which has a sync of its own
    a training of sft.sizes              sft_size128/loss                        the row's: each size begins at 1 again

The accuracies of all stages stand in a group of their own too, accuracy/grpo_validation and accuracy/grpo_test: it is TensorBoard's first.
time_s, step and policy_version are a row's place and no tags; its spans are no numbers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mathrl_ray.core.masking import masked_text

_PLACE = frozenset({"time_s", "stage", "step", "policy_version"})
_SYSTEM_PREFIXES = ("num_micro", "num_sequences", "num_tokens", "groups_", "sample_age_", "checkpoint_", "canary_", "num_dropped_")
_SYSTEM_ENDS = ("_s", "_bytes", "_gib", "_per_s", "_total", "padding_fraction", "overlap_efficiency")
_VALIDATION = re.compile(r"validation-(?P<stage>[a-z_]+)(?:-(?P<part>.+))?-step(?P<step>\d+)-v\d+")
_TEST = re.compile(r"(?P<stage>[a-z_]+)(?:-(?P<prompt>.+))?-v\d+")
SAMPLE_COLUMNS = ["problem_id", "problem", "gold", "response", "outcome"]
LONGEST_TEXT = 4000
"""Characters of a problem or a response."""


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """The numbers of one row, by tag."""

    step: int
    time_s: float
    """Since the run began."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedText:
    """A few responses of one evaluation, as Markdown."""

    tag: str
    step: int | None
    """None: the stage's last."""
    stage: str
    text: str


def tracked_row(row: Mapping[str, Any]) -> TrackedRow:
    """
    Args:
        row: of metrics.jsonl.

    Returns:
        No values for a row that has no place of its own.

    >>> tracked_row({"time_s": 2.0, "stage": "grpo", "step": 7, "policy_version": 7, "loss": 0.5, "step_s": 3, "spans": []}).values
    {'grpo/loss': 0.5, 'grpo_system/step_s': 3}
    """
    group, prefix, step, left_out = _kind(row)
    values: dict[str, float] = {}
    if "optimizer_step" in row and row.get("skipped_updates"):
        return TrackedRow(step, float(row["time_s"]), values)
    for name, value in row.items():
        if name in _PLACE or name in left_out or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        shown = name if name.startswith(prefix) else prefix + name
        values[f"{group}{'_system' if not prefix and is_of_system(name) else ''}/{shown}"] = value
    if (name := f"{group}/{prefix}accuracy") in values:
        values = {f"accuracy/{group}_{prefix.rstrip('_')}": values[name], **values}
    return TrackedRow(step, float(row["time_s"]), values)


def _kind(row: Mapping[str, Any]) -> tuple[str, str, int, frozenset[str]]:
    """(group, prefix of its names, step, names that the tag or the step say already)."""
    stage, step = str(row["stage"]), int(row["step"])
    if "sft_size" in row:
        stage = f"{stage}_size{row['sft_size']:g}"
    left_out = frozenset({"sft_size"})
    if "validation_accuracy" in row:
        return stage, "validation_", step, left_out
    if any(name == "accuracy" or name.startswith("accuracy_") for name in row):
        return stage, "test_", step, left_out
    if "num_averaged" in row and "step_s" not in row:  # a round's row has its average in it
        return stage, "average_", step, left_out
    if "optimizer_step" in row:
        return stage, "sft_", int(row["optimizer_step"]), left_out | {"optimizer_step"}
    return stage, "", step, left_out


def is_of_system(name: str) -> bool:
    """Whether a number tells of time, memory and queues, and not of learning.

    >>> [is_of_system(name) for name in ("sync_s", "learner_peak_memory_gib", "groups_buffered", "reward_mean", "staleness_max")]
    [True, True, True, False, False]
    """
    return name.endswith(_SYSTEM_ENDS) or name.startswith(_SYSTEM_PREFIXES)


def sample_text(path: Path, num_samples: int, secrets: Sequence[str] = ()) -> TrackedText | None:
    """The first responses of an evaluation's file; None of a file with another name.

    Raises:
        OSError, ArrowException: it cannot be read.
    """
    if found := _VALIDATION.fullmatch(path.stem):
        group = found["stage"] + (f"_{found['part']}" if found["part"] else "")
        tag, step = f"{group}/validation_samples", int(found["step"])
    elif found := _TEST.fullmatch(path.stem):
        tag, step = f"{found['stage']}/test_samples" + (f"_{found['prompt']}" if found["prompt"] else ""), None
    else:
        return None
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=num_samples, columns=SAMPLE_COLUMNS), None)
    rows = batch.to_pylist() if batch is not None else []
    return TrackedText(tag, step, found["stage"], "\n\n".join(_sample(row, secrets) for row in rows))


def _sample(row: Mapping[str, Any], secrets: Sequence[str]) -> str:
    """Masked before it is cut, escaped and indented, after which no secret would be known again."""
    problem_id, gold, problem, response = (masked_text(str(row[name]), secrets) for name in ("problem_id", "gold", "problem", "response"))
    head = f"**{row['outcome']}** · problem {_word(problem_id)} · gold {_word(gold)}"
    return "\n\n".join([head, code_block(problem), code_block(response), "---"])


def _word(text: object) -> str:
    """Inside a line of Markdown, without any."""
    return "".join(each if each.isalnum() or each in " .,-+" else f"&#{ord(each)};" for each in str(text)[:200] if each.isprintable())


def code_block(text: str) -> str:
    """Text that Markdown shows as it is: every line indented; what is no character is left out, and a long middle.

    >>> code_block("<b>a</b>\\n# b")
    '    <b>a</b>\\n    # b'
    """
    if len(text) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        text = f"{text[:half]}\n[... {len(text) - LONGEST_TEXT:,} characters ...]\n{text[-half:]}"
    shown = "".join(each for each in text if each.isprintable() or each in "\n\t")
    return "\n".join(f"    {line}" for line in shown.split("\n"))
