import asyncio
from dataclasses import dataclass, field

import pytest
from fakes import Stage, scene, settle, until

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.driver.ledger import Ledger
from mathrl_ray.driver.replicas import GivenUpError, Replicas
from mathrl_ray.driver.waiting import Changes, WaitError
from mathrl_ray.sections import DriverSection

LIMIT_S = 60.0


@dataclass
class Worker:
    """Works when the test lets it, and says who it is and how often it was replaced."""

    name: str
    stage: Stage = field(default_factory=Stage)
    incarnation: int = 0
    done: list[str] = field(default_factory=list)

    async def work(self, item):
        incarnation = self.incarnation
        await self.stage(self.name, "work", item)
        self.done.append(item)
        return f"{item} by {self.name}.{incarnation}"

    async def restart(self):
        await self.stage(self.name, "restart", None)
        self.incarnation += 1


def crew(num, *held, room=100, limit_s=LIMIT_S, **settings):
    stage = Stage(*held)
    workers = [Worker(f"worker-{index}", stage) for index in range(num)]
    replicas = Replicas(workers, Changes(), Ledger(), DriverSection(**settings), room=room, limit_s=limit_s)
    return stage, workers, replicas


def give(replicas, item, size=1):
    return asyncio.create_task(replicas.call(size, lambda worker: worker.work(item), "work"))


def at_work(stage):
    return [(actor, item) for actor, _, item, _ in stage.calls]


@scene
async def test_work_goes_to_the_replica_with_the_least_load():
    stage, _, replicas = crew(3, "work")
    tasks = []
    for item, size in [("a", 5), ("b", 2), ("c", 3), ("d", 1), ("e", 1), ("f", 1)]:  # loads: 5 2 3, then 5 3 3, 5 4 3, 5 4 4
        tasks.append(give(replicas, item, size))
        await settle()
    assert at_work(stage) == [(f"worker-{index}", item) for index, item in zip([0, 1, 2, 1, 1, 2], "abcdef", strict=True)]
    stage.let_all_go_on()
    await asyncio.gather(*tasks)
    assert [replica.load for replica in replicas] == [0, 0, 0]


@scene
async def test_a_slow_replica_gets_less():
    stage, workers, replicas = crew(2, "work of worker-0")
    tasks = [give(replicas, str(number)) for number in range(10)]
    await until(lambda: len(workers[1].done) == 9)  # the first waits in the slow one, which never has the least load again
    assert at_work(stage) == [("worker-0", "0")]
    stage.let_all_go_on()
    await asyncio.gather(*tasks)
    assert sorted(workers[0].done + workers[1].done) == sorted(str(number) for number in range(10))


@scene
async def test_what_has_no_room_waits_here_and_can_still_go_to_whoever_is_free_first():
    stage, _, replicas = crew(2, "work", room=4)
    tasks = [give(replicas, item, 4) for item in "abc"]
    await settle()
    assert at_work(stage) == [("worker-0", "a"), ("worker-1", "b")]
    assert replicas.least_loaded(1) is None
    await stage.go_on("work", "worker-1")
    await settle()
    assert at_work(stage) == [("worker-0", "a"), ("worker-1", "c")]
    stage.let_all_go_on()
    await asyncio.gather(*tasks)


@scene
async def test_work_larger_than_the_room_is_done_by_a_replica_that_has_nothing_else():
    stage, _, replicas = crew(1, "work", room=2)
    small, large = give(replicas, "small"), None
    await settle()
    large = give(replicas, "large", 5)
    await settle()
    assert at_work(stage) == [("worker-0", "small")]
    stage.let_all_go_on()
    assert await asyncio.gather(small, large) == ["small by worker-0.0", "large by worker-0.0"]


