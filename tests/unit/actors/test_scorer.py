import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from mathrl_ray.actors.grading_process import GradingProcess
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.core.grading.grade import grade
from mathrl_ray.types import ScoreRequest

REPOSITORY = Path(__file__).resolve().parents[3]
CASES = REPOSITORY.parent / "shared" / "data" / "grading_cases.jsonl"
MEMORY_BYTES = 1 << 30

# Each was seen to run for longer than any limit here, in sympy's evaluation: the guards of the pure grader let them through.
HANGS = [
    (r"\prod_{k=1}^{9999} \sin k", "5"),
    (r"\sum_{i=1}^{9999}\sum_{j=1}^{9999} \sin(ij)", "5"),
    (r"\prod_{k=1}^{9999} (x+k)", "2"),
    (r"\int_0^{9999} \sin(x^3)\cos(x^2) dx", r"\frac{1}{3}"),
    (rf"\lfloor {'9' * 400}^{{999}}\pi\rfloor", "y"),
]
# Expanding it takes 15 MiB a second, and goes on.
MEMORY_BOMB = (r"\int (x+1)^{999}(x+2)^{999} dx", "5")
# These hang math-verify for minutes; the guards give an honest verdict at once.
REFUSED_AT_ONCE = [
    ("9^{9^{9}}", "5"),
    ("(10^9)!", "5"),
    (r"\sum_{k=1}^{10^{12}} \frac{1}{k^3}", "2"),
    (r"\binom{10^{9}}{10^{8}}", "2"),
    ("0." + "3" * 100_000, r"\frac{1}{3}"),
    ("(" * 3_000 + "x" + ")" * 3_000, "y"),
    ("word " * 10_000, "5"),
]


def asked(answer, gold):
    """An answer in its tags, whose comparison needs math-verify unless the two texts are alike."""
    return ScoreRequest(f" 2 and 3 make 5. </think> <answer> {answer} </answer>", gold)


GOOD, WRONG = asked(r"2\sqrt{3}", r"\sqrt{12}"), asked(r"3\sqrt{3}", r"\sqrt{12}")  # no plain numbers: these need a process


def keepers_of(pid):
    """The grading processes that a process owns; the child of each, if it has one, is where math-verify runs."""
    # Other tests of this process may have left children that have ended; those have no command line any more.
    alive = (child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE)
    return {child for child in alive if "mathrl_ray.actors.grading_keeper" in child.cmdline()}


def workers_of(pid):
    return {worker for keeper in keepers_of(pid) for worker in keeper.children()}


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@asynccontextmanager
async def running(**settings):
    scorer = Scorer(**{"limit_s": 1.0, "memory_bytes": MEMORY_BYTES, **settings})
    await scorer.setup()
    try:
        yield scorer
    finally:
        await scorer.shutdown()


def score(requests, **settings):
    async def run():
        async with running(**settings) as scorer:
            return await scorer.score(requests)

    return asyncio.run(run())


def until(condition, limit_s):
    """Wait for a condition; False when the limit passed first."""
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_behaviour_4_a_mixed_batch_comes_back_complete_and_in_order():
    batch = [
        (GOOD, "correct"),
        (asked(*HANGS[0]), "grader_timeout"),
        (asked("7", "7"), "correct"),
        (asked(r"}{ \frac", "5"), "unparseable_answer"),
        (asked("", "5"), "no_answer"),
        (ScoreRequest("", "5"), "no_answer"),
        (ScoreRequest(" 2 and 3", "5", finish_reason="length"), "truncated"),
        (ScoreRequest(" 2 and 3", "5", finish_reason="abort"), "no_answer"),
        (ScoreRequest(" so </think> <answer> 5 </answer> and", "5", finish_reason="length"), "correct"),
        (ScoreRequest(" so </think> <answer> </answer> and", "5", finish_reason="length"), "no_answer"),
        (asked("5", ""), "bad_gold"),
        (ScoreRequest("and so on, " * 5_000 + GOOD.response + "and so on, " * 5_000, GOOD.gold), "correct"),
        (asked("word " * 10_000, "5"), "unparseable_answer"),
        (asked("\ud800 \x00 \n", "5"), "unparseable_answer"),
        (WRONG, "wrong"),
        (GOOD, "correct"),
    ]
    grades = score([request for request, _ in batch])
    assert [grade.outcome for grade in grades] == [outcome for _, outcome in batch]
    assert [grade.reward for grade in grades] == [float(outcome == "correct") for _, outcome in batch]
    assert [grade.format_reward for grade in grades] == [float("</think> <answer>" in request.response) for request, _ in batch]
    assert all(0 < grade.grading_s < 1.5 for grade in grades)  # at most the limit of 1 s, and one look at the clock


