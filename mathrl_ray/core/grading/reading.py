r"""Reading: from a text to its shape.

Called by grade.py (through comparison.py) with an answer or a gold that the quick verdict could not settle. Tries the kinds in the order of
`_READERS`: the first that knows the text takes all of it. Raises for what has no shape; never takes a part.
"""

import re
from collections.abc import Callable

from mathrl_ray.core.grading.expressions import UnreadableError
from mathrl_ray.core.grading.leaves import is_function_word, read_leaf
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.sentences import chosen_letter, value_of_sentence, without_rounding_word
from mathrl_ray.core.grading.shapes import (
    Based,
    Bracketed,
    Clock,
    Difference,
    FiniteSet,
    Leaf,
    Listing,
    Matrix,
    Progression,
    Ratio,
    Relation,
    Shape,
    Union,
    Words,
)
from mathrl_ray.core.grading.splitting import inside_brackets, split, split_list, top_level
from mathrl_ray.core.grading.units import is_known_unit

_LONGEST_TEXT = 2000
_MOST_ITEMS = 500
_DEEPEST = 8

_CLOCK = re.compile(r"([0-9]{1,2})(?:\s*:\s*([0-9]{2}))?(?:\s*:\s*([0-9]{2}))?\s*(?:\\text\s*\{\s*)?([ap])\.?\s?m\.?\s*\}?", re.IGNORECASE)
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")
_COLON = re.compile(r"\s*:\s*|(?<=[0-9}])\s+to\s+(?=[0-9\\])")
_TIME_LIKE = re.compile(r"\s*([0-9]{1,2})\s*:\s*([0-5][0-9])\s*")
_MATRIX = re.compile(r"\\begin\s*\{([pbBvV]?matrix|array)\}(?:\s*\{[lcr|]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_ROW = re.compile(r"\s*\\\\\s*")
_COLUMN = re.compile(r"\s*&\s*")
_BASED = re.compile(
    r"(-?)\s*\(?\s*(?:\\text\s*\{)?([0-9A-Za-z]+(?:\.[0-9]+)?)\}?\s*\)?\s*_\s*"
    r"(?:\{\s*(?:\\text\s*\{\s*)?([0-9a-z]+)\s*\}?\s*\}|([0-9]))"
)
_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
_IN_WORDS = {word: str(number) for number, word in enumerate((*_SMALL, *_TEENS))}
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])\s*")
_CUP = re.compile(r"\s*\\(?:cup|bigcup)(?![a-zA-Z])\s*|(?<=[)\]])\s*(?:U|union)\s*(?=[(\[])")
_MINUS_SET = re.compile(r"\s*\\(?:setminus|backslash|smallsetminus)(?![a-zA-Z])\s*|(?<=R\})\s*(?:-|\\)\s*(?=\\\{)")
_OPERATOR = re.compile(r"\\(?:le|ge|ne|notin|in|approx|equiv|sim)(?![a-zA-Z])|<=|>=|!=|[=<>]")
_PLAIN_OPERATORS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne"}
_BUILDER = re.compile(r"\\?[|:]\s*|\\text\s*\{\s*such that\s*\}")
_EMPTY_SET = re.compile(r"\\emptyset|\\\{\s*\\\}|\{\s*\}")
_ALL_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|(?:all|any)\s+real(?:\s+number|\s+value)?s?|(?:all\s+)?reals?(?:\s+numbers?)?", re.IGNORECASE
)
_INFINITY = re.compile(r"([-+]?)\s*(?:\\infty|infinity|inf)", re.IGNORECASE)
_DOTS = re.compile(r"\\ldots|\.{3,}")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]+")
_WORDY_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_NOT_IN_WORDS = re.compile(r"[0-9=<>+*/^_\\]|^\s*-")
_PUNCTUATION = re.compile(r"[^\w\s]")


def read(text: str, depth: int = 0) -> Shape:
    r"""The shape of a canonical text.

    Raises:
        UnreadableError: nothing is there, or it is too long, or nested too deep.

    >>> read("1, 4 and 9").items, read("2 < x").operators
    ((Leaf(text='1', unit=None), Leaf(text='4', unit=None), Leaf(text='9', unit=None)), ('<',))
    """
    text = _with_round_brackets(text.strip())
    if not text or len(text) > _LONGEST_TEXT or depth > _DEEPEST:
        raise UnreadableError(f"no answer, or one of over {_LONGEST_TEXT} characters: {text[:80]}")
    for reader in _READERS:
        shape = reader(text, depth)
        if shape is not None:
            return shape
    return read_leaf(text)


