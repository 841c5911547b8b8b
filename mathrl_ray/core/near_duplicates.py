"""When do two responses to one problem teach the same? The elite pool keeps one of such.

Called by core/elite_pool.py. Pure: texts in, numbers out.

The rule: a text is cut into words, numbers and single signs, in lower case and without spaces; its shingles are all runs of three such
pieces. Two texts are as similar as their sets of shingles overlap (Jaccard: common ones / all; Broder 1997). More than the recipe's
expert_iteration.max_similarity is a near-duplicate. At 1.0 nothing is one, not even the same text again, which is what A5 does; just
below 1.0 texts are that have the same shingles: those that differ in spaces and case only, and those that say the same passage once more.
"""

import re

SHINGLE = 3
"""Pieces of a shingle: enough that "6+3" and "3+6" differ."""
_PIECE = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Runs of three pieces; of a shorter text the text itself.

    >>> sorted(shingles("Is 6 + 3"))
    [('6', '+', '3'), ('is', '6', '+')]
    """
    pieces = _PIECE.findall(text.lower())
    if len(pieces) <= SHINGLE:
        return frozenset([tuple(pieces)])
    return frozenset(zip(*(pieces[start:] for start in range(SHINGLE)), strict=False))  # the shorter ones end it


def similarity(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    """Jaccard similarity of two sets of shingles, in [0, 1]; 1 for equal ones.

    >>> similarity(shingles("1 2 3 4"), shingles("1 2 3 5"))
    0.3333333333333333
    """
    num_common = len(one & other)
    return num_common / (len(one) + len(other) - num_common)
