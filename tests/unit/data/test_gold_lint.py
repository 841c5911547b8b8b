import doctest
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.data import gold_lint
from mathrl_ray.data.gold_lint import duplicates, levels_that_are_no_number, lint, loose_text, overlaps, unusable_golds
from mathrl_ray.types import Problem

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def problem(problem_id, text="What is 1 + 2?", gold="3", level=None):
    return Problem(problem_id, text, gold, level)


def read(name):
    """The rows as they are: load_problems would refuse the empty golds that are looked for here."""
    if not (DATA / name).exists():
        pytest.skip(f"the data set is not here: {DATA / name}")
    rows = map(json.loads, (DATA / name).read_text(encoding="utf-8").splitlines())
    return [
        Problem(
            row["source"],
            row["problem"],
            row["answer"],
            int(digits) if (digits := row["level"].removeprefix("Level ")).isdecimal() else None,
        )
        for row in rows
    ]


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(gold_lint).failed == 0


@pytest.mark.parametrize(
    ("gold", "kinds"),
    [
        ("", ["empty_gold"]),
        (" \n", ["empty_gold"]),
        (r"\frac{", ["unparseable_gold"]),
        (r"{2,3-7~(} ;[ 41", ["unparseable_gold"]),
        (r"\frac{1}{2}", []),
        (r"\text{4:30 p.m.}", []),
        ("43_5", []),
    ],
)
def test_a_gold_that_no_response_could_meet_is_named(gold, kinds):
    faults = unusable_golds([problem("good"), problem("asked", gold=gold)])
    assert [(fault.kind, fault.problem_ids) for fault in faults] == [(kind, ("asked",)) for kind in kinds]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("wrong", "inconsistent_gold"),
        ("unparseable_answer", "inconsistent_gold"),
        ("grader_timeout", "ungradable_gold"),
        ("grader_error", "ungradable_gold"),
        ("bad_gold", "unparseable_gold"),
    ],
)
def test_each_verdict_of_a_judge_on_a_gold_has_its_fault(verdict, kind):
    asked = []

    def judge(answer, gold):
        asked.append((answer, gold))
        return verdict

    assert [fault.kind for fault in unusable_golds([problem("a", gold="x+1"), problem("b", gold="12,345")], judge)] == [kind]
    assert asked == [(r"\boxed{x+1}", "x+1")]  # not the whole number, which is equal to itself whatever the judge


def test_an_empty_problem_is_a_fault_of_its_own_and_no_duplicate():
    assert [(fault.kind, fault.problem_ids) for fault in lint([problem("a", " "), problem("b", "")])] == [
        ("empty_problem", ("a",)),
        ("empty_problem", ("b",)),
    ]


def test_texts_that_differ_in_signs_and_golds_may_well_be_two_problems():
    plus, minus = problem("a", "Compute 6+3-7.", "2"), problem("b", "Compute 6-3+7.", "10")
    assert [fault.kind for fault in duplicates([plus, minus])] == ["possible_duplicate"]
    assert [fault.kind for fault in overlaps({"one": [plus], "other": [minus]})] == ["possible_overlap"]
    # The same signs with different golds are one question with a wrong gold; different signs with one gold mostly are one too.
    assert [fault.kind for fault in duplicates([plus, problem("c", "compute 6 + 3 - 7", "10")])] == ["duplicate"]
    assert [fault.kind for fault in duplicates([plus, problem("d", "Compute 6-3+7.", "2")])] == ["duplicate"]


def test_a_missing_level_is_a_fault_only_where_others_have_one():
    assert levels_that_are_no_number([problem("a"), problem("b")]) == []
    assert [fault.problem_ids for fault in levels_that_are_no_number([problem("a", level=3), problem("b")])] == [("b",)]


def test_duplicates_say_how_alike_they_are_and_whether_their_golds_agree():
    problems = [
        problem("a"),
        problem("b"),  # a's text
        problem("c", "what is 1+2", gold="4"),  # but for case, spacing and punctuation
        problem("d", "Another one", gold="0.5"),
        problem("e", "Another  one!", gold=r"\frac{1}{2}"),
        problem("f", "A third", gold="1"),
    ]
    assert [(fault.problem_ids, fault.reason) for fault in duplicates(problems)] == [
        (("a", "b"), "the same text, same gold"),
        (("a", "b", "c"), "the same text but for case, spacing and punctuation, different golds: '3', '4'"),
        (("d", "e"), "the same text but for case, spacing and punctuation, same gold"),
    ]


def test_two_rows_with_one_id_are_found():
    assert [fault.reason for fault in duplicates([problem("a"), problem("a", "Another")])] == ["the same id, same gold"]


def test_an_overlap_names_both_ids_and_both_files_once():
    train, test = [problem("t1"), problem("t2", "Only here")], [problem("e1"), problem("e2", "only HERE."), problem("e3", "Elsewhere")]
    assert [(fault.problem_ids, fault.reason) for fault in overlaps({"train": train, "test": test})] == [
        (("t1", "e1"), "the same text in train and test, same gold"),
        (("t2", "e2"), "the same text but for case, spacing and punctuation in train and test, same gold"),
    ]


@given(st.text(min_size=1))
def test_every_problem_overlaps_with_itself_whatever_its_case_and_spacing(text):
    if loose_text(problem("a", text)):
        shared = overlaps({"one": [problem("a", text)], "other": [problem("b", f"  {text} ")]})
        assert [fault.problem_ids for fault in shared] == [("a", "b")]


def test_the_known_faults_of_math_are_found():
    train = read("math_train.jsonl")
    found = {(fault.kind, fault.problem_ids) for fault in lint(train) if not fault.kind.endswith("duplicate")}
    assert found == {
        ("empty_gold", ("MATH/train/number_theory/7115.json",)),
        ("empty_gold", ("MATH/train/number_theory/7117.json",)),
        ("level_is_no_number", ("MATH/train/geometry/377.json",)),
        ("level_is_no_number", ("MATH/train/geometry/471.json",)),
    }


def test_the_known_overlaps_of_math_are_found():
    shared = overlaps({"math_train": read("math_train.jsonl"), "math_test": read("math_test.jsonl")})
    exact = [fault.problem_ids for fault in shared if fault.reason.startswith("the same text in")]
    assert exact == [("MATH/train/geometry/6032.json", "MATH/test/precalculus/24307.json")]
    assert len(shared) == 10
    true_duplicates = {
        f"MATH/test/{name}.json" for name in ("algebra/636", "algebra/1674", "intermediate_algebra/965", "precalculus/24307")
    }
    assert true_duplicates <= {name for fault in shared if fault.reason.endswith("same gold") for name in fault.problem_ids}


def test_the_known_overlap_of_olympiad_with_math_is_found_with_equal_golds():
    math = [*read("math_train.jsonl"), *read("math_test.jsonl")]
    olympiad = [Problem(row["source"], row["problem"], row["answer"]) for row in map(json.loads, (DATA / "olympiad.jsonl").open())]
    shared = overlaps({"MATH": math, "olympiad": olympiad})
    assert {fault.problem_ids[0] for fault in shared} == {
        "MATH/train/intermediate_algebra/753.json",
        "MATH/train/intermediate_algebra/1087.json",
        "MATH/test/precalculus/216.json",
    }
    assert all(fault.reason.endswith("same gold") for fault in shared)
