r"""Comparison: whether an answer's shape says the same as the gold's.

Called by grade.py with two shapes. Each rule is a named function with its reason; a pair of shapes that no rule names is unequal. The gold
comes first everywhere, because what may be left out is what the gold does not need.
"""

import re
from collections.abc import Sequence

from mathrl_ray.core.grading.approximation import is_rounded
from mathrl_ray.core.grading.expressions import proportional, same_expression
from mathrl_ray.core.grading.leaves import same_leaf
from mathrl_ray.core.grading.names import asks_for_a_value, is_name, order_of_names, unknown_of
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.reading import plain_words, read
from mathrl_ray.core.grading.regions import number_of, region, same_region, variable
from mathrl_ray.core.grading.sentences import MONTH
from mathrl_ray.core.grading.shapes import (
    Bracketed,
    Clock,
    Described,
    Difference,
    FiniteSet,
    Leaf,
    Listing,
    Matrix,
    Progression,
    Ratio,
    Relation,
    Residue,
    Shape,
    Union,
    Words,
)

_EQUALITIES = frozenset({"=", r"\approx", r"\equiv"})
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne", r"\equiv": r"\equiv"}


def same(gold: Shape, answer: Shape) -> bool:
    """Whether the two say the same.

    Raises:
        UnreadableError: an expression on either side cannot be read.
    """
    if gold == answer:
        return True
    if _are_regions(gold, answer):
        return _same_region(gold, answer)
    match gold, answer:
        case Relation(), Relation():
            return _same_relation(gold, answer)
        case Relation(), _:
            return any(same(value, answer) for value in _values_of(gold))
        case _, Relation():
            return any(same(gold, value) for value in _values_of(answer, may_ask=True))
        case (Leaf(), Leaf()):
            return same_leaf(gold, answer)
        case (Words(), _) | (_, Words()):
            return _same_words(gold, answer)
        case (Bracketed(), _) | (_, Bracketed()):
            return _same_tuple(gold, answer)
        case (Listing() | FiniteSet(), Listing() | FiniteSet()):
            return _same_items(gold, answer)
        case Described(collected, condition), Described(others, other_condition):
            return collected == others and same(condition, other_condition)
        case (FiniteSet((only,)), other) | (other, FiniteSet((only,))):
            return same(only, other) if gold is not other else same(other, only)
        case Matrix(), Matrix():
            return _same_matrix(gold, answer)
        case _:
            return _same_notation(gold, answer)


def check_readable(shape: Shape) -> None:
    """Read every expression in a shape.

    Raises:
        UnreadableError: one cannot be read, so nothing can be said about the whole.
    """
    match shape:
        case Leaf(text):
            if read_rational(text) is None:
                same_expression(text, text)
        case Relation(sides, _):
            for side in sides:
                if not is_name(side):
                    check_readable(read(side))
        case Residue(number, modulus):
            check_readable(number)
            check_readable(modulus)
        case Listing(items, _) | Bracketed(_, _, items) | FiniteSet(items) | Union(items):
            for item in items:
                check_readable(item)
        case Progression(items):
            for term in items:
                if term is not None:
                    check_readable(term)
        case Described(_, condition):
            check_readable(condition)
        case Matrix(_, rows):
            for row in rows:
                for cell in row:
                    check_readable(cell)
        case _:
            pass


# Regions


def _are_regions(gold: Shape, answer: Shape) -> bool:
    """Two brackets are compared as they stand; they are intervals where the other side says so."""
    return any(_is_only_a_region(shape) for shape in (gold, answer))


def _is_only_a_region(shape: Shape) -> bool:
    match shape:
        case Union() | Difference():
            return True
        case Relation(_, operators):
            return not set(operators) & _EQUALITIES and operators != (r"\in",)
        case Listing(items, _):
            return all(isinstance(item, Relation) and _is_only_a_region(item) for item in items)
        case _:
            return False


def _same_region(gold: Shape, answer: Shape) -> bool:
    names = {name for shape in (gold, answer) if (name := variable(shape)) is not None}
    regions = region(gold), region(answer)
    if regions[0] is not None and regions[1] is not None and len(names) < 2:
        return same_region(regions[0], regions[1])
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relation(gold, answer)
    return isinstance(gold, Listing) and isinstance(answer, Listing) and _same_items(gold, answer)


