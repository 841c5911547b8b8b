r"""Regions of the real line: intervals, unions and inequalities in one variable, brought to one form.

Called by comparison.py with two shapes of which one is an inequality, a union or a difference. Ends are numbers to 80 digits; nothing is
solved, so `x^2 < 4` is no region.
"""

import re
from fractions import Fraction

from mathrl_ray.core.grading.expressions import UnreadableError, constant_value
from mathrl_ray.core.grading.leaves import read_leaf
from mathrl_ray.core.grading.names import is_name
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.reading import read
from mathrl_ray.core.grading.shapes import Bracketed, Difference, FiniteSet, Leaf, Listing, Piece, Relation, Shape, Union

_INFINITY = re.compile(r"\s*([-+]?)\s*\\infty\s*")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_DISTANCE = re.compile(r"\|\s*(?P<name>[A-Za-z])\s*(?:(?P<sign>[-+])\s*(?P<centre>[0-9]+(?:\.[0-9]+)?))?\s*\|")
r"""`|x - 3|`, how far a variable is from a number."""
_CLOSE = Fraction(1, 10**50)
_EVERYTHING = (Piece(None, None),)


def region(shape: Shape) -> tuple[Piece, ...] | None:
    """The pieces of a shape that is a part of the real line, sorted and merged; None for any other."""
    try:
        pieces = _pieces(shape)
    except UnreadableError:
        return None
    return None if pieces is None else _merged(pieces)


def variable(shape: Shape) -> str | None:
    """The variable that an inequality is about; None for a set."""
    match shape:
        case Relation(sides, operators):
            sides = sides if operators != (r"\in",) else sides[:1]
            names = [side for side in sides if _end(side) is None]
            distance = _DISTANCE.fullmatch(names[0]) if names else None
            return distance["name"] if distance else names[0].replace(" ", "") if names else None
        case Listing(items, _):
            return next((name for item in items if (name := variable(item))), None)
        case _:
            return None


def same_region(gold: tuple[Piece, ...], answer: tuple[Piece, ...]) -> bool:
    return len(gold) == len(answer) and all(
        (one.low_closed, one.high_closed) == (other.low_closed, other.high_closed)
        and _same_end(one.low, other.low)
        and _same_end(one.high, other.high)
        for one, other in zip(gold, answer, strict=True)
    )


def _pieces(shape: Shape) -> list[Piece] | None:
    match shape:
        case Bracketed(opening, closing, (Leaf(low), Leaf(high))):
            return _interval(low, high, opening == "[", closing == "]")
        case FiniteSet(items):
            return _points(items)
        case Union(parts):
            inside = [_pieces(part) for part in parts]
            return None if None in inside else [piece for pieces in inside if pieces for piece in pieces]
        case Difference(whole, FiniteSet(items)):
            outer, holes = _pieces(whole), _points(items)
            return None if outer is None or holes is None else _without(outer, [hole.low for hole in holes])
        case Relation((name, of), (r"\in",)):
            return _pieces(read(of)) if is_name(name) else None
        case Relation((name, value), ("=",)) if is_name(name):
            return _points((read(value),))
        case Relation(sides, operators):
            return _inequality(sides, operators)
        case Listing(items, conjunction):
            return _conditions(items, conjunction)
        case _:
            return None


def _conditions(items: tuple[Shape, ...], conjunction: str) -> list[Piece] | None:
    """`x < 1 or x > 3`; with `and` both hold; with a comma too, unless nothing is left: then people mean either.

    Where one condition implies another they are two answers (`x > 2, x > 3`), and which one is meant nobody can say.
    """
    if conjunction == "or" and all(isinstance(item, Bracketed | Union) for item in items):
        return _pieces(Union(items))
    if not all(isinstance(item, Relation) for item in items) or len({variable(item) for item in items}) > 1:
        return None
    parts = [_pieces(item) for item in items]
    known = [_merged(part) for part in parts if part is not None]
    if len(known) < len(parts) or _one_implies_another(known):
        return None
    both = list(known[0])
    for part in known[1:]:
        both = _intersection(both, list(part))
    if conjunction == "and" or (not conjunction and both):
        return both
    return [piece for part in known for piece in part]


def _one_implies_another(parts: list[tuple[Piece, ...]]) -> bool:
    """Two that are the same are one condition said twice."""
    return any(
        not same_region(one, other) and same_region(_merged(_intersection(list(one), list(other))), one) for one in parts for other in parts
    )


def _inequality(sides: tuple[str, ...], operators: tuple[str, ...]) -> list[Piece] | None:
    if not set(operators) <= set(_FLIPPED) or sum(_end(side) is None for side in sides) != 1:
        return None
    at = next(index for index, side in enumerate(sides) if _end(side) is None)
    if len(sides) == 2 and (distance := _DISTANCE.fullmatch(sides[at])):
        end = _end(sides[1 - at])
        assert end is not None  # as below
        return _within(distance, _FLIPPED[operators[0]] if at else operators[0], end[1])
    if not is_name(sides[at]):
        return None
    pieces = list(_EVERYTHING)
    for index, operator in enumerate(operators):
        left_of_variable = index < at
        end = _end(sides[index] if left_of_variable else sides[index + 1])
        assert end is not None  # every side but the variable is a number
        pieces = _intersection(pieces, _half_line(_FLIPPED[operator] if left_of_variable else operator, end[1]))
    return pieces if len(sides) <= 3 else None