@scene
async def test_behaviour_21_a_replica_is_replaced_once_however_many_calls_it_took_down():
    stage, workers, replicas = crew(2, "work", "restart")
    tasks = [give(replicas, item) for item in "abcdef"]
    await settle()
    assert [item for actor, item in at_work(stage) if actor == "worker-0"] == ["a", "c", "e"]
    for _ in range(3):
        await stage.fail("work", "worker-0")
    await settle()
    assert [call[0] for call in stage.waiting("restart")] == ["worker-0"]
    for _ in range(6):
        await stage.go_on("work", "worker-1")
    await asyncio.gather(*tasks)  # the other one did them all, without waiting for the restart
    assert sorted(workers[1].done) == list("abcdef")
    stage.let_all_go_on()
    await replicas.revived()
    assert (replicas.num_restarts, workers[0].incarnation) == (1, 1)
    assert [replica.free for replica in replicas] == [True, True]


@scene
async def test_behaviour_21_a_call_that_fails_late_does_not_take_down_the_actor_that_was_put_in_place():
    stage, workers, replicas = crew(1, "work")
    early, late = give(replicas, "early"), give(replicas, "late")
    await settle()
    await stage.fail("work")
    await until(lambda: workers[0].incarnation == 1)
    await settle()
    assert [item for _, item in at_work(stage)] == ["late", "early"]  # the first actor's answer to "late" is still out, "early" is redone
    await stage.fail("work")
    await settle()
    assert replicas.num_restarts == 1
    stage.let_all_go_on()
    assert await asyncio.gather(early, late) == ["early by worker-0.1", "late by worker-0.1"]
    assert replicas.num_restarts == 1


@scene
async def test_a_replica_that_is_being_replaced_gets_no_work():
    stage, _, replicas = crew(1, "work", "restart")
    task = give(replicas, "a")
    await stage.fail("work")
    await stage.next("restart")
    await settle()
    assert at_work(stage) == [("worker-0", None)]  # nothing but the restart
    assert replicas.least_loaded(1) is None
    stage.let_all_go_on()
    assert await task == "a by worker-0.1"


@scene
async def test_a_first_choice_that_lost_its_room_meanwhile_is_not_overfilled():
    stage, _, replicas = crew(2, "work", room=2)
    chosen = replicas.least_loaded(2)
    others = [give(replicas, item, 2) for item in "ab"]
    await settle()
    late = asyncio.create_task(replicas.call(2, lambda worker: worker.work("late"), "work", chosen))
    await settle()
    assert at_work(stage) == [("worker-0", "a"), ("worker-1", "b")]
    stage.let_all_go_on()
    await asyncio.gather(*others, late)


@scene
async def test_a_first_choice_that_died_meanwhile_is_not_asked_and_not_replaced_twice():
    stage, workers, replicas = crew(1, "work", "restart")
    chosen = replicas.least_loaded(1)
    other = give(replicas, "other")
    await stage.fail("work")
    await stage.next("restart")
    late = asyncio.create_task(replicas.call(1, lambda worker: worker.work("late"), "work", chosen))
    await settle()
    assert at_work(stage) == [("worker-0", None)]
    stage.let_all_go_on()
    assert await asyncio.gather(other, late) == ["other by worker-0.1", "late by worker-0.1"]
    assert (replicas.num_restarts, workers[0].incarnation) == (1, 1)


@scene
async def test_behaviour_21_the_last_try_is_alone_on_its_replica():
    stage, workers, replicas = crew(1, "work", max_tries=2)
    poison, neighbour = give(replicas, "poison"), give(replicas, "neighbour")
    await settle()
    await stage.fail("work")  # both were in it when it died
    await stage.fail("work")
    await settle()
    assert at_work(stage) == [("worker-0", "poison")]  # the neighbour's last try waits for its own turn
    third = give(replicas, "third")
    await settle()
    assert at_work(stage) == [("worker-0", "poison")]
    await stage.fail("work")
    with pytest.raises(GivenUpError, match=r"died in work\(\) \(tried 2 times, driver\.max_tries\)"):
        await poison
    await settle()
    assert at_work(stage) == [("worker-0", "neighbour")]
    stage.let_all_go_on()
    assert await asyncio.gather(neighbour, third) == ["neighbour by worker-0.2", "third by worker-0.2"]
    assert workers[0].done == ["neighbour", "third"]