def _with_round_brackets(text: str) -> str:
    """`]1,2]` is how some write `(1,2]`."""
    if text.startswith("]") and text.endswith(("]", "[")):
        text = "(" + text[1:]
    return text[:-1] + ")" if text.startswith(("(", "[")) and text.endswith("[") else text


def _number(text: str, _: int) -> Shape | None:
    """A number with its unit comes before lists, for the comma of its thousands."""
    leaf = read_leaf(text)
    return leaf if read_rational(leaf.text) else None


def _clock(text: str, _: int) -> Shape | None:
    match = _CLOCK.fullmatch(text)
    return Clock(int(match[1]) % 12, int(match[2] or 0), int(match[3] or 0), match[4].lower() + "m") if match else None


def _unwrapped_words(text: str, depth: int) -> Shape | None:
    r"""`\text{...}` around everything says only that it is no formula."""
    match = _WORDY_COMMAND.fullmatch(text)
    return (_words(match[1], depth) or read(match[1], depth + 1)) if match and match[1].strip() else None


def _matrix(text: str, depth: int) -> Shape | None:
    around = inside_brackets(text)
    match = _MATRIX.fullmatch(around[1] if around else text)
    if match is None:
        return None
    rows = [split(row, _COLUMN)[0] for row in split(match[2].strip().removesuffix(r"\\"), _ROW)[0]]
    return Matrix(match[1], tuple(tuple(read(cell, depth + 1) for cell in row) for row in rows))


def _special_set(text: str, _: int) -> Shape | None:
    if match := _INFINITY.fullmatch(text):
        return Leaf(rf"{match[1].replace('+', '')}\infty")
    if _EMPTY_SET.fullmatch(text):
        return FiniteSet(())
    return Bracketed("(", ")", (Leaf(r"-\infty"), Leaf(r"\infty"))) if _ALL_REALS.fullmatch(text) else None


def _words(text: str, _: int) -> Shape | None:
    """Text without any mathematics: a word of three letters, several words, or a name in capitals (no product of variables)."""
    letters = _LETTERS.findall(_WORDY_COMMAND.sub(r" \1 ", text))
    if not letters or _NOT_IN_WORDS.search(_WORDY_COMMAND.sub(r" \1 ", text)) or split_list(text)[1] or "," in text:
        return None
    if len(letters) == 1 and is_function_word(letters[0]):
        return None
    is_name = len(letters) == 1 and letters[0].isupper() and len(letters[0]) > 1
    if not is_name and max(map(len, letters)) < 3 and letters[0].isascii():
        return None
    number = _IN_WORDS.get(" ".join(letters).lower())
    return Leaf(number) if number else _sentence(text, 0) or Words(plain_words(text))


def _sentence(text: str, depth: int) -> Shape | None:
    """The value of a sentence, in words or in numbers."""
    bare = _WORDY_COMMAND.sub(r" \1 ", text)
    first = _LETTERS.match(bare.lstrip())
    shorter = without_rounding_word(bare)
    if shorter != bare:
        return read(shorter, depth + 1)
    if first is None or not _is_prose(first[0]):
        return None
    value = value_of_sentence(text)
    return read(value, depth + 1) if value and value != text else None


def _is_prose(word: str) -> bool:
    return (len(word) > 2 or not word.isascii() or word.lower() in ("so", "it", "we", "is")) and not is_function_word(word)


def _prose_around_a_number(text: str, depth: int) -> Shape | None:
    """A sentence that no other reader knows: it must not be taken for a product of the letters in it."""
    words = [word for word in _LETTERS.findall(_WORDY_COMMAND.sub(" ", text)) if _is_prose(word) and not is_known_unit(word)]
    if not words or read_leaf(text).unit is not None:
        return None
    value = value_of_sentence(text)
    return read(value, depth + 1) if value and value != text else Words(plain_words(text))


def _several(text: str, depth: int) -> Shape | None:
    items, conjunction = split_list(text)
    if len(items) < 2 or len(items) > _MOST_ITEMS:
        return None
    if any(_DOTS.fullmatch(item) for item in items):
        return Progression(tuple(None if _DOTS.fullmatch(item) else read(item, depth + 1) for item in items))
    return Listing(tuple(read(item, depth + 1) for item in items), conjunction)


