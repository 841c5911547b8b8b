r"""Things: whether the words behind a number name what is counted, and what they name.

Called by leaves.py, sentences.py and units.py. Pure text. Five of a thing are in the plural (`5 ways`, `5 right triangles left`); a word in
the singular behind 5 says something else about it (`5 wrong`, `5 factorial`, `5 doubled`), and `5 thirds` are no five.
"""

import re
from collections.abc import Sequence

from mathrl_ray.core.grading.number_words import part_of_one

_WORD = re.compile(r"[^\W\d_]+")
_DIMENSIONS = ("old", "long", "wide", "high", "tall", "deep", "thick")
_SHARES = ("each", "total", "altogether", "left", "remaining", "exactly", "only")
_OF_WHAT = ("in", "of", "for", "on", "at", "with", "per", "that", "who", "which")
AFTER_A_THING = frozenset((*_DIMENSIONS, *_SHARES, *_OF_WHAT))
"""What may follow a thing without changing how many there are: its dimension, its share, where and of what it is. Not `off`, not `ago`."""
_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "geese": "goose", "oxen": "ox"}
_SAME_IN_THE_PLURAL = frozenset({"fish", "sheep", "deer", "dice", "data", "vertices", "matrices", "indices"})
_NO_PLURAL = re.compile(r".*(?:ss|us|is|perhaps|always|fails)|.{,2}")
_JUDGEMENT = re.compile(r"wrong|incorrect|false|invalid|missing|correct|right|true|off|ago|.*ed")
"""What is said of a number, not counted; only `1` needs it, whose thing is no plural."""


def names_a_thing(words: str, *, is_singular: bool = False) -> bool:
    """Whether the last word of the noun phrase is a plural, or after a 1 any noun. Words of other scripts are taken at their word.

    >>> [names_a_thing(words) for words in ("right triangles", "apples in total", "wrong", "percent off", "thirds", "people")]
    [True, True, False, False, False, True]
    """
    if not words.isascii():
        return True
    phrase = _noun_phrase(_WORD.findall(words.lower()))
    if not phrase:
        return bool(words.strip()) and all(word in AFTER_A_THING for word in _WORD.findall(words.lower())[:1])
    head = phrase[-1]
    if part_of_one(head) is not None:
        return False
    return _is_plural(head) or (is_singular and _JUDGEMENT.fullmatch(head) is None)


def thing_of(words: Sequence[str]) -> str:
    """The thing in the singular, to be compared; "" for words of another script, which nobody here can compare.

    >>> thing_of(["right", "triangles", "left"]), thing_of(["children"])
    ('triangle', 'child')
    """
    phrase = _noun_phrase([word.lower() for word in words])
    if not phrase or not phrase[-1].isascii():
        return ""
    return _singular(phrase[-1])


def _noun_phrase(words: Sequence[str]) -> list[str]:
    end = next((index for index, word in enumerate(words) if word in AFTER_A_THING), len(words))
    return list(words[:end])


def _is_plural(word: str) -> bool:
    return word in _IRREGULAR or word in _SAME_IN_THE_PLURAL or (word.endswith("s") and _NO_PLURAL.fullmatch(word) is None)


def _singular(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    return word[:-1] if word.endswith("s") and _NO_PLURAL.fullmatch(word) is None else word
