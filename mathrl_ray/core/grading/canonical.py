r"""Canonical text: what people type, in the LaTeX that the readers understand.

Called by reading.py with an answer or a gold that the quick verdict could not settle. Pure text; knows characters and commands, no
mathematics. What it drops says nothing (spacing, fonts, delimiters); what it renames has one meaning (`≤`, `\leq`, `\leqslant`).
"""

import re
import unicodedata

from mathrl_ray.core.grading.extraction import boxes, last_boxed
from mathrl_ray.core.grading.sentences import changes_the_meaning
from mathrl_ray.core.grading.spelling import without_box, without_full_stop, without_thousands_commas

DOLLAR = "\ufe69"
r"""Stands for a dollar that is money, `\$`, once the dollars that mark mathematics are gone."""

_SYMBOLS = {
    **dict.fromkeys("\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}—﹣", "-"),
    **dict.fromkeys("\N{MULTIPLICATION SIGN}✕", r" \times "),
    **dict.fromkeys("·⋅∙•", r" \cdot "),
    **dict.fromkeys("≤⩽≦", r" \le "),
    **dict.fromkeys("≥⩾≧", r" \ge "),
    **dict.fromkeys("≈≅≃", r" \approx "),
    **dict.fromkeys("…⋯", r"\ldots "),
    **dict.fromkeys("∅⌀", r"\emptyset "),
    **dict.fromkeys("\N{DIVIDES}\N{FULLWIDTH VERTICAL LINE}", "|"),
    **dict.fromkeys("°˚º", r"^\circ "),
    **dict.fromkeys("、\N{FULLWIDTH COMMA}", ","),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("\N{FRACTION SLASH}\N{DIVISION SLASH}", "/"),
    "÷": r" \div ",
    "≠": r" \ne ",
    "±": r" \pm ",
    "∓": r" \mp ",
    "∞": r"\infty ",
    "\N{UNION}": r" \cup ",
    "∩": r" \cap ",
    "\N{SET MINUS}": r" \setminus ",
    "∈": r" \in ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
    "℃": r"^\circ C",
    "℉": r"^\circ F",
    "∠": r"\angle ",
    "△": r"\triangle ",
    "。": ".",
    "\N{FULLWIDTH PERCENT SIGN}": "%",
    "\N{PRIME}": "'",
}
_SYMBOL_TABLE = str.maketrans(_SYMBOLS)
_FULL_WIDTH = re.compile("[\uff01-\uff5e]+")
_GREEK = re.compile("[\u0391-\u03a9\u03b1-\u03c9]")
_RADICAL = re.compile(r"([√∛∜])\s*(\([^()]*\)|\{[^{}]*\}|[0-9]+(?:\.[0-9]+)?|[A-Za-z]|\\[a-zA-Z]+)")
_ROOT_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = re.compile("[₀-₉]+")

