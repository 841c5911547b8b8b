r"""Writings: an expression as math-verify's parser has to have it, and what it must not get.

Called by expressions.py. Pure text. The parser does not read `\frac12`, reads `2(3)` as a mixed number, `0.1` as a float and `30^\circ` as
30, computes `\binom` at once however large, and multiplies the letters of any word.
"""

import re

from mathrl_ray.core.grading.names import is_function_word

_LONGEST_TEXT = 1500
"""Characters; the parser is Python and takes some 50 µs each."""
_DEEPEST_NESTING = 15
"""Brackets; the parser takes more than 10 of Python's 1,000 frames for each."""

_PRIMED = re.compile(r"(?<![\\a-zA-Z])([a-zA-Z])('+)")
"""`y'` is another variable than `y`; a quotation mark anywhere else says nothing."""
_LOG_WITH_BASE = re.compile(r"(?<![a-zA-Z])\\?log\s*_\s*([0-9a-zA-Z])")
_INDEXED_NUMBER = re.compile(r"[0-9)]\s*_")
_VALUE_BEFORE = r"[0-9A-Za-z})\]]\s*"
_VALUE_AFTER = r"\s*[-0-9A-Za-z({\\]"
_WORDS_BETWEEN = re.compile(rf"{_VALUE_BEFORE}\\text\s*\{{[^{{}}]*[A-Za-z]{{2}}[^{{}}]*\}}{_VALUE_AFTER}")
_WORD_BETWEEN = re.compile(r"(?<=[0-9A-Za-z})\]])\s+([A-Za-z]{2,})\s+(?=[-0-9A-Za-z({\\])")
_LETTER_BETWEEN_NUMBERS = re.compile(r"[0-9]\s*[A-Z]\s*[0-9]")

_COMMANDS_OF_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![a-zA-Z])\s*(\[[^\[\]]*\])?|\^\s*(?=\\(?:frac|sqrt|binom)(?![a-zA-Z]))")
_NUM_ARGUMENTS = {"frac": 2, "binom": 2}
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_SIMPLE_WRITINGS = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\a-zA-Z])(sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|pi|theta|infty|mod)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\text\s*\{\s*(gcd|lcm|max|min|mod)\s*\}"), r"\\\1"),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"\\log\s*_\s*([0-9a-zA-Z])"), r"\\log_{\1}"),
    (re.compile(r"\\[bp]mod(?![a-zA-Z])"), r"\\mod"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*\(([^()]*)\)"), r"\\sqrt\1{\2}"),
)
_WRITINGS = (
    (re.compile(r"\\binom\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}"), r"\\frac{(\1)!}{(\2)!((\1)-(\2))!}"),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
    (re.compile(r"\^\s*([-+]?\s*[0-9]+(?:\.[0-9]+)?)"), r"^{\1}"),
    (re.compile(r"(?<![0-9.^_}])([0-9]+)\s*/\s*([0-9]+)\s*(?=[a-zA-Z(\\])(?!\\(?:cdot|times|div))"), r"\\frac{\1}{\2}"),
    (re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*\^\s*\{?\s*\\circ\s*\}?"), r"{(\1\\cdot\\frac{\\pi}{180})}"),
    (re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])"), lambda match: rf"{{\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}}}"),
    (re.compile(r"([0-9)])\s*(?=\(|\\(?:binom|gcd|lcm|lfloor|lceil)(?![a-zA-Z]))"), r"\1\\cdot "),
)


def unbearable(text: str) -> str | None:
    r"""Why the parser must not get a text, in words; None where it may.

    Words between two values say how they belong together, and the parser would multiply their letters: `5\text{ choose }3`, `1 in 4`.

    >>> unbearable("1 in 4") is None, unbearable("a b + c") is None, unbearable(r"2 \sin x") is None
    (False, True, True)
    """
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if _INDEXED_NUMBER.search(_LOG_WITH_BASE.sub("", text)):
        return "a base or an index below a number, which the parser drops"
    if len(text) > _LONGEST_TEXT or deepest > _DEEPEST_NESTING:
        return f"an expression of {len(text)} characters, nested {deepest} deep"
    bare = re.sub(r"\\text\s*\{\s*(?:gcd|lcm|max|min|mod)\s*\}", "", text)
    if _WORDS_BETWEEN.search(bare) or any(not is_function_word(match[1]) for match in _WORD_BETWEEN.finditer(bare)):
        return "words between two values"
    return "a letter between two numbers, which is no product" if _LETTER_BETWEEN_NUMBERS.search(text) else None


def as_the_parser_writes(text: str) -> str:
    r"""
    >>> as_the_parser_writes(r"\frac12"), as_the_parser_writes(r"\frac{\sqrt3}2"), as_the_parser_writes("y'")
    ('\\frac{1}{2}', '\\frac{\\sqrt{3}}{2}', 'y_{p}')
    """
    for pattern, plain in _SIMPLE_WRITINGS:
        text = pattern.sub(plain, text)
    text = _with_braces(text)
    for pattern, replacement in _WRITINGS:
        text = pattern.sub(replacement, text)
    return _PRIMED.sub(lambda match: f"{match[1]}_{{{'p' * len(match[2])}}}", text).replace("'", "").strip()


def _with_braces(text: str) -> str:
    r"""Braces around each argument of `\frac`, `\binom`, `\sqrt` and of a `^` before one of them: `\frac{1}{\frac23}`, `x^\frac12`.

    From the last to the first, so that an argument's own arguments have theirs.
    """
    for match in reversed(list(_COMMANDS_OF_ARGUMENTS.finditer(text))):
        end, arguments = match.end(), []
        for _ in range(_NUM_ARGUMENTS.get(match[1] or "^", 1)):
            start = end + len(text[end:]) - len(text[end:].lstrip())
            end = _end_of_argument(text, start)
            arguments.append(text[start:end])
        if all(arguments):
            text = text[: match.end()].rstrip() + "".join(map(_braced, arguments)) + text[end:]
    return text


def _end_of_argument(text: str, start: int) -> int:
    """Where what begins there ends: a group in braces, a digit or letter, or a command with its groups."""
    if text.startswith("{", start):
        return _end_of_group(text, start)
    command = _COMMAND.match(text, start)
    if command is None:
        return start + 1 if text[start : start + 1].isalnum() else start
    end = command.end()
    while text.startswith("{", end) and command[0] in (r"\frac", r"\binom", r"\sqrt", r"\text"):
        end = _end_of_group(text, end)
    return end


def _end_of_group(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return position + 1
    return len(text)  # never closed: the parser will say so


def _braced(text: str) -> str:
    return text if text.startswith("{") else f"{{{text}}}"
