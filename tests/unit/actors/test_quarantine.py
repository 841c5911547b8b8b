import asyncio
import json
import os
import time

from test_scorer import GOOD, HANGS, MEMORY_BOMB, WRONG, asked, keepers_of, running, workers_of

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.actors.quarantine import Quarantine, Suspect
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.types import Problem, ScoreRequest

HANG = asked(*HANGS[0])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_hung_once_is_written_down_and_answered_at_once_the_next_time(tmp_path):
    path = tmp_path / "quarantine.jsonl"

    async def run():
        scorer = Scorer(limit_s=0.5, memory_bytes=1 << 30)
        await scorer.setup(str(path))
        (first,) = await scorer.score([HANG])
        started = time.monotonic()
        again = await scorer.score([HANG, asked(HANGS[0][0], "7"), GOOD])
        await scorer.shutdown()
        return first, again, time.monotonic() - started

    first, (again, other_gold, good), took_s = asyncio.run(run())
    assert (first.outcome, first.from_quarantine) == ("grader_timeout", False)
    assert (again.outcome, again.from_quarantine, again.format_reward, again.reward) == ("grader_timeout", True, 1.0, 0.0)
    assert again.grading_s < 0.1
    assert (other_gold.outcome, other_gold.from_quarantine) == ("grader_timeout", False)  # another pair
    assert good.outcome == "correct"
    assert took_s < 2.5
    rows = lines(path)
    assert [(row["answer"], row["gold"], row["style"], row["function"]) for row in rows] == [
        (HANGS[0][0], HANGS[0][1], "r1_zero", ""),
        (HANGS[0][0], "7", "r1_zero", ""),
    ]
    assert all(row["outcome"] == "grader_timeout" and 0.5 <= row["seconds"] < 1.5 for row in rows)


def test_a_scorer_knows_what_stood_in_the_file_before_it_began(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    Quarantine(path).add(Suspect(HANGS[0][0], HANGS[0][1]), "r1_zero", "grader_timeout", 5.0)
    with path.open("a") as file:
        file.write('{"answer": "cut o')  # its writer was killed

    async def run():
        scorer = Scorer(limit_s=60.0, memory_bytes=1 << 30)
        await scorer.setup(str(path))
        grades = await scorer.score([HANG])
        await scorer.shutdown()
        return grades

    (grade,) = asyncio.run(run())
    assert (grade.outcome, grade.from_quarantine) == ("grader_timeout", True)


def test_siblings_with_the_same_hanging_answer_cost_one_limit_a_process_and_not_one_each():
    async def run():
        async with running(limit_s=1.0) as scorer:
            started = time.monotonic()
            return await scorer.score([HANG] * 8), time.monotonic() - started

    grades, took_s = asyncio.run(run())
    assert [grade.from_quarantine for grade in grades] == [False] + [True] * 7
    assert {grade.outcome for grade in grades} == {"grader_timeout"}
    assert took_s < 2.0  # eight would be 8 s


def test_what_outgrew_the_memory_is_quarantined_too():
    async def run():
        async with running(limit_s=60.0, memory_bytes=128 << 20) as scorer:
            return await scorer.score([asked(*MEMORY_BOMB)]) + await scorer.score([asked(*MEMORY_BOMB), WRONG])

    first, again, wrong = asyncio.run(run())
    assert (first.outcome, first.from_quarantine) == ("grader_error", False)
    assert (again.outcome, again.from_quarantine) == ("grader_error", True)
    assert wrong.outcome == "wrong"


def test_a_process_that_was_killed_from_outside_puts_nothing_into_quarantine():
    async def run():
        async with running(limit_s=1.0) as scorer:
            batch = asyncio.create_task(scorer.score([HANG]))
            async with asyncio.timeout(20):
                while not workers_of(os.getpid()):  # a process tells nobody that it has started
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)  # into the item, and far from its limit of 1 s
            for keeper in keepers_of(os.getpid()):
                keeper.kill()
            return await batch + await scorer.score([HANG])

    killed, again = asyncio.run(run())
    assert killed.outcome == "grader_error"
    assert (again.outcome, again.from_quarantine) == ("grader_timeout", False)


SLOW = """
import time
def paid(problem, response, *, step):
    if problem.extra["wait"] and step < 3:
        time.sleep(60)
    return 1.0
"""
SLOW_SPEC = "slow.py:paid"


def of_problem(problem_id="p", *, wait=True, step=0, prompt=""):
    problem = Problem(problem_id, "1+1?", "2", extra={"wait": wait})
    return ScoreRequest("the same response", "2", function=SLOW_SPEC, problem=problem, step=step, prompt=prompt)


def outcomes(grades):
    return [(grade.outcome, grade.from_quarantine) for grade in grades]


def test_a_functions_input_is_given_up_after_its_second_timeout_and_no_other_input_pays_for_it(tmp_path):
    path = tmp_path / "quarantine.jsonl"

    async def run(*batches):
        scorer = Scorer(limit_s=0.5, functions=[FunctionSource(SLOW_SPEC, "reward.function", SLOW)])
        await scorer.setup(str(path))
        try:
            return [outcomes(await scorer.score(batch)) for batch in batches]
        finally:
            await scorer.shutdown()

    first, third, others = asyncio.run(
        run(
            [of_problem(step=1)],
            [of_problem(step=2), of_problem(step=3)],  # the step is no part of the input: the second of these is the third time
            [of_problem("another"), of_problem(wait=False), of_problem(prompt="another prompt", step=3)],
        )
    )
    assert first == [("grader_timeout", False)]
    assert third == [("grader_timeout", False), ("grader_timeout", True)]
    # The same response and gold: of another problem it has its own first time, with other columns or another prompt it is graded.
    assert others == [("grader_timeout", False), ("correct", False), ("correct", False)]
    assert [(row["problem_id"], row["function"]) for row in lines(path)] == [("p", SLOW_SPEC)] * 2 + [("another", SLOW_SPEC)]

    [again] = asyncio.run(run([of_problem(), of_problem("another", step=3)]))  # a resumed run counts on: twice, and once
    assert again == [("grader_timeout", True), ("correct", False)]


def test_a_functions_input_that_was_slow_once_is_paid_the_next_time():
    async def run():
        async with running(limit_s=0.5, functions=[FunctionSource(SLOW_SPEC, "reward.function", SLOW)]) as scorer:
            return outcomes(await scorer.score([of_problem(step=1)]) + await scorer.score([of_problem(step=3)]))

    assert asyncio.run(run()) == [("grader_timeout", False), ("correct", False)]
