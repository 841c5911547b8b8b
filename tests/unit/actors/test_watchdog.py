"""What a watchdog removes when its process is gone, with real processes and real files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cluster.processes import started_with
from cluster.stopping import MARK, _kill

ACTOR = """
import json, os, subprocess, sys, time
from mathrl_ray.actors.watchdog import Watchdog
prefix, folder, then = sys.argv[1:]
before = subprocess.Popen(["sleep", "600"])
watchdog = Watchdog(patterns=[f"{prefix}-*"], folders=[folder])
environment = {**os.environ, "VLLM_RPC_BASE_PATH": folder}
engine = subprocess.Popen([sys.executable, "-c", open(os.environ["ENGINE"]).read()], stdout=subprocess.PIPE, text=True, env=environment)
block = engine.stdout.readline().strip()
if "note" in then:
    watchdog.note()
if "dismiss" in then:
    watchdog.dismiss()
open(f"{prefix}-weights", "w").close()
print(json.dumps([before.pid, engine.pid, block]), flush=True)
time.sleep(600)
"""
ENGINE = """
from multiprocessing import resource_tracker
resource_tracker.register = lambda *_: None
from multiprocessing.shared_memory import SharedMemory
import os, signal, socket, time
memory = SharedMemory(create=True, size=4096)
more = []
def make_more(*_):
    more.append(SharedMemory(create=True, size=4096))
    open(os.environ["ENGINE"] + ".more", "w").write("/dev/shm/" + more[-1].name + "\\n")
signal.signal(signal.SIGUSR1, make_more)
line = socket.socket(socket.AF_UNIX)
line.bind(os.environ["VLLM_RPC_BASE_PATH"] + "/line")
print("/dev/shm/" + memory.name, flush=True)
while True:
    time.sleep(600)
"""


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def watchdogs_of(pid):
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "mathrl_ray.actors.watchdog" in (words := process.info["cmdline"] or []) and str(pid) in words
    ]


def within(seconds, holds):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)  # the watchdog is nobody's child here, and tells nobody what it has removed
    return holds()


class Actor:
    """A process that has a watchdog, a child from before it, an engine with shared memory and a socket, and published weights."""

    def __init__(self, folder, then):
        self.prefix, self.sockets = str(folder / "mathrl-weights-1"), folder / "mathrl-sockets"
        self.sockets.mkdir()
        (folder / "engine.py").write_text(ENGINE)
        command = [sys.executable, "-c", ACTOR, self.prefix, str(self.sockets), then]
        self.head, self.more = str(folder / "head"), folder / "engine.py.more"
        environment = {**os.environ, "ENGINE": str(folder / "engine.py"), "MATHRL_HEAD": self.head}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.before, self.engine, block = json.loads(self.process.stdout.readline())
        self.block, self.weights = Path(block), Path(f"{self.prefix}-weights")

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait()

    @property
    def has_left(self):
        return [what for what in (self.block, self.weights, self.sockets) if what.exists()] + [self.engine] * alive(self.engine)


@pytest.fixture
def start(tmp_path):
    actors = []

    def start(then):
        actors.append(Actor(tmp_path, then))
        return actors[-1]

    yield start
    for actor in actors:
        actor.end()
        for pid in (actor.before, actor.engine, *watchdogs_of(actor.process.pid)):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        actor.block.unlink(missing_ok=True)
        if actor.more.exists():
            Path(actor.more.read_text().strip()).unlink(missing_ok=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("then", ["note", "say nothing"])
def test_behaviour_23_what_a_killed_process_leaves_is_gone_within_seconds(start, how, then):
    # without a note too: killed while its engine starts, it is found by the folder that its processes were started with
    actor = start(then)
    assert len(actor.has_left) == 4
    assert len(watchdogs_of(actor.process.pid)) == 1
    actor.end(how)
    assert within(10, lambda: not actor.has_left), actor.has_left
    assert within(5, lambda: not watchdogs_of(actor.process.pid))
    assert alive(actor.before)  # it was there before the watchdog: not the engine's


def test_memory_that_an_engine_made_after_the_last_note_is_removed_although_it_ended_with_its_actor(start):
    actor = start("note")
    os.kill(actor.engine, signal.SIGUSR1)
    assert within(5, lambda: actor.more.exists() and actor.more.read_text().endswith("\n"))
    block = Path(actor.more.read_text().strip())
    time.sleep(3)
    assert block.exists()
    os.kill(actor.engine, signal.SIGKILL)
    actor.end()
    assert within(10, lambda: not block.exists())


def test_what_ends_everything_under_a_head_leaves_the_watchdog_to_clean_up_and_to_end_by_itself(start):
    actor = start("note")
    (watchdog,) = watchdogs_of(actor.process.pid)
    members = started_with(MARK, actor.head)
    assert {actor.process.pid, actor.engine} <= {each.pid for each in members}
    assert watchdog not in {each.pid for each in members}
    _kill(members)
    actor.process.wait()
    assert within(10, lambda: not actor.has_left), actor.has_left
    assert within(5, lambda: not alive(watchdog))


def test_while_its_process_lives_a_watchdog_touches_nothing(start):
    actor = start("note")
    time.sleep(1)
    assert len(actor.has_left) == 4
    (pid,) = watchdogs_of(actor.process.pid)
    assert os.getsid(pid) != os.getsid(actor.process.pid)  # Ctrl-C does not reach it
    assert psutil.Process(pid).ppid() != actor.process.pid  # nor does what Ray does to a worker's children


def test_a_dismissed_watchdog_ends_and_removes_nothing(start):
    actor = start("note and dismiss")
    assert within(5, lambda: not watchdogs_of(actor.process.pid))
    actor.end()
    time.sleep(0.5)
    assert len(actor.has_left) == 4


def test_a_process_whose_watchdog_was_killed_goes_on(start, tmp_path):
    actor = start("note")
    (pid,) = watchdogs_of(actor.process.pid)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    assert alive(actor.process.pid)