# Equations and chains


def _values_of(relation: Relation, *, may_ask: bool = False) -> list[Shape]:
    """What `x = 5` and a chain `a = 2 + 3 = 5` come to.

    Args:
        may_ask: whether the first side may be an expression whose number was asked for, as in an answer `m + n = 29`. A gold says what it
            says: the circle `x^2 + y^2 = 25` is not 25.

    Nothing for a chain that contradicts itself (`3 = 5`: a list of guesses), nor for an equation that has still to be solved: all sides
    that are no names must be equal (`2x = 5`, `x + 3 = 5`), and a variable must not stand in its own value (`x = 2x - 5`). Between a name
    and a number there may be formulas: `A = s^2 = 25`.
    """
    if relation.operators == (r"\in",):
        return [read(relation.sides[1])] if is_name(relation.sides[0]) else []
    if not set(relation.operators) <= _EQUALITIES:
        return []
    if r"\approx" in relation.operators:
        return _approximated(relation)
    is_asked = may_ask and asks_for_a_value(relation.sides[0]) and number_of(relation.sides[-1]) is not None
    sides = _without_names(relation.sides[1:] if is_asked else relation.sides) or [relation.sides[-1]]
    unknowns = {unknown for side in relation.sides if is_name(side) and side not in sides and (unknown := unknown_of(side)) is not None}
    if any(_stands_in(unknown, side) for unknown in unknowns for side in sides):
        return []
    if (is_asked or is_name(relation.sides[0])) and number_of(sides[-1]) is not None:
        sides = [side for side in sides if number_of(side) is not None]
    return [read(sides[-1])] if len(sides) == 1 or _are_equal_sides(sides) else []


def _without_names(sides: Sequence[str]) -> list[str]:
    return [side for side in sides if not is_name(side)]


def _stands_in(unknown: str, side: str) -> bool:
    """A letter in a product, which no command and no word holds."""
    return re.search(rf"(?<![\\A-Za-z]){re.escape(unknown)}(?![A-Za-z])", side) is not None


def _approximated(relation: Relation) -> list[Shape]:
    r"""Both sides of `x = 2/3 \approx 0.67`, where the last is the one before it, correctly rounded to the digits that it shows."""
    at = relation.operators.index(r"\approx") + 1
    exact, rounded = _without_names(relation.sides[:at]), _without_names(relation.sides[at:])
    if relation.operators.count(r"\approx") > 1 or len(rounded) > 1 or (len(exact) > 1 and not _are_equal_sides(exact)):
        return []
    if exact and rounded and not is_rounded(exact[-1], rounded[0]):
        return []
    return [read(side) for side in (*exact[-1:], *rounded)]


def _are_equal_sides(sides: Sequence[str]) -> bool:
    return len(sides) > 1 and all(same(read(sides[0]), read(side)) for side in sides[1:])


def _same_relation(gold: Relation, answer: Relation) -> bool:
    """The same relation: side by side, read backwards, or as equations with the same solutions (one a multiple of the other)."""
    gold, answer = _shortened(gold), _shortened(answer)
    readings = [reading for reading in (answer, _read_backwards(answer)) if reading.operators == gold.operators]
    if any(_same_sides(gold.sides, reading.sides) for reading in readings):
        return True
    if len(gold.operators) != 1 or gold.operators[0] not in _FLIPPED:
        return False
    return any(_is_multiple(gold, reading, even_negative=gold.operators == ("=",)) for reading in readings)


def _read_backwards(relation: Relation) -> Relation:
    return Relation(relation.sides[::-1], tuple(_FLIPPED.get(operator, "") for operator in reversed(relation.operators)))


def _shortened(relation: Relation) -> Relation:
    """`x = 2 + 3 = 5` says `x = 5`."""
    if len(relation.sides) > 2 and set(relation.operators) <= _EQUALITIES and _are_equal_sides(relation.sides[1:]):
        return Relation((relation.sides[0], relation.sides[-1]), ("=",))
    return relation


