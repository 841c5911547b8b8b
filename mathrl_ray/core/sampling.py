"""Chance, made repeatable: the seed of each request and the order of the problems.

Called by the driver and the stages. Pure: everything follows from the arguments, in every process, on every machine and Python version;
no global random state is read or changed. A resumed run needs the step only.
"""

import hashlib
import json
import random
from collections.abc import Sequence


def request_seed(run_seed: int, problem_id: str, step: int, sample: int) -> int:
    """The seed of one response, in [0, 2**31), so that it does not depend on what else is in flight.

    From a BLAKE2b hash of the four values as a JSON list, whose quotes and commas keep different values different texts.

    >>> request_seed(0, "arithmetic/train/17", step=3, sample=1)
    556627789
    """
    return _hash(run_seed, problem_id, step, sample) % 2**31


def epoch_order(num_items: int, run_seed: int, epoch: int) -> list[int]:
    """A permutation of range(num_items) for one epoch.

    Sorted by a draw of random.Random an item: Python keeps `random()` of an integer seed the same for ever, `shuffle` it does not.
    """
    draw = random.Random(_hash("epoch_order", run_seed, epoch))
    keys = [draw.random() for _ in range(num_items)]
    return sorted(range(num_items), key=keys.__getitem__)


def batch_indices(num_items: int, batch_size: int, step: int, run_seed: int) -> list[int]:
    """The indices of batch number `step` (from 0) in an endless stream of shuffled epochs.

    Every item comes once an epoch. Where batch_size does not divide num_items a batch straddles two epochs, and an item may then stand in
    it twice: once as the end of one epoch, once as the start of the next.

    Raises:
        ValueError: batch_size outside of [1, num_items], or a negative step.
    """
    if not 1 <= batch_size <= num_items:
        raise ValueError(
            f"a batch of {batch_size} cannot be drawn from {num_items} problems: "
            f"set the batch size (grpo.prompts_per_step and the like) to 1 to {num_items}, or give more problems in data.train"
        )
    if step < 0:
        raise ValueError(f"a step must be at least 0, got {step}")
    first_epoch, offset = divmod(step * batch_size, num_items)
    order = epoch_order(num_items, run_seed, first_epoch)
    if offset + batch_size > num_items:
        order += epoch_order(num_items, run_seed, first_epoch + 1)
    return order[offset : offset + batch_size]


def question_plan(num_items: int, num_asked: int, run_seed: int) -> list[int]:
    """The first `num_asked` indices of the stream of shuffled epochs that `batch_indices` cuts into batches.

    >>> question_plan(3, 4, run_seed=0) == [*batch_indices(3, 2, 0, 0), *batch_indices(3, 2, 1, 0)]
    True
    """
    num_epochs = -(-num_asked // num_items) if num_items else 0
    return [index for epoch in range(num_epochs) for index in epoch_order(num_items, run_seed, epoch)][:num_asked]


def round_questions(plan: Sequence[int], num_items: int, num_questions: int, round_number: int) -> list[int]:
    """All indices in the order in which a round (from 1) prefers them, none twice: its own part of the plan, what the plan has later, then
    the rest. Its first `num_questions` are the round's, unless something passes over some of them.

    >>> round_questions([3, 0, 2, 1, 0, 3], num_items=5, num_questions=2, round_number=2)
    [2, 1, 0, 3, 4]
    """
    start = (round_number - 1) * num_questions
    return list(dict.fromkeys([*plan[start:], *plan[:start], *range(num_items)]))


def temperature_ladder(temperatures: Sequence[float], num_samples: int) -> list[float]:
    """The temperature of each of a question's samples: the rungs in turn, so that each rung gets as many samples as any other, or one more.

    Several temperatures make siblings differ: the low ones find the likely way, the high ones others.

    Raises:
        ValueError: no rung, or one that is not above 0.

    >>> temperature_ladder([0.8, 1.0, 1.2], 8)
    [0.8, 1.0, 1.2, 0.8, 1.0, 1.2, 0.8, 1.0]
    """
    if not temperatures or min(temperatures) <= 0:
        raise ValueError(f"expert_iteration.temperatures = {list(temperatures)}: give at least one, each above 0")
    return [temperatures[sample % len(temperatures)] for sample in range(num_samples)]


def round_seeds(run_seed: int, problem_id: str, round_number: int, num_samples: int) -> list[int]:
    """The seed of each of a question's samples in a round, as `request_seed` has them: a question that comes again gets others."""
    return [request_seed(run_seed, problem_id, round_number, sample) for sample in range(num_samples)]


def _hash(*values: int | str) -> int:
    """64 bits of the values, in order and by type."""
    text = json.dumps(values)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
