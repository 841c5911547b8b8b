import random
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.grading.grade import grade
from mathrl_ray.data.arithmetic import (
    NUM_SEQUENCES,
    TraceMix,
    draw_problem,
    expression,
    make_problems,
    make_traces,
    operands_at,
    question,
    split_of,
)
from mathrl_ray.types import Problem

GOOD, SLIP, GUESS, NO_FORMAT = (TraceMix(*(float(index == kind) for index in range(4))) for kind in range(4))
splits = st.sampled_from(["train", "validation", "test"])
levels = st.integers(1, 5)


@st.composite
def sequences(draw):
    level = draw(levels)
    return operands_at(level, draw(st.integers(0, 9 ** (level + 1) - 1)))


def test_the_same_sequence_is_asked_in_three_ways():
    assert question((6, 3, -7), "algebra") == "Compute 6+3-7."
    assert question((6, 3, -7), "word") == "Tom has 6 coins. Gets 3. Loses 7. How many?"
    assert question((6, 3, -7), "line") == "Start at 6. Up 3. Down 7. Where?"


@given(sequences())
def test_a_running_value_stays_in_0_to_9_and_every_step_moves_it(operands):
    values = [sum(operands[: step + 1]) for step in range(len(operands))]
    assert 1 <= operands[0] <= 9
    assert all(0 <= value <= 9 for value in values)
    assert all(1 <= abs(step) <= 9 for step in operands[1:])


def test_every_index_of_a_level_is_another_sequence():
    # level 2: 9 start values, and 9 other values to go to at each of 2 steps
    assert len({operands_at(2, index) for index in range(9**3)}) == 729


def test_the_splits_hold_what_is_said_and_about_seven_one_and_two_tenths():
    counts = Counter(split_of(operands_at(level, index)) for level in range(1, 6) for index in range(9 ** (level + 1)))
    assert counts == NUM_SEQUENCES
    # 81 + 729 + 6,561 + 59,049 + 531,441 sequences
    assert counts.total() == 597_861
    assert {split: round(count / 597_861, 2) for split, count in counts.items()} == {"train": 0.70, "validation": 0.10, "test": 0.20}


def test_no_sequence_is_in_two_splits_whatever_the_seeds():
    held = {
        split: {problem.extra["operands"] for seed in range(3) for problem in make_problems(split, 2000, seed)} for split in NUM_SEQUENCES
    }
    assert not held["train"] & held["test"]
    assert not held["train"] & held["validation"]
    assert not held["validation"] & held["test"]


def test_where_a_sequence_belongs_never_changes():
    # fixed by sha256: a change here would move test problems into training sets that were made before
    assert [split_of(operands) for operands in [(6, 3, -7), (1, 1), (1, 5), (2, 2)]] == ["train", "validation", "test", "train"]


@given(splits, st.integers(0, 2**31), st.integers(1, 60))
def test_problems_are_distinct_and_the_same_for_a_seed_and_a_small_set_begins_a_large_one(split, seed, num_problems):
    problems = make_problems(split, num_problems, seed)
    assert problems == make_problems(split, 60, seed)[:num_problems]
    assert len({problem.problem for problem in problems}) == num_problems
    assert [problem.problem_id for problem in problems] == [f"arithmetic/{split}/{index}" for index in range(num_problems)]
    assert all(split_of(problem.extra["operands"]) == split for problem in problems)


def test_another_seed_gives_other_problems():
    assert {problem.problem for problem in make_problems("train", 100, 0)} != {
        problem.problem for problem in make_problems("train", 100, 1)
    }


def test_a_problem_knows_its_answer_level_and_working():
    for problem in make_problems("train", 300, 0):
        operands = problem.extra["operands"]
        assert problem.gold == str(sum(operands))
        assert problem.level == len(operands) - 1
        assert problem.problem == question(operands, problem.subject)
        assert problem.solution.endswith(f"={problem.gold}")


def test_levels_and_subjects_are_even():
    # 3,000 draws: a level has 600 with standard deviation 22, a subject 1,000 with 26
    generator = random.Random(0)
    drawn = [draw_problem("train", generator, "") for _ in range(3000)]
    assert all(500 < count < 700 for count in Counter(problem.level for problem in drawn).values())
    assert all(880 < count < 1120 for count in Counter(problem.subject for problem in drawn).values())


@pytest.mark.parametrize(
    ("split", "key"), [("train", "data.num_train_problems"), ("validation", "data.num_validation_problems"), ("test", "eval.num_problems")]
)
def test_more_problems_than_exist_are_refused_with_the_number_and_the_key(split, key):
    with pytest.raises(ValueError, match=rf"{key} = 9,000,000 .* has {3 * NUM_SEQUENCES[split]:,} problems"):
        make_problems(split, 9_000_000, 0)
    with pytest.raises(ValueError, match=key):
        make_problems(split, 0, 0)


