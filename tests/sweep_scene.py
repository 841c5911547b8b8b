"""A sweep of made-up runs: a recipe, a plan of what each variant does, and the parent in this process or in one of its own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import mathrl_ray.sweep_job
from mathrl_ray import entry
from mathrl_ray.driver.stopping import Stopping
from mathrl_ray.driver.sweep_room import Needs, Room
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sweep_job import run_sweep
from mathrl_ray.sweep_recipe import planned_runs

HERE = Path(__file__).parent
STAGES = ["sft", "grpo"]


class SweepScene:
    def __init__(self, folder, text, *, room=2, free=None, plan=None):
        self.root, self.room, self.free = folder / "runs", room, free or room
        self.root.mkdir(exist_ok=True)
        self.recipe_file, self.plan_file = folder / "mine.toml", folder / "plan.json"
        self.recipe_file.write_text(text)
        self.does(plan or {})

    def does(self, plan):
        """What each variant does from now on."""
        self.plan_file.write_text(json.dumps(plan))

    def run(self, *overrides, stopping=None):
        """The whole sweep, in this process."""
        overrides = [f"run.root={self.root}", "run.report=false", *overrides]
        runs, _ = planned_runs(self.recipe_file, overrides, STAGES)
        command = [sys.executable, str(HERE / "fake_variant.py"), str(self.plan_file)]
        recipe = load_recipe(self.recipe_file, overrides)
        run_sweep(
            recipe, STAGES, runs, stopping or Stopping(), command=command, look=self._look, connection=lambda *_: contextlib.nullcontext({})
        )

    def _look(self, recipe, runs, stages):
        there, free = {"CPU": float(self.room)}, {"CPU": float(self.free)}
        return {run.name: Needs(1) for run in runs}, Room(lambda: there, lambda: free, side_by_side=recipe.sweep.side_by_side)

    def start(self, *overrides):
        """The sweep in a process of its own."""
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import sweep_scene; sweep_scene.main(sys.argv[1:])"
        arguments = [str(self.recipe_file.parent), str(self.room), *overrides]
        return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def diary(self, what):
        """Names of the runs that began, finished or stopped, in order, without the sweep's own."""
        path = self.root / "diary.txt"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [name.removeprefix("mine-") for kind, name, *_ in lines if kind == what]

    def times_s(self, what):
        """Of the same lines."""
        lines = [line.split() for line in (self.root / "diary.txt").read_text().splitlines()]
        return [float(second) for kind, *_, second in lines if kind == what]

    def most_at_once(self):
        at_once = most = 0
        for line in (self.root / "diary.txt").read_text().splitlines():
            at_once += {"begin": 1, "finish": -1, "stop": -1}[line.split()[0]]
            most = max(most, at_once)
        return most

    def entries(self, folder="mine"):
        return json.loads((self.root / folder / "sweep.json").read_text())["variants"]

    def statuses(self):
        return {entry["name"]: entry["status"] for entry in self.entries()}

    def summary(self):
        return json.loads((self.root / "mine" / "summary.json").read_text())

    def until(self, holds, limit_s=60):
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, (self.diary("begin"), self.statuses())
            time.sleep(0.02)  # files of other processes wake nobody


def main(arguments):
    """The parent's process: as entry.py runs it."""
    folder, room, *overrides = arguments
    scene = SweepScene.__new__(SweepScene)
    scene.root, scene.room = Path(folder) / "runs", int(room)
    scene.free = scene.room
    scene.recipe_file, scene.plan_file = Path(folder) / "mine.toml", Path(folder) / "plan.json"

    def run(recipe, stages, runs, stopping):
        scene.run(*overrides, stopping=stopping)

    mathrl_ray.sweep_job.run_sweep = run
    recipe_file = str(scene.recipe_file)
    os._exit(entry.main("study", [recipe_file, f"run.root={scene.root}", f"study.stages={STAGES}", *overrides]))


def count(names):
    return dict(Counter(names))
