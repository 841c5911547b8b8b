"""One training step as it happened: the learner's call, and all numbers and rows that are kept of it.

Called by loops.py. Knows the run and records; decides nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mathrl_ray.core.groups import ZERO_VARIANCE
from mathrl_ray.core.problem_memory import Attempt, attempts_of
from mathrl_ray.core.staleness import SlotCounts
from mathrl_ray.driver.elite_rows import attempts_path, write_attempts
from mathrl_ray.driver.engine_numbers import engine_numbers
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.step_metrics import rollout_metrics
from mathrl_ray.types import PolicyUpdate, TrajectoryGroup

FAILED = "failed"
"""The drop reason of a prompt that failed at every try."""
OTHER_PROBLEM = "other_problem"
"""The drop reason of saved groups whose place another problem has, in a run that goes on with other data or another seed."""
SET_BACK = "set_back"
"""The drop reason of groups that were on their way when a guard took the stage back."""
STOPPED_EARLY = "stopped_early"
"""The drop reason of groups that were on their way when eval.stop_after ended the stage."""
TIME_IS_UP = "time_is_up"
"""The drop reason of groups that run.max_hours left no step for."""


@dataclass
class _Step:
    """A step between its batch and its row of metrics."""

    number: int
    learner_version: int
    """Before the step: what the staleness of its trajectories is counted from."""
    groups: list[TrajectoryGroup]
    metrics: dict[str, float] = field(default_factory=dict)
    learner_logprobs: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    dropped: list[TrajectoryGroup] = field(default_factory=list)
    """Groups that were dropped since the step before."""

    def attempts(self) -> list[Attempt]:
        """Of all groups that were graded, trained on or not."""
        return [attempt for group in (*self.groups, *self.dropped) for attempt in attempts_of(group, self.number)]


@dataclass(frozen=True, slots=True)
class RecordState:
    """What a record needs to go on elsewhere, between steps."""

    drop_counts: Mapping[str, int]
    dropped: list[TrajectoryGroup]
    """Since the last batch was taken; not written yet."""
    ages_s: Mapping[int, float]
    """Of each group that was sampled and is not trained on yet, by its number."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """The ledger's, when the last step's training ended."""


class StepRecord:
    """Notes of a stage's steps. At most two steps are open: one in training, one whose weights are on their way."""

    def __init__(self, run: Run, stage: str) -> None:
        self._run, self._stage = run, stage
        self._sampled_s: dict[int, float] = {}
        self._dropped: list[TrajectoryGroup] = []
        self._drop_counts: Counter[str] = Counter()
        self._open: dict[int, _Step] = {}
        self._present: _Step | None = None
        self.totals: Mapping[str, float] = {}
        """The ledger's, when the training of the step that was trained last ended."""

    @property
    def is_open(self) -> bool:
        """Whether a step's batch is taken and its row not written yet."""
        return bool(self._open)

    def state(self) -> RecordState:
        """Between steps only."""
        assert not self._open, "a step is open"
        now_s = self._run.ledger.now_s
        ages_s = {number: now_s - sampled_s for number, sampled_s in self._sampled_s.items()}
        return RecordState(dict(self._drop_counts), list(self._dropped), ages_s, self.totals)

    def restore(self, state: RecordState) -> None:
        now_s = self._run.ledger.now_s
        self._drop_counts, self._dropped, self.totals = Counter(state.drop_counts), list(state.dropped), state.totals
        self._sampled_s = {number: now_s - age_s for number, age_s in state.ages_s.items()}

    def sampled(self, number: int) -> None:
        """A group's responses are there; its age counts from now."""
        self._sampled_s[number] = self._run.ledger.now_s

    def dropped(self, number: int, group: TrajectoryGroup | None, reason: str) -> None:
        """A whole group is not trained on; None where it was never sampled to its end."""
        self._sampled_s.pop(number, None)
        self._drop_counts[reason] += 1
        if group is None:
            return
        counts, num_tokens = self._run.ledger.counts, _num_tokens([group])
        counts.consumed_tokens += num_tokens
        counts.dropped_tokens += num_tokens
        counts.zero_variance_tokens += num_tokens if reason == ZERO_VARIANCE else 0
        self._dropped.append(group.with_drop_reason(reason))

    def begin(self, step: int, groups: Mapping[int, TrajectoryGroup], learner_version: int, gate: SlotCounts) -> list[Attempt]:
        """A batch was taken; `gate` counts the groups just before. Returns the step's attempts, of what was dropped before it too."""
        ages_s = [self._run.ledger.now_s - self._sampled_s.pop(number) for number in groups]
        dropped, self._dropped = self._dropped, []
        self._present = self._open[step] = _Step(step, learner_version, list(groups.values()), dropped=dropped)
        self._present.metrics |= {
            **_staleness(groups.values(), learner_version),
            "sample_age_s_mean": fmean(ages_s),
            "sample_age_s_max": max(ages_s),
            "groups_in_flight": gate.in_flight,
            "groups_scoring": gate.scoring,
            "groups_buffered": gate.buffered,
            "groups_free": gate.free,
            **_drops(self._drop_counts, dropped, groups.values()),
        }
        self._drop_counts.clear()
        return self._present.attempts()

    def note(self, numbers: Mapping[str, float]) -> None:
        """More numbers of the step that was begun last."""
        assert self._present is not None
        self._present.metrics |= numbers

    async def train(self, groups: Sequence[TrajectoryGroup]) -> bool:
        """Give the batch to the learner. Returns whether any weight has changed.

        Where every trajectory is dropped there is nothing to learn, and a skipped update has changed nothing.
        """
        step = self._present
        assert step is not None
        has_changed = await self._learn(step, groups)
        self.totals = self._run.ledger.totals()  # now: the next batch is counted while this step's weights are on their way
        step.metrics |= self.totals
        return has_changed

    async def _learn(self, step: _Step, groups: Sequence[TrajectoryGroup]) -> bool:
        run = self._run
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        batch = [trajectory for trajectory in trajectories if trajectory.drop_reason is None]
        self._count_tokens(groups)
        if not batch:
            return False
        with run.ledger.work("learner-0", "train_policy"):
            update: PolicyUpdate = await run.actors.learner.train_policy(batch, run.training_sampling)
        run.ledger.counts.optimizer_steps += update.num_optimizer_steps
        run.ledger.counts.trained_tokens += sum(len(trajectory.completion.token_ids) for trajectory in batch)
        step.metrics |= update.metrics
        keys = ((trajectory.group_id, trajectory.sample) for trajectory in batch)
        step.learner_logprobs = dict(zip(keys, update.learner_logprobs, strict=True))
        return update.num_optimizer_steps > 0

    def _count_tokens(self, groups: Sequence[TrajectoryGroup]) -> None:
        counts = self._run.ledger.counts
        counts.consumed_tokens += _num_tokens(groups)
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories if trajectory.drop_reason):
            num_tokens = len(trajectory.completion.token_ids)
            counts.dropped_tokens += num_tokens
            counts.zero_variance_tokens += num_tokens if trajectory.drop_reason == ZERO_VARIANCE else 0

    async def finish(self, number: int, metrics: Mapping[str, float]) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """Write the step's row of metrics, with its spans, its trajectories and its attempts. Returns its groups and numbers.

        Args:
            number: of the step.
            metrics: of the sync.
        """
        step, run = self._open[number], self._run
        engines = await engine_numbers(run.generators)
        numbers = {**rollout_metrics(step.groups), **step.metrics, **metrics, **run.ledger.lap(), **engines}
        numbers |= self._rates(step, numbers["step_s"])
        restarts = {"generator": run.generators.num_restarts, "scorer": run.scorers.num_restarts}
        numbers |= {f"{role}_restarts_total": total for role, total in restarts.items()}
        run.recorder.metrics(self._stage, number, run.policy_version, {**numbers, "spans": run.ledger.take_spans()})
        # In a thread: a batch of long responses takes a while to encode, and the loops would stand still meanwhile.
        await asyncio.to_thread(self._write_rows, step)
        del self._open[number]
        return step.groups, numbers

    def _rates(self, step: _Step, step_s: float) -> dict[str, float]:
        """Tokens a second of the whole step: of what the step used up, and of what it trained on."""
        kept = _num_tokens(step.groups)
        trained = sum(len(logprobs) for logprobs in step.learner_logprobs.values())
        return (
            {"generator_tokens_per_s": (kept + _num_tokens(step.dropped)) / step_s, "learner_tokens_per_s": trained / step_s}
            if step_s
            else {}
        )

    async def close(self, last: int) -> None:
        """Write down what was dropped after the last step's batch was taken: as step last + 1, which trains on nothing."""
        if not self._drop_counts:
            return
        numbers = {f"num_dropped_{reason}": count for reason, count in sorted(self._drop_counts.items())}
        self._run.recorder.metrics(self._stage, last + 1, self._run.policy_version, numbers)
        if self._dropped:
            await asyncio.to_thread(self._write_rows, _Step(last + 1, self._run.policy_version, [], dropped=self._dropped))

    def _write_rows(self, step: _Step) -> None:
        rows: list[dict[str, Any]] = []
        for groups, consumed_step in ((step.groups, step.number), (step.dropped, None)):
            all_logprobs = step.learner_logprobs if consumed_step else {}  # a saved group may have been dropped, and sampled anew
            for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
                logprobs = all_logprobs.get((trajectory.group_id, trajectory.sample))
                staleness = step.learner_version - trajectory.completion.min_policy_version
                stale_kv = self._run.recipe.generator.kv_on_update == "keep"
                rows.append(trajectory_row(trajectory, logprobs, consumed_step=consumed_step, staleness=staleness, keeps_kv=stale_kv))
        self._run.recorder.trajectories(self._stage, step.number, rows)
        write_attempts(attempts_path(self._run.recorder.folder, self._stage, step.number), step.attempts())


