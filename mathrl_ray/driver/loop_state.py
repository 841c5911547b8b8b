"""All of a stage's loops that is not in the learner, as a checkpoint keeps it: plain values, and the groups that nobody has trained on.

Made and taken by loops.py between two batches, written by checkpoint.py. Knows no file.

    alive, in flight      only its number is kept: its prompt follows from it (and from `prompts`), and is sent again with the same ids and
                          seeds
    alive, scoring        its responses are kept, and graded again
    alive, buffered       it is kept with its grades and advantages, and trained on when its turn comes
    dropped               kept until the next step writes it down
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mathrl_ray.core.staleness import GateState
from mathrl_ray.driver.group_rows import NumberedGroup
from mathrl_ray.driver.prompt_stream import PromptState, prompt_state
from mathrl_ray.driver.step_record import RecordState
from mathrl_ray.types import TrajectoryGroup

DROPPED = -1
"""The number of a group that has none any more."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where the loops are after a step."""

    step: int
    gate: GateState
    num_replaced: int
    failed_in_a_row: int
    sampled: Mapping[int, TrajectoryGroup]
    buffered: Mapping[int, TrajectoryGroup]
    record: RecordState
    validating: Sequence[int]
    """Steps whose validation was not done yet."""
    prompts_per_step: int
    """From which the numbers of groups get their ids and prompts."""
    is_done: bool
    """Whether no step is to come."""
    prompts: PromptState = field(default_factory=PromptState)
    """What a filter has chosen."""

    @property
    def groups(self) -> list[NumberedGroup]:
        """All groups that must not be lost."""
        return [*self.sampled.items(), *self.buffered.items(), *((DROPPED, group) for group in self.record.dropped)]

    def plain(self) -> dict[str, Any]:
        """All but the groups, for JSON."""
        return {
            "step": self.step,
            "gate": asdict(self.gate),
            "num_replaced": self.num_replaced,
            "failed_in_a_row": self.failed_in_a_row,
            "drop_counts": dict(self.record.drop_counts),
            "ages_s": list(self.record.ages_s.items()),
            "totals": dict(self.record.totals),
            "validating": list(self.validating),
            "prompts_per_step": self.prompts_per_step,
            "is_done": self.is_done,
            "prompts": self.prompts.plain(),
        }

    def with_all_in_flight(self) -> "LoopState":
        """Every group sampled again, with the settings that hold now; what was dropped since the last batch is written down already."""
        return replace(self.sampling_again({*self.sampled, *self.buffered}), record=RecordState({}, [], {}, self.record.totals))

    def sampling_again(self, numbers: Collection[int]) -> "LoopState":
        """The state with these groups in flight, whatever was there of them."""
        alive = [[number, "in flight" if number in numbers else stage, version] for number, stage, version in self.gate.alive]
        gate = replace(self.gate, alive=alive, ready=[number for number in self.gate.ready if number not in numbers])
        sampled, buffered = (
            {number: group for number, group in groups.items() if number not in numbers} for groups in (self.sampled, self.buffered)
        )
        return replace(self, gate=gate, sampled=sampled, buffered=buffered)


def loop_state(plain: Mapping[str, Any], groups: Sequence[NumberedGroup]) -> LoopState:
    """What `LoopState.plain` and `LoopState.groups` were made of."""
    gate = GateState(**plain["gate"])
    stages = {number: stage for number, stage, _ in gate.alive}
    by_stage = {stage: {number: group for number, group in groups if stages.get(number) == stage} for stage in ("scoring", "buffered")}
    return LoopState(
        step=plain["step"],
        gate=gate,
        num_replaced=plain["num_replaced"],
        failed_in_a_row=plain["failed_in_a_row"],
        sampled=by_stage["scoring"],
        buffered=by_stage["buffered"],
        record=RecordState(
            plain["drop_counts"],
            [group for number, group in groups if number == DROPPED],
            dict(plain["ages_s"]),
            plain.get("totals", {}),  # not in checkpoints of before steps kept them
        ),
        validating=plain["validating"],
        prompts_per_step=plain["prompts_per_step"],
        is_done=plain["is_done"],
        prompts=prompt_state(plain["prompts"]) if "prompts" in plain else PromptState(),  # not in checkpoints of before there was a filter
    )
