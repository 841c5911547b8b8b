r"""Sentences: the value that a sentence gives, where it gives exactly one.

Called by reading.py with canonical text that begins or ends with words. Pure text. A grader that takes the last number of any text pays
`not 5`, `at least 5` and `3 or maybe 5`; here a sentence that hedges, denies, compares or counts further gives nothing.
"""

import re

_GIVES = re.compile(
    r"(?:(?<![\\A-Za-z])(?:is|are|was|be|equals?|becomes?|gives?|has|have|answer|option|choice|solution|so|therefore|thus|hence)"
    r"(?![A-Za-z])|(?<=[A-Za-z]):|是|为|等于)[\s:,]*",
    re.IGNORECASE,
)
_WORDY_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_FILLER = "\x00"
_CHANGES_THE_MEANING = re.compile(
    r"(?<![\\A-Za-z])(?:not|no|never|none|neither|nor|cannot|[a-z]+n't|or|either|maybe|perhaps|possibly|probably|least|most|more|less|"
    r"fewer|greater|than|under|over|below|above|between|up to|half|twice|double|triple|plus|minus|negative|squared|cubed|"
    r"unless|except|unknown|unsure|guess|from|to|multiplied|divided|increased|decreased)(?![A-Za-z])|不|非|或|可能|至少|至多|大于|小于",
    re.IGNORECASE,
)
_ROUNDING = re.compile(r"^(?:about|approximately|roughly|around|exactly|approx|just|only|simply|nearly|almost)\.?\s+(?=\S)", re.IGNORECASE)
_SIGN_WORD = re.compile(r"^(negative|minus|positive|plus)\s+(?=[0-9.\\(]|[a-z]\b)", re.IGNORECASE)
_VALUE_IN_WORDS = re.compile(r"[-+]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})(?:\s*/\s*[0-9]+)?\s*(?:\\?%)?")
MONTH = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|"
    r"dec(?:ember)?)\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\(?([A-Z])(?:\)[.:]?|[.:])\s+\S.*")


def value_of_sentence(text: str) -> str | None:
    """The part of a sentence that is its value; None where there is none, or more than one, or a word that changes the meaning.

    >>> value_of_sentence("The total number of paths is 42"), value_of_sentence("over 42"), value_of_sentence("15 个")
    ('42', None, '15')
    """
    # as long as the text, so that positions agree
    plain = _WORDY_COMMAND.sub(lambda match: f"{match[1]} ".rjust(len(match[0]), _FILLER), text)
    *_, last = [None, *_GIVES.finditer(plain)]
    value = text[last.end() :].strip() if last is not None else ""
    if _CHANGES_THE_MEANING.search(plain[: last.start()] if last is not None and value else plain):
        return None
    if value:
        return value.replace("}", "", 1) if value.count("}") > value.count("{") else value
    values = _VALUE_IN_WORDS.findall(plain)
    if len(values) != 1 or _is_more_than_words(plain, values[0]):
        return None
    # the number of `Room 14` and of `14 June` is no value
    is_label = (text.isascii() and not plain.lstrip(_FILLER + " ").startswith(values[0])) or MONTH.search(text) is not None
    return None if is_label else values[0].strip()


def _is_more_than_words(text: str, value: str) -> bool:
    """Whether mathematics is left beside the value: then the value is a part of something."""
    return re.search(r"[0-9=<>+*/^_\\]", text.replace(value, " ", 1)) is not None


def changes_the_meaning(words: str) -> bool:
    """Whether words deny, hedge or compare: `7 or more` is not 7."""
    return _CHANGES_THE_MEANING.search(words) is not None


def without_rounding_word(text: str) -> str:
    """`about 3.14` claims 3.14; `negative 5` is -5."""
    text = _ROUNDING.sub("", text)
    return _SIGN_WORD.sub(lambda match: "-" if match[1].lower() in ("negative", "minus") else "", text)


def chosen_letter(text: str) -> str | None:
    """The letter of `(C) 12`, where a choice is given with its text."""
    match = _CHOICE.fullmatch(text)
    return match[1] if match else None
