"""The rules of the grader that stand in functions of their own: numbers in words, things, roundings, sentences, full stops."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.grading.approximation import is_rounded
from mathrl_ray.core.grading.canonical import canonical
from mathrl_ray.core.grading.names import is_name, unknown_of
from mathrl_ray.core.grading.number_words import number_in_words, part_of_one
from mathrl_ray.core.grading.sentences import values_of_sentence
from mathrl_ray.core.grading.spelling import without_full_stop
from mathrl_ray.core.grading.things import names_a_thing
from mathrl_ray.core.grading.units import is_unit_phrase, read_unit, value_factors

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ONES += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelt(number):
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")
    size, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    return f"{spelt(number // size)} {word}" + (f" {spelt(number % size)}" if number % size else "")


# Numbers in words


def test_every_number_below_3_000_and_some_larger_ones_are_read_back():
    for number in (*range(3_000), 10_000, 12_345, 99_999, 100_000, 987_654):
        assert number_in_words(spelt(number).split()) == str(number)


@pytest.mark.parametrize(
    "words", ["", "hundred", "twenty eleven", "one two", "thousand one", "twenty zero", "one thousand two thousand", "ways"]
)
def test_words_that_are_no_number_are_none(words):
    assert number_in_words(words.split()) is None


@pytest.mark.parametrize(
    ("words", "fraction"),
    [
        ("one half", r"\frac{1}{2}"),
        ("three quarters", r"\frac{3}{4}"),
        ("five sixths", r"\frac{5}{6}"),
        ("one twentieth", r"\frac{1}{20}"),
        ("seven hundredths", r"\frac{7}{100}"),
        ("two third", None),
        ("one thirds", None),
        ("thirds", None),
    ],
)
def test_parts_agree_with_their_count(words, fraction):
    assert number_in_words(words.split()) == fraction


def test_a_month_a_path_and_a_tooth_are_no_parts_of_one():
    assert [part_of_one(word) for word in ("months", "paths", "tooth", "th", "oneth", "zeroth")] == [None] * 6


# Things


@pytest.mark.parametrize(
    "words", ["apples", "right triangles", "boxes of candy", "years old", "people", "apples in total", "left", "平方米"]
)
def test_a_plural_names_a_thing(words):
    assert names_a_thing(words)


@pytest.mark.parametrize(
    "words",
    ["wrong", "incorrect", "rejected", "factorial", "root", "halves", "percent off", "minus", "ambiguous", "less", "thus", "ago", ""],
)
def test_a_singular_a_participle_and_a_part_name_none(words):
    assert not names_a_thing(words)


def test_a_single_thing_is_in_the_singular_and_a_judgement_is_none():
    assert names_a_thing("way", is_singular=True)
    assert not any(names_a_thing(word, is_singular=True) for word in ("wrong", "false", "excluded", "third", ""))


# Units


def test_a_quotient_of_units_converts_exactly():
    assert value_factors(read_unit("m/s"), read_unit("kilometers per hour")) == [(Fraction(1), Fraction(5, 18))]
    assert value_factors(read_unit("mph"), read_unit("miles per hour")) == [(Fraction("0.44704"), Fraction("0.44704"))]
    assert value_factors(read_unit("m/s"), read_unit("m/s^2")) == []


def test_two_names_of_things_must_agree_and_a_missing_one_is_the_other():
    assert value_factors(read_unit("boys"), read_unit("girls")) == []
    assert value_factors(read_unit("boys"), read_unit("tall boys")) == value_factors(read_unit("boys"), None) == [(1, 1)]
    assert value_factors(read_unit("children"), read_unit("child")) == value_factors(read_unit("people"), read_unit("person")) == [(1, 1)]


def test_a_count_stays_where_the_unit_is_left_out():
    assert value_factors(None, read_unit("million dollars")) == [(1, 10**6)]
    assert value_factors(None, read_unit("cents")) == [(1, 1)]


@pytest.mark.parametrize(
    ("words", "is_one"), [("sq ft", True), ("meters squared", True), ("degrees C", True), ("square", False), ("cm off", False)]
)
def test_a_unit_phrase_is_units_to_its_last_word(words, is_one):
    assert is_unit_phrase(words.split()) is is_one


# Roundings


@given(st.fractions(min_value=-999, max_value=999, max_denominator=97), st.integers(1, 6), st.integers(-3, 3))
def test_a_decimal_is_a_rounding_exactly_when_python_rounds_to_it(value, num_decimals, off):
    unit = Decimal(1).scaleb(-num_decimals)
    nearest = (Decimal(value.numerator) / Decimal(value.denominator)).quantize(unit, ROUND_HALF_UP)
    given_decimal = nearest + off * unit
    is_a_tie = abs(Fraction(given_decimal) - value) == Fraction(unit) / 2  # both neighbours of a tie are taken
    assert is_rounded(rf"\frac{{{value.numerator}}}{{{value.denominator}}}", f"{given_decimal:f}") == (off == 0 or is_a_tie)


def test_scientific_notation_shows_its_own_digits():
    assert is_rounded("602214076", r"6.02 \times 10^{8}")
    assert not is_rounded("602214076", r"6.03 \times 10^{8}")


# Sentences and names


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("The total is 42", ("42",)),
        ("first it is 5; then it is 6", ("5", "6")),
        ("6 hence 7", ("6", "7")),
        ("3+4 is 7", ("3+4", "7")),
        ("The box has 4 sides, so the area is 12", ("12",)),
        ("8 people have 28 handshakes", ("28 handshakes",)),
        ("5 but could be 6", ()),
        ("it may be 6", ()),
        ("5 is wrong", ()),
        ("7 wrong", ()),
        ("7 ways", ("7",)),
    ],
)
def test_a_sentence_gives_its_values_in_their_order(text, values):
    assert values_of_sentence(text) == values


@pytest.mark.parametrize(
    "text", ["x", "f(x)", "a_4", "f^{-1}(3)", "A^{-1}", r"\text{Area of } \triangle ABC", r"\cos A", "|AB|", "[ABC]", "a:b"]
)
def test_what_asks_for_one_value_is_a_name(text):
    assert is_name(text)


@pytest.mark.parametrize(
    "text", ["2x", "x^{-1}", "x^2", "x(x+1)", r"\ln x", r"\sin(x)", r"\cos x", "twice x", "|x|", "-x", r"\frac{x}{2}", "x+1"]
)
def test_what_has_still_to_be_solved_is_no_name(text):
    assert not is_name(text)


def test_the_unknown_of_a_name_is_its_letter():
    assert [unknown_of(name) for name in ("x", r"\tan \theta", r"\theta", "f(x)", r"\text{Area}")] == [
        "x",
        r"\theta",
        r"\theta",
        None,
        None,
    ]


# Full stops


def one_stop_after_another(text):
    while text.endswith(".") and not text.endswith("..."):
        text = text[:-1].rstrip()
    return text


@given(st.text(alphabet=". \t5", max_size=12))
def test_full_stops_go_as_if_one_after_another(text):
    assert without_full_stop(text) == one_stop_after_another(text)


def test_a_response_of_nothing_but_stops_is_canonical_at_once():
    # some 10 ms; a cost that grows with the square of the length would be minutes, far over pytest's limit
    assert canonical(". " * 100_000) == ""
