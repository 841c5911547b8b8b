"""What is wrong with a set of problems before a model sees one: golds that cannot be graded, duplicates, overlaps between files.

Called by `check-data` with the problems of each file. Pure functions on lists of problems, but for sympy inside the grader, which may take
long on a gold that somebody made to: whoever checks foreign files runs `unusable_golds` in a process that can be ended. Knows no file.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mathrl_ray.core.grading.grade import algebraic_verdict, quick_verdict
from mathrl_ray.types import Problem

FaultKind = Literal["empty_gold", "unparseable_gold", "inconsistent_gold", "level_is_no_number", "duplicate", "overlap"]

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. Made here, printed by `check-data`, which never shortens the list.

    Example: Fault("overlap", ("train/6032", "test/24307"), "the same text in math_train.jsonl and math_test.jsonl, same gold")
    """

    kind: FaultKind
    problem_ids: tuple[str, ...]
    reason: str


def lint(problems: Sequence[Problem]) -> list[Fault]:
    """All faults of one file: golds first, then levels, then duplicates, each in the file's order."""
    return [*unusable_golds(problems), *levels_that_are_no_number(problems), *duplicates(problems)]


def unusable_golds(problems: Iterable[Problem]) -> list[Fault]:
    r"""Golds that are empty, that the grader cannot read, or that it does not find equal to themselves in a box.

    >>> [fault.kind for fault in unusable_golds([Problem("a", "?", r"\frac{1}{2}"), Problem("b", "?", " "), Problem("c", "?", r"\frac{")])]
    ['empty_gold', 'unparseable_gold']
    """
    return [fault for problem in problems if (fault := _gold_fault(problem)) is not None]


def _gold_fault(problem: Problem) -> Fault | None:
    if not problem.gold.strip():
        return Fault("empty_gold", (problem.problem_id,), "the gold is empty: no response can ever be right")
    match algebraic_verdict(rf"\boxed{{{problem.gold}}}", problem.gold):
        case "correct":
            return None
        case "bad_gold":
            return Fault("unparseable_gold", (problem.problem_id,), f"the gold cannot be read: {problem.gold!r}")
        case _:
            return Fault("inconsistent_gold", (problem.problem_id,), f"the gold in a box is not equal to itself: {problem.gold!r}")


def levels_that_are_no_number(problems: Sequence[Problem]) -> list[Fault]:
    """Rows without a level in a file whose other rows have one: `Level ?` was not read as a number."""
    if all(problem.level is None for problem in problems):
        return []
    return [
        Fault("level_is_no_number", (problem.problem_id,), "the level is missing or no number")
        for problem in problems
        if problem.level is None
    ]


def duplicates(problems: Sequence[Problem]) -> list[Fault]:
    """Rows of one file that share an id, or a text in `loose_text`; the reason says whether their golds agree."""
    faults = []
    for key, what in (
        (_id, "the same id"),
        (exact_text, "the same text"),
        (loose_text, "the same text but for case, spacing and punctuation"),
    ):
        faults += [Fault("duplicate", _ids(group), f"{what}, {_golds(group)}") for group in _groups(problems, key) if len(group) > 1]
    return _first_of_each(faults)


def overlaps(files: Mapping[str, Sequence[Problem]]) -> list[Fault]:
    """Problems that two files share, exactly or in `loose_text`. Ignoring punctuation makes `1+2` and `12` alike, so each is to be read.

    Args:
        files: the problems of each file, under the name that the reason shall give it.
    """
    faults = []
    names = list(files)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            faults += _shared(name, files[name], other, files[other])
    return faults


def _shared(name: str, problems: Sequence[Problem], other: str, others: Sequence[Problem]) -> list[Fault]:
    faults = []
    for key, what in ((exact_text, "the same text"), (loose_text, "the same text but for case, spacing and punctuation")):
        ours = {text: group for group in _groups(problems, key) if (text := key(group[0]))}
        for group in _groups(others, key):
            text = key(group[0])
            if text in ours:
                both = [*ours[text], *group]
                faults.append(Fault("overlap", _ids(both), f"{what} in {name} and {other}, {_golds(both)}"))
    return _first_of_each(faults)


def exact_text(problem: Problem) -> str:
    return problem.problem.strip()


def loose_text(problem: Problem) -> str:
    """Letters and digits only, in lower case.

    >>> loose_text(Problem("a", "What is $1 + 2$?", "3"))
    'whatis12'
    """
    return "".join(_WORD.findall(problem.problem.lower()))


def _id(problem: Problem) -> str:
    return problem.problem_id


def _groups(problems: Iterable[Problem], key: Callable[[Problem], str]) -> list[list[Problem]]:
    groups: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[key(problem)].append(problem)
    return list(groups.values())


def _ids(group: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(problem.problem_id for problem in group)


def _golds(group: Sequence[Problem]) -> str:
    """Whether the golds are the same answer, however it is spelt."""
    first = group[0].gold
    if all((quick_verdict(problem.gold, first) or algebraic_verdict(problem.gold, first)) == "correct" for problem in group):
        return "same gold"
    return f"different golds: {', '.join(sorted({repr(problem.gold) for problem in group}))}"


def _first_of_each(faults: Iterable[Fault]) -> list[Fault]:
    """A pair that is exactly alike is loosely alike too: only the stronger reason stays."""
    kept: dict[tuple[str, ...], Fault] = {}
    for fault in faults:
        kept.setdefault(fault.problem_ids, fault)
    return list(kept.values())
