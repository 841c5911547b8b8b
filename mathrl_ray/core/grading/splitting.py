r"""Splitting: where a text falls apart at its top level, outside every bracket, group and environment.

Called by reading.py with canonical text. Pure text. Half-open intervals make brackets of different kinds pair up, so only the depth is
counted, never the kind.
"""

import re

_TOKEN = re.compile(r"\\begin\s*\{[a-zA-Z*]*\}|\\end\s*\{[a-zA-Z*]*\}|\\[{}]|\\[a-zA-Z]+|[()\[\]{}]")
_STRONG = re.compile(r"\s*(?:,\s*)?(?:(?<![\\A-Za-z])(?P<word>and|or|&)(?![A-Za-z])|;)\s*")
_COMMA = re.compile(r"\s*,\s*")
_THOUSANDS = re.compile(r"\s*[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?\s*")
HIDDEN = "\x00"


def top_level(text: str) -> str:
    r"""The text with every character inside brackets hidden, of the same length, so that positions agree.

    >>> top_level(r"(1,2)\cup[3,4]").replace(HIDDEN, "?")
    '?????\\cup?????'
    """
    visible, depth, position = [], 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(r"\begin") or token in ("(", "[", "{", r"\{"):
            visible.append(text[position : match.start()] if not depth else HIDDEN * (match.start() - position))
            position, depth = match.start(), depth + 1
        elif token.startswith(r"\end{") or token in (")", "]", "}", r"\}"):
            visible.append(HIDDEN * (match.end() - position) if depth else text[position : match.end()])
            position, depth = match.end(), max(depth - 1, 0)
    visible.append(text[position:] if not depth else HIDDEN * (len(text) - position))
    return "".join(visible)


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """(parts, separators) at the top level; parts without surrounding space."""
    parts, separators, position = [], [], 0
    for match in separator.finditer(top_level(text)):
        parts.append(text[position : match.start()].strip())
        separators.append(match[0].strip())
        position = match.end()
    return [*parts, text[position:].strip()], separators


def split_list(text: str) -> tuple[list[str], str]:
    """(items, the conjunction `and` or `or`, or "") of a list; one item where the text is none.

    A comma between groups of three digits belongs to a number where something stronger parts the items: `1,000 and 2,000` are two.

    >>> split_list("1, 4, and 9"), split_list("(1,2)")
    ((['1', '4', '9'], 'and'), (['(1,2)'], ''))
    """
    parts, separators = split(text, _STRONG)
    items = []
    for part in parts:
        items += [part] if len(parts) > 1 and _THOUSANDS.fullmatch(part) else split(part, _COMMA)[0]
    conjunction = "or" if any("or" in separator for separator in separators) else "and" if any("and" in s for s in separators) else ""
    return [item for item in items if item], conjunction


def inside_brackets(text: str) -> tuple[str, str, str] | None:
    r"""(opening, inside, closing) where one pair of brackets spans the whole text; None otherwise.

    >>> inside_brackets("[2,9)"), inside_brackets("(1)(2)")
    (('[', '2,9', ')'), None)
    """
    opening = next((bracket for bracket in (r"\{", "(", "[") if text.startswith(bracket)), None)
    closing = next((bracket for bracket in (r"\}", ")", "]") if text.endswith(bracket)), None)
    if opening is None or closing is None or len(text) < len(opening) + len(closing):
        return None
    inside = text[len(opening) : -len(closing)]
    depth = 0
    for match in _TOKEN.finditer(inside):
        depth += (match[0] in ("(", "[", "{", r"\{")) - (match[0] in (")", "]", "}", r"\}"))
        if depth < 0:
            return None
    return (opening, inside.strip(), closing) if depth == 0 else None
