"""Guards: which signs in a stage's numbers say that training is collapsing, and since when.

Made and asked by driver/guards.py, which acts: warns, stops, or takes the stage back. Pure: rows in, findings out; knows no clock, no file
and no stage. What each guard reads, and how its limit was chosen, is in guard_signs.py, guard_entropy.py and guard_validation.py.

    row -> history -> a sign of each guard: bad, suspicious or clear -> enough bad ones: a finding, at each row as long as they last
                                  |
                                  +-> since when it is not clear: the last good step lies before

A guard fires at `patience` bad signs in a row; a spike at `patience` bad signs within half a window, since a spike is over at the next
step; a validation at `validation_patience` in a row. On the embedded task a rate that is four times too high is caught at steps 10 to 12,
by entropy; no guard fires in any of the healthy runs (tests hold both on the real numbers).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from mathrl_ray.core.guard_series import History, kept
from mathrl_ray.core.guard_sign import Sign
from mathrl_ray.core.guard_signs import read
from mathrl_ray.core.guard_validation import Validations
from mathrl_ray.guard_section import GuardName, GuardsSection

SPIKES = frozenset({"loss_spike", "grad_norm_spike"})
"""Guards whose bad signs need not be in a row."""
COMPARE_REWARDS = frozenset({"reward", "reward_variance", "response_length"})
"""Guards that take it that the problems of all steps are about as hard; of entropy the part that asks for a gain does too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a guard saw. Made by GuardRules, acted on and written down by driver/guards.py.

    Example: Finding("entropy", "entropy_nats", 0.049, 0.079, "entropy fell from 0.262 to 0.0488 nats a token ..., since step 4: ...")
    """

    guard: GuardName
    metric: str
    value: float
    limit: float
    text: str
    """One sentence without a full stop: what was seen against what, since which step, what that usually means."""


@dataclass(slots=True)
class _Watch:
    """How one guard's signs have been."""

    guard: GuardName
    num_needed: int
    """Bad signs for a finding."""
    num_looked_at: int
    """Among how many of its newest signs; in a row where it is the same number."""
    recent: list[tuple[int, bool]] = field(default_factory=list)
    """Step and whether the sign was bad."""
    doubted_since: int | None = None
    """The first step whose weights may be bad; None: the newest ones are good."""
    is_firing: bool = False

    def saw(self, step: int, sign: Sign) -> Finding | None:
        """Count a sign; None where there are too few bad ones."""
        self.recent = [*self.recent, (step, sign.is_bad)][-self.num_looked_at :]
        bad_steps = [of for of, is_bad in self.recent if is_bad]
        if self.guard in SPIKES:
            self.doubted_since = bad_steps[0] if bad_steps else None
        elif sign.is_clear:
            self.doubted_since = None
        elif self.doubted_since is None:
            self.doubted_since = step
        self.is_firing = sign.is_bad and len(bad_steps) >= self.num_needed
        if not self.is_firing:
            return None
        text = f"{sign.seen}, since step {self.doubted_since}: {sign.meaning}"
        return Finding(self.guard, sign.metric, sign.value, sign.limit, text)


class GuardRules:
    """The guards of one stage, from its start."""

    def __init__(self, settings: GuardsSection, *, problems_change: bool = False) -> None:
        """
        Args:
            settings: guards; those whose action is "off" are left out.
            problems_change: whether the rewards of different steps are of problems of different kinds: later ones are harder on purpose
                (curriculum.order = "level", curriculum.skip_after), or only mixed groups are there, about half of whose responses are
                right however much is solved (grpo.dynamic_sampling). Then guards that compare rewards over steps are silent.
        """
        self._settings, self._problems_change = settings, problems_change
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._validated: list[tuple[int, float, int]] = []
        self._begin()

    def look(self, step: int, metrics: Mapping[str, float]) -> list[Finding]:
        """What fires at a training row, again at each row as long as it lasts.

        Args:
            step: of the row; several rows may have the same one, as the optimizer steps of a round of expert iteration do.
            metrics: the row's numbers, by their names in metrics.jsonl; a guard without its own is silent.
        """
        row = kept(metrics)
        self._rows.append((step, row))
        return self._look(step, row)

    def validated(self, step: int, accuracy: float, num_problems: int) -> list[Finding]:
        """What fires at a validation.

        Args:
            step: whose weights it was of; training may be further.
            accuracy: share of right answers, one to a problem.
            num_problems: that were graded.
        """
        self._validated.append((step, accuracy, num_problems))
        return self._validate(step, accuracy, num_problems)

    def last_good_step(self, before: int) -> int:
        """The newest step whose weights are good: before the first doubt of the guards that fire, and `patience` rows back at least.

        Where none fires, before the first doubt of any: what a rollback would go back to, were it asked for next. 0 is the stage's start.
        """
        steps = [step for step, _ in self._rows if step < before]
        far_enough = steps[: max(0, len(steps) - self._settings.patience + 1)]
        watches = self._watches.values()
        concerned = [watch for watch in watches if watch.is_firing] or list(watches)
        first_doubt = min((watch.doubted_since for watch in concerned if watch.doubted_since is not None), default=before)
        return max((step for step in far_enough if step < first_doubt), default=0)

    def rewind(self, step: int) -> None:
        """Forget what came after this step: the run went back there. Medians go on from the rows that are kept."""
        self._rows = [row for row in self._rows if row[0] <= step]
        self._validated = [validation for validation in self._validated if validation[0] <= step]
        self._replay()

    def state(self) -> dict[str, Any]:
        """As plain JSON values, for a checkpoint: what was seen, from which all else follows (about 250 bytes a row)."""
        return {"rows": [[step, row] for step, row in self._rows], "validated": [list(validation) for validation in self._validated]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; what comes then fires as if the run had never stopped."""
        self._rows = [(step, dict(row)) for step, row in state["rows"]]
        self._validated = [(step, accuracy, num_problems) for step, accuracy, num_problems in state["validated"]]
        self._replay()

    def _begin(self) -> None:
        self._history, self._validations = History(compares_rewards=not self._problems_change), Validations(self._settings)
        self._last_clear_validation = 0
        self._watches = {guard: _watch(guard, self._settings) for guard in get_args(GuardName) if self._is_on(guard)}

    def _is_on(self, guard: GuardName) -> bool:
        is_off = self._settings.actions.get(guard, self._settings.action) == "off"
        return not is_off and not (self._problems_change and guard in COMPARE_REWARDS)

    def _replay(self) -> None:
        self._begin()
        for step, row in self._rows:
            self._look(step, row)
        for validation in self._validated:
            self._validate(*validation)

    def _look(self, step: int, row: dict[str, float]) -> list[Finding]:
        self._history.add(row)
        signs = {guard: read(guard, self._history, self._settings) for guard in self._watches}
        findings = [self._watches[guard].saw(step, sign) for guard, sign in signs.items() if sign is not None]
        return [finding for finding in findings if finding is not None]

    def _validate(self, step: int, accuracy: float, num_problems: int) -> list[Finding]:
        watch = self._watches.get("validation")
        if watch is None:
            return []
        sign = self._validations.read(step, accuracy, num_problems)
        finding = watch.saw(self._last_clear_validation + 1, sign) if sign is not None else None
        if sign is None or sign.is_clear:
            self._last_clear_validation = step
        return [finding] if finding is not None else []


def _watch(guard: GuardName, settings: GuardsSection) -> _Watch:
    if guard == "validation":
        return _Watch(guard, settings.validation_patience, settings.validation_patience)
    return _Watch(guard, settings.patience, max(settings.patience, settings.window // 2) if guard in SPIKES else settings.patience)
