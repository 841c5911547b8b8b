"""The validation guard: is the accuracy below its best by more than chance? Called by guard_rules.py. Pure."""

from math import sqrt

from mathrl_ray.core.guard_sign import Sign
from mathrl_ray.guard_section import GuardsSection

ACCURACY = "validation_accuracy"
CLEAR_DEVIATIONS = 1.0
"""Below the best by no more than this, the weights are as good as the best ones."""


def standard_error(first: float, second: float, num_first: int, num_second: int) -> float:
    """Of the difference of two accuracies that are in truth the same: sqrt(p (1 - p) (1/n + 1/m)), p from both together.

    Two successes and two failures are added to both together, as Agresti and Coull (1998) do to one: 20 of 20 is no proof of 1.0. The same
    problems are asked both times, which makes the true error smaller; what is left is on the side of no alarm.

    >>> round(standard_error(0.5, 0.5, 500, 500), 4)
    0.0316
    """
    num_right, total = first * num_first + second * num_second, num_first + num_second
    rate = (num_right + 2) / (total + 4)
    return sqrt(rate * (1 - rate) * (1 / num_first + 1 / num_second))


class Validations:
    """The validations of a stage so far, and the best of them."""

    def __init__(self, settings: GuardsSection) -> None:
        self._settings = settings
        self._best: tuple[float, int] | None = None
        self._best_step = 0

    def read(self, step: int, accuracy: float, num_problems: int) -> Sign | None:
        """What the newest one says against the best before; None for the first, or where nothing was graded.

        Bad: lower by more than validation_deviations standard errors. The best of many is the best by chance too, so that 3 errors of the
        difference are about 2.4 of the present one; `guards.validation_patience` (2) such validations in a row are asked for. Of simulated
        plateaus of 20 validations each about 1 in 100 gives an alarm, 1.4 in 100 at most, with 20 problems as with 500 (tests).
        """
        if num_problems < 1:
            return None
        if self._best is None:
            self._best, self._best_step = (accuracy, num_problems), step
            return None
        best, num_best = self._best
        error = standard_error(best, accuracy, num_best, num_problems)
        limit = best - self._settings.validation_deviations * error
        sign = Sign(
            ACCURACY,
            accuracy,
            limit,
            is_bad=accuracy < limit,
            is_clear=accuracy >= best - CLEAR_DEVIATIONS * error,
            seen=(
                f"validation accuracy {accuracy:.3f} on {num_problems} problems is below the best, {best:.3f} at step {self._best_step}, "
                f"by more than chance (limit {limit:.3f})"
            ),
            meaning="the policy overfits or unlearns",
        )
        if accuracy > best:
            self._best, self._best_step = (accuracy, num_problems), step
        return sign