def _same_sides(gold: Sequence[str], answer: Sequence[str]) -> bool:
    return all(
        one.replace(" ", "") == other.replace(" ", "") or (not is_name(one) and same(read(one), read(other)))
        for one, other in zip(gold, answer, strict=True)
    )


def _is_multiple(gold: Relation, answer: Relation, *, even_negative: bool) -> bool:
    differences = [f"({left})-({right})" for left, right in (gold.sides, answer.sides)]
    return proportional(differences[0], differences[1], even_negative=even_negative)


# Words


def _same_words(gold: Shape, answer: Shape) -> bool:
    one, other = _text_of(gold), _text_of(answer)
    return bool(one) and (one == other or (MONTH.search(one) is not None and _as_date(one) == _as_date(other)))


def _text_of(shape: Shape) -> str:
    """A word of two letters and `C` are read as expressions; beside words they are words. "" for what has no words."""
    match shape:
        case Words(text):
            return text
        case Leaf(text):
            return plain_words(text)
        case _:
            return ""


def _as_date(text: str) -> list[str]:
    """May 4, 4 May and the 4th of May are one day."""
    return sorted(word[:3] if MONTH.fullmatch(word) else word for word in text.split() if word not in ("of", "the"))


# Lists, sets, tuples, matrices


def _same_items(gold: Listing | FiniteSet, answer: Listing | FiniteSet) -> bool:
    """As many values, each with its partner. Between braces a value that comes twice is there once.

    What only the gold names has the gold's order; what only the answer names has one if its names are letters that have (`x = 3, y = 5`),
    but `x_1 = 5, x_2 = 3` and `p = 5, n = 3` are values beside each other.
    """
    named = [_named_values(shape) for shape in (gold, answer)]
    if (named[0] is None) != (named[1] is None) and (named[0] is not None or _have_an_order(answer)):
        return _in_order(named[0] or gold.items, named[1] or answer.items)
    if isinstance(gold, Listing) and isinstance(answer, Listing) and _is_ranking(gold):
        return _in_order(gold.items, answer.items)
    golds, answers = list(gold.items), list(answer.items)
    if isinstance(gold, FiniteSet) or isinstance(answer, FiniteSet):
        golds, answers = _distinct(golds), _distinct(answers)
    return len(golds) == len(answers) and _paired(golds, answers)


def _named_values(shape: Listing | FiniteSet) -> list[Shape] | None:
    """The values of `y = -1, x = 4` in the order of their names, of `p = 3, n = 2` as written.

    None where a name is missing or comes twice.
    """
    pairs = _named(shape)
    if pairs is None:
        return None
    order = order_of_names([name for name, _ in pairs])
    return [read(pairs[place][1]) for place in (range(len(pairs)) if order is None else order)]


def _have_an_order(shape: Listing | FiniteSet) -> bool:
    names = [name for name, _ in _named(shape) or ()]
    return all(len(name) == 1 for name in names) and order_of_names(names) is not None


def _named(shape: Listing | FiniteSet) -> list[tuple[str, str]] | None:
    """(name, value) of each item."""
    pairs = []
    for item in shape.items:
        if not (isinstance(item, Relation) and item.operators == ("=",) and is_name(item.sides[0])):
            return None
        pairs.append((item.sides[0].replace(" ", ""), item.sides[1]))
    if len({name for name, _ in pairs}) < max(len(pairs), 2):
        return None
    return pairs


def _is_ranking(gold: Listing) -> bool:
    """Words parted by commas alone are an order (first, second, third); single letters are choices, which have none."""
    return not gold.conjunction and all(isinstance(item, Words) and len(item.text) > 1 for item in gold.items)


def _in_order(golds: Sequence[Shape], answers: Sequence[Shape]) -> bool:
    return len(golds) == len(answers) and all(same(one, other) for one, other in zip(golds, answers, strict=True))


def _paired(golds: list[Shape], answers: list[Shape]) -> bool:
    """Equality is transitive, so the first partner found is as good as any."""
    for one in golds:
        partner = next((index for index, other in enumerate(answers) if same(one, other)), None)
        if partner is None:
            return False
        del answers[partner]
    return True