_RENAMED = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"), "frac"),
    **dict.fromkeys(("leq", "leqslant", "leqq"), "le"),
    **dict.fromkeys(("geq", "geqslant", "geqq"), "ge"),
    **dict.fromkeys(("dots", "cdots", "dotsc", "dotsb", "vdots"), "ldots"),
    **dict.fromkeys(("varnothing", "emptyset"), "emptyset"),
    **dict.fromkeys(("mbox", "textbf", "textrm", "textnormal", "textit", "textsf", "texttt", "emph", "mathrm"), "text"),
    **dict.fromkeys(("operatorname", "hbox"), "text"),
    **dict.fromkeys(("ast", "times"), "times"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "mid"),
    "neq": "ne",
    "dbinom": "binom",
    "tbinom": "binom",
    "degree": "circ",
    "measuredangle": "angle",
    "varphi": "phi",
    "varepsilon": "epsilon",
    "land": "wedge",
    "lor": "vee",
    "approxeq": "approx",
}
_WRITTEN_AS = {
    "lt": "<",
    "gt": ">",
    "mid": "|",
    "langle": "(",
    "rangle": ")",
    "colon": ":",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "wedge": " and ",
    "vee": " or ",
}
_WITHOUT_MEANING = re.compile(
    "left|right|[bB]igg?[lrm]?|displaystyle|textstyle|(?:no)?limits|rm|bf|it|boldsymbol|math(?:bf|it|sf|tt)|bm|underline|hfill|newline|"
    "noindent|centering|q?quad|thinspace|enspace|tiny|scriptsize|footnotesize|small|normalsize|[lL]arge|LARGE|[hH]uge|framebox|ensuremath|"
    "blacksquare|qed"
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_PHANTOM = re.compile(r"\\(?:h|v)?phantom\s*(?:\{[^{}]*\}|.)|\\[hv]space\*?\s*\{[^{}]*\}")
_ABOUT = re.compile(r"(?<!\S)~(?=[0-9.])")
_COLOUR = re.compile(r"\\(?:text)?color\s*(?:\[[^\[\]]*\])?\s*\{[^{}]*\}|\\tag\*?\s*\{[^{}]*\}")
_EMPTY_BRACKET = re.compile(r"\\(?:left|right)\s*\.")
_AT_THE_END = re.compile(r"(?<=.)(?:\\\\|\\(?:square|Box)(?![a-zA-Z]))\s*$")
_HTML = re.compile(r"<([a-zA-Z]+)>(.*)</\1>", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\begin\s*\{((?:align|equation|gather|multline)(?:ed)?\*?|center|displaymath)\}(.*)\\end\s*\{\1\}", re.DOTALL)
_VECTOR = r"\\(?:vec|mathbf|boldsymbol|bm|overrightarrow)\s*(?:\{\s*([a-zA-Z])\s*\}|([a-zA-Z]))"
_CROSS_PRODUCT = re.compile(rf"{_VECTOR}\s*\\times\s*{_VECTOR}")
_QUOTIENT_OF_WORDS = re.compile(r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}")
_LATEX_SPACE = re.compile(r"(?<!\\)\\[,;:! ]|~")
_MATH_MARK = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")
_LONE_DOLLAR = re.compile(r"\$(?=\s*[-0-9.])")
_TEXT = re.compile(r"\\text\s*(?:\{([^{}]*)\}|([A-Za-z0-9]))")
_MORE_THAN_WORDS = re.compile(r"[0-9=<>+*/^_%~-]|\\(?!text|boxed|[,;:! ])")
_SEPARATOR_WORDS = re.compile(r"\s*+[,;]?\s*+(?:and|or|to)?\s*+[,;]?\s*+")
_INSIDE_IS_MATHEMATICS = re.compile(r"\s*(?:[-+]?[0-9][0-9.,]*|[ie])\s*")
_IS_A_SIGN = re.compile(rf"\s*(?:[{DOLLAR}€£¥₹%]|\^\\circ\s*[CF]?)\s*")
_DOUBLED_BACKSLASH = re.compile(r"\\\\(?=[a-zA-Z])")
_SPACES = re.compile(r"\s+")
_THOUSANDS_OF_A_VALUE = re.compile(rf"(?:[=€£¥₹{DOLLAR}]|\\approx)\s*[-+]?[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9,])")
_THOUSANDS_OF_A_FACTOR = re.compile(
    r"(?:^|(?<=[^\\_]\{)|(?<=[-+*/])|(?<=,\s))\s*[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?=\s*(?:\\[a-zA-Z%]|[-+*/^}]|[A-Za-z]|$))"
)
"""Beside anything that is multiplied or added, and in an argument's braces; `(1,234x)` is a point."""
_CROSS = re.compile(r"(?<=[0-9])(?:\s*[xX]\s*(?=10\s*\^)| [xX] (?=[0-9]))")
_MOST_BOXES = 100
"""What holds more is no answer."""
_WRAPPING = '*`"_ \t\n'


def canonical(text: str) -> str:
    r"""The text in one LaTeX: ASCII where a command exists, one name a command, no spacing, no delimiters, no box.

    >>> canonical("３√７ ≤ x"), canonical(r"$\left(\dfrac{1}{2},\,3\right)$"), canonical(r"\boxed{5}. Again, \boxed{5}")
    ('3\\sqrt{7} \\le x', '(\\frac{1}{2}, 3)', '5')
    """
    text = _without_environment(_from_unicode(_without_boxes(text)))
    text = _COLOUR.sub("", _EMPTY_BRACKET.sub("", text))
    text = _CROSS_PRODUCT.sub(r"\\Omega_{\1\2X\3\4}", text)  # it has an order, which a product of numbers has not
    text = without_thousands_commas(_ABOUT.sub(r"\\sim ", _without_delimiters(_PHANTOM.sub("", text)).strip()))
    text = _THOUSANDS_OF_A_VALUE.sub(_without_commas, _LATEX_SPACE.sub(_space, text))
    text = _THOUSANDS_OF_A_FACTOR.sub(_without_commas, _AT_THE_END.sub("", text))
    if r"\begin" not in text:  # between the rows of a matrix it is a line break
        text = _DOUBLED_BACKSLASH.sub(r"\\", text)
    text = _CROSS.sub(r" \\times ", _COMMAND.sub(_renamed, text))
    text = _TEXT.sub(_opened, _QUOTIENT_OF_WORDS.sub(r"\\text{\1/\2}", text))
    text = _SPACES.sub(" ", text).strip(_WRAPPING)
    return without_full_stop(text.rstrip(",;:")).strip(_WRAPPING)


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


def _without_environment(text: str) -> str:
    r"""Drop an HTML tag, or an environment that only sets a line, around everything; where it has several lines they stay."""
    if match := _HTML.fullmatch(text.strip()):
        text = match[2]
    match = _ENVIRONMENT.fullmatch(text.strip())
    if match is None or r"\\" in match[2].strip().removesuffix(r"\\"):
        return text
    return match[2].strip().removesuffix(r"\\").replace("&", "")


def _without_boxes(text: str) -> str:
    r"""The box's content where it stands alone or in mere words; else each content in its box's place: `-\boxed{5}` says -5.

    >>> _without_boxes(r"so it is \boxed{5}."), _without_boxes(r"2\boxed{5}"), _without_boxes(r"4, \boxed{5}")
    ('5', '25', '4, 5')
    """
    found = boxes(text)
    if not found or len(found) > _MOST_BOXES:
        return text
    if (inside := without_box(text.strip())) != text.strip():  # a box in a box too
        return _without_boxes(inside)
    ends = [0, *(box.end for box in found)]
    outside = " ".join(text[start:end] for start, end in zip(ends, [*(box.start for box in found), len(text)], strict=True))
    whole = last_boxed(text) or ""
    contents = {text[box.inside].strip() for box in found}
    if not _MORE_THAN_WORDS.search(outside) and not changes_the_meaning(outside) and contents <= {whole, *whole.split(", ")}:
        return whole
    for box in reversed(found):
        text = text[: box.start] + text[box.inside].strip() + text[box.end :]
    return text


def _from_unicode(text: str) -> str:
    text = _FULL_WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = _RADICAL.sub(_root, text.translate(_SYMBOL_TABLE))
    text = _VULGAR_FRACTION.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]).replace("\u2044", "/"), text)
    text = _SUPERSCRIPTS.sub(lambda match: "^{" + _plain(match[0]) + "}", text)
    text = _SUBSCRIPTS.sub(lambda match: "_{" + _plain(match[0]) + "}", text)
    text = _GREEK.sub(_greek, text)
    text = unicodedata.normalize("NFKC", text)
    return "".join(character for character in text if unicodedata.category(character) != "Cf").translate(_SYMBOL_TABLE)


