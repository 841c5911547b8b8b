import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.data.arithmetic import make_problems
from mathrl_ray.data.rows import DataError
from mathrl_ray.data.splits import load_splits, plain_text, without_overlap
from mathrl_ray.sections import DataSection
from mathrl_ray.types import Problem

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def write(tmp_path):
    def rows(name, texts):
        """One problem a text; its id is the text with the file's name in front."""
        lines = [json.dumps({"problem": text, "answer": "1", "id": f"{name}/{text}"}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        return str(tmp_path / f"{name}.jsonl")

    return rows


def splits(num_test_problems=100, seed=0, **data):
    return load_splits(DataSection(**data), num_test_problems=num_test_problems, seed=seed)


def texts(problems):
    return [problem.problem for problem in problems]


def numbered(num, first=0):
    return [f"What is {n}?" for n in range(first, first + num)]


def test_validation_is_cut_from_train_by_hash_and_is_the_same_in_any_order_of_the_file(write):
    questions = numbered(100)
    shuffled = random.Random(3).sample(questions, 100)
    first = splits(train=write("train", questions), num_validation_problems=10)
    second = splits(train=write("train", shuffled), num_validation_problems=10, seed=5)
    # worked out apart from the code: the ten smallest SHA-256 digests
    expected = sorted(questions, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:10]
    assert set(texts(first.validation)) == set(texts(second.validation)) == set(expected)
    assert set(texts(first.train)) == set(texts(second.train)) == set(questions) - set(expected)


def test_validation_does_not_depend_on_how_much_of_train_is_used(write):
    path = write("train", numbered(100))
    few, all_of_it = (splits(train=path, num_validation_problems=10, num_train_problems=number) for number in (20, 1000))
    assert texts(few.validation) == texts(all_of_it.validation)
    assert len(few.train) == 20
    assert set(texts(few.train)) < set(texts(all_of_it.train))


def test_a_small_train_set_gives_away_at_most_a_fifth_and_says_so(write):
    result = splits(train=write("train", numbered(23)))
    assert (len(result.validation), len(result.train)) == (4, 19)
    (remark,) = result.remarks
    assert "4 of data.train's 23 problems" in remark
    assert "a fifth, since data.num_validation_problems = 500 is more" in remark


def test_without_validation_problems_train_stays_whole(write):
    result = splits(train=write("train", numbered(23)), num_validation_problems=0)
    assert (len(result.validation), len(result.train), result.remarks) == (0, 23, [])


def test_a_named_validation_set_leaves_train_whole_and_is_used_in_part_by_hash(write):
    result = splits(train=write("train", numbered(20)), validation=write("dev", numbered(20, 50)), num_validation_problems=5)
    assert (len(result.train), len(result.validation)) == (20, 5)
    assert texts(result.validation) == sorted(numbered(20, 50), key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:5]


def test_the_built_in_sets_are_what_they_were_and_have_a_validation_split_of_their_own():
    result = splits(num_test_problems=30, seed=7, num_train_problems=40)
    assert result.train == make_problems("train", 40, 7)
    assert result.test == make_problems("test", 30, 7)
    assert {problem.problem_id.split("/")[1] for problem in result.validation} == {"validation"}
    assert len(result.validation) == 500
    assert result.remarks == []


def test_a_part_of_a_file_follows_from_the_seed_and_keeps_the_order(write):
    path = write("test", [f"{number:02}" for number in range(20)])

    def chosen(seed):
        return texts(splits(test=path, num_test_problems=5, seed=seed).test)

    assert chosen(0) == chosen(0) == sorted(chosen(0))
    assert chosen(0) != chosen(1)
    assert len(chosen(0)) == 5


def test_behaviour_29_an_overlap_with_test_is_dropped_from_train_and_named_by_both_ids(write):
    train = write("train", [*numbered(20), "Find  X, if $x=2$!", "Compute 1+1."])
    result = splits(train=train, test=write("test", ["Find $x$ if x = 2!", "Compute 1+1.", "Compute 1-1."]), num_validation_problems=0)
    assert texts(result.train) == numbered(20)
    (remark,) = result.remarks
    assert "data.train: 2 of 22" in remark
    assert "train/Compute 1+1. = data.test's test/Compute 1+1. (the same text)" in remark
    assert "train/Find  X, if $x=2$! = data.test's test/Find $x$ if x = 2! (the same but for case, spacing and punctuation)" in remark


def test_behaviour_29_an_overlap_is_refused_where_the_recipe_says_so(write):
    files = {"train": write("train", numbered(5)), "test": write("test", numbered(2))}
    with pytest.raises(DataError, match=r"data\.train: 2 of 5 are held out too: (.|\n)*train/What is 1\?(.|\n)*data\.overlap = \"drop\""):
        splits(**files, overlap="refuse")


def test_an_overlap_may_be_allowed_and_is_named_all_the_same(write):
    files = {"train": write("train", numbered(5)), "test": write("test", numbered(2))}
    result = splits(**files, overlap="allow", num_validation_problems=0)
    assert len(result.train) == 5
    assert "used all the same" in result.remarks[0]


def test_a_train_set_that_is_all_held_out_is_refused(write):
    path = write("train", numbered(5))
    with pytest.raises(DataError, match=r"data\.train: 5 of 5 .* nothing is left\. Name other data in data\.train"):
        splits(train=path, test=path)


def test_train_is_kept_from_all_of_test_whichever_part_is_evaluated(write):
    result = splits(train=write("train", numbered(30)), test=write("test", numbered(10)), num_test_problems=2)
    assert len(result.test) == 2
    assert not set(texts(result.train) + texts(result.validation)) & set(numbered(10))


def test_a_named_validation_set_is_kept_from_test_and_train_from_it(write):
    result = splits(train=write("train", numbered(9)), validation=write("dev", numbered(4)), test=write("test", numbered(2)))
    assert sorted(texts(result.validation)) == numbered(2, 2)
    assert texts(result.train) == numbered(5, 4)


questions = st.lists(st.text("ab+-1 .$", min_size=1, max_size=6))


@given(questions, questions)
def test_what_is_kept_shares_no_text_with_what_is_held_out(items, held_out):
    @dataclass
    class Item:
        problem_id: str
        problem: str

    held = [Problem(f"h{index}", text, "1") for index, text in enumerate(held_out)]
    made = [Item(f"i{index}", text) for index, text in enumerate(items)]
    remarks = []
    try:
        kept = without_overlap(made, "data.train", [("data.test", held)], "drop", remarks)
    except DataError:  # nothing was left
        kept = []
    exact, alike = {text.strip() for text in held_out}, {plain_text(text) for text in held_out} - {""}
    assert kept == [item for item in made if item.problem.strip() not in exact and plain_text(item.problem) not in alike]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Find $x$.", "find x", True),
        ("Is it 5?", "is it  5", True),
        ("6+3-7", "6-3+7", False),
        ("x<1", "x>1", False),
        ("2*3", "2/3", False),
        ("\\frac{1}{2}", "\\frac12", True),
        ("five", "5", False),
    ],
)
def test_signs_of_mathematics_tell_problems_apart_and_punctuation_does_not(one, other, alike):
    assert (plain_text(one) == plain_text(other)) == alike


@pytest.mark.skipif(not SHARED.is_dir(), reason="the MATH data set is not beside the project")
def test_maths_own_overlaps_are_found():
    # SOURCES.md of the data: one problem is in both splits word for word, and three more but for case and punctuation
    result = splits(
        train=str(SHARED / "math_train.jsonl"), test=str(SHARED / "math_test.jsonl"), bad_rows="drop", num_train_problems=10_000
    )
    (remark,) = (remark for remark in result.remarks if "held out" in remark)
    assert "MATH/train/geometry/6032.json = data.test's MATH/test/precalculus/24307.json (the same text)" in remark
    assert all(f"MATH/test/{name}.json" in remark for name in ("algebra/636", "algebra/1674", "intermediate_algebra/965"))
    assert len(result.validation) == 500
