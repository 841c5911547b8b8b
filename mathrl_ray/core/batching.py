"""Micro-batches: sequences of like length together, as many as fit a budget of tokens.

Called by the learner. Pure: integers in, integers out; knows no tensor. Padding to the longest row is computed and thrown away, and
sorting by length keeps it to a few per cent.
"""

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], max_tokens: int, num_ranks: int = 1) -> list[list[int]]:
    """Indices into `lengths`, in groups with rows * longest <= max_tokens.

    Every index stands in exactly one group; read one after the other, the groups are sorted by (length, index). Each group takes all that
    fits before the next begins, which gives the fewest groups that a sorted order allows.

    For several ranks their number is made a multiple of num_ranks, since ranks that exchange weights or gradients must all run the model
    equally often: the group with the most rows is cut in two, and where no row is left to cut off, a group is empty. Rank r takes
    groups[r::num_ranks], so that neighbours in length run at the same time.

    Args:
        lengths: tokens of each sequence, prompt included.
        max_tokens: padded tokens of one micro-batch.
        num_ranks: learner ranks that share the batch.

    Raises:
        ValueError: one sequence alone is longer than max_tokens.

    >>> micro_batches([5, 2, 3, 2], max_tokens=6)
    [[1, 3], [2], [0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        length = lengths[index]
        if length > max_tokens:
            raise ValueError(
                f"sequence {index} has {length} tokens and does not fit a micro-batch of {max_tokens}: "
                f"raise learner.micro_batch_tokens to at least {max(lengths)} or lower generator.max_tokens"
            )
        # Sorted, so this row is the longest of whichever group it joins.
        if groups and (len(groups[-1]) + 1) * length <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    while len(groups) % num_ranks:
        largest = max(range(len(groups)), key=lambda group: len(groups[group]))
        half = len(groups[largest]) // 2
        groups[largest : largest + 1] = [groups[largest][:half], groups[largest][half:]] if half else [groups[largest], []]
    return groups


def padding_fraction(lengths: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
    """Share of the computed tokens that is padding, in [0, 1): 1 - real / sum of rows * longest; 0.0 where there is no token.

    >>> padding_fraction([4, 2], [[0, 1]])
    0.25
    """
    num_real = sum(lengths[index] for group in groups for index in group)
    num_computed = sum(len(group) * max((lengths[index] for index in group), default=0) for group in groups)
    return 1 - num_real / num_computed if num_computed else 0.0
