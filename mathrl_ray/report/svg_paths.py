"""Long paths of an inline SVG in fewer bytes: a page of 20 runs holds half a million points. Called by charts.py. Pure: text in, text out.

What is drawn stays the same: svg_of has rounded to tenths, and steps between tenths are written as they are. Only paths of plain moves and
lines, each with its letter, are changed, as matplotlib writes a curve.
"""

import re

_LONG = re.compile(r'(?<= d=")M [-0-9. ML]{200,}(?=")')
_PART = re.compile(r"([ML]) (-?\d+(?:\.\d)?) (-?\d+(?:\.\d)?) ?")


def with_short_paths(svg: str) -> str:
    """The SVG with every long path as steps from point to point."""
    return _LONG.sub(lambda path: short_path(path[0]), svg)


def short_path(path: str) -> str:
    """
    >>> short_path("M 10 20.5 L 11.2 20 L 11 20 M 0 0 L 5 5.5")
    'M10 20.5l1.2-.5-.2 0M0 0l5 5.5'
    """
    parts = _PART.findall(path)
    if len(_PART.sub("", path)):  # something that is no move and no line
        return path
    words: list[str] = []
    x = y = 0
    before = ""
    for letter, x_text, y_text in parts:
        new_x, new_y = _tenths(x_text), _tenths(y_text)
        if letter == "M":
            words.append(f"M{_pair(new_x, new_y)}")
        else:
            step = _pair(new_x - x, new_y - y)
            words.append(f"l{step}" if before == "M" else step if step.startswith("-") else f" {step}")
        x, y, before = new_x, new_y, letter
    return "".join(words)


def _tenths(text: str) -> int:
    return round(10 * float(text))


def _pair(x: int, y: int) -> str:
    second = _number(y)
    return f"{_number(x)}{second}" if second.startswith("-") else f"{_number(x)} {second}"


def _number(tenths: int) -> str:
    """
    >>> _number(-3), _number(120), _number(0), _number(15)
    ('-.3', '12', '0', '1.5')
    """
    whole, rest = divmod(abs(tenths), 10)
    text = f"{whole or ''}.{rest}" if rest else str(whole)
    return f"-{text}" if tenths < 0 else text
