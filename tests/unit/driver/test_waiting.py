import asyncio

import pytest
from fakes import scene, settle

from mathrl_ray.driver.waiting import Changes, WaitError, all_of

LONG_S = 60.0


def told(text="nothing"):
    return lambda: text


def test_what_holds_already_is_not_waited_for():
    asyncio.run(Changes().until(lambda: True, told(), limit_s=0.0))


def test_a_ring_wakes_everyone_who_waits_and_only_those_go_on_whose_condition_holds():
    async def scene():
        changes, state, woken = Changes(), {"number": 0}, []

        async def wait_for(number):
            await changes.until(lambda: state["number"] >= number, told(), LONG_S)
            woken.append(number)

        tasks = [asyncio.create_task(wait_for(number)) for number in (2, 1, 2, 3)]
        await settle()
        state["number"] = 1
        await settle()
        assert woken == []  # nobody rang
        changes.ring()
        await settle()
        assert woken == [1]
        state["number"] = 2
        changes.ring()
        await settle()
        assert woken == [1, 2, 2]
        state["number"] = 3
        changes.ring()
        await asyncio.gather(*tasks)

    asyncio.run(scene())


def test_rings_in_a_row_lose_no_one():
    async def scene():
        changes, seen = Changes(), []

        async def follow():
            for number in range(5):
                await changes.until(lambda number=number: len(given) > number, told(), LONG_S)
                seen.append(given[number])

        given: list[int] = []
        task = asyncio.create_task(follow())
        for number in range(5):  # two rings without a turn in between, then one with
            given.append(number)
            changes.ring()
            if number % 2:
                await asyncio.sleep(0)
        await task
        assert seen == [0, 1, 2, 3, 4]

    asyncio.run(scene())


def test_behaviour_19_a_limit_that_passes_names_what_was_waited_for_and_what_is_there_then():
    async def scene():
        changes, present = Changes(), ["generator-0"]

        def what():
            return f"2 generators, there are {len(present)} (driver.sync_limit_s)"

        waiting = asyncio.create_task(changes.until(lambda: len(present) == 3, what, limit_s=0.05))
        await settle()
        present.append("generator-1")
        with pytest.raises(
            WaitError, match=r"^nothing happened in 0\.05 s of waiting for 2 generators, there are 2 \(driver\.sync_limit_s\)$"
        ):
            await waiting

    asyncio.run(scene())


def test_behaviour_21_the_limit_counts_from_the_last_ring_since_each_says_that_work_was_done():
    async def scene():
        changes, state = Changes(), {"done": False}
        waiting = asyncio.create_task(changes.until(lambda: state["done"], told(), limit_s=2.0))
        for _ in range(4):  # 2.4 s in all
            await asyncio.sleep(0.6)  # the passing of time is what is tested
            changes.ring()
        state["done"] = True
        changes.ring()
        await waiting

    asyncio.run(scene())


@pytest.mark.parametrize("error", [KeyError("lost"), TimeoutError("of its own")])
def test_what_the_condition_raises_reaches_the_one_who_waits(error):
    async def scene():
        changes, state = Changes(), {"broken": False}

        def holds():
            if state["broken"]:
                raise error
            return False

        waiting = asyncio.create_task(changes.until(holds, told(), LONG_S))
        await settle()
        state["broken"] = True
        changes.ring()
        with pytest.raises(type(error)) as raised:
            await waiting
        assert raised.value is error

    asyncio.run(scene())


def test_a_cancelled_wait_is_cancelled_and_not_a_limit():
    async def scene():
        waiting = asyncio.create_task(Changes().until(lambda: False, told(), LONG_S))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())


@scene
async def test_all_of_gives_the_results_in_order_whoever_ends_first():
    second_done = asyncio.Event()

    async def first():
        await second_done.wait()
        return 1

    async def second():
        second_done.set()
        return 2

    assert await all_of([first(), second()]) == [1, 2]
    assert await all_of([]) == []


@scene
async def test_all_of_ends_the_others_before_it_raises_the_first_error():
    ended = []

    async def wait_for_ever():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # its end takes a turn
            ended.append("others")

    async def fail():
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await all_of([wait_for_ever(), fail(), wait_for_ever()])
    assert ended == ["others"] * 2
    assert asyncio.all_tasks() == {asyncio.current_task()}
