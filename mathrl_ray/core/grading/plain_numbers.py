r"""Plain numbers: decimals and fractions of digits, which are compared without algebra and so without a process.

Called by the scorer and by shared_grading.py for what the quick verdict leaves open. Pure; its verdicts are those of `algebraic_verdict`,
some 20 µs later instead of 200.
"""

import re

from mathrl_ray.core.grading.rationals import Rational, read_rational, same_number
from mathrl_ray.core.grading.spelling import normalise
from mathrl_ray.types import Outcome

_PLAIN_NUMBER = re.compile(
    r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400}|\\frac\{[0-9]{1,400}\}\{[0-9]{1,400}\}|[0-9]{1,400}/[0-9]{1,400})"
)


def number_verdict(answer: str, gold: str) -> Outcome | None:
    r"""correct or wrong where both texts are plain numbers, by exact value; None for anything else.

    >>> number_verdict("0.5", r"\frac{1}{2}"), number_verdict("0.333333", "1/3"), number_verdict("x", "1/3")
    ('correct', 'wrong', None)
    """
    wanted = _plain_number(gold)
    given = _plain_number(answer) if wanted else None
    if wanted is None or given is None:
        return None
    return "correct" if same_number(wanted, given) else "wrong"


def _plain_number(text: str) -> Rational | None:
    text = normalise(text)
    return read_rational(text) if _PLAIN_NUMBER.fullmatch(text) else None
