"""Both ends of the lines over real sockets: the learner's end in a thread, the generators' on an event loop, as they run."""

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest

from mathrl_ray.types import WeightMeeting
from mathrl_ray.weight_sync.channel import GeneratorLines, LearnerLine
from mathrl_ray.weight_sync.errors import TransferError

LIMIT_S = 0.4


@pytest.fixture(params=["nccl", "ipc"])
def transport(request):
    return request.param


@pytest.fixture
def lines():
    lines = GeneratorLines(LIMIT_S)
    yield lines
    lines.close()


def test_an_order_reaches_every_generator_with_its_own_argument_and_waits_for_all(lines, transport):
    heard = {}

    async def generator(meeting, index):
        line = LearnerLine(LIMIT_S)
        await line.connect(meeting, index)
        heard[index] = await line.next_order()
        await asyncio.sleep(0.05 * index)
        await line.answer()
        line.close()

    async def both():
        meeting = lines.listen(transport, "127.0.0.1", 3)
        learner = asyncio.to_thread(lambda: (lines.accept(3), lines.order("update_weights", [{"number": 10 + i} for i in range(3)])))
        began = time.monotonic()
        await asyncio.gather(learner, *(generator(meeting, index) for index in (2, 0, 1)))
        return time.monotonic() - began

    assert asyncio.run(both()) >= 0.1  # the slowest answer
    assert heard == {index: ("update_weights", {"number": 10 + index}) for index in range(3)}


def test_behaviour_19_who_does_not_come_to_the_meeting_is_named_with_the_limit(lines, transport):
    async def both():
        meeting = lines.listen(transport, "127.0.0.1", 3)
        line = LearnerLine(LIMIT_S)
        await asyncio.gather(asyncio.to_thread(lines.accept, 3), line.connect(meeting, 1))

    began = time.monotonic()
    with pytest.raises(TransferError, match=r"generator-0, generator-2 did not come .* 0\.4 s \(driver\.sync_limit_s\)"):
        asyncio.run(both())
    assert time.monotonic() - began < LIMIT_S + 1


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("silent", r"generator-1 did not answer start_weight_update within 0\.4 s \(driver\.sync_limit_s\)"),
        ("gone", "generator-1 was gone in start_weight_update"),
        ("failing", "generator-1 failed in start_weight_update: ValueError: no such tensor"),
    ],
)
def test_behaviour_19_the_generator_that_fails_is_named(lines, transport, behaviour, message):
    async def generator(meeting, index):
        line = LearnerLine(LIMIT_S)
        await line.connect(meeting, index)
        await line.next_order()
        if index == 1 and behaviour == "silent":
            await asyncio.sleep(LIMIT_S + 0.3)
        elif index == 1 and behaviour == "gone":
            line.close()
        else:
            await line.answer("ValueError: no such tensor" if index == 1 else "")

    async def both():
        meeting = lines.listen(transport, "127.0.0.1", 2)
        learner = asyncio.to_thread(lambda: (lines.accept(2), lines.order("start_weight_update", [{}, {}])))
        await asyncio.gather(learner, generator(meeting, 0), generator(meeting, 1))

    with pytest.raises(TransferError, match=message):
        asyncio.run(both())


def test_after_a_failure_the_parties_meet_anew_on_another_line(lines, transport):
    async def failing():
        meeting = lines.listen(transport, "127.0.0.1", 1)
        line = LearnerLine(LIMIT_S)
        await asyncio.gather(asyncio.to_thread(lines.accept, 1), line.connect(meeting, 0))
        line.close()
        with pytest.raises(TransferError, match="gone"):
            await asyncio.to_thread(lines.order, "start_weight_update", [{}])
        with pytest.raises(TransferError, match="must meet first"):
            await asyncio.to_thread(lines.order, "start_weight_update", [{}])
        again = lines.listen(transport, "127.0.0.1", 1)
        fresh = LearnerLine(LIMIT_S)
        await asyncio.gather(asyncio.to_thread(lines.accept, 1), fresh.connect(again, 0))
        ordering = asyncio.to_thread(lines.order, "start_weight_update", [{}])
        _, order, _ = await asyncio.gather(ordering, fresh.next_order(), fresh.answer())
        return order

    assert asyncio.run(failing()) == ("start_weight_update", {})


def test_a_generator_whose_learner_is_silent_or_gone_says_so(lines):
    async def generator():
        meeting = lines.listen("nccl", "127.0.0.1", 1)
        line = LearnerLine(LIMIT_S)
        await asyncio.gather(asyncio.to_thread(lines.accept, 1), line.connect(meeting, 0))
        with pytest.raises(TransferError, match=r"no order within 0\.4 s \(driver\.sync_limit_s\)"):
            await line.next_order()
        lines.close()
        with pytest.raises(TransferError, match="the learner was gone"):
            await line.next_order()
        with pytest.raises(TransferError, match="not at the meeting point"):
            await line.connect(meeting, 0)

    asyncio.run(generator())


def test_the_meeting_point_of_ipc_is_its_owners_only_and_gone_after_close(lines):
    meeting = lines.listen("ipc", "127.0.0.1", 1)
    assert isinstance(meeting, WeightMeeting)
    folder = Path(meeting.address).parent
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    lines.close()
    assert not folder.exists()
