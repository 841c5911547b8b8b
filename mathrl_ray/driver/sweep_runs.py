"""The loop of a sweep: start variants where there is room, show what they say, end hopeless ones, note how each ends.

    every TICK_S   ended processes -> their status   logs -> console   metrics -> who ends early   room -> the next ones start

Called by sweep_job.py. Knows processes and the sweep's folder; knows no Ray (room is asked) and no engine. It looks again and again, since
neither a file that grows nor free CPUs wake anybody. First seeds of all settings start first: then a rung has something to compare, and a
sweep that is stopped half-way has one run of each. A wait for room has no limit, on a cluster that others use; it is said now and then.
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mathrl_ray.driver.stopping import FORCE_LIMIT_S
from mathrl_ray.driver.sweep_child import COMMAND, Child
from mathrl_ray.driver.sweep_folder import DONE, Entry, SweepFolder, finished_stages, folders_named
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
NUM_LAST_LINES = 5
_STEP_LINE = re.compile(r" step \d+/(\d+) ")


@dataclass
class _Work:
    """A variant whose process runs."""

    child: Child
    needs: Needs
    before: frozenset[Path]
    """Run directories of its name that were there before."""
    has_folder: bool = False
    """Whether its run directory is known."""
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
    command: Sequence[str] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)
    """That the runs get on top of this process's: where Ray is."""
    is_stopping: bool = False
    _working: dict[str, _Work] = field(default_factory=dict)
    _validations: dict[str, Validations] = field(default_factory=dict)
    _orphaned_s: dict[str, float] = field(default_factory=dict)
    _waited_s: float = 0.0

    async def work(self) -> None:
        """Until every variant has ended."""
        self._take_what_is_finished()
        while True:
            self._tick()
            if not self._working and (self.is_stopping or not self._waiting()):
                return
            await asyncio.sleep(TICK_S)

    async def stop(self) -> None:
        """Tell all runs to save and to end, and wait for it; no other begins. While `work` goes on."""
        self.is_stopping, until = True, time.monotonic() + END_LIMIT_S
        for work in self._working.values():
            work.child.stop()
        while self._working and time.monotonic() < until:
            self._tick()
            await asyncio.sleep(0.1)
        for name, work in self._working.items():
            self.say(f"warning: {name} did not end within {END_LIMIT_S:g} s of being told to: it is ended by force")
            work.child.kill()
            work.child.close()
            self.folder.note(name, "stopped")
        self._working.clear()

    def _tick(self) -> None:
        for name, work in list(self._working.items()):
            status = work.child.status  # before its last lines are read
            self._find_folder(name, work)
            self._show(name, work)
            if status is not None:
                self._ended(name, work, status)
        if not self.is_stopping:
            self._end_hopeless()
            self._start_what_fits()

    # Begin and end

    def _take_what_is_finished(self) -> None:
        """What had finished when its sweep was killed before it could note that."""
        for entry in self.folder.entries:
            if entry.status not in DONE and self._is_finished(entry):
                self.folder.note(entry.name, "finished")

    def _is_finished(self, entry: Entry) -> bool:
        return [stage["name"] for stage in finished_stages(entry.folder)] == list(self.stages)

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
        folder = self.folder.entry(name).folder
        age_s = time.monotonic() - work.child.began_s
        with suppress(OSError):
            return bool(folder) and time.time() - (Path(folder) / "environment.json").stat().st_mtime < age_s
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
        resume = entry.folder if _can_go_on(entry.folder) else ""
        recipe = run.recipe.model_copy(update={"run": run.recipe.run.model_copy(update={"name": name, "resume": resume})})
        message = {"stages": list(self.stages), "recipe": recipe.model_dump(mode="json"), "search_path": sys.path}
        before = self._folders(run.name)
        try:
            child = Child(self.command, message, self.folder.log(run.name), lock, self.environment)
        except OSError as error:
            self._fail(run.name, f"could not be started: {error}")
            return
        self._working[run.name] = _Work(child, self.needs[run.name], before, has_folder=bool(resume))
        self.folder.note(run.name, "running")
        self.say(f"{run.name}: {'goes on' if resume else 'begins'} ({self._count_text()})")

    def _wait_for_orphan(self, name: str) -> None:
        now_s = time.monotonic()
        if name not in self._orphaned_s:
            self._orphaned_s[name] = now_s
            self.say(f"{name} waits for the end of its process of an earlier start, which saves what it has")
        elif now_s - self._orphaned_s[name] > ORPHAN_LIMIT_S:
            self._fail(name, f"its process of an earlier start has not ended in {ORPHAN_LIMIT_S:g} s: end it, and start the sweep again")

    def _find_folder(self, name: str, work: _Work) -> None:
        """Note where a run is, once it has made its directory."""
        if not work.has_folder and (found := self._folders(name) - work.before):
            work.has_folder, entry = True, self.folder.entry(name)
            self.folder.note(name, entry.status, entry.reason, folder=max(found, key=lambda folder: (len(folder.name), folder.name)))

    def _folders(self, name: str) -> frozenset[Path]:
        """The run directories that a variant's runs may have made."""
        try:
            return frozenset(folders_named(self.root, run_name(self.folder.folder.name, name)))
        except (OSError, ValueError):  # damaged by somebody: the run itself will say what it thinks of that
            return frozenset()

    def _ended(self, name: str, work: _Work, status: int) -> None:
        work.child.close()
        del self._working[name]
        entry = self.folder.entry(name)
        if self._is_finished(entry):
            self.folder.note(name, "finished")
            self.say(f"{name}: finished ({self._count_text()})")
        elif work.ends_early:
            self.say(f"{name}: has ended early ({self._count_text()})")
        elif self.is_stopping:
            self.folder.note(name, "stopped")
        else:
            stages = "" if status else f", but its summary lacks stages of {', '.join(self.stages)}"
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}{stages}"
            self._fail(name, " | ".join([how, *work.last_lines]))

    def _fail(self, name: str, reason: str) -> None:
        self.folder.note(name, "failed", reason)
        self.say(f"warning: {name} failed; the others go on. {reason.partition(' | ')[0]}; all that it said: {self.folder.log(name)}")

    def _count_text(self) -> str:
        number = {status: sum(entry.status == status for entry in self.folder.entries) for status in ("finished", "running", "waiting")}
        return ", ".join(f"{count} {status}" for status, count in number.items() if count)

    # What they say

    def _show(self, name: str, work: _Work) -> None:
        for line in filter(None, work.child.lines()):
            work.last_lines = [*work.last_lines, line][-NUM_LAST_LINES:]
            if _STEP_LINE.search(line) and time.monotonic() - work.shown_s < STEP_LINE_EVERY_S:
                continue
            if _STEP_LINE.search(line):
                work.shown_s = time.monotonic()
            self.say(f"{name} | {line}")

    # Who ends early

    def _end_hopeless(self) -> None:
        for setting, numbers in hopeless([self._look(run) for run in self.runs], self.keep).items() if self.rungs else ():
            self.say(f"{setting} ends early, being clearly behind: {numbers}")
            for run in self.runs:
                if run.setting == setting and self.folder.entry(run.name).status in ("waiting", "running"):
                    self.folder.note(run.name, "ended_early", numbers)
                    if run.name in self._working:
                        self._working[run.name].ends_early = True
                        self._working[run.name].child.stop()

    def _look(self, run: PlannedRun) -> Look:
        entry, rungs = self.folder.entry(run.name), self.rungs[run.name]
        seen = self._validations.setdefault(run.name, Validations(rungs.stage))
        if entry.folder and (entry.status == "running" or not seen.by_step):
            seen.read(Path(entry.folder))
        return Look(entry.setting, rungs, entry.status in ("waiting", "running"), entry.status == "running", seen.by_step)


def _can_go_on(folder: str) -> bool:
    """Whether a run left something to go on from."""
    return bool(folder) and (bool(finished_stages(folder)) or any((Path(folder) / "checkpoints").glob("[!.]*")))