def test_an_unknown_split_or_subject_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match="train, validation, test"):
        make_problems("dev", 1, 0)
    with pytest.raises(ValueError, match="algebra, word, line"):
        question((1, 1), "geometry")


def test_a_good_trace_is_worked_step_by_step_in_the_format():
    problem = Problem("p", "Compute 6+3-7.", "2", extra={"operands": (6, 3, -7)})
    assert make_traces([problem], GOOD, seed=0) == [(problem, " 6+3=9, 9-7=2 </think> <answer> 2 </answer>")]


@given(splits, st.integers(0, 2**31))
def test_good_traces_are_graded_right_and_slips_wrong_in_every_split(split, seed):
    problems = make_problems(split, 5, seed)
    for mix, answer_reward in ((GOOD, 1.0), (SLIP, 0.0)):
        for problem, response in make_traces(problems, mix, seed):
            verdict = grade(response, problem.gold)
            assert (verdict.format_reward, verdict.answer_reward) == (1.0, answer_reward)


def test_a_slip_trace_is_a_chain_with_one_to_three_off_and_one_digit_values():
    for problem, response in make_traces(make_problems("train", 500, 0), SLIP, seed=1):
        steps = [tuple(map(int, step)) for step in re.findall(r"(-?\d+)([+-]\d+)=(-?\d+)", response)]
        offs = [result - value - operand for value, operand, result in steps]
        assert [operand for _, operand, _ in steps] == list(problem.extra["operands"][1:])
        assert all(result == value for (_, _, result), (value, _, _) in pairwise(steps))
        assert all(-3 <= off <= 3 for off in offs)
        assert sum(offs) != 0  # slips that cancel out would give the right answer
        assert all(0 <= result <= 9 for _, _, result in steps)
        assert response.endswith(f" </think> <answer> {steps[-1][2]} </answer>")


def test_a_guess_has_no_working_and_is_right_one_time_in_ten():
    traces = make_traces(make_problems("train", 2000, 0), GUESS, seed=0)
    assert all(re.fullmatch(r" </think> <answer> \d </answer>", response) for _, response in traces)
    # 2,000 guesses: 200 right, standard deviation 13
    assert 140 < sum(response == f" </think> <answer> {problem.gold} </answer>" for problem, response in traces) < 260


def test_a_trace_without_format_is_worked_and_never_pays():
    for problem, response in make_traces(make_problems("test", 300, 0), NO_FORMAT, seed=0):
        assert response.startswith(f" {problem.solution}. ")
        assert response.endswith(f" {problem.gold}.")
        assert grade(response, problem.gold).format_reward == 0.0


def test_shares_are_kept_and_slips_are_as_common_without_the_format():
    traces = make_traces(make_problems("train", 4000, 0), TraceMix(good=0.2, slip=0.2, guess=0.1, no_format=0.5), seed=0)
    unformatted = [(problem, response) for problem, response in traces if "<answer>" not in response]
    # half of 4,000, standard deviation 32; half of those right, standard deviation 22
    assert 1870 < len(unformatted) < 2130
    assert 900 < sum(response.endswith(f" {problem.gold}.") for problem, response in unformatted) < 1100
    assert 310 < sum(response.startswith(" </think>") for _, response in traces) < 490


def test_traces_are_the_same_for_a_seed_and_in_the_order_of_the_problems():
    problems, mix = make_problems("train", 50, 0), TraceMix(good=0.25, slip=0.25, guess=0.25, no_format=0.25)
    assert make_traces(problems, mix, seed=3) == make_traces(problems, mix, seed=3)
    assert make_traces(problems, mix, seed=3) != make_traces(problems, mix, seed=4)
    assert [problem for problem, _ in make_traces(problems, mix, seed=3)] == problems


def test_a_problem_from_elsewhere_has_no_trace():
    with pytest.raises(ValueError, match="'mine' has no operands"):
        make_traces([Problem("mine", "1+1?", "2")], GOOD, seed=0)


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5, 0.0), (1.2, -0.2, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)])
def test_shares_that_are_no_mix_are_refused(shares):
    with pytest.raises(ValueError, match="add up to 1"):
        TraceMix(*shares)


@given(sequences())
def test_an_expression_reads_back_as_its_sequence(operands):
    assert tuple(int(step) for step in re.findall(r"[+-]?\d", expression(operands))) == operands


def test_importing_problems_and_model_settings_imports_no_torch():
    imports = "import sys, mathrl_ray.data.arithmetic, mathrl_ray.data.tiny_model"
    code = f"{imports}; sys.exit(not {{'torch', 'transformers'}}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
