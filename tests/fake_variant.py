"""A run as a sweep sees one, without engines: `python fake_variant.py PLAN` in the place of a variant's process.

Speaks the real protocol (driver/sweep_child.py), and writes what a run writes: recipe.toml, environment.json, metrics.jsonl, a checkpoint
where it is told to stop, summary.json. PLAN is a JSON file: for each variant (by the end of run.name) what it does:

    {"accuracy": 0.4, "validations": [[10, 0.2], [20, 0.3]], "step_s": 0.05, "fails": false, "hangs": false, "until": "a file",
     "prints": ["a line"], "folder_s": 0.0, "settle_s": 0.0, "ended_by": ""}

The last three: before its folder is made, before its engines run, and what ended its last stage.

Each start, end and stop is a line of <root>/diary.txt: what, run.name, run.resume, seconds.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import tomli_w

from mathrl_ray.driver.sweep_child import follow, told_to_run

NUM_PROBLEMS = 100


class Stopped(Exception):  # noqa: N818  # it is a word, not a fault
    pass


class FakeRun:
    def __init__(self, told, plan):
        self.recipe, self.stages = told["recipe"], told["stages"]
        run = self.recipe["run"]
        self.name, self.root = run["name"], Path(run["root"])
        self.plan = next((plan[name] for name in plan if self.name.endswith(name)), {})
        time.sleep(self.plan.get("folder_s", 0.0))  # the work of a run, here and below
        self.folder = Path(run["resume"]) if run["resume"] else self._new_folder()

    def _new_folder(self):
        number = 1
        while (folder := self.root / (self.name if number == 1 else f"{self.name}-{number}")).exists():
            number += 1
        folder.mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        aside = folder / ".recipe"
        aside.write_text(tomli_w.dumps(self.recipe))
        aside.rename(folder / "recipe.toml")
        return folder

    def note(self, what):
        line = f"{what} {self.name} {self.recipe['run']['resume'] or 'new'} {time.monotonic()}\n"
        with (self.root / "diary.txt").open("a") as diary:
            diary.write(line)

    def run(self):
        self.note("begin")
        print(f"0:00  seed {self.recipe['run']['seed']} of {self.name} begins", flush=True)
        for line in self.plan.get("prints", []):
            print(line, flush=True)
        time.sleep(self.plan.get("settle_s", 0.0))
        (self.folder / "environment.json").write_text("{}")
        assert not self.recipe["study"]["seeds"]
        assert set(self.recipe["sweep"]) == {"combine", "seeds", "side_by_side", "end_early", "keep", "seed_sd"}
        if self.plan.get("fails"):
            raise RuntimeError("generator-0 died")
        for step, accuracy in self.plan.get("validations", [[1, 0.5]]):
            time.sleep(self.plan.get("step_s", 0.05))
            row = {"validation_accuracy": accuracy, "validation_num_problems": NUM_PROBLEMS, "validation_num_ungraded": 0}
            with (self.folder / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps({"time_s": 0, "stage": self.stages[-1], "step": step, "policy_version": 0, **row}) + "\n")
        deadline = time.monotonic() + 60
        while self.plan.get("until") and not (self.root / self.plan["until"]).exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # a file that somebody makes wakes nobody
        self.finish()

    def finish(self):
        accuracy = self.plan.get("accuracy", 0.5)
        stages = [
            {"name": stage, "accuracy": accuracy, "ci95": [accuracy - 0.1, accuracy + 0.1], "num_problems": NUM_PROBLEMS, "num_ungraded": 0,
             "generated_tokens": 1000 + self.recipe["run"]["seed"], "device_s": {"learner": 2.0}}
            for stage in self.stages
        ]  # fmt: skip
        if self.plan.get("ended_by"):
            stages[-1]["ended_by"] = self.plan["ended_by"]
        (self.folder / "summary.json").write_text(json.dumps({"stages": stages}))
        self.note("finish")

    def save(self):
        time.sleep(self.plan.get("save_s", 0.0))
        (self.folder / "checkpoints" / f"{self.stages[-1]}-1").mkdir(exist_ok=True)
        self.note("stop")


def main():
    told, line = told_to_run()
    told_s = []

    def on_signal(number, frame):
        told_s.append(time.monotonic())
        if len(told_s) == 1 and not run.plan.get("hangs"):
            raise Stopped

    run = FakeRun(told, json.loads(Path(sys.argv[1]).read_text()))
    signal.signal(signal.SIGTERM, on_signal)
    try:
        follow(line, lambda: time.monotonic() - told_s[0] if told_s else None)
        run.run()
    except Stopped:
        run.save()
        sys.exit(1)


if __name__ == "__main__":
    main()
    os._exit(0)
