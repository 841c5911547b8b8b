"""Guards that act: what is done when a stage's numbers say that its training collapses (core/guard_rules.py).

    step's row, validation -> rules -> findings -> warn       a line; training goes on
                                                   stop       GuardError: the job ends, and says from where it can go on
                                                   rollback   a Setback is asked for: the loops end between two steps, and rollback.py
                                                              takes the stage back to its last good checkpoint, with a remedy

Made by a stage for itself and put on the run, called by whoever writes a step's row or a validation. All that fires, what was tried and
whether it helped stands in <run>/guards.jsonl. Knows the run and the rules; touches no actor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, get_args

from mathrl_ray.config import Recipe
from mathrl_ray.core.guard_rules import Finding, GuardRules
from mathrl_ray.guard_section import GuardAction, GuardName
from mathrl_ray.sections import StageName

if TYPE_CHECKING:  # the run holds its guards
    from mathrl_ray.driver.run import Run

WORSE: Mapping[GuardAction, int] = {"warn": 0, "stop": 1, "rollback": 2}
"""Where several fire at one step, the one that does most is done."""
_VALIDATIONS: frozenset[GuardName] = frozenset({"validation"})
_STEPS: frozenset[GuardName] = frozenset(get_args(GuardName)) - _VALIDATIONS
"""Guards that look at a step's row."""
FURTHER_BACK = "further_back"
"""Stands for a remedy where the last one is tried again from an earlier place: once, then comes the next one."""
NUM_COMPARED = 5
"""Steps whose mean reward says how it was before and after a remedy."""


class GuardError(RuntimeError):
    """A guard has ended the job; the message says what it saw and what a person can do."""


@dataclass(frozen=True, slots=True)
class Setback:
    """A stage is to go back."""

    step: int
    """At which its guard fired."""
    good_step: int
    """The newest step before the first sign."""
    finding: Finding
    failed_from: int | None = None
    """Where the last rollback went to, if its remedy was still being tried there: it may help from further back."""


@dataclass(slots=True)
class _Trial:
    """A remedy that is being tried."""

    remedy: str
    to_step: int
    until: int
    """A step without a firing there: it has helped."""
    reward_before: float | None
    """When the guard fired."""


