"""Learner and generator on two machines, each with a network and shared memory of its own; weights go by Ray's object store. Slow.

python -m pytest -m slow tests/e2e_cpu/test_two_nodes.py
"""

import json
import re
import sys
from pathlib import Path

import pytest
from two_machines import WORKER_ADDRESS, TwoMachines, why_not

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")
NUM_STEPS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420), pytest.mark.skipif(bool(why_not()), reason=why_not() or "can")]


@pytest.fixture(scope="module")
def machines():
    with TwoMachines() as machines:
        yield machines


@pytest.fixture(scope="module")
def settings(start_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    small = ["grpo.prompts_per_step=4", "grpo.group_size=4", "eval.num_problems=50", "data.num_train_problems=200", "eval.validate_every=0"]
    small += ['study.stages=["grpo"]']
    return root, [RECIPE, f"run.root={root}", f"model.path={start_model}", f"grpo.num_steps={NUM_STEPS}", *small]


def test_grpo_over_two_nodes_gives_the_generator_the_learners_weights_at_every_step(machines, settings):
    root, words = settings
    job = machines.run(sys.executable, str(REPOSITORY / "jobs" / "grpo.py"), *words, "run.name=two", limit_s=240)
    assert job.returncode == 0, job.stdout[-2000:] + job.stderr[-3000:] + machines.logs()
    rows = [json.loads(line) for line in (root / "two" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["stage"] == "grpo" and "canary_max_logprob_diff" in row and row.get("step")]
    assert [row["policy_version"] for row in steps] == list(range(1, NUM_STEPS + 1))
    assert all(row["canary_max_logprob_diff"] < 1e-3 for row in steps)  # the generator holds what the learner has
    assert json.loads((root / "two" / "environment.json").read_text())["device"]["weight_transport"] == "object_store"
    assert machines.shared_memory(0) == machines.shared_memory(1) == []


def test_the_preflight_names_both_nodes_and_asks_them_for_one_root(machines, settings):
    _, words = settings
    asked = machines.run(sys.executable, "-m", "mathrl_ray", "preflight", *words, limit_s=120, environment={"COLUMNS": "300"})
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert "on 2 of 2 nodes" in asked.stdout  # both have one host's name here, so the count tells them apart
    assert re.search(r"run root +│ ok ", asked.stdout)  # each node wrote a marker there that was read here


def test_shared_memory_alone_is_refused_with_the_way_out(machines, settings):
    _, words = settings
    job = machines.run(
        sys.executable,
        str(REPOSITORY / "jobs" / "grpo.py"),
        *words,
        "run.name=refused",
        "driver.weight_transport=shared_memory",
        limit_s=120,
    )
    assert job.returncode == 1
    assert "generator-0 came to another node than learner-0" in job.stderr
    assert "'object_store'" in job.stderr


def test_a_model_that_only_one_node_has_names_the_other(machines, settings, start_model):
    _, words = settings
    machines.run("cp", "-r", str(start_model), "/dev/shm/only_here", limit_s=60)  # each node has a /dev/shm of its own
    job = machines.run(
        sys.executable,
        str(REPOSITORY / "jobs" / "grpo.py"),
        *words,
        "run.name=absent",
        "model.path=/dev/shm/only_here",
        limit_s=120,
    )
    machines.run("rm", "-r", "/dev/shm/only_here", limit_s=60)
    assert job.returncode == 1
    told = r"model\.path = /dev/shm/only_here is not there on every node: (learner|generator)-0 is on [^,]* \(" + re.escape(WORKER_ADDRESS)
    assert re.search(told, job.stderr)
