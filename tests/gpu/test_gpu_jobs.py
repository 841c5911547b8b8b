"""Whole jobs on one GPU that both engines share, and on two: GRPO in bfloat16 with the built-in start model, as a user starts it.

Never run so far: no machine of ours has a GPU. How to run them is in conftest.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parent.parent.parent
SMALL = (
    "device.kind=cuda", "model.dtype=bfloat16", 'study.stages=["grpo"]', "eval.num_problems=256", "grpo.num_steps=6",
    "eval.validate_every=3", "run.report=false", "generator.cuda_graphs=false", "run.checkpoint_every=3",
)  # fmt: skip
SHARED = ("device.placement=shared", "generator.gpu_memory_utilization=0.3", "generator.gpu_kv_cache_gib=2")
pytestmark = pytest.mark.timeout(900)


def command(root, *overrides):
    recipe = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
    return [sys.executable, "jobs/study.py", str(recipe), f"run.root={root}", *SMALL, *overrides]


def run(root, *overrides, **environment):
    """The run's folder of a job that must succeed."""
    names = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command(root, *overrides), cwd=REPOSITORY, env={**names, **environment}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return root / "arithmetic_cpu"


def steps(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward_mean" in row]


def device_of(folder):
    return json.loads((folder / "environment.json").read_text())["device"]


def check(folder, transport):
    """Six steps, all of whose weights reached the generator: the canary would have ended the run."""
    made = steps(folder)
    assert [row["step"] for row in made] == [1, 2, 3, 4, 5, 6]
    assert all(0.8 < row["importance_ratio_mean"] < 1.2 for row in made)
    assert json.loads((folder / "summary.json").read_text())["stages"][0]["num_problems"] == 256
    assert transport in json.dumps(device_of(folder))


@pytest.mark.gpu(num=1)
def test_learner_and_generator_share_one_gpu_by_cuda_ipc(tmp_path):
    check(run(tmp_path, *SHARED, CUDA_VISIBLE_DEVICES="0"), "ipc")


@pytest.mark.gpu(num=1)
def test_a_generator_that_sleeps_while_the_learner_trains_takes_the_new_weights_when_it_wakes(tmp_path):
    check(run(tmp_path, *SHARED, "generator.sleep=true", CUDA_VISIBLE_DEVICES="0"), "ipc")


@pytest.mark.gpu(num=2)
@pytest.mark.parametrize("staleness", [0, 1])
def test_weights_go_by_nccl_between_two_gpus(tmp_path, staleness):
    check(run(tmp_path, f"driver.max_staleness={staleness}"), "nccl")


@pytest.mark.gpu(num=2)
def test_behaviour_33_gpus_that_do_not_begin_at_0_are_used_as_they_are_named(tmp_path):
    check(run(tmp_path, CUDA_VISIBLE_DEVICES="1,0"), "nccl")


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
    job = subprocess.Popen(
        command(tmp_path, "grpo.num_steps=30"), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_for(lambda: (tmp_path / "arithmetic_cpu" / "metrics.jsonl").is_file() and len(steps(tmp_path / "arithmetic_cpu")) >= 2, job)
        engines = [each for each in psutil.Process(job.pid).children(recursive=True) if "EngineCore" in " ".join(each.cmdline())]
        os.kill(engines[0].pid, signal.SIGKILL)
        output, _ = job.communicate(timeout=600)
    finally:
        job.kill()
    assert job.returncode == 0, output[-3000:]
    assert steps(tmp_path / "arithmetic_cpu")[-1]["generator_restarts_total"] == 1


def wait_for(happened, job, limit_s=400):
    end_s = time.monotonic() + limit_s
    while not happened():
        assert job.poll() is None, job.stdout.read()[-3000:]
        assert time.monotonic() < end_s, f"waited {limit_s} s"
        time.sleep(0.5)  # another process's file: nothing tells of it