def _both_signs(text: str, depth: int) -> Shape | None:
    r"""`a \pm b` is two values, written once."""
    if not _PLUS_MINUS.search(text) or _OPERATOR.search(top_level(text)):
        return None
    values = [_with_signs(text, plus_minus, minus_plus) for plus_minus, minus_plus in ("+-", "-+")]
    return Listing(tuple(read(value.strip().removeprefix("+"), depth + 1) for value in values), "and")


def _with_signs(text: str, plus_minus: str, minus_plus: str) -> str:
    return _PLUS_MINUS.sub(lambda match: minus_plus if "mp" in match[0] else plus_minus, text)


def _union(text: str, depth: int) -> Shape | None:
    parts, _ = split(text, _CUP)
    return Union(tuple(read(part, depth + 1) for part in parts)) if len(parts) > 1 else None


def _difference(text: str, depth: int) -> Shape | None:
    parts, _ = split(text, _MINUS_SET)
    return Difference(read(parts[0], depth + 1), read(parts[1], depth + 1)) if len(parts) == 2 else None


def _relation(text: str, depth: int) -> Shape | None:
    sides, operators = split(text, _OPERATOR)
    if not operators:
        return None
    if not sides[0]:  # `= 5` and `\approx 5` go on with what was asked for
        return read(text[text.index(operators[0]) + len(operators[0]) :], depth + 1)
    if not all(sides):
        raise UnreadableError(f"a relation without its other side: {text[:80]}")
    return Relation(tuple(sides), tuple(_PLAIN_OPERATORS.get(operator, operator) for operator in operators))


def _brackets(text: str, depth: int) -> Shape | None:
    found = inside_brackets(text)
    if found is None:
        return None
    opening, inside, closing = found
    if opening == r"\{":
        return _set(inside, depth) if closing == r"\}" else None
    items, conjunction = split_list(inside)
    if len(items) < 2 or conjunction:
        return None
    if len(items) > _MOST_ITEMS or closing == r"\}":
        return None
    shapes = tuple(read(item, depth + 1) if not _DOTS.fullmatch(item) else Words("...") for item in items)
    return Bracketed(opening, closing, shapes)


def _set(inside: str, depth: int) -> Shape:
    described = split(inside, _BUILDER)[0]
    if len(described) == 2:
        return read(described[1], depth + 1)
    content = read(inside, depth + 1)
    if isinstance(content, Progression):
        return content
    return FiniteSet(content.items if isinstance(content, Listing) else (content,))


def _based(text: str, _: int) -> Shape | None:
    match = _BASED.fullmatch(text)
    if match is None or not (match[2][0].isdigit() or (match[2].isupper() and len(match[2]) > 1)):
        return None
    base = _IN_WORDS.get(match[3] or match[4], match[3] or match[4])
    return Based(match[2].upper().lstrip("0"), base, match[1]) if base.isdecimal() else None


def _ratio(text: str, _: int) -> Shape | None:
    terms, colons = split(text, _COLON)
    if not colons or not all(terms) or any(_is_prose(word) for word in _LETTERS.findall(text)):
        return None
    time = _TIME_LIKE.fullmatch(text)
    return Ratio(tuple(terms), (int(time[1]), int(time[2])) if time else None)


def _choice_with_its_text(text: str, _: int) -> Shape | None:
    letter = chosen_letter(_WORDY_COMMAND.sub(r"\1 ", text))
    return Words(plain_words(letter)) if letter else None


_READERS: tuple[Callable[[str, int], Shape | None], ...] = (
    _clock,
    _number,
    _special_set,
    _unwrapped_words,
    _matrix,
    _choice_with_its_text,
    _words,
    _sentence,
    _several,
    _both_signs,
    _relation,
    _union,
    _difference,
    _brackets,
    _based,
    _ratio,
    _prose_around_a_number,
)


def plain_words(text: str) -> str:
    r"""Words without case, fonts, punctuation or an ordinal's ending.

    >>> plain_words(r"\text{(C)}"), plain_words("May 4th")
    ('c', 'may 4')
    """
    bare = _PUNCTUATION.sub(" ", _WORDY_COMMAND.sub(r" \1 ", re.sub(r"^\s*-", "minus ", text))).casefold()
    return " ".join(re.sub(r"(?<=[0-9])(?:st|nd|rd|th)\b", "", bare).split())
