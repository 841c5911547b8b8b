"""The names of two runs' actors on one cluster."""

import pytest
import ray
import stub_engine
from samples import recipe_for

from mathrl_ray.actors.placement import Placement, free_namespace
from mathrl_ray.device import choose_device

CPU = choose_device("cpu", num_gpus=0, num_engines=2)
pytestmark = pytest.mark.timeout(120)


def test_behaviour_33_two_runs_of_one_recipe_share_a_cluster_and_no_name(tmp_path):
    ray.cloudpickle.register_pickle_by_value(stub_engine)
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="run", log_to_driver=False)
    try:
        recipe = recipe_for(tmp_path)
        actors = [Placement(recipe, CPU, name)._create(stub_engine.StubEngine, "generator-0", num_cpus=0) for name in ("run", "run-2")]
        assert ray.get_actor("generator-0") == actors[0]
        assert ray.get_actor("generator-0", namespace="run-2") == actors[1] != actors[0]
        assert free_namespace("other") == "other"
        assert free_namespace("run") == "run-3"
        with pytest.raises(ray.exceptions.ActorAlreadyExistsError):
            Placement(recipe, CPU, "run-2")._create(stub_engine.StubEngine, "generator-0", num_cpus=0)
    finally:
        ray.shutdown()
