import asyncio
import threading
import time

import pytest

from mathrl_ray.driver.prefetch import Prefetch


def num_threads():
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


async def until(condition, limit_s=20.0):
    """Wait for what another thread does, without a fixed time."""
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        await asyncio.sleep(0.005)  # the thread has no way to wake this loop


async def collect(items, **arguments):
    with Prefetch(items, what="number", limit_s=20, **arguments) as ahead:
        return [item async for item in ahead]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_their_order_and_all_of_them(depth):
    def slow():
        for number in range(20):
            time.sleep(0.001 * (number % 3))  # some items take longer than others
            yield number

    assert asyncio.run(collect(slow(), depth=depth)) == list(range(20))
    assert num_threads() == 0


def test_items_are_made_while_the_consumer_works_and_no_more_than_fit():
    made = []

    def items():
        for number in range(50):
            made.append(number)
            yield number

    async def consume():
        with Prefetch(items(), what="number", limit_s=20, depth=3) as ahead:
            assert await anext(ahead) == 0
            # the consumer works: 1, 2, 3 wait in the queue and 4 is held, without anyone asking
            await until(lambda: len(made) == 5)
            await asyncio.sleep(0.05)  # time for a sixth item to be made, if nothing held it
            assert made == [0, 1, 2, 3, 4]
            assert await anext(ahead) == 1
            assert ahead.last_wait_s < 0.04  # it was there: below the 0.05 s that one more item would have had to be waited for
            await until(lambda: len(made) == 6)

    asyncio.run(consume())
    assert num_threads() == 0


def test_waiting_for_an_item_does_not_hold_the_event_loop_and_is_measured():
    arrived = threading.Event()

    def items():
        assert arrived.wait(20)
        time.sleep(0.05)  # the wait that is to be measured
        yield "late"

    async def consume():
        with Prefetch(items(), what="number", limit_s=20) as ahead:
            waiting = asyncio.create_task(anext(ahead))
            await asyncio.sleep(0.01)  # the task has begun to wait
            arrived.set()  # only a loop that still runs gets here
            assert await waiting == "late"
            assert ahead.last_wait_s >= 0.05

    asyncio.run(consume())


def test_an_error_of_the_thread_is_raised_in_its_place():
    def items():
        yield 1
        yield 2
        raise ValueError("row 3 is bad")

    async def consume():
        with Prefetch(items(), what="number", limit_s=20) as ahead:
            assert [await anext(ahead), await anext(ahead)] == [1, 2]
            await anext(ahead)

    with pytest.raises(ValueError, match="row 3 is bad"):
        asyncio.run(consume())
    assert num_threads() == 0


@pytest.mark.parametrize("depth", [1, 4])
def test_an_early_exit_leaves_no_thread_and_keeps_the_consumers_error(depth):
    async def consume():
        with Prefetch(iter(range(10**9)), what="number", limit_s=20, depth=depth) as ahead:
            async for item in ahead:
                if item == 5:
                    raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(consume())
    assert num_threads() == 0


def test_a_cancelled_wait_leaves_no_thread():
    release = threading.Event()

    def items():
        release.wait(20)
        yield 1

    async def consume():
        with Prefetch(items(), what="number", limit_s=20) as ahead:
            try:
                await asyncio.wait_for(anext(ahead), 0.05)
            finally:
                release.set()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(consume())
    assert time.monotonic() - began < 10  # not the 20 s of the limit, which the wait's own thread would take if nobody woke it
    assert num_threads() == 0


def test_no_wait_is_without_limit_and_the_message_names_what_did_not_come():
    release = threading.Event()

    def items():
        release.wait(20)
        yield 1

    async def consume():
        with Prefetch(items(), what="batch (learner.limit_s)", limit_s=0.05) as ahead:
            await anext(ahead)

    try:
        with pytest.raises(TimeoutError, match=r"no batch \(learner\.limit_s\) came within 0\.05 s"):
            asyncio.run(consume())
    finally:
        release.set()


def test_asking_after_the_end_ends_again():
    async def consume():
        with Prefetch(iter([]), what="number", limit_s=20) as ahead:
            for _ in range(3):
                with pytest.raises(StopAsyncIteration):
                    await anext(ahead)

    asyncio.run(consume())
