from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.visible_text import counted, shortened, visible


def test_what_moves_the_cursor_or_turns_the_direction_is_written_out():
    assert visible("a\x1b[2Jb\rc\u202ed\x00\ud800") == "a\\x1b[2Jb\\rc\\u202ed\\x00\\ud800"


def test_line_ends_spaces_and_letters_of_any_script_stay():
    assert visible(" 小明\u3000有 3\r\n  个 = é\n") == " 小明\u3000有 3\n  个 = é\n"


@given(st.text())
def test_every_character_that_is_left_can_be_seen_or_is_a_space_or_a_line_end(text):
    assert all(each.isprintable() or each == "\n" or each.isspace() for each in visible(text))


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
