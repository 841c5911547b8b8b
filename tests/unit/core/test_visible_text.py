from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.visible_text import counted, shortened, visible

IGNORABLE = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E),
    (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Unicode 16, DerivedCoreProperties.txt: Default_Ignorable_Code_Point."""


def test_what_moves_the_cursor_or_turns_the_direction_is_written_out():
    # ESC is 0x1b: its picture is U+2400 + 0x1b = U+241B, that of NUL U+2400, of CR U+240D; DEL has U+2421; all else has its code point
    assert visible("a\x1b[2Jb\rc\u202ed\x00\ud800\x7f") == "a\u241b[2Jb\u240dc⟦U+202E⟧d\u2400⟦U+D800⟧\u2421"


def test_letters_and_marks_that_are_drawn_as_nothing_are_written_out():
    drawn = [hex(code) for first, last in IGNORABLE for code in range(first, last + 1) if visible(chr(code)) != f"⟦U+{code:04X}⟧"]
    assert drawn == []
    assert visible("no\u2800cell") == "no⟦U+2800⟧cell"


def test_line_ends_tabs_spaces_and_letters_of_any_script_stay():
    assert visible(" 小明\u3000有 3\r\n\t个 = é, $x^2$ 😀\n") == " 小明\u3000有 3\n\t个 = é, $x^2$ 😀\n"


@given(st.text())
def test_every_character_that_is_left_can_be_seen_or_is_a_space_and_showing_twice_changes_nothing(text):
    shown = visible(text)
    assert all(each.isprintable() or each.isspace() for each in shown)
    assert not [each for each in shown if each in "\r\x0b\x0c\x85\u2028\u2029\ufeff\u3164"]
    assert visible(shown) == shown


@given(st.text(max_size=60), st.integers(2, 20))
def test_a_long_text_keeps_its_start_and_its_end_and_says_how_much_is_gone(text, most):
    short = shortened(text, most)
    if len(text) <= most:
        assert short == text
        return
    start, end = text[: most - most // 2], text[len(text) - most // 2 :]
    assert short == f"{start}\n[{len(text) - most} characters are left out]\n{end}"


def test_counts_are_told_the_largest_first():
    assert counted({"no_answer": 3, "wrong": 12, "correct": 3}) == "12 wrong, 3 correct, 3 no_answer"
