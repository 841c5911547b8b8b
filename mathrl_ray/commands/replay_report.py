"""What a replay has found, and what a person sees of it.

Made and called by replay.py. Knows no file and no weight.
"""

from dataclasses import dataclass, field
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
    return not abs(logged - replayed) <= AGREES * max(1.0, abs(logged))


def report(found: Replay) -> None:
    """Print it."""
    print(f"{one_line(found.run)}, {found.stage} step {found.step}")
    print(f"weights: {one_line(found.weights, most=400)}")
    gap = f"{found.logprob_gap_nats:.1e}"
    if found.are_of_the_step:
        print(f"         the batch's log-probs are those that the run saved, to {gap} nats")
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
        table.add_row(name, _number(logged), _number(now), f"{now - logged:.1e}" if now != logged else "0")
    show(table)
    if found.redone:
        print(f"the {len(found.redone)} steps done again differ from the log and the saved log-probs by up to {found.largest_redone:.1e}")
    if found.differing:
        print(
            f"warning: {', '.join(found.differing)}: more than {AGREES:g} from the log. Another machine or other libraries round "
            "otherwise; other settings, or a function that has changed since, compute something else"
        )


def _show_losses(found: Replay) -> None:
    names = ["loss", "grad_norm", "clip_fraction"]
    names += [name for name in ("kl_nats", "correction_weight_mean") if any(name in each["figures"] for each in found.losses)]
    table = number_table("loss", "responses", "tokens", *names)
    for each in found.losses:
        figures = each["figures"]
        counts = [f"{figures.get(name, 0):,.0f}" for name in ("num_responses", "num_response_tokens")]
        table.add_row(one_line(each["name"]), *counts, *[_number(figures[name]) if name in figures else "-" for name in names])
    show(table)


def _show_cosines(found: Replay) -> None:
    names = [one_line(each["name"], most=24, keep_end=True) for each in found.losses if each["figures"]]
    if len(names) < 2:
        return
    table = number_table("cosine of gradients", *names)
    for row, (name, values) in enumerate(zip(names, found.cosines, strict=True)):
        table.add_row(name, *("" if column > row else "-" if value is None else f"{value:.4f}" for column, value in enumerate(values)))
    show(table)


def _number(value: float) -> str:
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.3e}"
