"""Publications on every transport, with an engine that is nothing but its weights."""

import pytest
import torch

from mathrl_ray.actors.publishing import publisher_for
from mathrl_ray.types import WeightMeeting


class FakeEngine:
    """What a publisher asks of deepspeed_engine.Engine; counts how often the weights were gone through."""

    device = torch.device("cpu")

    def __init__(self):
        self.tensors = {"norm": torch.ones(3), "head": torch.arange(6.0).view(2, 3)}
        self.num_passes = 0

    def weights(self):
        self.num_passes += 1
        yield from self.tensors.items()

    def weight_shapes(self):
        return [(name, torch.empty(tensor.shape, device="meta")) for name, tensor in self.tensors.items()]


@pytest.fixture
def publisher(request):
    transport, rank = request.param
    publisher = publisher_for(transport, rank=rank, dtype="bfloat16", host="127.0.0.1", limit_s=1)
    yield publisher
    publisher.close()


@pytest.mark.parametrize("publisher", [(transport, 0) for transport in ("shared_memory", "nccl", "ipc")], indirect=True, ids=str)
def test_the_first_rank_says_what_it_publishes_in_the_models_dtype(publisher):
    engine = FakeEngine()
    manifest = publisher.publish(3, engine)
    assert (manifest.policy_version, manifest.names, engine.num_passes) == (3, {"norm", "head"}, 1)
    assert [(entry.dtype, entry.shape) for entry in manifest.tensors] == [("bfloat16", (3,)), ("bfloat16", (2, 3))]
    assert manifest.transport == publisher.invite(1).transport


@pytest.mark.parametrize("publisher", [(transport, 1) for transport in ("shared_memory", "nccl", "ipc")], indirect=True, ids=str)
def test_another_rank_goes_through_the_weights_once_and_meets_nobody(publisher):
    engine = FakeEngine()
    publisher.meet(publisher.invite(1), engine)
    assert publisher.publish(3, engine) is None
    assert engine.num_passes == 1
    publisher.send(None)


@pytest.mark.parametrize("publisher", [("shared_memory", 0)], indirect=True)
def test_with_shared_memory_there_is_nobody_to_meet_and_nothing_to_send(publisher):
    assert publisher.invite(2) == WeightMeeting("shared_memory", num_generators=2)
    publisher.meet(publisher.invite(2), None)
    publisher.send(None)


@pytest.mark.parametrize("publisher", [("nccl", 0)], indirect=True)
def test_what_is_sent_is_what_was_published_though_the_learner_trains_on(publisher):
    engine = FakeEngine()
    publisher.publish(1, engine)
    engine.tensors["norm"].add_(1)
    assert torch.equal(dict(publisher._staged)["norm"], torch.ones(3, dtype=torch.bfloat16))
    publisher.publish(2, engine)
    assert torch.equal(dict(publisher._staged)["norm"], torch.full((3,), 2.0, dtype=torch.bfloat16))
