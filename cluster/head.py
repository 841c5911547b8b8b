"""A Ray head of this checkout alone: start it, look at it, stop it. `python -m cluster.head {start|status|stop}`.

Called by quickstart.sh and down.sh. Knows Ray's command line and its jobs API, nothing of this project's jobs. Other heads on the
machine stay as they are: ports, temporary folder and session are this head's own, and every address is passed explicitly.

    start   free ports, private temporary folder -> `ray start --block` in a session of its own -> state file -> wait until it takes jobs
    stop    see stopping.py
"""

import argparse
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from cluster.connection import ANSWER_LIMIT_S, Head, boot_id, connect, recorded_head, speak_to_own_head_only, state_dir, time_limit
from cluster.monitoring.settings import follow, head_environment
from cluster.processes import process
from cluster.stopping import JOB_STOP_LIMIT_S, MARK, end, remove_stale, stop

START_LIMIT_S = 120


# --- start ------------------------------------------------------------------------------------------------------------


def start() -> None:
    """Starts a head and waits until it takes jobs; uses the one that runs already.

    Raises:
        RuntimeError: it did not come up within START_LIMIT_S, or the one that runs does not answer.
    """
    head = recorded_head()
    if head and head.is_alive:
        return _reuse(head)
    if head:
        remove_stale(head)
    _make_token()
    start_s = time.monotonic()
    head = _launch()
    try:
        _wait_until_ready(head, start_s + START_LIMIT_S)
    except BaseException:  # Ctrl-C too: a head that is half up must not stay behind
        _print_log_tail()
        end(head)
        raise
    print(f"head: up after {time.monotonic() - start_s:.1f} s, dashboard {head.dashboard}")
    return None


def _reuse(head: Head) -> None:
    try:
        connect(head.dashboard)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"the head (pid {head.pid}) runs but does not answer: {error}\nStop it first: bash cluster/down.sh") from error
    print(f"head: using the one that runs, dashboard {head.dashboard}")


def _make_token() -> None:
    """Makes the secret that all who speak to the head must show, readable by this user alone."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return  # the user brings one
    token = Path.home() / ".ray" / "auth_token"
    if token.exists() and not token.read_bytes().strip():
        token.unlink()  # a disk was full when it was written; Ray would make one that others can read
    if not token.exists():
        command = [str(Path(sys.executable).with_name("ray")), "get-auth-token", "--generate"]
        subprocess.run(command, check=True, umask=0o077, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    elif token.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        print(f"head: others could read {token}; now only you can")
        token.chmod(0o600)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _launch() -> Head:
    """Starts `ray start` in a session of its own and writes the state file; does not wait."""
    gcs_port, client_port, dashboard_port = _free_ports(3)
    temp_dir = tempfile.mkdtemp(prefix="mr-", dir="/tmp")  # short: a socket's path may have 107 characters, and Ray adds 80
    bin_dir = Path(sys.executable).parent
    command = [str(bin_dir / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--log-color=false"]
    command += [f"--port={gcs_port}", f"--ray-client-server-port={client_port}", f"--temp-dir={temp_dir}"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
    command += ["--dashboard-agent-listen-port=0"]  # where another head has the default port, no job would start
    environment = _environment(bin_dir, temp_dir)
    with (state_dir() / "head.log").open("wb") as log:
        started = subprocess.Popen(
            command, cwd=temp_dir, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    own = process(started.pid)
    if own is None:
        raise RuntimeError(f"{command[0]} ended at once; see {state_dir() / 'head.log'}")
    head = Head(own.pid, own.start_ticks, boot_id(), f"http://127.0.0.1:{dashboard_port}", temp_dir)
    (state_dir() / "head.json").write_text(json.dumps(asdict(head), indent=1) + "\n")
    follow(head)
    return head


def _environment(bin_dir: Path, temp_dir: str) -> dict[str, str]:
    """What the head, and through it every job and actor, sees."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # workers import engines: cached bytecode saves each of them seconds
    return (
        environment
        | head_environment()
        | {
            "PATH": f"{bin_dir}{os.pathsep}{environment.get('PATH', os.defpath)}",  # a job's `python` is looked up here
            "VIRTUAL_ENV": str(bin_dir.parent),
            MARK: temp_dir,
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else SIGTERM takes 30 s longer while a job runs
            "RAY_JOB_STOP_WAIT_TIME_S": str(JOB_STOP_LIMIT_S),  # read by a job's supervisor, which is a worker of this head
        }
    )


def _wait_until_ready(head: Head, deadline_s: float) -> None:
    """Ready is: Ray has written its address, which it does last, and the jobs API answers."""
    reason = "Ray is not up"
    while time.monotonic() < deadline_s:
        if not head.is_alive:
            raise RuntimeError("the head ended while it started")
        try:
            client = connect(head.dashboard)
            with time_limit(ANSWER_LIMIT_S, "the list of jobs"):
                client.list_jobs()
            if head.gcs:
                return
        except (OSError, RuntimeError) as error:  # nobody listens yet, or the jobs module is not loaded yet
            reason = str(error)
        time.sleep(0.2)
    raise RuntimeError(f"the head took no jobs within {START_LIMIT_S} s: {reason}")


def _print_log_tail() -> None:
    log = state_dir() / "head.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    print(f"head: did not start; {log} ends with:\n{tail}", file=sys.stderr)


# --- status and command line ------------------------------------------------------------------------------------------


def status() -> None:
    """Prints the head and its jobs.

    Raises:
        RuntimeError: none runs.
    """
    head = recorded_head()
    if head is None or not head.is_alive:
        raise RuntimeError("nothing is running")
    print(f"head: pid {head.pid}, dashboard {head.dashboard}, GCS {head.gcs}, temporary folder {head.temp_dir}")
    client = connect(head.dashboard)
    with time_limit(ANSWER_LIMIT_S, "the list of jobs"):
        jobs = client.list_jobs()
    for job in sorted(jobs, key=lambda job: job.start_time or 0):
        print(f"  {job.submission_id or job.job_id} {job.status.value}: {job.entrypoint}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.head", description="The Ray head of this checkout.")
    parser.add_argument("command", choices=["start", "status", "stop"])
    command = parser.parse_args(arguments).command
    speak_to_own_head_only()
    state_dir().mkdir(parents=True, exist_ok=True)
    with (state_dir() / "head.lock").open("w") as lock:
        if command == "status":
            return status()
        with time_limit(2 * START_LIMIT_S, "another start or stop of this head"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        return start() if command == "start" else stop()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, RuntimeError, subprocess.SubprocessError) as failure:
        sys.exit(f"head: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
