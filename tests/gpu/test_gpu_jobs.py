"""Whole jobs on one GPU that both engines share, and on two: GRPO in bfloat16 with the built-in start model, as a user starts it.

Never run so far: no machine of ours has a GPU. How to run them is in conftest.py.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = (
    "device.kind=cuda", "model.dtype=bfloat16", 'study.stages=["grpo"]', "eval.num_problems=256", "grpo.num_steps=6",
    "eval.validate_every=3", "run.report=false", "generator.cuda_graphs=false", "run.checkpoint_every=3",
    "driver.canary_max_logprob_diff=0.1",  # bfloat16 on both sides; a run of its own would also allow 3 times its first gap
)  # fmt: skip
SHARED = ("device.placement=shared", "generator.gpu_memory_utilization=0.3", "generator.gpu_kv_cache_gib=2")
pytestmark = pytest.mark.timeout(900)


def command(root, *overrides):
    recipe = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
    return [sys.executable, "jobs/study.py", str(recipe), f"run.root={root}", *SMALL, *overrides]


def visible_gpus(named):
    """The GPUs of this session: what CUDA_VISIBLE_DEVICES names, numbers or not; the first two where it is not set."""
    return named.split(",") if named else ["0", "1"]


GPUS = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))


def environment(gpus=GPUS):
    """Of a job that starts a Ray of its own on these GPUs."""
    names = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {**names, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def run(root, *overrides, gpus=GPUS):
    """The run's folder of a job that must succeed."""
    done = subprocess.run(command(root, *overrides), cwd=REPOSITORY, env=environment(gpus), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return root / "arithmetic_cpu"


def steps(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward_mean" in row]


def device_of(folder):
    return json.loads((folder / "environment.json").read_text())["device"]


def check(folder, transport):
    """Six steps, all of whose weights reached the generator, which says nearly the same of tokens as the learner."""
    made = steps(folder)
    gaps = [json.loads(line).get("canary_max_logprob_diff") for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [gap for gap in gaps if gap is not None]
    limit = tomllib.loads((folder / "recipe.toml").read_text())["driver"]["canary_max_logprob_diff"]
    assert measured
    assert max(measured) <= limit
    assert [row["step"] for row in made] == [1, 2, 3, 4, 5, 6]
    assert all(0.8 < row["importance_ratio_mean"] < 1.2 for row in made)
    assert json.loads((folder / "summary.json").read_text())["stages"][0]["num_problems"] == 256
    assert transport in json.dumps(device_of(folder))


def test_jobs_get_the_gpus_of_this_session_by_number_or_name():
    assert visible_gpus(None) == visible_gpus("") == ["0", "1"]
    assert visible_gpus("2,5,7")[1::-1] == ["5", "2"]
    assert visible_gpus("GPU-8a,GPU-1f")[:1] == ["GPU-8a"]


def test_a_job_that_fails_is_ended_with_all_that_it_started(tmp_path):
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'])"
    output = tmp_path / "output.txt"
    seen = []

    def fail():
        with running([sys.executable, "-c", script], output) as job:
            wait_for(lambda: "1" in output.read_text(), job, output, limit_s=20)
            seen.extend(psutil.Process(job.pid).children())
            wait_for(lambda: False, job, output, limit_s=0)

    with pytest.raises(AssertionError, match="waited"):
        fail()
    assert len(seen) == 1
    seen[0].wait(timeout=10)


@pytest.mark.gpu(num=1)
def test_learner_and_generator_share_one_gpu_by_cuda_ipc(tmp_path):
    check(run(tmp_path, *SHARED, gpus=GPUS[:1]), "ipc")


@pytest.mark.gpu(num=1)
def test_a_generator_that_sleeps_while_the_learner_trains_takes_the_new_weights_when_it_wakes(tmp_path):
    check(run(tmp_path, *SHARED, "generator.sleep=true", gpus=GPUS[:1]), "ipc")


@pytest.mark.gpu(num=2)
@pytest.mark.parametrize("staleness", [0, 1])
def test_weights_go_by_nccl_between_two_gpus(tmp_path, staleness):
    check(run(tmp_path, f"driver.max_staleness={staleness}"), "nccl")


@pytest.mark.gpu(num=2)
def test_behaviour_33_gpus_that_do_not_begin_at_0_are_used_as_they_are_named(tmp_path):
    check(run(tmp_path, gpus=GPUS[1::-1]), "nccl")


@pytest.mark.gpu(num=2)
def test_behaviour_35_evaluations_in_the_loop_and_alone_agree_on_nearly_all_items(tmp_path):
    folder = run(tmp_path)
    (in_loop,) = (folder / "evaluations").glob("grpo-v*.parquet")
    (checkpoint,) = (folder / "checkpoints").glob("grpo-6")
    alone = run(tmp_path / "alone", f"model.path={checkpoint}", 'study.stages=["baseline"]')
    (again,) = (alone / "evaluations").glob("baseline-v*.parquet")
    first, second = (pq.read_table(path, columns=["problem_id", "outcome"]).to_pydict() for path in (in_loop, again))
    assert first["problem_id"] == second["problem_id"]
    same = [one == two for one, two in zip(first["outcome"], second["outcome"], strict=True)]
    assert sum(same) / len(same) >= 0.99, f"the first that differs: {first['problem_id'][same.index(False)]}"


@pytest.mark.gpu(num=2)
def test_behaviour_21_a_killed_generator_is_replaced_and_meets_the_learner_anew(tmp_path):
    folder, output = tmp_path / "arithmetic_cpu", tmp_path / "output.txt"
    with running(command(tmp_path, "grpo.num_steps=30"), output) as job:
        wait_for(lambda: (folder / "metrics.jsonl").is_file() and len(steps(folder)) >= 2, job, output)
        engines = [each for each in psutil.Process(job.pid).children(recursive=True) if "EngineCore" in " ".join(each.cmdline())]
        os.kill(engines[0].pid, signal.SIGKILL)
        assert job.wait(timeout=400) == 0, output.read_text()[-3000:]
    assert steps(folder)[-1]["generator_restarts_total"] == 1


@contextlib.contextmanager
def running(words, output):
    """A job that writes into a file; where the block fails, its whole process group ends."""
    with output.open("w") as file:
        job = subprocess.Popen(words, cwd=REPOSITORY, env=environment(), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield job
    finally:
        if job.poll() != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def wait_for(happened, job, output, limit_s=400):
    end_s = time.monotonic() + limit_s
    while not happened():
        assert job.poll() is None, output.read_text()[-3000:]
        assert time.monotonic() < end_s, f"waited {limit_s} s"
        time.sleep(0.5)  # another process's file: nothing tells of it
