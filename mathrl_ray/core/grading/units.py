r"""Units: what may stand around a value without being part of it, and when two units are the same.

Called by leaves.py with canonical text. MATH's convention is that a unit may be left out, so `24\text{ cm}` equals 24; but a unit that is
given is part of the answer, so 24 cm is not 24 m, and 100 cm is 1 m. Words that are no known unit (`ways`, `apples`) name what is counted:
one side may leave it out, but 5 boys are not 5 girls. Pure text and Fraction.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mathrl_ray.core.grading.canonical import DOLLAR
from mathrl_ray.core.grading.things import thing_of

PERCENT = "percent"
DEGREE = "degree"
RADIAN = "radians"
_COUNTED = "counted"

_DIMENSIONS: dict[str, dict[str, str]] = {
    "length": {
        "mm millimeter millimetre": "1/1000",
        "cm centimeter centimetre": "1/100",
        "dm decimeter decimetre": "1/10",
        "m meter metre": "1",
        "km kilometer kilometre": "1000",
        "in inch inche": "0.0254",
        "ft foot feet": "0.3048",
        "yd yard": "0.9144",
        "mi mile": "1609.344",
    },
    "mass": {"mg milligram": "1/1000", "g gm gram": "1", "kg kilogram kilo": "1000", "oz ounce": "28.349523125", "lb pound": "453.59237"},
    "time": {
        "s sec second": "1",
        "min minute": "60",
        "h hr hour": "3600",
        "day": "86400",
        "week": "604800",
        "month": "2629800",
        "yr year": "31557600",
    },
    "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": "1", "gal gallon": "3.785411784", "quart": "0.946352946"},
    "dollars": {f"{DOLLAR} $ dollar usd buck": "1", "cent penny pennie ¢": "1/100"},
    "euros": {"€ euro eur": "1"},
    "pounds sterling": {"£ gbp": "1"},
    "yen": {"¥ yen jpy": "1"},
    "rupees": {"₹ rupee inr rs": "1"},
    "length per time": {"mph": "0.44704", "kph kmh": "5/18"},
    PERCENT: {"% percent percentage pct": "1/100"},
    DEGREE: {"degree deg": "1"},
    RADIAN: {"radian rad": "1"},
    "frequency": {"hz hertz": "1"},
    "force": {"newton": "1"},
    "energy": {"joule": "1"},
    "electric power": {"watt": "1"},
    "voltage": {"volt": "1"},
    "pressure": {"pa pascal": "1"},
    "amount": {"mol mole": "1"},
    "absolute temperature": {"kelvin": "1"},
    "temperature C": {"celsius": "1"},
    "temperature F": {"fahrenheit": "1"},
}
"""Names and how many of the dimension's own unit each is; a month and a year are mean ones."""
_KNOWN = {
    name: (dimension, Fraction(factor))
    for dimension, scale in _DIMENSIONS.items()
    for names, factor in scale.items()
    for name in names.split()
}
_FACTORS_OF_COUNTS = {"ten": 10, "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PAIR = "pair"
_GENERIC = frozenset({"unit"})
_POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cubed": 3, "cu": 3}
_ABBREVIATED_COUNTRY = re.compile(rf"\b(?:US|A|C|HK)\s*(?=[{DOLLAR}$])")
_TOKEN = re.compile(rf"\^\s*\{{?\s*([0-9])\s*\}}?|([^\W\d_]+|[%¢{DOLLAR}$€£¥₹])|/")
_SINGULAR = re.compile(r"(?<=[a-z]{2})(?<!s)s$")


@dataclass(frozen=True, slots=True)
class Unit:
    """What a value is measured in."""

    dimension: str
    """A known one, `counted` for words that name things, or "" for a generic `units`."""
    power: int = 1
    factor: Fraction = Fraction(1)
    """The value times this is in the dimension's own unit."""
    scale: Fraction = Fraction(1)
    """The part of the factor that counts (`million`), which is there even where the unit is left out."""
    thing: str = ""
    """What is counted, in the singular; "" where that is not known."""


def read_unit(words: str) -> Unit | None:
    r"""The unit that some words, `\text{ cm}^2` or a sign name; None where there is nothing.

    >>> read_unit(r"\text{ square inches}") == read_unit("in^2"), read_unit("apples").dimension
    (True, 'counted')
    """
    tokens = [
        _token(match)
        for match in _TOKEN.finditer(
            _ABBREVIATED_COUNTRY.sub("", words).replace(r"\text", " ").replace(r"\circ", " degree ").replace(r"\%", "%")
        )
    ]
    tokens = [token for token in tokens if token not in ("", "degree") or token == "degree"]
    sides = [side for side in _sides(tokens) if side]
    if not sides:
        return None
    return _one_unit(sides[0]) if len(sides) == 1 else _quotient([_one_unit(side) for side in sides])


def _sides(tokens: Sequence[str]) -> list[list[str]]:
    """`kilometers per hour` and `km/h` part at the `per`."""
    sides: list[list[str]] = [[]]
    for token in tokens:
        if token == "per":
            sides.append([])
        else:
            sides[-1].append(token)
    return sides


def _one_unit(tokens: Sequence[str]) -> Unit:
    power, scale, names = 1, Fraction(1), []
    if tokens[0] == _PAIR:  # 5 pairs of shoes are 10; 5 ordered pairs are counted as pairs
        scale, tokens = Fraction(2), tokens[1:]
    for token in tokens:
        if token.isdecimal() or token in _POWER_WORDS:
            power *= _POWER_WORDS.get(token) or int(token)
        elif token in _FACTORS_OF_COUNTS:
            scale *= _FACTORS_OF_COUNTS[token]
        else:
            names.append(token)
    return _unit(names, power, scale)


def _quotient(units: Sequence[Unit]) -> Unit:
    """36 km/h are 10 m/s."""
    names = [unit.thing or (unit.dimension if unit.power == 1 else f"{unit.dimension}^{unit.power}") for unit in units]
    factor = units[0].factor / math.prod((unit.factor for unit in units[1:]), start=Fraction(1))
    return Unit(" per ".join(names), factor=factor, scale=units[0].scale)


def _token(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    word = (match[2] or "per").lower()
    return word if word in _KNOWN else _SINGULAR.sub("", word)


def _unit(names: list[str], power: int, scale: Fraction) -> Unit:
    if names[:2] in (["degree", "c"], ["degree", "f"]):
        names = [{"c": "celsius", "f": "fahrenheit"}[names[1]]]
    elif names[:1] == ["degree"] and names[1:] in (["celsius"], ["fahrenheit"]):
        names = names[1:]
    if len(names) == 1 and names[0] in _KNOWN:
        dimension, factor = _KNOWN[names[0]]
        return Unit(dimension, power, scale * factor**power, scale)
    if not names or names[-1] in _GENERIC:
        return Unit("", power, scale, scale)
    return Unit(_COUNTED, power, scale, scale, thing_of(names))


def is_known_unit(word: str) -> bool:
    """Whether a bare word beside a number is a unit's name, and no product of variables."""
    lower = word.lower()
    return lower in _KNOWN or _SINGULAR.sub("", lower) in _KNOWN or lower in _POWER_WORDS


def is_unit_phrase(words: Sequence[str]) -> bool:
    """Whether words name a unit and nothing else: `square inches`, `million dollars`, `dozen`; `square` alone does not.

    >>> [is_unit_phrase(words.split()) for words in ("sq ft", "million dollars", "dozen", "square", "percent off", "units")]
    [True, True, True, False, False, True]
    """
    names = [_SINGULAR.sub("", word.lower()) if word.lower() not in _KNOWN else word.lower() for word in words]
    if len(names) > 1 and names[-1] in ("squared", "cubed"):
        names.pop()
    if names[0] == DEGREE and names[1:] in (["c"], ["f"]):
        return True
    return all(is_known_unit(name) or name in _FACTORS_OF_COUNTS or name in _GENERIC for name in names) and names[-1] not in _POWER_WORDS


def value_factors(gold: Unit | None, answer: Unit | None) -> list[tuple[Fraction, Fraction]]:
    """(gold's, answer's) factors under each reading of the two units; none where the units contradict each other.

    A left-out unit is the other side's, whichever that is: 5 cents and 5 dollars both answer a bare 5, for the question says which.
    A left-out percent is also 1/100: 45% is 0.45, and 45 by MATH's convention. Radians beside a bare number are refused, since a bare 30 is
    a number or degrees; a gold in radians may still be answered without them.
    """
    one = Fraction(1)
    if gold is None or answer is None:
        given = gold or answer
        if given is None:
            return [(one, one)]
        if given.dimension == PERCENT:
            return [(one, one), (given.factor, one) if gold else (one, given.factor)]
        if answer is not None and answer.dimension == RADIAN:
            return []
        return [(given.scale if gold else one, given.scale if answer else one)]
    if gold.thing and answer.thing and gold.thing != answer.thing:
        return []
    if gold.dimension == answer.dimension:
        return [(gold.factor, answer.factor)] if gold.power == answer.power else []
    if not gold.dimension or not answer.dimension:
        return [(one, one)] if gold.power == answer.power or 1 in (gold.power, answer.power) else []
    return []
