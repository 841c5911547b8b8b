"""Behaviours 1 to 9 of graders, each in the pure grader and through the pool. Behaviour 10 is in driver/test_step_warnings.py."""

import asyncio
import os
import threading
import time

import pytest
from test_scorer import GOOD, WRONG, asked, running, score, workers_of

from mathrl_ray.core.grading.grade import grade
from mathrl_ray.data.problems import load_problems
from mathrl_ray.data.rows import DataError
from mathrl_ray.types import ScoreRequest

NUM_PROCESSES = 2
# Different texts, since the same one is answered from quarantine: each runs for longer than any limit here.
HANGING = [asked(rf"\prod_{{k=1}}^{{{9990 + number}}} \sin k", "5") for number in range(3 * NUM_PROCESSES)]


def ordinary(count):
    """Pairs that need the parser, every second one right, no two alike."""
    answers = [rf"2\sqrt{{{number}}}" if number % 2 else rf"3\sqrt{{{number}}}" for number in range(100, 100 + count)]
    return [asked(answer, rf"\sqrt{{{4 * number}}}") for number, answer in enumerate(answers, start=100)]


def test_behaviour_1_after_three_hanging_inputs_a_worker_the_pool_has_its_full_capacity_and_speed():
    async def run():
        async with running(limit_s=1.0, num_processes=NUM_PROCESSES) as scorer:
            await scorer.score(ordinary(10))
            started = time.monotonic()
            before = await scorer.score(ordinary(100))
            before_s = time.monotonic() - started
            hung = await scorer.score(HANGING)
            started = time.monotonic()
            after = await scorer.score(ordinary(100))
            return before, before_s, hung, after, time.monotonic() - started, workers_of(os.getpid())

    before, before_s, hung, after, after_s, workers = asyncio.run(run())
    assert [result.outcome for result in hung] == ["grader_timeout"] * len(HANGING)
    assert all(1.0 <= result.grading_s < 1.0 + 1.0 for result in hung)
    assert [result.outcome for result in after] == [result.outcome for result in before] == ["wrong", "correct"] * 50
    assert len(workers) == NUM_PROCESSES
    assert after_s < 2 * before_s + 1.0  # some 0.3 s alone; what other programs take away between the two differs


def test_behaviour_1_as_many_hanging_inputs_as_workers_delay_the_ordinary_ones_by_one_limit():
    async def run():
        async with running(limit_s=1.5, num_processes=NUM_PROCESSES) as scorer:
            hanging = asyncio.create_task(scorer.score(HANGING[:NUM_PROCESSES]))
            await asyncio.sleep(0.1)  # the hanging ones are with the workers; these come behind them
            started = time.monotonic()
            grades = await scorer.score([GOOD, WRONG] * 5)
            took_s = time.monotonic() - started
            return grades, took_s, await hanging

    grades, took_s, hung = asyncio.run(run())
    assert [result.outcome for result in grades] == ["correct", "wrong"] * 5
    assert took_s < 1.5 + 1.0
    assert [result.outcome for result in hung] == ["grader_timeout"] * NUM_PROCESSES


SAME_EVERYWHERE = [
    GOOD,
    WRONG,
    asked("0.5", r"\frac{1}{2}"),
    asked("0.333333", r"\frac{1}{3}"),
    asked(r"(-\infty, 4)", "x < 4"),
    asked("1, 9", "1, 4, 9"),
    asked(r"}{ \frac", "5"),
    asked("", "5"),
    asked("5", ""),
    ScoreRequest("no tags, 5", "5"),
]


class Actor:
    """As Ray runs an asynchronous actor: its methods on an event loop in a thread."""

    async def grade(self, request):
        return grade(request.response, request.gold).outcome


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    return found[0]


def test_behaviour_3_the_verdict_is_the_same_from_main_thread_thread_async_actor_and_pool():
    async def by_an_actor():
        return await asyncio.gather(*(Actor().grade(request) for request in SAME_EVERYWHERE))

    here = [grade(request.response, request.gold).outcome for request in SAME_EVERYWHERE]
    assert here == [
        "correct", "wrong", "correct", "wrong", "correct", "wrong", "unparseable_answer", "no_answer", "bad_gold", "no_answer",
    ]  # fmt: skip
    assert in_a_thread(lambda: [grade(request.response, request.gold).outcome for request in SAME_EVERYWHERE]) == here
    assert in_a_thread(lambda: asyncio.run(by_an_actor())) == here
    assert [result.outcome for result in score(SAME_EVERYWHERE, limit_s=20.0)] == here