@scene
async def test_new_work_does_not_starve_a_last_try():
    stage, _, replicas = crew(1, "work", max_tries=2)
    refused, long = give(replicas, "refused"), give(replicas, "long")
    await settle()
    await stage.fail("work", error=ValueError("no"))  # without a restart; "long" goes on
    later = [give(replicas, str(number)) for number in range(5)]
    await settle()
    assert at_work(stage) == [("worker-0", "long")]  # there would be room for all, and then the last try would never be alone
    await stage.go_on("work")
    await settle()
    assert at_work(stage) == [("worker-0", "refused")]
    stage.let_all_go_on()
    await asyncio.gather(refused, long, *later)


@scene
async def test_replicas_that_a_last_try_does_not_need_go_on_as_soon_as_it_has_its_own():
    stage, _, replicas = crew(2, "work", max_tries=2)
    first, second = give(replicas, "first"), give(replicas, "second")
    await settle()
    await stage.fail("work", "worker-0", ValueError("no"))  # its last try takes worker-0 at once, which is empty
    third = give(replicas, "third")
    await settle()
    assert at_work(stage) == [("worker-1", "second"), ("worker-0", "first"), ("worker-1", "third")]
    await stage.fail("work", "worker-1", ValueError("no"))  # "second" has to wait until one is empty; until then nobody begins
    fourth = give(replicas, "fourth")
    await settle()
    assert at_work(stage) == [("worker-0", "first"), ("worker-1", "third")]
    await stage.go_on("work", "worker-0")
    await settle()
    assert at_work(stage) == [("worker-1", "third"), ("worker-0", "second"), ("worker-1", "fourth")]
    stage.let_all_go_on()
    await asyncio.gather(first, second, third, fourth)


@scene
async def test_a_last_try_that_is_cancelled_while_it_waits_lets_the_others_go_on():
    stage, _, replicas = crew(1, "work", max_tries=2)
    refused, long = give(replicas, "refused"), give(replicas, "long")
    await stage.fail("work", error=ValueError("no"))
    later = give(replicas, "later")
    await settle()
    assert at_work(stage) == [("worker-0", "long")]
    refused.cancel()
    await settle()
    assert at_work(stage) == [("worker-0", "long"), ("worker-0", "later")]
    stage.let_all_go_on()
    await asyncio.gather(long, later)


@scene
async def test_a_refused_request_is_tried_again_without_a_restart_and_then_given_up():
    stage, workers, replicas = crew(2, "work", max_tries=3)
    task = give(replicas, "a")
    for _ in range(3):
        await stage.fail("work", error=ValueError("the prompt is too long"))
    with pytest.raises(GivenUpError, match=r"^the prompt is too long \(tried 3 times, driver\.max_tries\)$"):
        await task
    assert (replicas.num_restarts, [worker.incarnation for worker in workers]) == (0, [0, 0])
    assert replicas._ledger.counts.redone == 2
    assert [(replica.load, replica.taken) for replica in replicas] == [(0, False)] * 2


@scene
async def test_one_try_is_not_alone_and_is_the_only_one():
    stage, _, replicas = crew(1, "work", max_tries=1)
    tasks = [give(replicas, item) for item in "ab"]
    await settle()
    assert len(at_work(stage)) == 2
    await stage.fail("work", error=ValueError("no"))
    with pytest.raises(GivenUpError):
        await tasks[0]
    stage.let_all_go_on()
    await tasks[1]
    assert replicas._ledger.counts.redone == 0


@scene
async def test_another_error_is_neither_tried_again_nor_a_reason_to_replace():
    stage, _, replicas = crew(1, "work")
    task = give(replicas, "a")
    await stage.fail("work", error=FloatingPointError("no number"))
    with pytest.raises(FloatingPointError):
        await task
    assert replicas.num_restarts == 0


@scene
async def test_behaviour_21_the_end_of_replacements_reaches_all_who_wait():
    stage, _, replicas = crew(2, "work", room=1, max_restarts=1, max_tries=9)
    tasks = [give(replicas, item) for item in "abcd"]
    drained = asyncio.create_task(replicas.drained())
    await settle()
    await stage.fail("work", "worker-0")
    await settle()
    await stage.fail("work", "worker-1")
    match = r"driver\.max_restarts = 1 replacements were made, and worker-1 failed again: worker-1 died in work\(\)"
    with pytest.raises(ActorError, match=match):
        await drained
    await settle()
    assert sum(task.done() for task in tasks) == 3  # all but the one that worker-0 works on
    for task in tasks:
        if task.done():
            with pytest.raises(ActorError, match=match):
                await task
    with pytest.raises(ActorError, match=match):
        replicas.least_loaded(1)
    for task in tasks:
        task.cancel()


