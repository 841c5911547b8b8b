"""The built-in task: short sums with one-digit values, and worked answers to them, right and wrong.

Called by problems.py (`builtin:arithmetic`), by tiny_model.py and base_training.py (the base model learns from the traces) and by
stages/inputs.py (traces for SFT). Pure and light: strings from a seed; knows no torch, no file, no tokenizer.

A problem is a sequence of operands, 6 +3 -7, whose running value stays in 0..9; its level is the number of additions and subtractions.
Three subjects say the same sequence in different words. Which split a sequence is in depends on the sequence alone, so no seed can put a
test sequence into training.
"""

import hashlib
import itertools
import operator
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal

from mathrl_ray.types import Problem

Split = Literal["train", "validation", "test"]

MAX_LEVEL = 5
MAX_VALUE = 9
SUBJECTS = ("algebra", "word", "line")
NUM_SEQUENCES: dict[Split, int] = {"train": 418_328, "validation": 59_921, "test": 119_612}
"""Operand sequences of levels 1 to 5 in each split; a fact of the hash in `split_of`, counted by its test."""
_NUMBER_KEYS: dict[Split, str] = {
    "train": "data.num_train_problems",
    "validation": "data.num_validation_problems",
    "test": "eval.num_problems",
}
_MAX_SLIP = 3
_UNFORMATTED_ENDINGS = (". The answer is {}.", ". So the answer is {}.", ". It is {}.")


@dataclass(frozen=True, slots=True)
class TraceMix:
    """Shares of the four kinds of trace; they add up to 1.

    Example: TraceMix(good=0.60, slip=0.28, guess=0.07, no_format=0.05)
    """

    good: float
    """Worked, right, in the r1_zero format."""
    slip: float
    """Each step's result is off by 1 to 3 half of the time, and carried on; in the format, and always wrong."""
    guess: float
    """In the format, with no working: a random digit, right one time in ten."""
    no_format: float
    """Worked, but said in a sentence without tags. The working slips as often as in the format: slip / (good + slip) of the time.

    So format and working are independent, and a model that copies the mix is right with probability good + guess / 10.
    """

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0 or abs(sum(astuple(self)) - 1) > 1e-9:
            raise ValueError(f"the shares of a trace mix are at least 0 and add up to 1, got {self}")


def operands_at(level: int, index: int) -> tuple[int, ...]:
    """The index-th operand sequence of a level: a start value and then signed steps.

    From any value there are nine other values in 0..9, so a level has 9 ** (level + 1) sequences and a uniform index draws each step
    uniformly among those that stay in range.

    >>> operands_at(1, 0), operands_at(1, 80)
    ((1, -1), (9, -1))
    """
    index, start = divmod(index, MAX_VALUE)
    value = start + 1
    operands = [value]
    for _ in range(level):
        index, choice = divmod(index, MAX_VALUE)
        following = choice + (choice >= value)
        operands.append(following - value)
        value = following
    return tuple(operands)


def expression(operands: Sequence[int]) -> str:
    """The sequence as it is written in a sum.

    >>> expression((6, 3, -7))
    '6+3-7'
    """
    return str(operands[0]) + "".join(f"{step:+d}" for step in operands[1:])


def split_of(operands: Sequence[int]) -> Split:
    """The split that holds a sequence: one in five is test, one in ten validation, by a hash that is the same everywhere and always.

    >>> split_of((6, 3, -7))
    'train'
    """
    digest = hashlib.sha256(expression(operands).encode()).digest()
    match int.from_bytes(digest[:8], "big") % 10:
        case 0 | 1:
            return "test"
        case 2:
            return "validation"
        case _:
            return "train"


def question(operands: Sequence[int], subject: str) -> str:
    """What is asked, in the words of a subject.

    >>> question((6, 3, -7), "word")
    'Tom has 6 coins. Gets 3. Loses 7. How many?'
    """
    start, steps = operands[0], operands[1:]
    match subject:
        case "algebra":
            return f"Compute {expression(operands)}."
        case "word":
            return f"Tom has {start} coins. " + "".join(f"{'Gets' if s > 0 else 'Loses'} {abs(s)}. " for s in steps) + "How many?"
        case "line":
            return f"Start at {start}. " + "".join(f"{'Up' if s > 0 else 'Down'} {abs(s)}. " for s in steps) + "Where?"
        case _:
            raise ValueError(f"subject {subject!r} is not one of {', '.join(SUBJECTS)}")


