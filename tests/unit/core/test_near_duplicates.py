import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.near_duplicates import shingles, similarity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (" 6+3=9, 9-7=2 </think> <answer> 2 </answer>", "6 + 3 = 9,9-7=2</think><answer>2</answer>"),
        ("It Is 5", "it is  5"),
        ("", "  \n"),
    ],
)
def test_texts_that_differ_in_spaces_and_case_are_the_same(one, other):
    assert similarity(shingles(one), shingles(other)) == 1


def test_a_changed_number_counts():
    # of "1 + 2 = 3" and "1 + 2 = 4" the shingles "1 + 2" and "+ 2 =" are common, "2 = 3" and "2 = 4" are not: 2 of 4
    assert similarity(shingles("1+2=3"), shingles("1+2=4")) == 0.5
    assert similarity(shingles("6+3"), shingles("3+6")) == 0


def test_a_long_text_with_one_other_word_is_nearly_the_same():
    # 100 words are 98 shingles; a changed word in the middle changes 3 of each: 95 common, 101 in all
    words = [f"w{chr(97 + index % 26)}{index}" for index in range(100)]
    changed = [*words[:50], "other", *words[51:]]
    words_alone = [shingles(" ".join(word.replace("0", "zero") for word in part if word)) for part in (words, changed)]
    assert 0.9 < similarity(*words_alone) < 1


@given(st.text(max_size=40), st.text(max_size=40))
def test_similarity_is_symmetric_and_one_for_the_same_text(one, other):
    pieces = shingles(one), shingles(other)
    assert similarity(*pieces) == similarity(*reversed(pieces))
    assert 0 <= similarity(*pieces) <= 1
    assert similarity(pieces[0], pieces[0]) == 1