def test_behaviour_1_every_hanging_input_returns_within_the_limit_and_the_pool_keeps_its_capacity():
    async def run():
        async with running(num_processes=2) as scorer:
            started = time.monotonic()
            grades = await scorer.score([asked(*hang) for hang in HANGS])
            took_s = time.monotonic() - started
            good = await scorer.score([GOOD] * 4)
            return grades, took_s, good, workers_of(os.getpid())

    grades, took_s, good, workers = asyncio.run(run())
    assert [grade.outcome for grade in grades] == ["grader_timeout"] * 5
    assert [(grade.format_reward, grade.answer_reward, grade.reward) for grade in grades] == [(1.0, 0.0, 0.0)] * 5
    assert all(1 <= grade.grading_s < 1 + 1 for grade in grades)
    assert took_s < 3 * (1 + 1)  # five items over two processes are three rounds
    assert [grade.reward for grade in good] == [1.0] * 4
    assert len(workers) == 2


def test_what_would_hang_math_verify_is_refused_before_it_is_computed():
    started = time.monotonic()
    grades = score([asked(*pair) for pair in REFUSED_AT_ONCE], limit_s=5.0)
    assert [grade.outcome for grade in grades] == ["unparseable_answer"] * 7
    assert time.monotonic() - started < 1 + 4  # seven parsings of some 20 ms each, and the start


def test_a_slow_item_delays_the_others_by_no_more_than_the_limit():
    started = time.monotonic()
    grades = score([asked(*HANGS[1]), *[GOOD] * 20], limit_s=1.0)
    assert [grade.outcome for grade in grades] == ["grader_timeout"] + ["correct"] * 20
    assert time.monotonic() - started < 1.0 + 4.0  # the limit, and what a start and twenty gradings take on a busy machine


def test_a_hanging_answer_in_broken_tags_is_no_answer_and_not_a_time_out():
    without_space = ScoreRequest(f" so </think><answer> {HANGS[0][0]} </answer>", "5")
    (result,) = score([without_space], limit_s=0.3)
    assert (result.outcome, result.format_reward, result.reward, result.lenient_answer_correct) == ("no_answer", 0.0, 0.0, False)


def test_a_right_answer_in_broken_tags_is_told_from_a_wrong_one():
    texts = [f" so </think><answer> {answer} </answer>" for answer in ("2/4", "3/4", r"\frac12")]
    texts += [r" so it is \boxed{2/4}", " so it is 2/4"]
    grades = score([ScoreRequest(text, r"\frac{1}{2}") for text in texts])
    assert [grade.lenient_answer_correct for grade in grades] == [True, False, True, True, False]
    assert {(grade.outcome, grade.reward) for grade in grades} == {("no_answer", 0.0)}


def test_behaviour_2_a_memory_bomb_costs_one_restart_and_its_own_grade_only():
    async def run():
        async with running(limit_s=60.0, memory_bytes=128 << 20) as scorer:
            first = await scorer.score([GOOD])
            before = workers_of(os.getpid())
            return before, first + await scorer.score([asked(*MEMORY_BOMB), GOOD]), workers_of(os.getpid())

    before, grades, after = asyncio.run(run())
    assert [grade.outcome for grade in grades] == ["correct", "grader_error", "correct"]
    assert (grades[1].format_reward, grades[1].answer_reward, grades[1].reward) == (1.0, 0.0, 0.0)
    assert len(before) == len(after) == 1
    assert before != after


