"""The loop of a sweep: start variants where there is room, show what they say, end hopeless ones, note how each ends.

    every TICK_S   ended processes -> their status   logs -> console   metrics -> who ends early   room -> the next ones start

Called by sweep_job.py. Knows processes and the sweep's folder; knows no Ray (room is asked) and no engine. It looks again and again, since
neither a file that grows nor free CPUs wake anybody. First seeds of all settings start first: then a rung has something to compare, and a
sweep that is stopped half-way has one run of each. A wait for room has no limit, on a cluster that others use; it is said now and then.
That the machines could never give it is refused before (sweep_job.py).
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mathrl_ray.core.sweep import SEED_SD
from mathrl_ray.driver.stopping import FORCE_LIMIT_S
from mathrl_ray.driver.sweep_child import COMMAND, NUM_LAST_LINES, Child
from mathrl_ray.driver.sweep_folder import Status, SweepFolder, free_folder
from mathrl_ray.driver.sweep_judge import Look, Rungs, Validations, hopeless
from mathrl_ray.driver.sweep_room import Claim, Needs, Room
from mathrl_ray.sweep_recipe import PlannedRun, run_name

TICK_S = 0.5
END_LIMIT_S = FORCE_LIMIT_S - 2.0
"""What the runs get to save and end, from the signal; then they are ended by force, before this process is."""
ORPHAN_LIMIT_S = 90.0
"""How long a variant may wait for the end of its own process of an earlier start, which saves when its sweep is gone."""
STEP_LINE_EVERY_S = 10.0
"""A run's own log has all of them."""
WAITING_LINE_EVERY_S = 300.0
_STEP_LINE = re.compile(r" step \d+/(\d+) ")


@dataclass
class _Work:
    """A variant whose process runs."""

    child: Child
    needs: Needs
    shown_s: float = 0.0
    last_lines: list[str] = field(default_factory=list)
    ends_early: bool = False