def draw_problem(split: Split, generator: random.Random, problem_id: str) -> Problem:
    """One problem of a split: level and subject uniform, then the sequence uniform within the level; repeats are possible."""
    level = generator.randint(1, MAX_LEVEL)
    subject = generator.choice(SUBJECTS)
    while True:
        operands = operands_at(level, generator.randrange(MAX_VALUE ** (level + 1)))
        if split_of(operands) == split:
            break
    working, answer = _work(operands)
    return Problem(
        problem_id=problem_id,
        problem=question(operands, subject),
        gold=str(answer),
        level=level,
        subject=subject,
        solution=working,
        extra={"operands": operands},
    )


def make_problems(split: Split, num_problems: int, seed: int) -> list[Problem]:
    """Distinct problems of one split, the same for the same seed; a smaller number gives the beginning of a larger one.

    Levels are uniform until the few texts of a low level are used up (level 1 has 72 test texts). Time is linear, and grows only
    when nearly everything that exists is asked for.

    Raises:
        ValueError: an unknown split, or a number below 1 or above what exists.
    """
    if split not in NUM_SEQUENCES:
        raise ValueError(f"split {split!r} is not one of {', '.join(NUM_SEQUENCES)}")
    num_available = NUM_SEQUENCES[split] * len(SUBJECTS)
    if not 1 <= num_problems <= num_available:
        raise ValueError(
            f'{_NUMBER_KEYS[split]} = {num_problems:,} is not possible with data.{split} = "builtin:arithmetic", '
            f"which has {num_available:,} problems: set {_NUMBER_KEYS[split]} to 1 to {num_available:,}, or name a file in data.{split}"
        )
    generator = random.Random(f"arithmetic/{split}/{seed}")
    by_text: dict[str, Problem] = {}
    while len(by_text) < num_problems:
        problem = draw_problem(split, generator, f"arithmetic/{split}/{len(by_text)}")
        by_text.setdefault(problem.problem, problem)
    return list(by_text.values())


def make_traces(problems: Sequence[Problem], mix: TraceMix, seed: int) -> list[tuple[Problem, str]]:
    """One response a problem, in order, as text that follows the r1_zero prompt (which ends with `<think>`, so it begins with a space).

    A good one to "Compute 6+3-7." is " 6+3=9, 9-7=2 </think> <answer> 2 </answer>".

    Raises:
        ValueError: a problem that `make_problems` did not make.
    """
    generator = random.Random(f"traces/{seed}")
    return [(problem, _draw_trace(problem, mix, generator)) for problem in problems]


def _draw_trace(problem: Problem, mix: TraceMix, generator: random.Random) -> str:
    operands = problem.extra.get("operands")
    if operands is None:
        raise ValueError(f"problem {problem.problem_id!r} has no operands: traces are made for builtin:arithmetic only")
    kind = generator.choices(("good", "slip", "guess", "no_format"), weights=astuple(mix))[0]
    if kind == "guess":
        return f" </think> <answer> {generator.randint(0, MAX_VALUE)} </answer>"
    slips = kind == "slip" or (kind == "no_format" and generator.random() * (mix.good + mix.slip) < mix.slip)
    working, answer = _work(operands, _draw_slips(operands, generator) if slips else None)
    if kind == "no_format":
        return f" {working}{generator.choice(_UNFORMATTED_ENDINGS).format(answer)}"
    return f" {working} </think> <answer> {answer} </answer>"


def _work(operands: Sequence[int], slips: Sequence[int] | None = None) -> tuple[str, int]:
    """The steps as text and the last value; a step's slip is added to its result and carried on.

    >>> _work((6, 3, -7), slips=(-1, 0))
    ('6+3=8, 8-7=1', 1)
    """
    value = operands[0]
    steps = []
    for operand, slip in zip(operands[1:], slips or [0] * (len(operands) - 1), strict=True):
        result = value + operand + slip
        steps.append(f"{value}{operand:+d}={result}")
        value = result
    return ", ".join(steps), value


def _draw_slips(operands: Sequence[int], generator: random.Random) -> list[int]:
    """One slip a step (0 for none) such that all carried-on values stay in 0..9 and the answer is wrong.

    The last value is off by the sum of the slips, so they must not cancel out. A lone slip in the last step always fits: the loop ends.
    """
    amounts = [amount for amount in range(-_MAX_SLIP, _MAX_SLIP + 1) if amount != 0]
    while True:
        slips = [generator.choice(amounts) if generator.random() < 0.5 else 0 for _ in operands[1:]]
        values = itertools.accumulate(map(operator.add, operands[1:], slips), initial=operands[0])
        if sum(slips) != 0 and all(0 <= value <= MAX_VALUE for value in values):
            return slips
