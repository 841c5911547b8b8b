"""All figures of a report, in the order in which they are shown. Called by the page, the export, and for a progress bar's length."""

from collections.abc import Sequence

from mathrl_ray.report.curve_figures import curve_figures
from mathrl_ray.report.figure import Figure
from mathrl_ray.report.lanes import lane_figures
from mathrl_ray.report.result_figures import result_figures
from mathrl_ray.report.run_data import RunData

_last: tuple[list[RunData], list[Figure]] = ([], [])
"""Of one report several parts ask, and the points of 20 long runs take seconds to gather."""


def figures(runs: Sequence[RunData]) -> list[Figure]:
    """Every figure that the runs have data for: results of stages, curves, levels and subjects, outcomes and lengths, lanes."""
    global _last
    if len(runs) != len(_last[0]) or any(one is not other for one, other in zip(runs, _last[0], strict=True)):
        _last = (list(runs), _made(runs))
    return list(_last[1])


def _made(runs: Sequence[RunData]) -> list[Figure]:
    found = result_figures(runs)
    stages = [figure for figure in found if figure.group == "stages"]
    rest = [figure for figure in found if figure.group != "stages"]
    return [*stages, *curve_figures(runs), *rest, *lane_figures(runs)]
