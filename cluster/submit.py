"""Submits one job to this checkout's head and follows it. `python -m cluster.submit [--working-dir DIR] -- COMMAND ...`.

Called by quickstart.sh. Does what `ray job submit --address DASHBOARD --working-dir DIR -- COMMAND ...` does, in one process (each call
of Ray's command line costs seconds), but exits with 0 only when the job SUCCEEDED. Knows nothing of what the job does.
"""

import argparse
import asyncio
import logging
import shlex
import sys
import time
from typing import TYPE_CHECKING

from cluster.connection import ANSWER_LIMIT_S, connect, recorded_head, speak_to_own_head_only, time_limit
from cluster.stopping import JOB_STOP_LIMIT_S
from cluster.upload import upload_of

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

SUBMIT_LIMIT_S = 120
END_LIMIT_S = 30
"""How long the status may lag behind the end of the log."""
LINE_EVERY_S = 10
"""While a job's log is still empty."""


def submit(client: "JobSubmissionClient", working_dir: str, command: list[str]) -> str:
    """Uploads the folder (without what .gitignore and .rayignore name) and starts the command in a copy of it; returns the job's id.

    Raises:
        RuntimeError, TimeoutError: the head did not take the job within SUBMIT_LIMIT_S.
    """
    # For `ray job stop` too, which else kills the job 3 s after it has told it to end. Ray reads it where it supervises the job.
    runtime_env = {"working_dir": working_dir, "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(JOB_STOP_LIMIT_S)}}
    with time_limit(SUBMIT_LIMIT_S, "the head to take the job"):
        while True:
            try:
                return client.submit_job(entrypoint=shlex.join(command), runtime_env=runtime_env)
            except RuntimeError as error:
                if "No available agent" not in str(error):  # that one only means that a head just started is not complete
                    raise
                time.sleep(0.5)


def follow(client: "JobSubmissionClient", job_id: str) -> "JobDetails":
    """Prints the job's log as it grows and returns how the job ended. Waits as long as the job runs.

    Raises:
        OSError, RuntimeError: the head is gone, or says nothing of the end of a job whose log has ended.
    """
    num_printed = 0
    while True:
        num_printed = asyncio.run(_print_log(client, job_id, num_printed))
        deadline_s = time.monotonic() + END_LIMIT_S
        while time.monotonic() < deadline_s:
            with time_limit(ANSWER_LIMIT_S, f"the status of job {job_id}"):
                details = client.get_job_info(job_id)
            if details.status.is_terminal():
                return details
            time.sleep(0.2)
        print(f"submit: the log of {job_id} was cut off; following again", file=sys.stderr)


async def _print_log(client: "JobSubmissionClient", job_id: str, num_printed: int) -> int:
    """Prints the log past its first `num_printed` characters until the stream ends; returns how many have been printed then."""
    position = 0
    waiting = asyncio.create_task(_say_that_it_starts(job_id, time.monotonic()))
    try:
        async for text in client.tail_job_logs(job_id):
            waiting.cancel()
            fresh = text[max(0, num_printed - position) :]
            print(fresh, end="", flush=True)
            position += len(text)
            num_printed += len(fresh)
    except RuntimeError as error:
        print(f"submit: {error}", file=sys.stderr)  # the dashboard dropped the line: the status tells whether the job goes on
    finally:
        waiting.cancel()
    return num_printed


async def _say_that_it_starts(job_id: str, began_s: float) -> None:
    """Until the log has a first line: Ray unpacks the folder and starts a Python."""
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        print(f"submit: {job_id} has not said anything, {time.monotonic() - began_s:.0f} s so far", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.submit", description="Submit a job to this checkout's head and follow it.")
    parser.add_argument("--working-dir", default=".", help="folder that is uploaded (default: the current one)")
    parser.add_argument("command", nargs="+", help="what to run there, after --")
    given = parser.parse_args(arguments)
    speak_to_own_head_only()
    logging.disable(logging.INFO)  # Ray reports each ignore file, three times
    logging.getLogger("ray._private.runtime_env.working_dir").setLevel(logging.ERROR)  # and warns that .venv is not uploaded
    head = recorded_head()
    if head is None or not head.is_alive:
        raise RuntimeError("no head is running; start one: python -m cluster.head start")
    client = connect(head.dashboard)
    print(upload_of(given.working_dir).text, flush=True)
    job_id = submit(client, given.working_dir, given.command)
    ray = f"RAY_AUTH_MODE=token .venv/bin/ray job {{}} --address {head.dashboard} {job_id}"
    again = f"Follow it again: {ray.format('logs --follow')}\nStop it alone:   {ray.format('stop')}"
    print(f"Job {job_id} is submitted. Dashboard: {head.dashboard}\n{again}", flush=True)
    try:
        details = follow(client, job_id)
    except KeyboardInterrupt:
        print(f"\nJob {job_id} goes on.\n{again}\nStop it with its cluster: bash cluster/down.sh")
        return 130
    print(f"Job {job_id}: {details.status.value}")
    if details.status.value != "SUCCEEDED" and details.driver_exit_code is None:  # it never ran, so the log above says nothing
        print(details.message, file=sys.stderr)
    return 0 if details.status.value == "SUCCEEDED" else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, RuntimeError) as failure:
        sys.exit(f"submit: {failure}")
