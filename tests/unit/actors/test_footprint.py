"""What an actor leaves behind on its machine, with real processes and real files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mathrl_ray.actors.footprint import LEAVING_LIMIT_S, Footprint, erase, footprint, process_id

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
child.wait()
"""
CHILD = """
from multiprocessing.shared_memory import SharedMemory
import socket, os, time
memory = SharedMemory(create=True, size=4096)
if "VLLM_RPC_BASE_PATH" in os.environ:
    channel = socket.socket(socket.AF_UNIX)
    channel.bind(os.environ["VLLM_RPC_BASE_PATH"] + "/channel")
print("/dev/shm/" + memory.name, flush=True)
time.sleep(600)
"""
# Python's own helper, which would remove the file some time after its owner's death, is told nothing of it: a killed helper does nothing.
UNTRACKED = "from multiprocessing import resource_tracker\nresource_tracker.register = lambda *_: None\n" + CHILD


def end(parent):
    """As Ray ends an actor, and then the rest; returns what was left."""
    process = process_id(parent.pid)
    left = footprint(process)
    parent.kill()
    parent.wait()
    assert erase(left, process) == []
    return left


@pytest.fixture
def start():
    parents = []

    def start(environment=None):
        command = [sys.executable, "-c", PARENT, UNTRACKED]
        if environment is None:  # without what another test's engine has set
            environment = {name: value for name, value in os.environ.items() if name != "VLLM_RPC_BASE_PATH"}
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        parents.append(parent)
        child, file = parent.stdout.readline().split()
        return parent, int(child), file

    yield start
    for parent in parents:
        if parent.poll() is None:
            end(parent)


def test_the_child_of_a_parent_that_was_killed_is_ended_and_its_shared_memory_removed(start):
    parent, child, file = start()
    process = process_id(parent.pid)
    left = footprint(process)
    assert {pid for pid, _ in left.processes} == {child}
    assert left.files == {file}
    parent.kill()
    parent.wait()
    assert psutil.pid_exists(child)  # nobody else ends it
    assert Path(file).exists()
    assert erase(left, process) == []
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not Path(file).exists()
    assert erase(left, process) == []  # a second time there is nothing to do


def test_a_process_that_got_the_pid_later_is_left_alone(start):
    parent, child, _ = start()
    pid, created_s = process_id(child)
    assert erase(Footprint(frozenset({(pid, created_s - 60)})), (parent.pid, created_s - 60)) == []
    assert psutil.pid_exists(child)
    assert parent.poll() is None
    assert footprint((parent.pid, time.time() - 3600)) == Footprint()


def test_a_dead_process_has_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = process_id(ended.pid)
    ended.wait()
    assert footprint(process) == Footprint()
    assert erase(Footprint(frozenset({process})), process) == []


def test_a_parent_that_does_not_leave_as_it_was_told_is_ended_by_force(start):
    parent, *_ = start()
    process, began = process_id(parent.pid), time.monotonic()
    assert erase(footprint(process), process) == []
    assert time.monotonic() - began >= LEAVING_LIMIT_S
    assert parent.wait() == -signal.SIGKILL


def test_sockets_are_removed_with_their_folder_and_nothing_else_is(start, tmp_path):
    own, with_more, foreign = (tmp_path / name for name in ("mathrl-a", "mathrl-b", "tmp"))
    for folder in (own, with_more, foreign):
        folder.mkdir()
    (with_more / "notes.txt").write_text("kept")
    for folder in (own, with_more, foreign):
        parent, _, _ = start({"VLLM_RPC_BASE_PATH": str(folder)})
        assert end(parent).folders == ({str(folder)} if folder != foreign else set())
    assert not own.exists()
    assert [file.name for file in with_more.iterdir()] == ["notes.txt"]
    assert [file.name for file in foreign.iterdir()] == ["channel"]
