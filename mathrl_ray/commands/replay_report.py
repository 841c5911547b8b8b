"""What a replay has found, and what a person sees of it.

Made and called by replay.py. Knows no file and no weight.
"""

from dataclasses import dataclass, field
from math import inf, isinf, isnan
from typing import Any

from mathrl_ray.commands.display import number_table, show
from mathrl_ray.core.one_line import one_line

AGREES = 1e-5
"""Relative to max(1, |value|): more than this between a figure and the log is said."""


@dataclass(frozen=True, slots=True)
class Replay:
    """All that is found."""

    run: str
    stage: str
    step: int
    weights: str
    are_of_the_step: bool
    """False with --weights: then nothing here is to equal the log."""
    logprob_gap_nats: float
    largest_gap_nats: float
    """Up to which it is taken for the step's own weights."""
    redone: dict[int, dict[str, float]]
    """Of each step that was done again: how far its loss, grad_norm, clip_fraction were from the log, and its logprob_gap_nats."""
    logged: dict[str, float]
    """The step's row of metrics.jsonl."""
    replayed: dict[str, float]
    """The same figures now, by the run's own loss."""
    losses: list[dict[str, Any]]
    cosines: list[list[float | None]]
    """Between those of `losses` that train on anything, in their order."""
    remarks: list[str] = field(default_factory=list)
    """What a person must know of it."""

    @property
    def largest_redone(self) -> float:
        """How far the steps that were done again were from the log, at most."""
        return max((value for differences in self.redone.values() for value in differences.values()), default=0.0)

    @property
    def differing(self) -> list[str]:
        """Names of the figures that are not the logged ones."""
        return [name for name, logged in self.logged.items() if differs(logged, self.replayed[name])] if self.are_of_the_step else []


def differs(logged: float, replayed: float) -> bool:
    """Whether a figure is further from the log than rounding takes it.

    >>> differs(0.5, 0.500001), differs(0.5, 0.51)
    (False, True)
    """
    gap = difference(logged, replayed)
    return isinf(gap) or gap > AGREES * max(1.0, abs(logged))


def difference(logged: float, replayed: float) -> float:
    """How far a figure is from the log: 0 where both are no number, as of a skipped update; infinite where one of them is.

    >>> difference(0.25, 0.5), difference(float("nan"), float("nan")), difference(0.5, float("nan"))
    (0.25, 0.0, inf)
    """
    if logged == replayed or (isnan(logged) and isnan(replayed)):
        return 0.0
    gap = abs(logged - replayed)
    return inf if isnan(gap) else gap


def report(found: Replay) -> None:
    """Print it."""
    print(f"{one_line(found.run)}, {found.stage} step {found.step}")
    print(f"weights: {one_line(found.weights, most=400)}")
    gap = f"{found.logprob_gap_nats:.1e}"
    if found.are_of_the_step:
        print(f"         the batch's log-probs differ from those that the run saved by up to {gap} nats (limit {found.largest_gap_nats:g})")
        _show_log(found)
    else:
        print(
            f"         they are not those of the step (the batch's log-probs differ by up to {gap} nats from what the run saved): no figure"
        )
        print("         here is to equal the log, and the whole batch is taken as one update")
    _show_losses(found)
    _show_cosines(found)
    for remark in found.remarks:
        print(f"warning: {remark}")


def _show_log(found: Replay) -> None:
    table = number_table("the run's own loss", "in metrics.jsonl", "replayed", "difference")
    for name, logged in found.logged.items():
        now = found.replayed[name]
        gap = difference(logged, now)
        table.add_row(name, _number(logged), _number(now), f"{gap:.1e}" if gap else "0")
    show(table)
    if found.redone:
        again = "the step done again differs" if len(found.redone) == 1 else f"the {len(found.redone)} steps done again differ"
        print(f"{again} from the log and the saved log-probs by up to {found.largest_redone:.1e}")
    if found.differing:
        print(
            f"warning: {', '.join(found.differing)}: more than {AGREES:g} from the log. Another machine or other libraries round "
            "otherwise; other settings, or a function that has changed since, compute something else"
        )


def _show_losses(found: Replay) -> None:
    names = ["loss", "grad_norm", "clip_fraction"]
    names += [name for name in ("kl_nats", "correction_weight_mean") if any(name in each["figures"] for each in found.losses)]
    table = number_table("loss", "responses", "tokens", *names)
    for number, each in enumerate(found.losses, 1):
        figures = each["figures"]
        counts = [f"{figures.get(name, 0):,.0f}" for name in ("num_responses", "num_response_tokens")]
        values = [_number(figures[name]) if name in figures else "-" for name in names]
        table.add_row(f"{number} {one_line(each['name'])}", *counts, *values)
    show(table)


def _show_cosines(found: Replay) -> None:
    """By the losses' numbers, so that seven of them have room on a terminal of 80 columns."""
    named = [(number, each["name"]) for number, each in enumerate(found.losses, 1) if each["figures"]]
    if len(named) < 2:
        return
    print("cosines of the gradients")
    table = number_table("", *(str(number) for number, _ in named))
    table.box, table.padding = None, (0, 2, 0, 0)
    for row, ((number, name), values) in enumerate(zip(named, found.cosines, strict=True)):
        shown = ("" if column > row else "-" if value is None else f"{value:.3f}" for column, value in enumerate(values))
        table.add_row(f"{number} {one_line(name, most=18, keep_end=True)}", *shown)
    show(table)


def _number(value: float) -> str:
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.3e}"
