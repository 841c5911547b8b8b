r"""Reading: from a text to its shape.

Called by grade.py (through comparison.py) with an answer or a gold that the quick verdict could not settle. Tries the kinds in the order of
`_READERS`: the first that knows the text takes all of it. Raises for what has no shape; never takes a part.
"""

import re
from collections.abc import Callable
from itertools import product

from mathrl_ray.core.grading.compounds import read_compound
from mathrl_ray.core.grading.expressions import UnreadableError
from mathrl_ray.core.grading.leaves import read_leaf
from mathrl_ray.core.grading.names import is_function_word, is_name
from mathrl_ray.core.grading.number_words import number_in_words
from mathrl_ray.core.grading.rationals import read_rational
from mathrl_ray.core.grading.sentences import chosen_letter, values_of_sentence, without_rounding_word
from mathrl_ray.core.grading.shapes import (
    Based,
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
from mathrl_ray.core.grading.splitting import HIDDEN, inside_brackets, split, split_list, top_level
from mathrl_ray.core.grading.units import is_known_unit

_LONGEST_TEXT = 2000
_MOST_ITEMS = 500
_MOST_SIGNS = 4
r"""`\pm` in one value; each doubles the number of values."""
_DEEPEST = 8

_CLOCK = re.compile(r"([0-9]{1,2})(?:\s*:\s*([0-9]{2}))?(?:\s*:\s*([0-9]{2}))?\s*(?:\\text\s*\{\s*)?([ap])\.?\s?m\.?\s*\}?", re.IGNORECASE)
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")
_COLON = re.compile(r"\s*:\s*|(?<=[0-9}])\s+to\s+(?=[0-9\\])")
_TIME_LIKE = re.compile(r"\s*([0-9]{1,2})\s*:\s*([0-5][0-9])\s*")
_MATRIX = re.compile(r"\\begin\s*\{((?:[pbBvV]|small)?matrix|array)\}(?:\s*\{[lcr|]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_FACTOR = re.compile(r"(?P<factor>-|[^=<>,&]*?[^=<>,&\s(\[])\s*(?P<matrix>[(\[]?\s*\\begin\s*\{.*)", re.DOTALL)
_SYSTEM = re.compile(r"\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL)
_ROW = re.compile(r"\s*\\\\\s*")
_COLUMN = re.compile(r"\s*&\s*")
_BASED = re.compile(
    r"(-?)\s*\(?\s*(?:\\text\s*\{)?([0-9A-Za-z]+(?:\.[0-9]+)?)\}?\s*\)?\s*_\s*"
    r"(?:\{\s*(?:\\text\s*\{\s*)?\(?\s*(?:base\s*)?([0-9a-z]+)\s*\)?\s*\}?\s*\}|([0-9]))"
)
_BARE_CHOICE = re.compile(r"(?:\\text\s*\{)?\s*([A-Z])\s*\)\s*\}?")
_BASE_BEHIND = re.compile(r"\s*\(?\s*(?:\\text\s*\{\s*)?(?:in\s+)?base\s*\}?\s*([0-9a-z]+)\s*\}?\s*\)?$")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])\s*")
_CUP = re.compile(r"\s*\\(?:cup|bigcup)(?![a-zA-Z])\s*|(?<=[)\]])\s*(?:U|union)\s*(?=[(\[])")
_MINUS_SET = re.compile(rf"\s*\\(?:setminus|backslash|smallsetminus)(?![a-zA-Z])\s*|(?<=\\mathbb{HIDDEN * 3})\s*(?:-|\\)\s*(?={HIDDEN})")
_OPERATOR = re.compile(r"\\(?:le|ge|ne|notin|in|approx|equiv|sim)(?![a-zA-Z])|<=|>=|!=|[=<>]")
_PLAIN_OPERATORS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne"}
_CONGRUENT = re.compile(r"\\equiv(?![a-zA-Z])|=")
_MOD = r"(?:\\b?mod|\\text\s*\{\s*mod\s*\}|(?<![\\A-Za-z])mod)(?![a-zA-Z])"
_RESIDUE = re.compile(rf"(?P<number>.+?)\s*(?:(?P<class>\\pmod(?![a-zA-Z])|\(\s*{_MOD})|{_MOD})\s*(?P<modulus>\S.*)")
_GO_ON = ("=", r"\approx", r"\in")
_BUILDER = re.compile(r"\\?[|:]\s*|\\text\s*\{\s*such that\s*\}")
_COLLECTED = re.compile(r"(?P<name>[A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?")
_EMPTY_SET = re.compile(r"\\emptyset|\\\{\s*\\\}|\{\s*\}")
_EMPTY_IN_WORDS = re.compile(
    r"\s*(?:there (?:is|are|exists?) )?no (?:such |real )?(?:solutions?|roots?)(?: exists?)?\s*|\s*(?:the )?empty set\s*", re.IGNORECASE
)
_ALL_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|(?:all|any)\s+real(?:\s+number|\s+value)?s?(?:\s+[a-z])?|(?:all\s+)?reals?(?:\s+numbers?)?", re.IGNORECASE
)
_ALL_BUT = re.compile(
    r"(?:all|any)\s+real(?:\s+number|\s+value)?s?(?:\s+[a-z])?\s+(?:except|but|excluding|other\s+than)\s+(?:(?:for|[a-z]\s*=)\s*)?"
    r"(?P<hole>[-+]?[0-9]+(?:[./][0-9]+)?|\\frac\s*\{[0-9]+\}\s*\{[0-9]+\})",
    re.IGNORECASE,
)
_INFINITY = re.compile(r"([-+]?)\s*(?:\\infty|infinity|inf)", re.IGNORECASE)
_DOTS = re.compile(r"\\ldots|\.{3,}")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]+")
_WORDY_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_NOT_IN_WORDS = re.compile(r"[0-9=<>+*/^_\\]|^\s*-")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z]{2})")
_WHOLE_WORDS_OF_TWO_LETTERS = frozenset({"no", "on"})
"""Alone they are no product of two variables."""
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
        return _multiple_of_a_matrix(text, depth)
    rows = [split(row, _COLUMN)[0] for row in split(match[2].strip().removesuffix(r"\\"), _ROW)[0]]
    return Matrix(match[1], tuple(tuple(read(cell, depth + 1) for cell in row) for row in rows))


def _multiple_of_a_matrix(text: str, depth: int) -> Shape | None:
    """A number or a letter before a matrix multiplies each cell."""
    match = _FACTOR.fullmatch(text)
    if match is None or r"\begin" in match["factor"] or re.search(r"[-+]", top_level(match["factor"])[1:]):
        return None
    factor = "-1" if match["factor"] == "-" else match["factor"]
    around = inside_brackets(match["matrix"])
    inside = _MATRIX.fullmatch(around[1] if around else match["matrix"])
    if inside is None or inside[1] == "vmatrix":
        return None
    rows = [split(row, _COLUMN)[0] for row in split(inside[2].strip().removesuffix(r"\\"), _ROW)[0]]
    return Matrix(inside[1], tuple(tuple(read(rf"({factor})\cdot({cell})", depth + 1) for cell in row) for row in rows))


def _system(text: str, depth: int) -> Shape | None:
    """Equations in one brace hold together; a `&` parts the cases of a function, which is no list."""
    match = _SYSTEM.fullmatch(text)
    if match is None or "&" in match[1]:
        return None
    rows = [row.strip(" ,;") for row in split(match[1], _ROW)[0]]
    return read(", ".join(row for row in rows if row), depth + 1)


def _special_set(text: str, _: int) -> Shape | None:
    unwrapped = _WORDY_COMMAND.sub(r"\1", text).strip()
    if match := _INFINITY.fullmatch(text):
        return Leaf(rf"{match[1].replace('+', '')}\infty")
    if _EMPTY_SET.fullmatch(text) or _EMPTY_IN_WORDS.fullmatch(unwrapped):
        return FiniteSet(())
    everything = Bracketed("(", ")", (Leaf(r"-\infty"), Leaf(r"\infty")))
    if match := _ALL_BUT.fullmatch(unwrapped):
        return Difference(everything, FiniteSet((read_leaf(match["hole"]),)))
    return everything if _ALL_REALS.fullmatch(unwrapped) else None


def _words(text: str, _: int) -> Shape | None:
    """Text without any mathematics: a word of three letters, several words, or a name in capitals (no product of variables)."""
    letters = _LETTERS.findall(_WORDY_COMMAND.sub(r" \1 ", text))
    if not letters or _NOT_IN_WORDS.search(_WORDY_COMMAND.sub(r" \1 ", text)) or split_list(text)[1] or "," in text:
        return None
    if len(letters) == 1 and is_function_word(letters[0]):
        return None
    is_name = len(letters) == 1 and letters[0].isupper() and len(letters[0]) > 1
    is_word = len(letters) == 1 and letters[0].lower() in _WHOLE_WORDS_OF_TWO_LETTERS
    if not is_name and not is_word and max(map(len, letters)) < 3 and letters[0].isascii():
        return None
    number = number_in_words(letters)
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
    return _given_in_a_sentence(text, depth)


def _given_in_a_sentence(text: str, depth: int) -> Shape | None:
    """Several values are a chain: it comes to the last one if all are equal, else to nothing."""
    values = values_of_sentence(text)
    if not values or values[-1] == text:
        return None
    return read(values[0], depth + 1) if len(values) == 1 else Relation(values, ("=",) * (len(values) - 1))


def _is_prose(word: str) -> bool:
    return (len(word) > 2 or not word.isascii() or word.lower() in ("so", "it", "we", "is")) and not is_function_word(word)


def _prose_around_a_number(text: str, depth: int) -> Shape | None:
    """A sentence that no other reader knows: it must not be taken for a product of the letters in it."""
    words = [word for word in _LETTERS.findall(_WORDY_COMMAND.sub(" ", text)) if _is_prose(word) and not is_known_unit(word)]
    if not words or read_leaf(text).unit is not None:
        return None
    return _given_in_a_sentence(text, depth) or Words(plain_words(text))


def _several(text: str, depth: int) -> Shape | None:
    items, conjunction = split_list(text)
    if len(items) < 2 or len(items) > _MOST_ITEMS:
        return None
    if any(_DOTS.fullmatch(item) for item in items):
        return Progression(tuple(None if _DOTS.fullmatch(item) else read(item, depth + 1) for item in items))
    shapes = [_both_signs(item, depth + 1) or read(item, depth + 1) for item in items]
    return Listing(tuple(value for shape in shapes for value in (shape.items if isinstance(shape, Listing) else (shape,))), conjunction)


def _both_signs(text: str, depth: int) -> Listing | None:
    r"""`a \pm b` is two values, written once; `\pm a \pm b` is four. Signs that a `\mp` ties to each other are two."""
    signs = _PLUS_MINUS.findall(text)
    if not signs or len(signs) > _MOST_SIGNS or _OPERATOR.search(top_level(text)) or text.startswith(r"\{"):
        return None  # between braces the signs belong to one element
    if any("mp" in sign for sign in signs):
        choices = [["-" if "mp" in sign else "+" for sign in signs], ["+" if "mp" in sign else "-" for sign in signs]]
    else:
        choices = [list(choice) for choice in product("+-", repeat=len(signs))]
    pieces = _PLUS_MINUS.split(text)
    texts = [pieces[0] + "".join(sign + piece for sign, piece in zip(choice, pieces[1:], strict=True)) for choice in choices]
    return Listing(tuple(read(value.strip().removeprefix("+"), depth + 1) for value in texts), "and")


def _union(text: str, depth: int) -> Shape | None:
    parts, _ = split(text, _CUP)
    return Union(tuple(read(part, depth + 1) for part in parts)) if len(parts) > 1 else None


def _difference(text: str, depth: int) -> Shape | None:
    parts, _ = split(text, _MINUS_SET)
    return Difference(read(parts[0], depth + 1), read(parts[1], depth + 1)) if len(parts) == 2 else None


def _residue(text: str, depth: int) -> Shape | None:
    r"""`x \equiv 5 \pmod 7` is a class of numbers. `12 \bmod 7` is an operation, and no reader's business."""
    match = _RESIDUE.fullmatch(text)
    if match is None or not (match["class"] or r"\equiv" in match["number"]):
        return None
    sides, operators = split(match["number"], _CONGRUENT)
    if len(operators) > 1 or (operators and not is_name(sides[0])):
        return None
    return Residue(read(sides[-1], depth + 1), read(match["modulus"].strip(" {}()"), depth + 1))


def _relation(text: str, depth: int) -> Shape | None:
    sides, operators = split(text, _OPERATOR)
    if not operators or _are_united(text):
        return None
    if not sides[0] and operators[0] in _GO_ON:  # with what was asked for: `= 5`, `\approx 5`
        return read(text[text.index(operators[0]) + len(operators[0]) :], depth + 1)
    if not all(sides):
        raise UnreadableError(f"a relation without its other side: {text[:80]}")
    return Relation(tuple(sides), tuple(_PLAIN_OPERATORS.get(operator, operator) for operator in operators))


def _are_united(text: str) -> bool:
    r"""`x<1 \cup x>2`: a union of relations, where `x \in A \cup B` is one relation."""
    parts, _ = split(text, _CUP)
    return len(parts) > 1 and all(split(part, _OPERATOR)[1] for part in parts)


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
        return _described(described[0], described[1], depth)
    content = read(inside, depth + 1)
    if isinstance(content, Progression):
        return content
    return FiniteSet(content.items if isinstance(content, Listing) else (content,))


def _described(collected: str, text: str, depth: int) -> Shape:
    r"""`\{x \mid x > 3\}` is its condition; of anything but a real number's name, as `2k` or `n \in \mathbb{Z}`, the set is another."""
    condition = read(text, depth + 1)
    match = _COLLECTED.fullmatch(collected)
    is_about_it = match is not None and re.search(rf"(?<![\\A-Za-z]){match['name']}(?![A-Za-z])", text) is not None
    return condition if is_about_it else Described(collected.replace(" ", ""), condition)


def _compound(text: str, _: int) -> Shape | None:
    return read_compound(text)


def _based(text: str, _: int) -> Shape | None:
    match = _BASED.fullmatch(_BASE_BEHIND.sub(r"_{\1}", text))
    if match is None or not (match[2][0].isdigit() or (match[2].isupper() and len(match[2]) > 1)):
        return None
    base = number_in_words([match[3] or match[4]]) or match[3] or match[4]
    return Based(match[2].upper().lstrip("0"), base, match[1]) if base.isdecimal() else None


def _ratio(text: str, _: int) -> Shape | None:
    terms, colons = split(text, _COLON)
    if not colons or not all(terms) or any(_is_prose(word) for word in _LETTERS.findall(text)):
        return None
    time = _TIME_LIKE.fullmatch(text)
    return Ratio(tuple(terms), (int(time[1]), int(time[2])) if time else None)


def _choice_with_its_text(text: str, _: int) -> Shape | None:
    bare = _BARE_CHOICE.fullmatch(text)
    if bare is not None:
        return Leaf(bare[1])
    letter = chosen_letter(_WORDY_COMMAND.sub(r"\1 ", text).strip())
    return Words(plain_words(letter)) if letter else None


_READERS: tuple[Callable[[str, int], Shape | None], ...] = (
    _clock,
    _number,
    _compound,
    _special_set,
    _unwrapped_words,
    _matrix,
    _system,
    _choice_with_its_text,
    _words,
    _sentence,
    _several,
    _both_signs,
    _residue,
    _relation,
    _union,
    _difference,
    _brackets,
    _based,
    _ratio,
    _prose_around_a_number,
)


def plain_words(text: str) -> str:
    r"""Words without case, fonts, punctuation, an ordinal's ending or an article before a word.

    >>> plain_words(r"\text{(C)}"), plain_words("May 4th"), plain_words("an ellipse")
    ('c', 'may 4', 'ellipse')
    """
    bare = _PUNCTUATION.sub(" ", _WORDY_COMMAND.sub(r" \1 ", re.sub(r"(?<!\w)-\s*(?=[\w.\\])", "minus ", text))).casefold()
    bare = " ".join(re.sub(r"(?<=[0-9])(?:st|nd|rd|th)\b", "", bare).split())
    return _ARTICLE.sub("", bare)
