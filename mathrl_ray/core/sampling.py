"""Chance, made repeatable: the seed of each request and the order of the problems.

Called by the driver and the stages. Pure: everything follows from the arguments, in every process, on every machine and Python version;
no global random state is read or changed. A resumed run needs the step only.
"""

import hashlib
import json
import random


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


def _hash(*values: int | str) -> int:
    """64 bits of the values, in order and by type."""
    text = json.dumps(values)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
