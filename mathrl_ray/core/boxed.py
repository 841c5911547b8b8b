r"""The answer in a box: what a solution or a response says in its last `\boxed{...}`.

Called by data/ (gold answers of solutions) and by the grading of boxed answers. Pure: text in, text out; its cost is linear in the text.
"""

import re

_TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|(?P<bare>\\boxed(?![a-zA-Z]))|\\.|(?P<brace>[{}])", re.DOTALL)
_BARE_ANSWER = re.compile(r"\s*([^\s$]+)")


def last_boxed(text: str) -> str | None:
    r"""What the last complete box holds, without surrounding white space; None where there is none.

    Last is the box that opens last, so of nested ones the inner. A box whose brace never closes is none. `\boxed 2` and `\boxed\pi` hold
    what follows, up to a space, a dollar sign or the end. Escaped braces (`\{`) are no braces.

    >>> last_boxed(r"first \boxed{1}, then $\boxed{\frac{1}{2}}$."), last_boxed(r"so $\boxed 2$."), last_boxed(r"cut at \boxed{\frac{1")
    ('\\frac{1}{2}', '2', None)
    """
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    last: tuple[int, str] | None = None
    for token in _TOKEN.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token["bare"]:
            answer = _BARE_ANSWER.match(text, token.end())
            last = max(last or (-1, ""), (token.end(), answer[1].rstrip(".,"))) if answer else last
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces and (start := open_braces.pop()) is not None:
            last = max(last or (-1, ""), (start, text[start : token.start()].strip()))
    return last[1] if last else None
