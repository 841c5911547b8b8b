"""The check that Ray gave each engine the GPUs that were reserved for it."""

from mathrl_ray.actors.placement import gpus_are_right
from mathrl_ray.actors.remote import Place


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
