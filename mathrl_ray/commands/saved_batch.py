"""A training step's saved trajectories as the records that they were, and the batch that a method makes of them.

Called by replay.py's parts. Knows the columns of driver/rows.py; what a group is worth is core/groups.py's to say, as it was in the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.commands.run_files import numbers, read_rows, sample_files
from mathrl_ray.core.advantages import AdvantageFunction
from mathrl_ray.core.groups import with_advantages
from mathrl_ray.sections import AdvantageSection
from mathrl_ray.types import Completion, Grade, Trajectory, TrajectoryGroup

Key = tuple[str, int]
"""(group_id, sample)."""


@dataclass(frozen=True, slots=True)
class SavedStep:
    """What one step took from the buffer, in its order; groups that were dropped before a step took them are not among it."""

    step: int
    groups: tuple[TrajectoryGroup, ...]
    """With the advantages and drop reasons that the run gave them."""
    learner_version: int
    """What was trained: the policy_version before the step."""
    learner_logprobs: Mapping[Key, Sequence[float]]
    """[T] of each response that was trained on, from before the step's first update."""

    @property
    def trained(self) -> list[Trajectory]:
        """What the run itself trained on, in the batch's order."""
        return _kept(self.groups)

    @property
    def num_responses(self) -> int:
        return sum(len(group.trajectories) for group in self.groups)

    def batch_of(self, settings: AdvantageSection, max_tokens: int, function: AdvantageFunction | None = None) -> list[Trajectory]:
        """What other settings would train on: the same responses and rewards, with their advantages, but for those that they drop."""
        return _kept([with_advantages(group, settings, max_tokens=max_tokens, function=function) for group in self.groups])


def _kept(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    return [each for group in groups for each in group.trajectories if each.drop_reason is None]


def key_of(trajectory: Trajectory) -> Key:
    return trajectory.group_id, trajectory.sample


def saved_step(run: Path, stage: str, step: int) -> SavedStep:
    """
    Raises:
        ValueError: there are no trajectories of this step, or it has trained on nothing.
    """
    files = {file.step: file for file in sample_files(run) if file.kind == "trajectories" and file.stage == stage}
    if not files:
        raise ValueError(f"{run}: holds no trajectories of {stage}, and so no batch that could be replayed")
    if step not in files:
        raise ValueError(
            f"{run}: holds no trajectories of {stage} step {step}; it has those of {numbers([each for each in files if each])}"
        )
    rows = [row for row in read_rows(files[step]) if row["consumed_step"] == step]
    if not any(row["drop_reason"] is None for row in rows):
        reasons = sorted({str(row["drop_reason"]) for row in rows})
        raise ValueError(f"{stage} step {step} has trained on nothing ({', '.join(reasons) or 'no group'}): there is no loss to replay")
    return step_of_rows(step, rows)


def step_of_rows(step: int, rows: Sequence[Mapping[str, Any]]) -> SavedStep:
    """The step from its rows of trajectories/, whose consumed_step it is."""
    found: dict[str, list[Trajectory]] = {}
    for row in rows:
        found.setdefault(row["group_id"], []).append(trajectory_of(row))
    groups = tuple(TrajectoryGroup(group_id, group[0].problem_id, tuple(group)) for group_id, group in found.items())
    first = rows[0]
    return SavedStep(
        step=step,
        groups=groups,
        learner_version=first["staleness"] + min(version for version, _ in first["version_runs"]),
        learner_logprobs={(row["group_id"], row["sample"]): row["learner_logprobs"] for row in rows if row["learner_logprobs"]},
    )


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """The inverse of driver/rows.py's trajectory_row, but for the text and the answer, which it does not keep."""
    parts = {name: value for name, value in row["reward_parts"].items() if value is not None}
    completion = Completion(
        text="",
        token_ids=tuple(row["response_ids"]),
        logprobs=tuple(row["generator_logprobs"]),
        version_runs=tuple((version, num_tokens) for version, num_tokens in row["version_runs"]),
        finish_reason=row["finish_reason"],
    )
    grade = Grade(parts["format"], parts["answer"], row["reward"], row["outcome"], None, parts=parts)
    return Trajectory(
        row["group_id"], row["sample"], row["problem_id"], tuple(row["prompt_ids"]), completion, grade, row["advantage"], row["drop_reason"]
    )
