r"""Sentences: the value that a sentence gives, and those that it has given before.

Called by reading.py with canonical text that begins or ends with words. Pure text. A grader that takes the last number of any text pays
`not 5`, `at least 5` and `3 or maybe 5`; here a sentence that hedges, denies, compares or counts further gives nothing.
"""

import re
from collections.abc import Sequence

from mathrl_ray.core.grading.things import names_a_thing

_GIVES = re.compile(
    r"(?:(?<![\\A-Za-z])(?:is|are|was|be|equals?|becomes?|gives?|has|have|takes?|costs?|answer|option|choice|solution|so|therefore|thus|hence)"
    r"(?![A-Za-z])|(?<=\bit)'s(?![A-Za-z])|(?<=[A-Za-z]):|是|为|等于)[\s:,]*",
    re.IGNORECASE,
)
_WORDY_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_FILLER = "\x00"
_DENIES = r"not|no|never|none|neither|nor|cannot|[a-z]+n't|unless|except"
_HEDGES = (
    r"or|either|maybe|perhaps|possibly|probably|could|might|(?-i:may)|alternatively|but|otherwise|else|instead|rather|unknown|unsure|guess"
)
_COMPARES = r"least|most|more|less|fewer|greater|than|under|over|below|above|between|up to|from|to"
_COMPUTES = r"half|twice|double|triple|plus|minus|negative|squared|cubed|multiplied|divided|increased|decreased"
_CHANGES_THE_MEANING = re.compile(
    rf"(?<![\\A-Za-z])(?:{_DENIES}|{_HEDGES}|{_COMPARES}|{_COMPUTES})(?![A-Za-z])|不|非|或|可能|至少|至多|大于|小于", re.IGNORECASE
)
"""`May`, with its capital, is a month."""
_COMPUTES_OR_DENIES = re.compile(rf"(?<![\\A-Za-z])(?:{_DENIES}|{_COMPUTES}|times)(?![A-Za-z])", re.IGNORECASE)
_HAS = re.compile(r"ha(?:s|ve)\b", re.IGNORECASE)
_END_OF_A_CLAIM = re.compile(r"[.,;:](?=\s|$)|(?<![\\A-Za-z])[A-Za-z]{2,}")
_BEGINS_A_VALUE = re.compile(r"(?:[A-Za-z]\s*=\s*)?[-+(\[{]*\s*(?:\.?[0-9]|\\(?:frac|sqrt|pi|pm|binom)(?![a-zA-Z]))")
_ROUNDING = re.compile(r"^(?:about|approximately|roughly|around|exactly|approx|just|only|simply|nearly|almost)\.?\s+(?=\S)", re.IGNORECASE)
_SIGN_WORD = re.compile(r"^(negative|minus|positive|plus)\s+(?=[0-9.\\(]|[a-z]\b)", re.IGNORECASE)
_VALUE_IN_WORDS = re.compile(r"[-+]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})(?:\s*/\s*[0-9]+)?\s*(?:\\?%)?")
MONTH = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|"
    r"dec(?:ember)?)\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\(?([A-Z])(?:\)[.:]?|[.:])\s+\S.*")


def values_of_sentence(text: str) -> tuple[str, ...]:
    """The parts of a sentence that are its values, what it comes to last; none where it has no value, or a word changes the meaning.

    `3+4 is 7` and `first it is 5; then it is 6` both give two. Whether they are one value in two writings, mathematics must say.

    >>> values_of_sentence("The total number of paths is 42"), values_of_sentence("over 42"), values_of_sentence("15 个")
    (('42',), (), ('15',))
    >>> values_of_sentence("It is 5. It is 6"), values_of_sentence("The number of pairs of 8 people is 28")
    (('5', '6'), ('28',))
    """
    # as long as the text, so that positions agree
    plain = _WORDY_COMMAND.sub(lambda match: f"{match[1]} ".rjust(len(match[0]), _FILLER), text)
    giving = list(_GIVES.finditer(plain))
    value = text[giving[-1].end() :].strip() if giving else ""
    if _CHANGES_THE_MEANING.search(plain[: giving[-1].start()] if value else plain):
        return ()
    if not value:
        return _value_with_its_thing(text, plain)
    value = value.replace("}", "", 1) if value.count("}") > value.count("{") else value
    claims = _earlier_claims(plain, giving)
    return (*claims, value) if not claims or _BEGINS_A_VALUE.match(value) else ()  # `5 is wrong` gives nothing


def _earlier_claims(plain: str, giving: Sequence[re.Match[str]]) -> list[str]:
    """What the sentence says before its last giving word: a value at its head or right behind `is`, not what something `has`."""
    starts = [0, *(match.end() for match in giving[:-1])]
    said = ["", *(match[0] for match in giving[:-1])]
    claims = []
    for word, start, following in zip(said, starts, giving, strict=True):
        part = plain[start : following.start()].strip(_FILLER + " ")
        end = _END_OF_A_CLAIM.search(part)
        is_counted = not start and end is not None and end[0].isalpha()  # at the head, `5 factorial is 120` and `8 people are 4 pairs`
        part = part[: end.start()].strip() if end else part
        if _BEGINS_A_VALUE.match(part) and not _HAS.match(word) and not is_counted:
            claims.append(part)
    return claims


def _value_with_its_thing(text: str, plain: str) -> tuple[str, ...]:
    """The number of `7 apples in total`. The number of `Room 14` and of `14 June` is no value, and that of `7 wrong` is not claimed."""
    values = _VALUE_IN_WORDS.findall(plain)
    if len(values) != 1 or _is_more_than_words(plain, values[0]):
        return ()
    before, _, after = plain.partition(values[0])
    is_label = (text.isascii() and before.strip(_FILLER + " ") != "") or MONTH.search(text) is not None
    after = after.replace(_FILLER, " ")
    return () if is_label or (after.strip() and not names_a_thing(after)) else (values[0].strip(),)


def _is_more_than_words(text: str, value: str) -> bool:
    """Whether mathematics is left beside the value: then the value is a part of something."""
    return re.search(r"[0-9=<>+*/^_\\]", text.replace(value, " ", 1)) is not None


def changes_the_meaning(words: str) -> bool:
    """Whether words deny, hedge or compare: `7 or more` is not 7."""
    return _CHANGES_THE_MEANING.search(words) is not None


def computes(words: str) -> bool:
    """Whether words deny, or make another value of what they stand beside: `twice x` is no name of a value."""
    return _COMPUTES_OR_DENIES.search(words) is not None


def without_rounding_word(text: str) -> str:
    """`about 3.14` claims 3.14; `negative 5` is -5."""
    text = _ROUNDING.sub("", text)
    return _SIGN_WORD.sub(lambda match: "-" if match[1].lower() in ("negative", "minus") else "", text)


def chosen_letter(text: str) -> str | None:
    """The letter of `(C) 12`, where a choice is given with its text."""
    match = _CHOICE.fullmatch(text)
    return match[1] if match else None
