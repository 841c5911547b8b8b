import pytest
from evaluation_rows import BROKEN, UNGRADED, WRONG, row

from mathrl_ray.core.failure_analysis import KINDS, analyse_failures


def problems(num, *changes, start=0):
    return [row(f"p{start + index}", *changes) for index in range(num)]


def kinds_of(rows, waived, **settings):
    return {kind.name: kind for kind in analyse_failures(rows, waived, **settings).kinds}


def test_each_of_the_four_kinds_has_its_rows():
    rows = [row("a"), row("b", WRONG), row("c", BROKEN), row("d", BROKEN), row("e", BROKEN), row("f", UNGRADED)]
    found = analyse_failures(rows, [True, False, True, False, False, False])
    assert [(kind.name, kind.format_kept, kind.answer_right, kind.num_samples, kind.share) for kind in found.kinds] == [
        ("solved", 1, 1, 1, 0.2),
        ("mathematics", 1, 0, 1, 0.2),
        ("format", 0, 1, 1, 0.2),
        ("both", 0, 0, 2, 0.4),
    ]
    assert (found.num_graded, found.num_ungraded) == (5, 1)
    assert found.kinds[3].outcomes == {"no_answer": 2}


def test_the_waived_verdict_does_not_change_a_kept_format():
    # the grader found it wrong; what would be right without the format rule is not asked
    assert kinds_of([row("a", WRONG)], [True])["mathematics"].num_samples == 1


def test_at_least_ten_examples_of_each_kind_or_all_there_are():
    rows = [*problems(40), *problems(25, WRONG, start=40), *problems(12, BROKEN, start=65), *problems(3, BROKEN, start=77)]
    kinds = kinds_of(rows, [True] * 77 + [False] * 3)
    assert {name: len(kind.examples) for name, kind in kinds.items()} == {"solved": 10, "mathematics": 10, "format": 10, "both": 3}
    assert kinds["solved"].examples[-1]["problem_id"] == "p36"  # spread over all 40, not the first ten


def test_examples_are_of_different_problems_first():
    rows = [row("a", WRONG, sample=sample) for sample in range(20)] + [row("b", WRONG), row("c", WRONG)]
    shown = [each["problem_id"] for each in kinds_of(rows, [False] * 22, num_examples=4)["mathematics"].examples]
    assert shown == ["a", "b", "c", "a"]


def test_without_a_graded_sample_all_kinds_are_empty():
    found = analyse_failures([row("a", UNGRADED)], [False])
    assert [(kind.name, kind.num_samples, kind.share) for kind in found.kinds] == [(name, 0, 0.0) for name in KINDS]


def test_a_waived_verdict_for_each_row_is_wanted():
    with pytest.raises(ValueError, match="1 rows and 2 values of would_be_right"):
        analyse_failures([row("a")], [True, False])