def _within(distance: re.Match[str], operator: str, end: Fraction | None) -> list[Piece] | None:
    """Where `|x - centre| operator end` holds."""
    if end is None or end <= 0:
        return None
    centre = Fraction(distance["centre"] or 0) * (-1 if distance["sign"] == "+" else 1)
    above, below = _half_line(operator, centre + end), _half_line(_FLIPPED[operator], centre - end)
    return _intersection(above, below) if operator in ("<", r"\le", r"\ne") else [*above, *below]


def _half_line(operator: str, end: Fraction | None) -> list[Piece]:
    """Where `x operator end` holds; an infinite end says nothing."""
    if end is None:
        return list(_EVERYTHING)
    match operator:
        case "<" | r"\le":
            return [Piece(None, end, high_closed=operator != "<")]
        case ">" | r"\ge":
            return [Piece(end, None, low_closed=operator != ">")]
        case _:
            return [Piece(None, end), Piece(end, None)]


def _interval(low: str, high: str, low_closed: bool, high_closed: bool) -> list[Piece] | None:
    ends = _end(low), _end(high)
    if ends[0] is None or ends[1] is None or ends[0][0] > 0 or ends[1][0] < 0:
        return None
    start, stop = ends[0][1], ends[1][1]
    if (start is None and low_closed) or (stop is None and high_closed):  # infinity is no number that an interval could hold
        return None
    if start is not None and stop is not None and start >= stop:
        return None
    return [Piece(start, stop, low_closed, high_closed)]


def _points(items: tuple[Shape, ...]) -> list[Piece] | None:
    values = [number_of(item.text) if isinstance(item, Leaf) else None for item in items]
    return None if None in values else [Piece(value, value, True, True) for value in values]


def _end(text: str) -> tuple[int, Fraction | None] | None:
    """(-1, 0 or 1 for which infinity, the value) of a number; None for what has a variable."""
    if match := _INFINITY.fullmatch(text):
        return (-1 if match[1] == "-" else 1), None
    leaf = read_leaf(text)
    number = read_rational(leaf.text)
    if number is not None:
        return 0, number.value
    value = constant_value(leaf.text)
    return None if value is None else (0, value)


def number_of(text: str) -> Fraction | None:
    """The value of a finite number, to 80 digits; None for anything else."""
    try:
        end = _end(text)
    except UnreadableError:
        return None
    return None if end is None else end[1]


def _without(pieces: list[Piece], holes: list[Fraction | None]) -> list[Piece]:
    for hole in holes:
        pieces = _intersection(pieces, [Piece(None, hole), Piece(hole, None)])
    return pieces


def _intersection(left: list[Piece], right: list[Piece]) -> list[Piece]:
    met = [_meet(one, other) for one in left for other in right]
    return [piece for piece in met if piece is not None]


def _meet(one: Piece, other: Piece) -> Piece | None:
    low, low_closed = max(_low_key(piece) for piece in (one, other))[2:]
    high, high_closed = min(_high_key(piece) for piece in (one, other))[2:]
    if low is not None and high is not None and (low > high or (low == high and not (low_closed and high_closed))):
        return None
    return Piece(low, high, low_closed, high_closed)


def _low_key(piece: Piece) -> tuple[bool, tuple[Fraction, bool], Fraction | None, bool]:
    return piece.low is not None, (piece.low or Fraction(0), not piece.low_closed), piece.low, piece.low_closed


def _high_key(piece: Piece) -> tuple[bool, tuple[Fraction, bool], Fraction | None, bool]:
    return piece.high is None, (piece.high or Fraction(0), piece.high_closed), piece.high, piece.high_closed


def _merged(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Sorted, and pieces that meet in a point that one of them holds joined."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=_low_key):
        last = merged[-1] if merged else None
        if last is not None and (last.high is None or piece.low is None or _touches(last, piece)):
            high, closed = max(_high_key(one) for one in (last, piece))[2:]
            merged[-1] = Piece(last.low, high, last.low_closed or (piece.low == last.low and piece.low_closed), closed)
        else:
            merged.append(piece)
    return tuple(merged)


def _touches(left: Piece, right: Piece) -> bool:
    """Two pieces with finite ends there."""
    assert left.high is not None  # the caller has asked
    assert right.low is not None
    return right.low < left.high or (right.low == left.high and (left.high_closed or right.low_closed))


def _same_end(one: Fraction | None, other: Fraction | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _CLOSE * max(abs(one), abs(other))