class Guards:
    """Of one stage."""

    def __init__(self, run: "Run", stage: StageName, state: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            run: the run.
            stage: that begins, or goes on.
            state: of the guards that these go on from (`state`).
        """
        self._run, self._stage, self._settings = run, stage, run.recipe.guards
        self.rules = GuardRules(self._settings, problems_change=_problems_change(run.recipe, stage))
        self.setback: Setback | None = None
        """What the stage has to do as soon as it is between two steps."""
        self.num_rollbacks = self.num_remedies = 0
        """Of these some only went further back, with no other remedy."""
        self.lost_tokens = 0
        """Sampled in vain, by all rollbacks."""
        self._trial: _Trial | None = None
        self._rewards: dict[int, float] = {}
        self._told: set[GuardName] = set()
        """Of which a person has heard, and that have fired at each look since."""
        self._last_step = 0
        if state:
            self.rules.restore(state["rules"])
            self.num_rollbacks, self.num_remedies = state["num_rollbacks"], state["num_remedies"]
            self.lost_tokens, self._told = state["lost_tokens"], set(state["told"])
            self._rewards = dict(state["rewards"])
            self._trial = _Trial(**state["trial"]) if state["trial"] else None

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        trial = self._trial
        return {
            "rules": self.rules.state(),
            "num_rollbacks": self.num_rollbacks,
            "num_remedies": self.num_remedies,
            "lost_tokens": self.lost_tokens,
            "told": sorted(self._told),
            "rewards": list(self._rewards.items()),
            "trial": asdict(trial) if trial else None,
        }

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step's row is written.

        Raises:
            GuardError: a guard fired whose action is to stop.
        """
        self._last_step = step
        if "reward_mean" in metrics:
            self._rewards[step] = metrics["reward_mean"]
            self._rewards.pop(step - 2 * NUM_COMPARED, None)
        self._act(step, self.rules.look(step, metrics), seen_by=_STEPS)
        if self._trial and self.setback is None and step >= self._trial.until:
            self._end_trial(step, helped=True)

    def validated(self, step: int, figures: Mapping[str, Any]) -> None:
        """A validation is done.

        Args:
            step: whose weights it was of.
            figures: accuracy and num_graded_problems among them.

        Raises:
            GuardError: a guard fired whose action is to stop.
        """
        findings = self.rules.validated(step, figures["accuracy"], figures["num_graded_problems"])
        self._act(step, findings, seen_by=_VALIDATIONS)

    def stage_ended(self, step: int) -> None:
        """No step is to come: a remedy that is still being tried has held to the end, if it had the time to show it."""
        if self._trial:
            self._end_trial(step, helped=step - self._trial.to_step >= self._settings.patience or None)

    @property
    def good_step(self) -> int | None:
        """Where a rollback would go back to, or a person after a stop, were it asked for now: that checkpoint has to be kept. None where
        guards only warn."""
        return None if self._settings.only_warns else self.rules.last_good_step(self._last_step + 1)

    def went_back(self, to_step: int, remedy: str, *, is_new: bool, lost_tokens: int) -> None:
        """The stage has gone back (rollback.py), and tries this.

        Args:
            to_step: where to.
            remedy: what is tried.
            is_new: not only from a place further back.
            lost_tokens: what was sampled in vain.
        """
        assert self.setback is not None
        self.num_remedies += is_new
        self.lost_tokens += lost_tokens
        self._trial = _Trial(remedy, to_step, self.setback.step + self._settings.window // 2, self._reward_at(self.setback.step))
        self.num_rollbacks += 1
        self.setback = None
        self.rules.rewind(to_step)
        self._last_step = to_step
        self._told.clear()
        self._rewards = {step: reward for step, reward in self._rewards.items() if step <= to_step}

    def _act(self, step: int, findings: Sequence[Finding], *, seen_by: frozenset[GuardName]) -> None:
        if self.setback is not None:
            return  # the steps until the stage goes back are lost already
        for finding in findings:
            if finding.guard not in self._told:  # again only after a step without
                self._note(step, finding)
        self._told = (self._told - seen_by) | {finding.guard for finding in findings}
        worst = max(findings, key=lambda finding: WORSE[self._action(finding)], default=None)
        if worst is None or self._action(worst) == "warn":
            return
        failed_from = self._trial.to_step if self._trial and self._trial.remedy != FURTHER_BACK else None
        if self._trial:
            self._end_trial(step, helped=False)
        if self._action(worst) == "stop":
            raise GuardError(f'{self._stage} step {step}: {worst.text} (guard {worst.guard}, guards.action = "stop"). {self._advice(step)}')
        if self.num_rollbacks >= self._settings.max_rollbacks:
            raise GuardError(
                f"{self._stage} step {step}: {worst.text} (guard {worst.guard}), after all of guards.max_rollbacks = "
                f"{self._settings.max_rollbacks} rollbacks. {self._advice(step)}"
            )
        self.setback = Setback(step, self.rules.last_good_step(step), worst, failed_from)
        self._run.changes.ring()

    def _action(self, finding: Finding) -> GuardAction:
        action = self._settings.actions.get(finding.guard, self._settings.action)
        assert action != "off", "rules leave these out"
        return action

    def _advice(self, step: int) -> str:
        return (
            f"The last good step was {self.rules.last_good_step(step)}. Set other values (a lower rate, a larger batch; guards.remedies "
            "lists more) and run.resume_with_changes = true, and go on from a checkpoint at or before it (run.resume = its path)"
        )

    def _note(self, step: int, finding: Finding) -> None:
        action = self._action(finding)
        self._run.console.say(f"warning: {self._stage} step {step}: guard {finding.guard}: {finding.text}")
        self._write(
            "fired",
            step,
            guard=finding.guard,
            metric=finding.metric,
            value=finding.value,
            limit=finding.limit,
            action=action,
            text=finding.text,
        )

    def _reward_at(self, step: int) -> float | None:
        """Mean over the last steps up to this one; None in a stage without rewards."""
        rewards = [reward for of, reward in self._rewards.items() if step - NUM_COMPARED < of <= step]
        return fmean(rewards) if rewards else None

    def _end_trial(self, step: int, *, helped: bool | None) -> None:
        """helped: None where it was hardly tried."""
        trial, self._trial = self._trial, None
        assert trial is not None
        after = self._reward_at(step)
        rewards = (
            ""
            if trial.reward_before is None or after is None
            else f"; mean reward {trial.reward_before:.2f} when it fired, {after:.2f} now"
        )
        verdicts = {
            True: "has helped: no guard that acts has fired again",
            False: "has not helped: a guard fires again",
            None: "was hardly tried: it is not known whether it helps",
        }
        text = f"{trial.remedy} {verdicts[helped]}{rewards}"
        self._run.console.say(f"{self._stage} step {step}: {text}")
        self._write("outcome", step, remedy=trial.remedy, helped=helped, text=text)

    def _write(self, kind: str, step: int, **facts: Any) -> None:
        self._run.recorder.guard_event(kind, self._stage, step, facts)


def _problems_change(recipe: Recipe, stage: StageName) -> bool:
    """Whether rewards of different steps cannot be compared: harder problems later on, or only groups whose siblings differ."""
    curriculum, mixed_only = recipe.curriculum, stage == "grpo" and recipe.grpo.dynamic_sampling
    return curriculum.order == "level" or curriculum.skip_after > 0 or mixed_only
