from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.grading.grade import algebraic_verdict
from mathrl_ray.core.grading.plain_numbers import number_verdict

digits = st.text("0123456789", min_size=1, max_size=6)
signs = st.sampled_from(["", "-", "+"])
numbers = st.one_of(
    st.builds("{}{}.{}".format, signs, digits, digits),
    st.builds("{}.{}".format, signs, digits),
    st.builds("{}{}".format, signs, digits),
    st.builds("{}{}/{}".format, signs, digits, digits),
    st.builds(r"{}\frac{{{}}}{{{}}}".format, signs, digits, digits),
    st.builds(r"${}\dfrac {{{}}} {{{}}}$".format, signs, digits, digits),
    st.sampled_from(["1/3", "2/6", "0.333333333333333", "0.3333", "0.5", ".50", "1/2", "5", "5.0", "-0", "0", "1,000", "1000.0"]),
)


@given(numbers, numbers)
def test_a_verdict_on_two_plain_numbers_is_the_graders(answer, gold):
    assert number_verdict(answer, gold) in (None, algebraic_verdict(answer, gold))


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_verdict_on_any_texts_is_none_or_the_graders(answer, gold):
    assert number_verdict(answer, gold) in (None, algebraic_verdict(answer, gold))


def test_what_is_no_plain_number_is_left_to_the_grader():
    for text in ["1/0", "x", r"50\%", "1 1/2", "(5)", "1, 2", "", r"\sqrt{4}", "9" * 500]:
        assert number_verdict(text, "1/2") is None
        assert number_verdict("1/2", text) is None


def test_six_decimals_are_not_one_third_and_the_digits_of_a_double_are():
    assert number_verdict("0.333333", r"\frac{1}{3}") == "wrong"
    assert number_verdict("0.333333333333333", r"\frac{1}{3}") == "correct"
    assert number_verdict("-0.50", "-1/2") == "correct"
