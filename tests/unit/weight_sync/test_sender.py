"""What the transfer between GPUs does that needs no GPU: numbers, names, dtypes, orders, limits."""

import asyncio
import pickle
import threading
import time
from base64 import b64decode

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.types import TensorEntry, WeightManifest, WeightMeeting
from mathrl_ray.weight_sync.channel import GeneratorLines
from mathrl_ray.weight_sync.errors import TransferError
from mathrl_ray.weight_sync.receiver import OrderedReceiver, SharedMemoryReceiver, receiver_for
from mathrl_ray.weight_sync.sender import OrderClient, StagedWeights, WeightSender, for_replica, plain, trainer_info, world_size

base = pytest.importorskip("vllm.distributed.weight_transfer.base")  # now: importing it in the middle of a transfer takes seconds
ENTRIES = (TensorEntry("model.norm.weight", "bfloat16", (3,), 0), TensorEntry("lm_head.weight", "bfloat16", (2, 3), 0))
MANIFEST = WeightManifest(7, "", ENTRIES, "nccl")
LIMIT_S = 5.0


class FakeEngine:
    """AsyncLLM's methods for weights: writes down what is called, and fails where it is told to."""

    def __init__(self, fails_in=""):
        self.calls, self._fails_in = [], fails_in

    async def _note(self, method, detail=None):
        self.calls.append((method, detail))
        if method == self._fails_in:
            raise RuntimeError("out of memory")

    async def init_weight_transfer_engine(self, request):
        await self._note("init", request.init_info)

    async def shutdown_weight_transfer_engine(self):
        await self._note("leave")

    async def start_weight_update(self):
        await self._note("start")

    async def update_weights(self, request):
        await self._note("update", request.update_info)

    async def finish_weight_update(self, weight_version=None):
        await self._note("finish", weight_version)


def transfer(engines, orders):
    """Meeting and one update of these engines, with `orders` given by the learner's client. Returns what each side raised."""
    lines = GeneratorLines(LIMIT_S)
    failures = []
    client = OrderClient(lines, len(engines), failures.append)

    def learner():
        lines.accept(len(engines))
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": world_size(len(engines))})
        orders(client)

    async def generator(meeting, index):
        receiver = OrderedReceiver(LIMIT_S)
        await receiver.meet(engines[index], meeting, index)
        await receiver.prepare(MANIFEST)
        await receiver.update(engines[index], MANIFEST)
        receiver.close()

    async def both():
        meeting = lines.listen("nccl", "127.0.0.1", len(engines))
        generators = (generator(meeting, index) for index in range(len(engines)))
        return await asyncio.gather(asyncio.to_thread(learner), *generators, return_exceptions=True)

    answers = asyncio.run(both())
    lines.close()
    return answers, failures


def one_update(client, names=("model.norm.weight", "lm_head.weight")):
    client.start_weight_update()
    client.update_weights({"names": list(names)})
    client.finish_weight_update()


def test_a_whole_update_in_order_with_an_offset_a_replica_and_the_manifests_version():
    engines = [FakeEngine(), FakeEngine()]
    answers, failures = transfer(engines, one_update)
    assert answers == [None, None, None]
    assert failures == []
    for index, engine in enumerate(engines):
        assert engine.calls == [
            ("leave", None),
            ("init", {"rank_offset": 1 + index, "world_size": 3}),
            ("start", None),
            ("update", {"names": ["model.norm.weight", "lm_head.weight"]}),
            ("finish", "7"),
        ]


def test_an_update_in_several_chunks_is_complete_when_their_names_add_up():
    def chunks(client):
        client.start_weight_update()
        for entry in ENTRIES:
            client.update_weights({"names": [entry.name]})
        client.finish_weight_update()

    engine = FakeEngine()
    assert transfer([engine], chunks) == ([None, None], [])
    assert engine.calls[-1] == ("finish", "7")


def test_a_tensor_that_did_not_come_is_refused_before_the_version_moves():
    engine = FakeEngine()
    (learner, generator), failures = transfer([engine], lambda client: one_update(client, names=["lm_head.weight"]))
    for error in (learner, generator, *failures):
        assert "not as announced: ['model.norm.weight']" in str(error)
    assert "finish" not in dict(engine.calls)


def test_the_failure_of_one_generator_reaches_the_learner_by_name_and_the_others_through_it():
    engines = [FakeEngine(), FakeEngine(fails_in="update")]
    (learner, first, second), failures = transfer(engines, one_update)
    assert str(learner) == "generator-1 failed in update_weights: RuntimeError: out of memory"
    assert failures == [learner]
    assert str(second) == "out of memory"
    assert "the learner was gone" in str(first)
    assert engines[0].calls[-1][0] == "update"  # never told to finish: its version does not move


@given(st.integers(1, 8))
def test_ranks_of_a_group_are_the_learners_0_and_one_for_each_generator(num_generators):
    offsets = [for_replica({"rank_offset": 1}, index)["rank_offset"] for index in range(num_generators)]
    assert [0, *offsets] == list(range(world_size(num_generators)))


def test_ipc_has_no_ranks():
    assert for_replica({"packed": True}, 3) == {"packed": True}


