"""Early stopping: when validations have shown no new best for so long that training ends, and which step was best.

Called by the stages and the loops with one validation at a time, in the order of their steps. Pure: numbers in, a verdict out; knows no
checkpoint and no recipe. A run that goes on has no state of this to restore: it shows the validations that it has again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class EarlyStopping:
    """Patience (Prechelt 1998, "Early Stopping - But When?", counts an error that rises, UP_s; here an accuracy has to rise).

    A validation improves where its accuracy is above that of the last one that improved, by more than `margin`; the first one improves.
    Training ends with the `stop_after`-th in a row that does not.

    >>> early = EarlyStopping(stop_after=2)
    >>> [early.seen(step, accuracy) for step, accuracy in ((10, 0.4), (20, 0.6), (30, 0.5), (40, 0.6))]
    [False, False, False, True]
    >>> early.best_step
    40
    """

    stop_after: int
    """Validations in a row without an improvement that end training; 0: it never ends by this."""
    margin: float = 0.0
    accuracies: dict[int, float] = field(default_factory=dict)
    """Of all validations seen, by their steps."""
    num_without_improvement: int = 0
    _to_improve_on: float | None = None

    def seen(self, step: int, accuracy: float) -> bool:
        """Take in one validation; whether training ends now. One that was seen before changes nothing."""
        if step not in self.accuracies:
            self.accuracies[step] = accuracy
            self._count(accuracy)
        return self.has_stopped

    def _count(self, accuracy: float) -> None:
        if self._to_improve_on is None or accuracy > self._to_improve_on + self.margin:
            self._to_improve_on, self.num_without_improvement = accuracy, 0
        else:
            self.num_without_improvement += 1

    @property
    def has_stopped(self) -> bool:
        return 0 < self.stop_after <= self.num_without_improvement

    @property
    def best_step(self) -> int | None:
        """Of the highest accuracy, whatever the margin, and of equal ones the newest: the one that driver/checkpoint.kept_steps keeps."""
        return max(self.accuracies, key=lambda step: (self.accuracies[step], step), default=None)

    @property
    def best_accuracy(self) -> float | None:
        return None if self.best_step is None else self.accuracies[self.best_step]


def early_stopping_after(validations: Mapping[int, float], *, stop_after: int, margin: float = 0.0) -> EarlyStopping:
    """The state after these validations, {step: accuracy}, in the order of their steps.

    >>> early_stopping_after({20: 0.5, 10: 0.6}, stop_after=1).has_stopped
    True
    """
    early = EarlyStopping(stop_after, margin)
    for step in sorted(validations):
        early.seen(step, validations[step])
    return early
