"""The figures of results. Called by figures.py.

One run: all its stages. Several: all stages of each in the first figure; in the others the last stage of each run that has ended, since
levels by stages by runs are more than an eye can compare.
"""

from collections.abc import Sequence

from mathrl_ray.report.figure import Figure
from mathrl_ray.report.part_figures import part_figure
from mathrl_ray.report.response_figures import lengths_figure, outcomes_figure
from mathrl_ray.report.result_axes import chosen_results
from mathrl_ray.report.results import results
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import seed_groups
from mathrl_ray.report.stage_figure import stages_figure


def result_figures(runs: Sequence[RunData]) -> list[Figure]:
    """Those that there are results for: stages, by level, by subject, outcomes, lengths."""
    groups = seed_groups(runs)
    found = results(runs, groups)
    if not found:
        return []
    chosen = chosen_results(runs, found)
    made = [part_figure(runs, chosen, "level"), part_figure(runs, chosen, "subject"), outcomes_figure(runs, chosen)]
    return [figure for figure in (stages_figure(runs, groups, found), *made, lengths_figure(runs, chosen)) if figure]