def test_handles_of_gpu_memory_travel_pickled_and_the_rest_stays():
    handles = {"GPU-1": (torch.Tensor, (3,), b"\x00\xff")}
    sent = plain({"names": ["a"], "ipc_handles": handles, "ipc_handles_pickled": None, "tensor_sizes": [6]})
    assert pickle.loads(b64decode(sent.pop("ipc_handles_pickled"))) == handles
    assert sent == {"names": ["a"], "tensor_sizes": [6]}


def test_staged_weights_are_cast_named_as_announced_and_do_not_follow_the_learner():
    staged = StagedWeights(ENTRIES, torch.device("cpu"))
    weights = {"model.norm.weight": torch.ones(3), "lm_head.weight": torch.arange(6.0).view(2, 3)}
    staged.fill(weights.items())
    weights["model.norm.weight"].zero_()
    assert [(meta.name, meta.dtype, meta.shape) for meta in staged.metadata()] == [
        ("model.norm.weight", torch.bfloat16, (3,)),
        ("lm_head.weight", torch.bfloat16, (2, 3)),
    ]
    sent = dict(staged)
    assert torch.equal(sent["model.norm.weight"], torch.ones(3, dtype=torch.bfloat16))
    assert [name for name, _ in staged] == [meta.name for meta in staged.metadata()]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"model.norm.weight": torch.ones(3)}, r"1 announced tensors did not come: \['lm_head.weight'\]"),
        ({"model.norm.weight": torch.ones(3), "other": torch.ones(3)}, "other comes twice or was not announced"),
    ],
)
def test_other_names_than_announced_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        StagedWeights(ENTRIES, torch.device("cpu")).fill(weights.items())


def test_a_sender_that_has_met_nobody_says_so():
    with pytest.raises(TransferError, match="have not met"):
        WeightSender("nccl", "127.0.0.1", LIMIT_S).send()


def test_a_collective_that_never_ends_is_left_within_the_limit():
    sender, never = WeightSender("nccl", "127.0.0.1", 0.2), threading.Event()
    began = time.monotonic()
    with pytest.raises(TransferError, match=r"sending the weights did not end within 0\.2 s \(driver\.sync_limit_s\)"):
        sender._within(never.wait, "sending the weights")
    assert time.monotonic() - began < 3
    never.set()


def test_a_generators_failure_ends_the_wait_for_a_collective_at_once():
    sender, never = WeightSender("nccl", "127.0.0.1", 30), threading.Event()
    client = OrderClient(GeneratorLines(1), 1, lambda error: sender._answers.put(error))

    def broadcast():
        with pytest.raises(TransferError):
            client.start_weight_update()  # nobody has met
        never.wait()  # as NCCL does without its partner

    began = time.monotonic()
    with pytest.raises(TransferError, match="generator-0 has no line"):
        sender._within(broadcast, "sending the weights")
    assert time.monotonic() - began < 5
    never.set()


def test_the_receiver_follows_the_transport():
    assert isinstance(receiver_for("shared_memory", 1), SharedMemoryReceiver)
    assert isinstance(receiver_for("nccl", 1), OrderedReceiver)
    assert isinstance(receiver_for("ipc", 1), OrderedReceiver)


class TestWhatVllmExpects:
    """Our parts against vLLM's own classes, as far as these run without a GPU."""

    def test_the_client_has_its_four_methods(self):
        assert isinstance(OrderClient(GeneratorLines(1), 1, print), base.VLLMWeightSyncClient)

    def test_the_source_passes_the_check_of_the_nccl_engine(self):
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

        staged = StagedWeights(ENTRIES, torch.device("cpu"))
        checked = list(NCCLTrainerWeightTransferEngine._checked_iter(staged, staged.metadata()))
        assert [name for name, _ in checked] == [entry.name for entry in ENTRIES]

    def test_a_replica_takes_the_init_info_that_the_trainer_side_makes(self):
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload

        info = trainer_info(WeightMeeting("nccl", "10.0.0.1", 4000, 2), group_port=4001)
        assert (info.master_address, info.master_port, info.world_size, info.is_sender) == ("10.0.0.1", 4001, 3, True)
        payload = worker_init_payload(
            NCCLWeightTransferInitInfo(master_address="10.0.0.1", master_port=4001, rank_offset=1, world_size=3, packed=info.packed)
        )
        assert NCCLWeightTransferInitInfo(**for_replica(payload, 1)).rank_offset == 2

    def test_the_ipc_engine_reads_the_handles_that_were_made_plain(self, monkeypatch):
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo

        monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        handles = {"GPU-1": (torch.float32, b"handle")}
        sent = plain({"names": ["a"], "dtype_names": ["float32"], "shapes": [[2]], "ipc_handles": handles, "tensor_sizes": [8]})
        assert IPCWeightTransferUpdateInfo(**sent).ipc_handles == handles
        assert trainer_info(WeightMeeting("ipc", "/tmp/x", 0, 1), group_port=0).backend == "ipc"

    def test_the_engine_has_what_a_receiver_calls(self):
        from vllm.v1.engine.async_llm import AsyncLLM

        called = [name for name in dir(FakeEngine) if not name.startswith("_")]
        assert len(called) == 5
        assert all(hasattr(AsyncLLM, name) for name in called)
