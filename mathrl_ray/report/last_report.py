"""The report that a job leaves in its folder when it has ended well.

Called by job.py and sweep_job.py after their engines have ended, and before the mirror's last look. What draws is imported here only: a
job that makes no report does not wait for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path


async def write_report(folders: Sequence[Path], output: Path, say: Callable[[str], None]) -> None:
    """Write the page of runs, all of which are done. Never fails: a run is not lost for want of its picture; what went wrong is said."""
    try:
        await asyncio.to_thread(_write, folders, output)
    except Exception as error:  # border: whatever it is, the results are there, and the report can be made again
        say(f"warning: no report: {type(error).__name__}: {error}. Try `python -m mathrl_ray report {folders[0]}`")
    else:
        say(f"report {output}")


def _write(folders: Sequence[Path], output: Path) -> None:
    from mathrl_ray.report.page import write_page
    from mathrl_ray.report.run_data import read_runs

    write_page(read_runs(folders, have_ended=True), output)  # although this job still holds their locks
