"""The checks of where Ray put each engine: on the GPUs that were reserved for it, and where weights reach it."""

import pytest
from samples import recipe_for

from mathrl_ray.actors.placement import Placement, gpus_are_right
from mathrl_ray.actors.remote import Place
from mathrl_ray.config import RecipeError
from mathrl_ray.device import choose_device


def places(*gpus, nodes=None):
    nodes = nodes or ["a"] * len(gpus)
    return [Place(node, tuple(numbers), (1, 0.0)) for node, numbers in zip(nodes, gpus, strict=True)]


def test_engines_on_the_cpu_have_none():
    assert gpus_are_right(places([], []), 0)
    assert not gpus_are_right(places([], [0]), 0)


def test_no_gpu_may_have_two_engines_and_no_engine_two_gpus():
    assert gpus_are_right(places([0], [1], [2]), 1)
    assert gpus_are_right(places([0], [0], nodes=["a", "b"]), 1)
    assert not gpus_are_right(places([0], [0]), 1)
    assert not gpus_are_right(places([0], [1, 2]), 1)
    assert not gpus_are_right(places([0], []), 1)


def test_engines_that_share_a_gpu_must_have_the_same_one():
    assert gpus_are_right(places([1], [1]), 0.5)
    assert gpus_are_right(places([1]), 0.5)  # while the other one is being replaced
    assert not gpus_are_right(places([0], [1]), 0.5)
    assert not gpus_are_right(places([0], [0], nodes=["a", "b"]), 0.5)


def test_a_replacement_on_another_node_that_shared_memory_does_not_reach_is_told_at_once(tmp_path):
    placed = Placement(recipe_for(tmp_path), choose_device("cpu", num_gpus=0, num_engines=2))
    placed._moved("learner-0", *places([]))
    placed._moved("generator-0", *places([]))
    placed._moved("generator-0", None)
    with pytest.raises(RecipeError, match=r"^generator-0 came to another node than learner-0, and .* is shared_memory"):
        placed._moved("generator-0", *places([], nodes=["b"]))