@scene
async def test_behaviour_21_a_replacement_that_does_not_start_ends_the_waiting_with_its_error():
    stage, _, replicas = crew(1, "work", "restart")
    tasks = [give(replicas, item) for item in "ab"]
    revived = None
    await stage.fail("work")
    await stage.next("restart")
    revived = asyncio.create_task(replicas.revived())
    await settle()
    await stage.fail("restart", error=OSError("no such machine"))
    with pytest.raises(OSError, match="no such machine"):
        await revived
    with pytest.raises(OSError, match="no such machine"):
        await tasks[0]
    stage.let_all_go_on()
    assert (await asyncio.gather(tasks[1]))[0] == "b by worker-0.0"


@scene
async def test_held_replicas_get_no_new_work_and_are_drained_when_the_old_is_done():
    stage, _, replicas = crew(1, "work")
    before = give(replicas, "before")
    await settle()
    with replicas.held():
        during = give(replicas, "during")
        drained = asyncio.create_task(replicas.drained())
        await settle()
        assert not drained.done()
        await stage.go_on("work")
        await drained
        await settle()
        assert at_work(stage) == []
        with replicas.held():
            pass
        await settle()
        assert at_work(stage) == []  # the outer one still holds
    await settle()
    assert at_work(stage) == [("worker-0", "during")]
    stage.let_all_go_on()
    await asyncio.gather(before, during)


@scene
async def test_a_pinned_replica_gets_no_work_and_is_not_waited_for():
    stage, _, replicas = crew(2, "work")
    first, last = replicas
    last.pinned = True
    evaluation = asyncio.create_task(replicas.ask(last, 7, lambda worker: worker.work("evaluation"), "work"))
    tasks = [give(replicas, item) for item in "ab"]
    await settle()
    assert at_work(stage) == [("worker-1", "evaluation"), ("worker-0", "a"), ("worker-0", "b")]
    for _ in range(2):
        await stage.go_on("work", "worker-0")
    await replicas.drained()
    assert (first.load, last.load) == (0, 7)
    stage.let_all_go_on()
    await asyncio.gather(evaluation, *tasks)


@scene
async def test_behaviour_19_a_wait_for_room_has_a_limit_that_names_the_replicas_and_the_keys():
    stage, _, replicas = crew(2, "work", room=1, limit_s=0.01, max_tries=2, start_limit_s=0.03)
    tasks = [give(replicas, item) for item in "abc"]
    with pytest.raises(
        WaitError,
        match=r"nothing happened in 0\.05 s of waiting for one of worker-0, worker-1 to have room \(driver\.max_tries.*start_limit_s\)",
    ):
        await tasks[2]
    stage.let_all_go_on()
    await asyncio.gather(*tasks[:2])


@scene
async def test_cancelled_work_leaves_no_load_and_no_replica_taken():
    stage, _, replicas = crew(1, "work", max_tries=2)
    alone, waiting = give(replicas, "alone"), None
    await stage.fail("work", error=ValueError("no"))
    await stage.next("work")
    waiting = give(replicas, "waiting")
    await settle()
    for task in (alone, waiting):
        task.cancel()
    await asyncio.gather(alone, waiting, return_exceptions=True)
    stage.let_all_go_on()
    assert await give(replicas, "next") == "next by worker-0.0"
    assert [(replica.load, replica.taken) for replica in replicas] == [(0, False)]


@scene
async def test_close_ends_replacements_that_go_on():
    stage, _, replicas = crew(2, "work", "restart")
    tasks = [give(replicas, item) for item in "ab"]
    for name in ("worker-0", "worker-1"):
        await stage.fail("work", name)
        await stage.next("restart", name)
    await replicas.close()
    assert stage.waiting("restart") == []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
