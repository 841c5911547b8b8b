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
    "scontrol": 'if [[ $1 == show ]]; then printf "one\\ntwo\\n"; else echo "scontrol $*" >>"$DIARY"; fi',
    # what `srun --nodelist=NODE hostname` and `srun ... ray start` do on a node
    "srun": 'for word; do case $word in --*) ;; *) break ;; esac; shift; done\n'
    'if [[ $1 == hostname ]]; then echo 127.0.0.1; else echo "$*" >>"$DIARY"; exec sleep 60; fi',
    "activate": "",
}  # fmt: skip
PYTHON = """#!/usr/bin/env bash
# the waiting for Ray's nodes (a script on standard input), the token, or the job
case $1 in
    -) exit 0 ;;
    -c) echo token ;;
    *) echo "job $* at $RAY_ADDRESS" >>"$DIARY"
       trap 'echo "job saves" >>"$DIARY"; exit 1' TERM
       for _ in $(seq "${JOB_TAKES:-0}"); do sleep 0.1; done
       exit "${JOB_STATUS:-0}" ;;
esac
"""


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


def test_a_head_a_ray_for_each_other_node_and_the_job_on_them(slurm, tmp_path):
    done, diary = run(slurm, tmp_path, *WORDS)
    assert done.returncode == 0, done.stderr
    job, *rays = diary
    assert job == "job jobs/grpo.py recipe.toml run.name=a run.resume=auto at 127.0.0.1:20017"
    head, worker = sorted(rays, key=lambda line: "--head" not in line)
    assert "ray start --block --disable-usage-stats --num-cpus=8 --head --node-ip-address=127.0.0.1 --port=20017" in head
    assert worker.endswith("--address=127.0.0.1:20017")


def test_the_status_is_the_jobs(slurm, tmp_path):
    assert run(slurm, tmp_path, *WORDS, JOB_STATUS="3")[0].returncode == 3


def test_a_signal_before_the_time_limit_lets_the_run_save_and_queues_it_again(slurm, tmp_path):
    environment, diary = slurm
    script = subprocess.Popen(["bash", str(SCRIPT), *WORDS], cwd=tmp_path, env={**environment, "JOB_TAKES": "300"}, stderr=subprocess.PIPE)
    until = time.monotonic() + 30
    while "job jobs" not in (diary.read_text() if diary.exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.05)  # another process's file
    script.send_signal(signal.SIGTERM)
    _, errors = script.communicate(timeout=30)
    assert script.returncode == 1, errors
    assert {"job saves", "scontrol requeue 17"} <= set(diary.read_text().splitlines())


def test_what_is_missing_is_said_before_anything_is_started(slurm, tmp_path):
    for words, told in (((), "usage: sbatch"), (WORDS[:2], "give run.name=NAME")):
        done, diary = run(slurm, tmp_path, *words)
        assert (done.returncode, diary) == (1, [])
        assert told in done.stderr
    environment = {name: value for name, value in slurm[0].items() if name != "SLURM_JOB_ID"}
    done = subprocess.run(["bash", str(SCRIPT), *WORDS], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert "this is for sbatch" in done.stderr
