"""Ends this checkout's head and all that started under it, and nothing else.

Called by cluster/head.py. Knows the head's record, the jobs API and /proc. `ray stop` is never used: it ends every Ray process of the
machine.

    stop    stop running jobs -> SIGTERM to the recorded pid -> SIGKILL to what is left under it -> remove its folder and the state file
"""

import shutil
import signal
import sys
import time
from pathlib import Path

from cluster.connection import ANSWER_LIMIT_S, Head, boot_id, connect, recorded_head, state_dir, time_limit
from cluster.processes import Process, descendants, in_session, listening_folders, process, send, started_with, wait_until_gone

JOB_STOP_LIMIT_S = 60
"""What a job gets between SIGTERM and SIGKILL, so that it can finish writing a checkpoint; Ray's own default is 3 s."""
TERMINATE_LIMIT_S = 20
KILL_LIMIT_S = 10
MARK = "MATHRL_HEAD"
"""Environment variable, with the temporary folder as its value, of all that starts under a head."""


def stop() -> None:
    """Stops the recorded head and all that it started; says what it did. Nothing recorded is fine."""
    head = recorded_head()
    if head is None:
        print("head: nothing is running")
    elif not head.is_alive:
        remove_stale(head)
    else:
        _stop_jobs(head)
        start_s = time.monotonic()
        num_killed = end(head)
        print(
            f"head: stopped (pid {head.pid}) in {time.monotonic() - start_s:.1f} s,"
            f" {num_killed} of its processes by SIGKILL; removed {head.temp_dir}"
        )


def _stop_jobs(head: Head) -> None:
    """Asks running jobs to end and waits; a head that does not answer is stopped with its jobs all the same."""
    try:
        client = connect(head.dashboard)
        with time_limit(JOB_STOP_LIMIT_S + ANSWER_LIMIT_S, "running jobs to end"):
            running = [job.submission_id for job in client.list_jobs() if job.submission_id and not job.status.is_terminal()]
            for job_id in running:
                print(f"head: stopping job {job_id}; it has {JOB_STOP_LIMIT_S} s to finish what it writes", flush=True)
                client.stop_job(job_id)
            while not all(client.get_job_status(job_id).is_terminal() for job_id in running):
                time.sleep(0.2)
    except (ImportError, OSError, RuntimeError) as error:
        print(f"head: its jobs end with it, since they could not be stopped first: {error}")


def end(head: Head) -> int:
    """SIGTERM, at most TERMINATE_LIMIT_S of patience, SIGKILL for what is left; then the files. Returns how many were killed."""
    children = descendants(head.pid)  # noted while parents are known
    sockets = listening_folders(in_session(head.pid))
    send(head.main_process, signal.SIGTERM)
    wait_until_gone([head.main_process], TERMINATE_LIMIT_S)
    left = wait_until_gone({*children, *_members(head)}, 0)
    _kill(left)
    _remove_files(head, sockets)
    return len(left)


def _members(head: Head) -> set[Process]:
    """All that runs under this head: its session (Ray renames processes, which hides their environment) and what left it (jobs)."""
    return {*in_session(head.pid), *started_with(MARK, head.temp_dir)}


def _kill(targets: list[Process]) -> None:
    for each in targets:
        send(each, signal.SIGKILL)
    if stubborn := wait_until_gone(targets, KILL_LIMIT_S):
        print(f"head: still there after SIGKILL: {[each.pid for each in stubborn]}", file=sys.stderr)


def remove_stale(head: Head) -> None:
    """Cleans up after a head that ended by itself. While orphans of its session live, the system gives its pid to nobody else."""
    is_ours = head.boot_id == boot_id() and process(head.pid) is None
    orphans = list(_members(head)) if is_ours else started_with(MARK, head.temp_dir)
    sockets = listening_folders(orphans)
    _kill(orphans)
    _remove_files(head, sockets)
    print(f"head: the one recorded (pid {head.pid}) was gone already; ended {len(orphans)} processes that it left, removed {head.temp_dir}")


def _remove_files(head: Head, socket_folders: set[Path]) -> None:
    for folder in socket_folders:
        if folder.name.startswith("pymp-"):  # Python's multiprocessing leaves these behind when killed
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(head.temp_dir, ignore_errors=True)
    (state_dir() / "head.json").unlink(missing_ok=True)
