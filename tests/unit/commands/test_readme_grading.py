"""What README says of our grader beside A5's: the column that is about ours."""

import re
from pathlib import Path

import pytest

from mathrl_ray.core.grading.grade import grade

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


def rows():
    """(answer or whole response, gold, what A5's does, what ours does)"""
    table = re.search(r"\| answer, or whole response .*\n\|---.*\n((?:\|.*\n)+)", README)
    assert table
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    return [(answer[1:-1], "" if gold == "an empty text" else gold[1:-1], theirs, ours) for answer, gold, theirs, ours, _ in cells]


@pytest.mark.parametrize(("answer", "gold", "theirs", "ours"), rows())
def test_ours_does_what_readme_says_and_not_what_the_others_do(answer, gold, theirs, ours):
    assert {theirs, ours} == {"pays", "refuses"}
    response = answer if "</think>" in answer else f"so </think> <answer> {answer} </answer>"
    assert grade(response, gold).reward == (1.0 if ours == "pays" else 0.0)


def test_a_unit_of_another_size_is_the_same_length():
    assert r"(`1800 cm` equals `18\text{ m}`)" in README
    assert grade("so </think> <answer> 1800 cm </answer>", r"18\text{ m}").reward == 1.0


def test_the_file_of_cases_that_readme_names_is_there():
    [name] = re.findall(r"case by case: see `(.+?)`", README)
    assert (Path(__file__).resolve().parents[3] / name).is_file()