def _plain(characters: str) -> str:
    return unicodedata.normalize("NFKC", characters).replace("\N{MINUS SIGN}", "-")


def _root(match: re.Match[str]) -> str:
    inside = match[2][1:-1] if match[2][0] in "({" else match[2]
    return rf"\sqrt{_ROOT_INDEX[match[1]]}{{{inside}}}"


def _greek(match: re.Match[str]) -> str:
    name = unicodedata.name(match[0], "").split()
    return rf"\{name[-1].lower() if 'SMALL' in name else name[-1].capitalize()} "


def _without_delimiters(text: str) -> str:
    r"""Drop what marks mathematics. `\$`, and a dollar that has no partner and stands before a number, are money."""
    text = text.replace(r"\$", DOLLAR)
    if text.count("$") % 2:
        text = _LONE_DOLLAR.sub(DOLLAR, text, count=1)
    return _MATH_MARK.sub(" ", text)


def _space(match: re.Match[str]) -> str:
    return "" if match[0] == r"\!" else " "


def _renamed(match: re.Match[str]) -> str:
    name = _RENAMED.get(match[1], match[1])
    if _WITHOUT_MEANING.fullmatch(name):
        return " " if "quad" in name else ""
    return _WRITTEN_AS.get(name, match[0] if name == match[1] else rf"\{name}")


def _opened(match: re.Match[str]) -> str:
    r"""`\text{ and }`, `\text{13}` and `\mathrm{i}` say what they say without the font; other words keep it, because they are words."""
    inside = match[2] or match[1]
    if _SEPARATOR_WORDS.fullmatch(inside):
        return f" {inside} "
    if _IS_A_SIGN.fullmatch(inside):
        return inside
    return inside if _INSIDE_IS_MATHEMATICS.fullmatch(inside) else rf"\text{{{inside}}}"
