import doctest
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_scorer import HANGS

from mathrl_ray import cs336
from mathrl_ray.actors import shared_grading
from mathrl_ray.actors.shared_grading import LIMIT_S, isolated_verdict

REPOSITORY = Path(__file__).resolve().parents[3]
PAIR = (r"2\sqrt{3}", r"\sqrt{12}")


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(shared_grading).failed == 0


def test_behaviour_1_a5s_reward_functions_return_within_the_limit_and_go_on():
    isolated_verdict(*PAIR)  # the start of the process is no part of a limit
    started = time.monotonic()
    hung = cs336.r1_zero_reward_fn(f"</think> <answer> {HANGS[0][0]} </answer>", HANGS[0][1])
    assert LIMIT_S <= time.monotonic() - started < LIMIT_S + 1
    assert hung == {"format_reward": 1.0, "answer_reward": 0.0, "reward": 0.0}
    started = time.monotonic()
    assert cs336.question_only_reward_fn(r"\boxed{9^{9^{9^{9}}}}", "5")["reward"] == 0.0
    assert cs336.question_only_reward_fn(rf"\boxed{{{PAIR[0]}}}", ["7", PAIR[1]])["reward"] == 1.0
    assert time.monotonic() - started < 2


def test_behaviour_3_threads_that_ask_at_once_each_get_their_own_verdict():
    pairs = [(rf"{2 + number % 2}\sqrt{{{number}}}", rf"\sqrt{{{4 * number}}}") for number in range(50, 90)]
    found = {}

    def ask(begin):
        for pair in pairs[begin::4]:
            found[pair] = isolated_verdict(*pair)

    threads = [threading.Thread(target=ask, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # 2 sqrt(n) is the root of 4n, 3 sqrt(n) is not
    assert found == {pair: "correct" if pair[0].startswith("2") else "wrong" for pair in pairs}


def _verdicts(_):
    return isolated_verdict(*PAIR), isolated_verdict(r"3\sqrt{3}", PAIR[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_process_of_its_own_and_the_parent_keeps_its_own():
    isolated_verdict(*PAIR)
    mine = shared_grading._shared.process._keeper.pid
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map_async(_verdicts, range(6), chunksize=1).get(60)
    assert answers == [("correct", "wrong")] * 6
    assert _verdicts(None) == ("correct", "wrong")
    assert shared_grading._shared.process._keeper.pid == mine


def test_a_script_that_ends_takes_its_grading_process_with_it():
    script = (
        "from mathrl_ray.actors import shared_grading as s\n"
        f"print(s.isolated_verdict({PAIR[0]!r}, {PAIR[1]!r}), s._shared.process._keeper.pid)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=True)
    verdict, pid = answer.stdout.split()
    assert verdict == "correct"
    assert answer.stderr == ""
    assert not Path(f"/proc/{pid}").exists()
