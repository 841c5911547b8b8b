"""How long a report of many runs takes: 20 made-up runs of four stages, 1,000 steps each of 20 spans, as one page.

`python tests/benchmarks/report_speed.py` takes about 40 s, half of it for writing the runs. What has a limit is a report: 30 s from the
directories to the page, which must stay under 10 MB.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from made_up_runs import recipe_with, write_run
from rich.console import Console
from rich.table import Table

from mathrl_ray.report.figures import figures
from mathrl_ray.report.page import write_page
from mathrl_ray.report.run_data import read_runs
from mathrl_ray.report.tables import tables

NUM_RUNS, NUM_STEPS = 20, 1000
TARGET_S, TARGET_MB = 30.0, 10.0


def write_runs(root: Path) -> list[Path]:
    """Four settings of five seeds each."""
    made = []
    for place in range(NUM_RUNS):
        setting, seed = divmod(place, 5)
        recipe = recipe_with(run__seed=seed, grpo__learning_rate=1e-4 * (setting + 1), grpo__num_steps=NUM_STEPS)
        folder = root / f"rate-{setting}-seed-{seed}"
        made.append(write_run(folder, seed=place, num_steps=NUM_STEPS, recipe=recipe, num_problems=1000, validate=50))
    return made


def timed(label: str, work, times: dict[str, float]):
    began = time.perf_counter()
    result = work()
    times[label] = time.perf_counter() - began
    return result


def main() -> int:
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = write_runs(Path(name))
        output = Path(name) / "report.html"
        runs = timed("read the runs", lambda: read_runs(folders), times)
        num_figures = len(timed("decide on the figures", lambda: figures(runs), times))
        num_tables = len(timed("make the tables", lambda: tables(runs), times))
        timed("write the page", lambda: write_page(runs, output), times)
        size_mb = output.stat().st_size / 1e6
    whole_s = sum(times.values())  # the page finds the figures and evaluations as the parts before it have left them
    table = Table(title=f"{NUM_RUNS} runs x {NUM_STEPS} steps: {num_figures} figures, {num_tables} tables, page of {size_mb:.1f} MB")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    for label, seconds in times.items():
        table.add_row(label, f"{seconds:.1f}")
    Console().print(table)
    ok = whole_s <= TARGET_S and size_mb <= TARGET_MB
    figure = {"page_s": round(whole_s, 1), "size_mb": round(size_mb, 2)}
    print(json.dumps({"name": "report_speed", "figure": figure, "target": {"page_s": TARGET_S, "size_mb": TARGET_MB}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