@dataclass
class SweepRuns:
    """The runs of one sweep."""

    folder: SweepFolder
    runs: Sequence[PlannedRun]
    stages: Sequence[str]
    root: Path
    room: Room
    needs: Mapping[str, Needs]
    """Of each variant."""
    say: Callable[[str], None]
    rungs: Mapping[str, Rungs] = field(default_factory=dict)
    """Of each variant; empty where nothing ends early."""
    keep: float = 0.5
    seed_sd: float = SEED_SD
    command: Sequence[str] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)
    """That the runs get on top of this process's: where Ray is."""
    is_stopping: bool = False
    _working: dict[str, _Work] = field(default_factory=dict)
    _validations: dict[str, Validations] = field(default_factory=dict)
    _orphaned_s: dict[str, float] = field(default_factory=dict)
    _waited_s: float = 0.0
    _cannot_note: bool = False

    async def work(self) -> None:
        """Until every variant has ended."""
        while True:
            self._tick()
            if not self._working and (self.is_stopping or not self._waiting()):
                return
            await asyncio.sleep(TICK_S)  # neither files that grow nor free CPUs wake anybody

    async def stop(self) -> None:
        """Tell all runs to save and to end, and wait for it; no other begins. While `work` goes on, or where it has failed."""
        self.is_stopping, until = True, time.monotonic() + END_LIMIT_S
        for work in self._working.values():
            work.child.stop()
        while self._working and time.monotonic() < until:
            self._tick()
            await asyncio.sleep(0.1)  # as above, and shorter: somebody waits for the end
        for name, work in self._working.items():
            self.say(f"warning: {name} did not end within {END_LIMIT_S:g} s of being told to: it is ended by force")
            work.child.kill()
            work.child.close()
            self._note(name, "stopped")
        self._working.clear()

    def _tick(self) -> None:
        for name, work in list(self._working.items()):
            status = work.child.status  # before its last lines are read
            self._show(name, work)
            if status is not None:
                self._ended(name, work, status)
        if not self.is_stopping:
            self._end_hopeless()
            self._start_what_fits()

    # Begin and end

    def _note(self, name: str, status: Status, reason: str = "", *, folder: Path | None = None) -> None:
        """
        Raises:
            OSError: sweep.json cannot be written, and this does not stop already for such a reason.
        """
        try:
            self.folder.note(name, status, reason, folder=folder)
        except OSError as error:
            if not self.is_stopping:
                raise
            if not self._cannot_note:
                self.say(f"warning: sweep.json could not be written: {error}; what has become of {name} is in its own folder")
            self._cannot_note = True

    def _waiting(self) -> list[PlannedRun]:
        """That have not begun, the first seed of each setting first."""
        place: dict[str, int] = {}
        seen: dict[str, int] = {}
        for run in self.runs:
            place[run.name] = seen.get(run.setting, 0)
            seen[run.setting] = place[run.name] + 1
        waiting = [run for run in self.runs if self.folder.entry(run.name).status == "waiting"]
        return sorted(waiting, key=lambda run: place[run.name])

    def _start_what_fits(self) -> None:
        for run in self._waiting():
            if not self.room.fits(self.needs[run.name], self._claims()):
                self._say_that_it_waits(run)
                return  # no other before it, or a large one would never begin
            self._start(run)

    def _claims(self) -> list[Claim]:
        return [Claim(work.needs, self._has_settled(name, work)) for name, work in self._working.items()]

    def _has_settled(self, name: str, work: _Work) -> bool:
        """Whether its engines run: a run writes environment.json then."""
        facts = self.folder.place(self.folder.entry(name)) / "environment.json"
        with suppress(OSError):
            return time.time() - facts.stat().st_mtime < time.monotonic() - work.child.began_s
        return False

    def _say_that_it_waits(self, run: PlannedRun) -> None:
        now_s = time.monotonic()
        if not self._working and now_s - self._waited_s > WAITING_LINE_EVERY_S:
            free = self.room.free()
            there = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
            self.say(f"{run.name} waits for room on the cluster: it needs {self.needs[run.name].text}, and {there}")
            self._waited_s = now_s

    def _start(self, run: PlannedRun) -> None:
        lock = self.folder.lock(run.name)
        if lock is None:
            self._wait_for_orphan(run.name)
            return
        name, entry = run_name(self.folder.folder.name, run.name), self.folder.entry(run.name)
        resume = str(self.folder.place(entry)) if self.folder.can_go_on(entry) else ""
        recipe = run.recipe.model_copy(update={"run": run.recipe.run.model_copy(update={"name": name, "resume": resume})})
        message = {"stages": list(self.stages), "recipe": recipe.model_dump(mode="json"), "search_path": sys.path}
        # Before it is started: else one whose sweep is killed right after would be lost.
        self._note(run.name, "running", folder=Path(resume) if resume else free_folder(self.root, name))
        try:
            child = Child(self.command, message, self.folder.log(run.name), lock, self.environment)
        except OSError as error:
            self._fail(run.name, f"could not be started: {error}")
            return
        self._working[run.name] = _Work(child, self.needs[run.name])
        self.say(f"{run.name}: {'goes on' if resume else 'begins'} ({self._count_text()})")

    def _wait_for_orphan(self, name: str) -> None:
        now_s = time.monotonic()
        if name not in self._orphaned_s:
            self._orphaned_s[name] = now_s
            self.say(f"{name} waits for the end of its process of an earlier start, which saves what it has")
        elif now_s - self._orphaned_s[name] > ORPHAN_LIMIT_S:
            self._fail(name, f"its process of an earlier start has not ended in {ORPHAN_LIMIT_S:g} s: end it, and start the sweep again")

    def _ended(self, name: str, work: _Work, status: int) -> None:
        work.child.close()
        del self._working[name]
        done = self.folder.stages_of(self.folder.entry(name))
        if self.folder.is_finished(self.folder.entry(name)):
            self._note(name, "finished")
            self.say(f"{name}: finished ({self._count_text()})")
        elif work.ends_early:
            self.say(f"{name}: has ended early ({self._count_text()})")
        elif self.is_stopping:
            self._note(name, "stopped")
        elif status == 0 and [stage["name"] for stage in done] == list(self.stages):
            reason = f"run.max_hours ended {self.stages[-1]} before its last step; with run.resume it goes on"
            self._note(name, "stopped", reason)
            self.say(f"{name}: {reason} ({self._count_text()})")
        else:
            stages = "" if status else f", but its summary lacks stages of {', '.join(self.stages)}"
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}{stages}"
            self._fail(name, " | ".join([how, *work.last_lines]))

    def _fail(self, name: str, reason: str) -> None:
        self._note(name, "failed", reason)
        self.say(f"warning: {name} failed; the others go on. {reason.partition(' | ')[0]}; all that it said: {self.folder.log(name)}")

    def _count_text(self) -> str:
        number = {status: sum(entry.status == status for entry in self.folder.entries) for status in ("finished", "running", "waiting")}
        return ", ".join(f"{count} {status}" for status, count in number.items() if count)

    # What they say

    def _show(self, name: str, work: _Work) -> None:
        for line in work.child.lines():
            work.last_lines = [*work.last_lines, line][-NUM_LAST_LINES:]
            if _STEP_LINE.search(line) and time.monotonic() - work.shown_s < STEP_LINE_EVERY_S:
                continue
            if _STEP_LINE.search(line):
                work.shown_s = time.monotonic()
            self.say(f"{name} | {line}")

    # Who ends early

    def _end_hopeless(self) -> None:
        for setting, numbers in hopeless([self._look(run) for run in self.runs], self.keep, self.seed_sd).items() if self.rungs else ():
            self.say(f"{setting} ends early, being clearly behind: {numbers}")
            for run in self.runs:
                if run.setting == setting and self.folder.entry(run.name).status in ("waiting", "running"):
                    self._note(run.name, "ended_early", numbers)
                    if run.name in self._working:
                        self._working[run.name].ends_early = True
                        self._working[run.name].child.stop()

    def _look(self, run: PlannedRun) -> Look:
        entry, rungs = self.folder.entry(run.name), self.rungs[run.name]
        seen = self._validations.setdefault(run.name, Validations(rungs.stage))
        if entry.folder and (entry.status == "running" or not seen.by_step):
            seen.read(self.folder.place(entry))
        return Look(entry.setting, rungs, entry.status in ("waiting", "running"), entry.status == "running", seen.by_step, seen.consumed)
