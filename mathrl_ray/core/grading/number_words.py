r"""Numbers in words: `twenty-one`, `three hundred five`, `two thirds`.

Called by reading.py with the words of an answer, and by things.py, since a part (`5 thirds`) is no thing of which there are five.
Pure text.
"""

from collections.abc import Sequence

_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_BELOW_100 = {**{word: number for number, word in enumerate((*_SMALL, *_TEENS))}, **_TENS}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_IRREGULAR_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}


def number_in_words(words: Sequence[str]) -> str | None:
    r"""The digits, or the fraction, of a number in words; None where a word is none of it or stands in a wrong place.

    >>> number_in_words(["twenty", "one"]), number_in_words(["two", "thirds"]), number_in_words(["twenty", "eleven"])
    ('21', '\\frac{2}{3}', None)
    """
    lower = [word.lower() for word in words]
    if lower == ["half"]:
        return r"\frac{1}{2}"
    if len(lower) > 1 and (part := part_of_one(lower[-1])) is not None:
        count = _whole(lower[:-1])
        return None if count is None or (count == 1) == lower[-1].endswith("s") else rf"\frac{{{count}}}{{{part}}}"
    whole = _whole(lower)
    return None if whole is None else str(whole)


def part_of_one(word: str) -> int | None:
    """How many of `half`, `thirds`, `tenths` make one; None for any other word.

    >>> part_of_one("halves"), part_of_one("Tenths"), part_of_one("months")
    (2, 10, None)
    """
    stem = word.lower().removesuffix("s")
    if stem in _IRREGULAR_PARTS:
        return _IRREGULAR_PARTS[stem]
    number = stem.removesuffix("th")
    cardinal = number[:-2] + "y" if number.endswith("ie") else number
    known = {**_BELOW_100, **_SCALES, "hundred": 100}.get(cardinal)
    return known if stem.endswith("th") and known is not None and known > 1 else None


def _whole(words: Sequence[str]) -> int | None:
    """Each part of `three hundred five thousand twenty one` is smaller than what stands before it."""
    total, group, room = 0, 0, 1000
    last_scale = max(_SCALES.values()) + 1
    for word in words:
        if word in _BELOW_100 and _BELOW_100[word] < room and (_BELOW_100[word] or len(words) == 1):
            group += _BELOW_100[word]
            room = 10 if word in _TENS else 1
        elif word == "hundred" and 0 < group < 10:
            group, room = group * 100, 100
        elif word in _SCALES and group and _SCALES[word] < last_scale:
            total, last_scale = total + group * _SCALES[word], _SCALES[word]
            group, room = 0, 1000
        else:
            return None
    return total + group if words else None