def _distinct(items: list[Shape]) -> list[Shape]:
    kept: list[Shape] = []
    for item in items:
        if not any(same(other, item) for other in kept):
            kept.append(item)
    return kept


def _same_tuple(gold: Shape, answer: Shape) -> bool:
    """In order. Round and square brackets differ where they can be the ends of an interval; a point may come without brackets."""
    match gold, answer:
        case Bracketed(opening, closing, golds), Bracketed(other_opening, other_closing, answers):
            same_ends = (opening, closing) == (other_opening, other_closing)
            are_tuples = len(golds) > 2 and {opening + closing, other_opening + other_closing} <= {"()", "[]"}
            return (same_ends or are_tuples) and _in_order(golds, answers)
        case (Bracketed(), Listing(_, "or")) | (Listing(_, "or"), Bracketed()):  # one or the other
            return False
        case Bracketed("(", ")", golds), Listing(answers, _):
            return _in_order(golds, _named_values(answer) or answers)
        case Listing(golds, _), Bracketed("(", ")", answers):
            return _in_order(_named_values(gold) or golds, answers)
        case (Bracketed("(", ")", one), Matrix(_, rows)) | (Matrix(_, rows), Bracketed("(", ")", one)):
            column = [row[0] for row in rows if len(row) == 1]
            return len(column) == len(rows) and (_in_order(one, column) if isinstance(gold, Bracketed) else _in_order(column, one))
        case _:
            return False


def _same_matrix(gold: Matrix, answer: Matrix) -> bool:
    if (gold.kind == "vmatrix") != (answer.kind == "vmatrix") or len(gold.rows) != len(answer.rows):
        return False
    return all(_in_order(one, other) for one, other in zip(gold.rows, answer.rows, strict=True))


# Notations of their own


def _same_notation(gold: Shape, answer: Shape) -> bool:
    match gold, answer:
        case Clock(), Clock():
            return (gold.hour, gold.minute, gold.second) == (answer.hour, answer.minute, answer.second) and gold.half == answer.half
        case (Clock(), Ratio(_, (hour, minute))) | (Ratio(_, (hour, minute)), Clock()):
            return _same_time(gold if isinstance(gold, Clock) else answer, hour, minute, half_needed=isinstance(gold, Clock))
        case Ratio(terms, time), Ratio(others, other_time):
            return _same_ratio(terms, others) if time is None or other_time is None else time == other_time
        case Residue(), Residue():
            return same(gold.modulus, answer.modulus) and same(gold.number, answer.number)
        case (Ratio((first, second), _), Leaf()):
            return same(Leaf(rf"\frac{{{first}}}{{{second}}}"), answer)
        case (Leaf(), Ratio((first, second), None)):
            return same(gold, Leaf(rf"\frac{{{first}}}{{{second}}}"))
        case Progression(golds), Progression(answers):
            return len(golds) == len(answers) and all(
                one is other is None or (one is not None and other is not None and same(one, other))
                for one, other in zip(golds, answers, strict=True)
            )
        case _:
            return False


def _same_time(clock: Shape, hour: int, minute: int, *, half_needed: bool) -> bool:
    """`16:30` is 4:30 p.m.; `4:30` alone leaves open which half of the day the gold asks for, but not the other way round."""
    assert isinstance(clock, Clock)
    if (clock.minute, clock.second) != (minute, 0):
        return False
    in_24_hours = clock.hour + (12 if clock.half == "pm" else 0)
    return (hour == in_24_hours and hour > 12) or (not half_needed and hour % 12 == clock.hour)


def _same_ratio(terms: Sequence[str], others: Sequence[str]) -> bool:
    """`4:6` is 2:3."""
    if len(terms) != len(others) or any(number is not None and not number.value for number in map(read_rational, (*terms, *others))):
        return False
    return all(
        same_expression(rf"({one})\cdot({others[0]})", rf"({other})\cdot({terms[0]})")
        for one, other in zip(terms[1:], others[1:], strict=True)
    )
