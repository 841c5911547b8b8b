"""The tables of the report, in the order in which they are shown.

Called by the page and by the export. Knows RunData; the statistics are in core/, the numbers those that the run has written.
"""

from collections.abc import Sequence

from mathrl_ray.report.lanes import idle_table
from mathrl_ray.report.part_tables import (
    at_k_table,
    comparisons_table,
    graders_table,
    guards_table,
    outcomes_table,
    parts_table,
    prompts_table,
)
from mathrl_ray.report.results import results
from mathrl_ray.report.run_data import RunData
from mathrl_ray.report.seed_groups import seed_groups
from mathrl_ray.report.settings_diff import differences_tables
from mathrl_ray.report.stage_table import known_results_table, stages_table
from mathrl_ray.report.table import Cell, Table

__all__ = ["Cell", "Table", "tables"]


def tables(runs: Sequence[RunData]) -> list[Table]:
    """Those that there is something to say in; what others report comes with the stages."""
    found = results(runs, seed_groups(runs))
    made = [
        *((stages_table(runs, found), known_results_table(runs, found)) if found else ()),
        comparisons_table(runs),
        prompts_table(runs, found),
        graders_table(runs, found),
        parts_table(runs, found, "level"),
        parts_table(runs, found, "subject"),
        outcomes_table(runs, found),
        at_k_table(runs, found),
        idle_table(runs),
        guards_table(runs),
        *differences_tables(runs),
    ]
    return [table for table in made if table and table.rows]