def _staleness(groups: Iterable[TrajectoryGroup], learner_version: int) -> dict[str, float]:
    completions = [trajectory.completion for group in groups for trajectory in group.trajectories]
    ages = [learner_version - completion.min_policy_version for completion in completions]
    mixed = [completion for completion in completions if len(completion.version_runs) > 1]
    return {
        "staleness_mean": fmean(ages),
        "staleness_max": max(ages),
        "mixed_version_fraction": len(mixed) / len(completions),
    }


def _drops(counts: Mapping[str, int], dropped: Sequence[TrajectoryGroup], kept: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """How many groups were dropped since the step before, by reason, and how long they were against those that are trained on."""
    groups = list(kept)
    zero_variance = [group for group in groups if any(each.drop_reason == ZERO_VARIANCE for each in group.trajectories)]
    metrics: dict[str, float] = {f"num_dropped_{reason}": count for reason, count in sorted(counts.items())}
    metrics["zero_variance_fraction"] = (len(zero_variance) + counts.get(ZERO_VARIANCE, 0)) / (len(groups) + counts.get(ZERO_VARIANCE, 0))
    if dropped:
        metrics["dropped_response_tokens_mean"] = _num_tokens(dropped) / sum(len(group.trajectories) for group in dropped)
        metrics["kept_response_tokens_mean"] = _num_tokens(groups) / sum(len(group.trajectories) for group in groups)
    return metrics


def _num_tokens(groups: Sequence[TrajectoryGroup]) -> int:
    return sum(len(trajectory.completion.token_ids) for group in groups for trajectory in group.trajectories)
