"""The rules of the grader that stand in functions of their own: numbers in words, things, roundings, sentences, full stops."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.grading.approximation import is_rounded
from mathrl_ray.core.grading.canonical import canonical
from mathrl_ray.core.grading.compounds import read_compound
from mathrl_ray.core.grading.expressions import parse_expression
from mathrl_ray.core.grading.names import asks_for_a_value, is_name, order_of_names, unknown_of
from mathrl_ray.core.grading.number_words import number_in_words, part_of_one
from mathrl_ray.core.grading.points import points
from mathrl_ray.core.grading.sentences import values_of_sentence
from mathrl_ray.core.grading.spelling import without_full_stop
from mathrl_ray.core.grading.things import names_a_thing
from mathrl_ray.core.grading.units import is_unit_phrase, read_unit, value_factors
from mathrl_ray.core.grading.values import num_digits_for, value_of
from mathrl_ray.core.grading.writings import as_the_parser_writes, unbearable

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
    assert is_rounded(rf"\frac{{{value.numerator}}}{{{value.denominator}}}", f"{given_decimal:f}") == (
        (off == 0 or is_a_tie) and (given_decimal != 0 or value == 0)
    )


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


@pytest.mark.parametrize("side", ["a+b", "ABC", r"\frac{AB}{CD}", "f(1)+f(2)", "f(f(3))", r"\alpha+\beta", "e"])
def test_an_expression_of_two_letters_or_of_values_asks_for_its_value(side):
    assert asks_for_a_value(side)


@pytest.mark.parametrize("side", ["2x", "x^2+3x", "f(x)+3", r"\ln x", "i^2", "2+3", "x e^x", "twice x y", r"\text{twice }xy", "not ab"])
def test_an_expression_of_one_letter_has_still_to_be_solved(side):
    assert not asks_for_a_value(side)


def test_only_letters_with_a_convention_and_indices_have_an_order():
    assert [order_of_names(names) for names in (["z", "x"], ["c", "a"], ["b", "m"], ["x_2", "x_1"], ["p", "n"], ["width", "length"])] == [
        [1, 0],
        [1, 0],
        [1, 0],
        [1, 0],
        None,
        None,
    ]


# Compound quantities


@given(
    st.integers(0, 99),
    st.integers(0, 59),
    st.sampled_from(["{} hours {} minutes", "{} hours and {} minutes", r"{}\text{{ h }}{}\text{{ min}}"]),
)
def test_hours_and_minutes_are_one_time(hours, minutes, spelling):
    time = read_compound(spelling.format(hours, minutes))
    assert Fraction(time.text) * time.unit.factor == 3600 * hours + 60 * minutes


@pytest.mark.parametrize(
    "text", ["5 cm, 3 cm", "5 cm and 30 mm", "3 minutes 2 hours", "5 hours", "5 red, 3 blue", "2 x 3 y", "5 in 4", "3 and 4"]
)
def test_quantities_that_do_not_join_are_no_compound(text):
    assert read_compound(text) is None


# What the parser gets


@pytest.mark.parametrize(
    "text", ["1 in 4", r"5\text{ choose }3", r"3\text{ if }n\text{ is even}", "3C5", "2_3+1", "(" * 16 + "x" + ")" * 16, "x" * 2000]
)
def test_the_parser_does_not_get_what_it_would_read_as_something_else(text):
    assert unbearable(text) is not None


@pytest.mark.parametrize("text", ["2ab(c+1)", r"2 \sin x", "7 mod 3", r"\text{lcm}(4,6)", r"\log_2(3)", "x_1(x_2+1)", "a b + c d"])
def test_products_functions_and_indices_reach_the_parser(text):
    assert unbearable(text) is None
    parse_expression(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"\frac{\frac12}{3}", r"\frac{\frac{1}{2}}{3}"),
        (r"\frac{x^{2}}2", r"\frac{x^{2}}{2}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"x^\frac12", r"x^{\frac{1}{2}}"),
        (r"\sqrt\frac12", r"\sqrt{\frac{1}{2}}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        (r"\log_2(3)", r"\log_{2}(3)"),
        (r"\frac{1", r"\frac{1"),
        (r"\frac", r"\frac"),
    ],
)
def test_arguments_get_their_braces_from_the_inside_out(text, written):
    assert as_the_parser_writes(text) == written


# Points and values


def points_of(left, right):
    return list(points(parse_expression(left), parse_expression(right)))


def test_an_absolute_value_is_looked_at_on_both_sides_of_where_it_turns():
    at = [point["x"] for point in points_of("|x-2000|", "2000-x")]
    assert min(at) < 2000 < max(at)
    assert len(points_of("x+1", "1+x")) == 5 < len(at)


def test_counters_in_a_floor_are_whole_and_other_variables_are_not_only():
    assert {point["n"] for point in points_of(r"\lfloor n/2\rfloor", "n")} == {Fraction(number) for number in range(1, 31)}
    assert {point["x"].denominator for point in points_of(r"\lfloor x/2\rfloor", "x")} > {1}


def test_the_number_of_digits_follows_the_smallest_number():
    assert num_digits_for(parse_expression(r"\pi")) == 80
    assert num_digits_for(parse_expression(r"\pi+10^{-300}")) == 350
    assert num_digits_for(parse_expression(r"\pi+10^{-3000}")) is None


@given(st.integers(1, 40))
def test_a_sum_to_a_variable_is_added_up_term_by_term(last):
    total = value_of(parse_expression(r"\sum_{k=1}^{n} k^3"), {"n": Fraction(last)})
    assert (total.real, total.is_exact) == (sum(k**3 for k in range(1, last + 1)), True)


def test_a_sum_to_no_whole_number_has_no_value():
    assert value_of(parse_expression(r"\sum_{k=1}^{n} k"), {"n": Fraction(3, 2)}) is None


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
