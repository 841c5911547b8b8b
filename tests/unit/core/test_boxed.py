import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.grading.extraction import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{5}$.", "5"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\{1\}} and \}", r"\{1\}"),
        (r"\boxed {17}.$$", "17"),
        (r"$\boxed 2$.", "2"),
        (r"which is \boxed 9.", "9"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed{ x }", "x"),
        (r"\boxed{}", ""),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{3} and then cut: \boxed{4", "3"),
        (r"\boxed{4", None),
        (r"\boxedness{4}", None),
        ("no box: {4}", None),
        ("} \\boxed{4}", "4"),
        ("\\boxed", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_the_answer(text, answer):
    assert last_boxed(text) == answer


balanced = st.recursive(
    st.text("ab1 \\$,.", max_size=5).map(lambda text: text.replace("\\", "")),
    lambda inner: st.tuples(inner, inner).map(lambda pair: f"{pair[0]}{{{pair[1]}}}"),
    max_leaves=5,
)


@given(balanced, st.text("ab1{}$ "), st.text("ab1{$ "))
def test_a_box_is_found_whatever_stands_around_it(answer, before, after):
    # in `before` braces may stay open: what opens earlier does not end a box that opens later
    assert last_boxed(before + r"\boxed{" + answer + "}" + after) == answer.strip()


def test_a_long_text_of_open_boxes_takes_linear_time():
    # quadratic cost would take minutes here; pytest's own limit would end it
    assert last_boxed(r"\boxed{" * 200_000) is None
