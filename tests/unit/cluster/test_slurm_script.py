"""cluster/slurm.sh with stand-ins for SLURM's commands, Ray and the job: what it starts, and how it ends. SLURM itself is not here."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent.parent / "cluster" / "slurm.sh"
STAND_INS = {
    # hostnames of the job's nodes; a job that is queued again
    "scontrol": 'if [[ $1 == show ]]; then printf "%s\\n" ${NODES:-one two}; else echo "scontrol $*" >>"$DIARY"; fi',
    # what `srun --nodelist=NODE hostname -I` and `srun ... ray start` do on a node
    "srun": 'echo "srun of $SRUN_CPUS_PER_TASK CPUs $*" >>"$DIARY"\n'
    'if [[ $* == *" hostname -I" ]]; then echo "${ADDRESSES-fd00::7 127.0.1.1 10.0.0.7 172.17.0.1}"; else exec sleep 60; fi',
    "activate": "",
}  # fmt: skip
PYTHON = """#!/usr/bin/env bash
# the waiting for Ray's nodes (a script on standard input), the token, or the job
case $1 in
    -) [[ -z ${RAY_TAKES:-} ]] || { echo "waits for Ray" >>"$DIARY"; exec sleep "$RAY_TAKES"; } ;;
    -c) echo token ;;
    *) trap 'echo "job saves" >>"$DIARY"; [[ -n ${JOB_SAVES_ON:-} ]] || exit ${STATUS_WHEN_STOPPED:-1}' TERM
       echo "job $* at $RAY_ADDRESS" >>"$DIARY"
       for _ in $(seq "${JOB_TAKES:-0}"); do sleep 0.1; done
       exit "${JOB_STATUS:-0}" ;;
esac
"""
ON_NODE = "srun of 8 CPUs --overlap --nodes=1 --ntasks=1 --nodelist="


@pytest.fixture
def slurm(tmp_path):
    """(environment, diary) of a checkout in tmp_path whose commands are stand-ins."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    diary = tmp_path / "diary"
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}", "DIARY": str(diary), "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "one,two",
        "SLURM_CPUS_PER_TASK": "8", "HOME": str(tmp_path),
    }  # fmt: skip
    return environment, diary


WORDS = ("jobs/grpo.py", "recipe.toml", "run.name=a")


def run(slurm, tmp_path, *words, **changes):
    environment, diary = slurm
    done = subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=tmp_path, env={**environment, **changes}, capture_output=True, text=True, timeout=60
    )
    return done, sorted(diary.read_text().splitlines()) if diary.exists() else []


def run_and_tell(slurm, tmp_path, told, when, **changes):
    """(status, diary, what it said) of a script that gets a signal when a line of the diary begins with `when`."""
    environment, diary = slurm
    script = subprocess.Popen(
        ["bash", str(SCRIPT), *WORDS], cwd=tmp_path, env={**environment, **changes}, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 30
    while f"\n{when}" not in (diary.read_text() if diary.exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.05)  # another process's file
    script.send_signal(told)
    _, errors = script.communicate(timeout=20)
    return script.returncode, diary.read_text().splitlines(), errors


def test_a_head_a_ray_for_each_other_node_and_the_job_on_them(slurm, tmp_path):
    done, diary = run(slurm, tmp_path, *WORDS)
    assert done.returncode == 0, done.stderr
    job, *steps = diary
    assert job == "job jobs/grpo.py recipe.toml run.name=a run.resume=auto at 10.0.0.7:20017"
    started = "ray start --block --disable-usage-stats --num-cpus=8"
    assert steps == [
        f"{ON_NODE}one hostname -I",
        f"{ON_NODE}one {started} --head --node-ip-address=10.0.0.7 --port=20017 --include-dashboard=false --temp-dir=/tmp/mr-17",
        f"{ON_NODE}two {started} --address=10.0.0.7:20017",
    ]


def test_what_sbatch_reads_asks_for_a_signal_to_the_script_before_the_time_limit_and_one_task_a_node():
    asked = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --signal=B:USR1@120", "#SBATCH --ntasks-per-node=1", "#SBATCH --requeue"} <= set(asked)


def test_a_head_that_others_cannot_reach_is_named_and_enough_for_one_node(slurm, tmp_path):
    done, diary = run(slurm, tmp_path, *WORDS, ADDRESSES="127.0.1.1 fd00::7")
    assert (done.returncode, diary) == (1, [f"{ON_NODE}one hostname -I"])
    assert "node one has no IPv4 address but the loopback's" in done.stderr
    done, (job, *_) = run(slurm, tmp_path, *WORDS, ADDRESSES="", NODES="one")
    assert done.returncode == 0, done.stderr
    assert job.endswith("at 127.0.0.1:20017")


def test_the_status_is_the_jobs(slurm, tmp_path):
    assert run(slurm, tmp_path, *WORDS, JOB_STATUS="3")[0].returncode == 3


def test_before_the_time_limit_the_run_saves_and_is_queued_again(slurm, tmp_path):
    status, diary, errors = run_and_tell(slurm, tmp_path, signal.SIGUSR1, "job jobs", JOB_TAKES="300")
    assert status == 1, errors
    assert diary[-2:] == ["job saves", "scontrol requeue 17"]


def test_a_run_that_ended_well_before_the_time_limit_is_not_queued_again(slurm, tmp_path):
    status, diary, errors = run_and_tell(slurm, tmp_path, signal.SIGUSR1, "job jobs", JOB_TAKES="300", STATUS_WHEN_STOPPED="0")
    assert (status, diary[-1]) == (0, "job saves"), errors


def test_a_run_that_somebody_ends_saves_and_is_not_queued_again(slurm, tmp_path):
    status, diary, errors = run_and_tell(slurm, tmp_path, signal.SIGTERM, "job jobs", JOB_TAKES="300")
    assert (status, diary[-1]) == (1, "job saves"), errors


def test_a_run_that_does_not_end_in_time_is_ended_and_queued_again(slurm, tmp_path):
    changes = {"JOB_TAKES": "300", "JOB_SAVES_ON": "yes", "MATHRL_SLURM_STOP_S": "1"}
    status, diary, errors = run_and_tell(slurm, tmp_path, signal.SIGUSR1, "job jobs", **changes)
    assert (status, diary[-1]) == (128 + signal.SIGKILL, "scontrol requeue 17"), errors


@pytest.mark.parametrize(("told", "queued"), [(signal.SIGUSR1, ["scontrol requeue 17"]), (signal.SIGTERM, [])])
def test_a_signal_while_ray_comes_up_is_heard_at_once_and_no_job_begins(slurm, tmp_path, told, queued):
    status, diary, errors = run_and_tell(slurm, tmp_path, told, "waits for Ray", RAY_TAKES="50")
    assert status == 1, errors
    assert [line for line in diary if line.startswith(("job", "scontrol"))] == queued


def test_what_is_missing_is_said_before_anything_is_started(slurm, tmp_path):
    for words, told in (((), "usage: sbatch"), (WORDS[:2], "give run.name=NAME")):
        done, diary = run(slurm, tmp_path, *words)
        assert (done.returncode, diary) == (1, [])
        assert told in done.stderr
    environment = {name: value for name, value in slurm[0].items() if name != "SLURM_JOB_ID"}
    done = subprocess.run(["bash", str(SCRIPT), *WORDS], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert "this is for sbatch" in done.stderr