@pytest.mark.parametrize("find", [workers_of, keepers_of])
def test_a_process_that_dies_over_an_item_is_replaced_and_only_that_item_is_ungraded(find):
    async def run():
        async with running(limit_s=2.0) as scorer:
            batch = asyncio.create_task(scorer.score([asked(*HANGS[2]), GOOD]))
            await asyncio.to_thread(until, lambda: workers_of(os.getpid()), limit_s=10)
            worker, (victim,) = workers_of(os.getpid()), find(os.getpid())
            victim.kill()
            return await batch, worker

    grades, (worker,) = asyncio.run(run())
    assert [grade.outcome for grade in grades] == ["grader_error", "correct"]
    assert until(lambda: is_gone(worker), limit_s=3)  # with its keeper killed too: by the kernel, at once


@pytest.mark.parametrize("find", [workers_of, keepers_of])
def test_a_process_that_dies_while_it_has_nothing_to_do_costs_no_grade(find):
    async def run():
        async with running() as scorer:
            first = await scorer.score([GOOD])
            (victim,) = find(os.getpid())
            victim.kill()
            assert await asyncio.to_thread(until, lambda: is_gone(victim), limit_s=10)
            return first + await scorer.score([GOOD, GOOD])

    assert [grade.outcome for grade in asyncio.run(run())] == ["correct"] * 3


def test_an_item_that_leaves_much_memory_behind_does_not_cost_the_next_one_its_grade():
    # a worker holds about 60 MiB from its start, more than half of 100 MiB: it is replaced after each item, whatever the item did
    process = GradingProcess(limit_s=10.0, memory_bytes=100 << 20)
    try:
        assert process.verdict("2/4", r"\frac{1}{2}") == "correct"
        assert workers_of(os.getpid()) == set()
        assert process.verdict("3/4", r"\frac{1}{2}") == "wrong"
    finally:
        process.end()


def test_a_message_larger_than_any_buffer_on_its_way_arrives():
    # 300,000 characters, which is longer than any answer: unparseable
    assert [grade.outcome for grade in score([asked("1" * 300_000 + "+x", "x")], limit_s=20.0)] == ["unparseable_answer"]


def test_a_process_that_cannot_start_is_an_error_that_names_its_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # a folder in which no Python finds its library
    with pytest.raises(RuntimeError, match=r"ended while it started, .* -m mathrl_ray.actors.grading_keeper 5.0 1073741824"):
        GradingProcess(5.0, MEMORY_BYTES).ready_channel()


def test_behaviour_3_a_cancelled_batch_yields_no_grade_and_leaves_the_scorer_as_it_was():
    async def run():
        async with running() as scorer:
            batch = asyncio.create_task(scorer.score([asked(*HANGS[0]), *[asked(*HANGS[1])] * 50]))
            await asyncio.sleep(0.3)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            started = time.monotonic()
            grades = await scorer.score([GOOD, WRONG])
            return grades, time.monotonic() - started

    grades, took_s = asyncio.run(run())
    assert [grade.outcome for grade in grades] == ["correct", "wrong"]
    assert took_s < 1 + 3  # the item in hand ends by its limit; the fifty behind it were dropped, else this would be 50 s


def test_two_batches_at_once_each_get_their_own_grades():
    async def run():
        async with running(num_processes=2) as scorer:
            return await asyncio.gather(scorer.score([GOOD, WRONG] * 5), scorer.score([WRONG] * 5))

    one, other = asyncio.run(run())
    assert [grade.reward for grade in one] == [1.0, 0.0] * 5
    assert [grade.reward for grade in other] == [0.0] * 5


def test_behaviour_3_the_verdicts_are_those_of_the_pure_function_also_from_an_event_loop_in_a_thread():
    requests = [
        GOOD,
        WRONG,
        asked(r"(-\infty, 4)", "x < 4"),
        asked(r"2\sqrt{3}", r"\sqrt{12}"),
        asked("1, 9", "1, 4, 9"),
        asked("x=2", "2"),
    ]
    from_thread = []
    thread = threading.Thread(target=lambda: from_thread.extend(score(requests, limit_s=20.0)))
    thread.start()
    thread.join(60)
    expected = [grade(request.response, request.gold).outcome for request in requests]  # in the main thread
    assert [result.outcome for result in from_thread] == expected