def test_behaviour_5_a_gold_that_is_empty_or_does_not_parse_pays_no_answer_and_is_nobodys_error():
    golds = ["", "  ", "$ $", r"\frac{", r"}{ \frac"]
    results = score([asked(answer, gold) for gold in golds for answer in ("5", "x", "")], limit_s=20.0)
    assert {result.reward for result in results} == {0.0}
    assert all(result.outcome in ("bad_gold", "no_answer") for result in results)
    assert [result.outcome for result in results[:9]] == ["bad_gold"] * 9


def test_behaviour_5_an_empty_gold_is_named_when_the_data_is_loaded(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"id": "a", "problem": "1+1?", "answer": "2"}\n{"id": "b", "problem": "2+2?", "answer": " "}\n')
    with pytest.raises(DataError, match=r"line 2 \(id b\): gold is empty"):
        load_problems(str(path))


@pytest.mark.parametrize(
    ("answer", "gold", "outcome"),
    [
        (r"\frac{2}{3}", r"\dfrac 2 3", "correct"),
        (r"\frac{14}{3}", r"4\frac{2}{3}", "correct"),
        (r"$\sqrt{8}$", r"2\sqrt{2}", "correct"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", "correct"),
    ],
)
def test_behaviour_6_bare_latex_is_a_gold(answer, gold, outcome):
    assert [result.outcome for result in score([asked(answer, gold)], limit_s=20.0)] == [outcome]


def test_behaviour_6_the_gold_is_the_first_argument():
    # an assignment may be answered by its value; asked for the value, the grader takes the assignment too, but x = 3 is not 4
    results = score([asked("3", "x=3"), asked("x=3", "3"), asked("x=3", "4")], limit_s=20.0)
    assert [result.outcome for result in results] == ["correct", "correct", "wrong"]


WRONG_PAIRS = [
    ("3e-7", "4e-7"),
    (r"\frac{1}{2^{70}}", r"\frac{1}{2^{71}}"),
    ("1, 2, 4", "1, 2, 3"),
    (r"1, 3, 5, \ldots", r"1, 4, 9, \ldots"),
    (r"\pm a", "a"),
    ("2", "2, -2"),
    ("3 or 4 or 5", "4"),
    ("y = 2x + 1", "y = 2x + 3"),
    ("0.333333", r"\frac{1}{3}"),
    ("2021_4", "2021_3"),
]


@pytest.mark.parametrize(("answer", "gold"), WRONG_PAIRS)
def test_behaviour_7_no_wrong_answer_is_paid(answer, gold):
    assert grade(asked(answer, gold).response, gold).reward == 0.0


def test_behaviour_7_no_wrong_answer_is_paid_by_the_pool():
    assert {result.reward for result in score([asked(answer, gold) for answer, gold in WRONG_PAIRS], limit_s=20.0)} == {0.0}


@pytest.mark.parametrize(
    ("response", "format_reward", "reward"),
    [
        (" so </think> <answer> 5 </answer>", 1.0, 1.0),
        (" so </think><answer> 5 </answer>", 0.0, 0.0),
        (" so </think> <answer> 4 </answer> no, <answer> 5 </answer>", 1.0, 1.0),
        (" so </think> <answer> 5 </answer> no, <answer> 4 </answer>", 1.0, 0.0),
        (" so </think> <answer> 5 </answer> or rather 4", 1.0, 1.0),
        (" so </think> <answer> </answer>", 1.0, 0.0),
        (r" so </think> <answer> \boxed{5} </answer>", 1.0, 1.0),
    ],
)
def test_behaviour_8_the_tag_rule_is_strict_and_the_last_pair_wins(response, format_reward, reward):
    (result,) = score([ScoreRequest(response, "5")])
    assert (result.format_reward, result.reward) == (format_reward, reward)


@pytest.mark.parametrize("num_characters", [0, 1_000, 200_000])
def test_behaviour_9_text_of_any_length_around_the_answer_changes_no_verdict(num_characters):
    around = ("so 1 + 1 is 2, and " * (num_characters // 19 + 1))[:num_characters]
    results = score([ScoreRequest(around + request.response + around, request.gold) for request in (GOOD, WRONG)], limit_s=20.0)
    assert [(result.outcome, result.format_reward) for result in results] == [("correct", 1.0), ("wrong", 1.0)]
