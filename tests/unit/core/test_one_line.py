import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.one_line import LONGEST, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\n\tlines  here\r\n", "two lines here"),
        ("a\x1b[31mred\x1b]0;name\x07 \x9b2J \x7f b", "a[31mred]0;name 2J b"),
        ("right\u202eleft\u2066", "rightleft"),
        ("half \ud800 pair", "half pair"),
        ("中文 é ∑", "中文 é ∑"),
        (None, ""),
    ],
)
def test_nothing_is_left_that_a_terminal_would_obey(text, shown):
    assert one_line(text) == shown


@given(st.text(), st.integers(1, 20), st.booleans())
def test_it_is_short_printable_and_one_line(text, most, keep_end):
    line = one_line(text, most, keep_end=keep_end)
    assert len(line) <= most + 3
    assert line.isprintable()


def test_a_long_text_keeps_its_start_or_its_end():
    assert one_line("ab" + "c" * 100_000) == "ab" + "c" * (LONGEST - 2) + "..."
    assert one_line("c" * 100_000 + "ab", keep_end=True) == "..." + "c" * (LONGEST - 2) + "ab"
    assert one_line("\n" * 100_000 + "ab", keep_end=True) == "...ab"