def test_items_that_need_no_algebra_need_no_process():
    async def run():
        scorer = Scorer(limit_s=1.0, memory_bytes=MEMORY_BYTES)
        grades = await scorer.score([asked(str(number % 7), str(number % 5)) for number in range(5_000)])
        started = keepers_of(os.getpid())
        await scorer.shutdown()
        return grades, started

    grades, started = asyncio.run(run())
    # n % 7 == n % 5 for 5 of each 35 numbers: 142 full rounds of 35 are 710, and 4,970 to 4,974 are 5 more
    assert sum(grade.reward for grade in grades) == 715
    assert started == set()


def test_nothing_is_left_after_shutdown_and_a_later_batch_is_refused():
    async def run():
        async with running(num_processes=2) as scorer:
            await scorer.score([GOOD] * 10)
            processes = keepers_of(os.getpid()) | workers_of(os.getpid())
            assert len(processes) == 4
        assert until(lambda: all(map(is_gone, processes)), limit_s=5)
        with pytest.raises(RuntimeError, match="shutdown"):
            await scorer.score([GOOD])

    asyncio.run(run())


# A plain script, without a guard around its start: what it runs must not run twice. It hangs in the grading or waits after it.
SCRIPT = r"""
import asyncio, sys, time
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.types import ScoreRequest

async def main():
    scorer = Scorer(limit_s=60, memory_bytes=1 << 30)
    await scorer.setup()
    grades = await scorer.score([ScoreRequest(r"</think> <answer> 2\sqrt{3} </answer>", r"\sqrt{12}")])
    print(grades[0].outcome, flush=True)
    if sys.argv[1] == "busy":
        await scorer.score([ScoreRequest(r"</think> <answer> \prod_{k=1}^{9999} \sin k </answer>", "5")] * 100)
    await asyncio.sleep(100)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_grading_processes_end_when_their_owner_is_killed(tmp_path, state):
    script = tmp_path / "grade_something.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, str(script), state], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        try:
            assert owner.stdout.readline() == "correct\n"
            time.sleep(0.3)
            (keeper,), (worker,) = keepers_of(owner.pid), workers_of(owner.pid)
        finally:
            owner.kill()
        # the limit of an item is 60 s here: neither process waits for it
        assert until(lambda: is_gone(keeper) and is_gone(worker), limit_s=5)
        assert owner.stdout.read() == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit_s": 0.0}, "limit_s = 0.0"),
        ({"memory_bytes": 1 << 20}, "memory_bytes = 1048576: .* at least 134217728"),
        ({"num_processes": 0}, "num_processes = 0"),
    ],
)
def test_limits_with_which_nothing_could_be_graded_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Scorer(**settings)


def test_the_projects_cases_all_return_and_their_verdicts_are_counted():
    if not CASES.exists():
        pytest.skip(f"the collection of grading cases is not here: {CASES}")
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    grades = score([ScoreRequest(case["response"], case["gold"]) for case in cases], num_processes=2, limit_s=1.0)
    assert [grade.format_reward == 1.0 for grade in grades] == [case["format_ok"] for case in cases]
    verdicts = Counter((case["correct"], grade.reward == 1.0) for case, grade in zip(cases, grades, strict=True))
    unequal = [(case["id"], grade.outcome) for case, grade in zip(cases, grades, strict=True) if case["correct"] != (grade.reward == 1.0)]
    print(f"paid and right {verdicts[True, True]}, unpaid and wrong {verdicts[False, False]}")
    print(f"wrong answers paid {verdicts[False, True]}, right answers unpaid {verdicts[True, False]}: {unequal}")
    print(
        "outcomes of hanging inputs:", Counter(grade.outcome for case, grade in zip(cases, grades, strict=True) if case["kind"] == "hang")
    )
