"""What is wrong with a set of problems before a model sees one: golds that cannot be graded, duplicates, overlaps between files.

Called by `check-data` with the problems of each file. Pure functions on lists of problems. Whether two texts are the same answer is asked
of a judge: by default the grader in this process, which may take long on a gold that somebody made to; `check-data` gives one that asks
processes which can be ended. Knows no file.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mathrl_ray.core.grading.grade import algebraic_verdict, quick_verdict
from mathrl_ray.core.grading.spelling import normalise, whole_number
from mathrl_ray.data.splits import plain_text
from mathrl_ray.types import Outcome, Problem

FaultKind = Literal[
    "empty_problem",
    "empty_gold",
    "unparseable_gold",
    "inconsistent_gold",
    "ungradable_gold",
    "level_is_no_number",
    "prompt_too_long",
    "duplicate",
    "overlap",
    "possible_duplicate",
    "possible_overlap",
]
REMARKS: frozenset[FaultKind] = frozenset({"possible_duplicate", "possible_overlap"})
"""Kinds that a person should look at, but that may well be right."""
Judge = Callable[[str, str], Outcome]
"""(answer, gold) -> the verdict, as core's `algebraic_verdict`; grader_timeout or grader_error where it could not be had."""

_MOST_GOLDS_SHOWN = 10
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. Made here, printed by `check-data`, which never shortens the list.

    Example: Fault("overlap", ("train/6032", "test/24307"), "the same text in math_train.jsonl and math_test.jsonl, same gold")
    """

    kind: FaultKind
    problem_ids: tuple[str, ...]
    reason: str
    problems: tuple[Problem, ...] = field(default=(), repr=False, compare=False)
    """The records themselves, since ids may repeat."""


def lint(problems: Sequence[Problem], judge: Judge = algebraic_verdict) -> list[Fault]:
    """All faults of one file: texts first, then golds, levels and duplicates, each in the file's order."""
    return [
        *empty_problems(problems),
        *unusable_golds(problems, judge),
        *levels_that_are_no_number(problems),
        *duplicates(problems, judge),
    ]


def empty_problems(problems: Iterable[Problem]) -> list[Fault]:
    """Rows without a question."""
    return [_fault("empty_problem", [problem], "the problem is empty") for problem in problems if not exact_text(problem)]


def unusable_golds(problems: Iterable[Problem], judge: Judge = algebraic_verdict) -> list[Fault]:
    r"""Golds that are empty, that the grader cannot read or judge, or that it does not find equal to themselves in a box.

    >>> [fault.kind for fault in unusable_golds([Problem("a", "?", r"\frac{1}{2}"), Problem("b", "?", " "), Problem("c", "?", r"\frac{")])]
    ['empty_gold', 'unparseable_gold']
    """
    return [fault for problem in problems if (fault := _gold_fault(problem, judge)) is not None]


def golds_to_judge(problems: Iterable[Problem]) -> list[str]:
    """The distinct golds that `unusable_golds` will ask the judge about, each as `judge(in_a_box(gold), gold)`.

    >>> golds_to_judge([Problem("a", "?", "12,345"), Problem("b", "?", "x+1"), Problem("c", "?", "x+1"), Problem("d", "?", "")])
    ['x+1']
    """
    return list(dict.fromkeys(problem.gold for problem in problems if _needs_judge(problem.gold)))


def _needs_judge(gold: str) -> bool:
    return bool(gold.strip()) and whole_number(normalise(gold)) is None


def in_a_box(gold: str) -> str:
    return rf"\boxed{{{gold}}}"


def _gold_fault(problem: Problem, judge: Judge) -> Fault | None:
    gold = problem.gold
    if not gold.strip():
        return _fault("empty_gold", [problem], "the gold is empty: no response can ever be right")
    if not _needs_judge(gold):
        return None
    match judge(in_a_box(gold), gold):
        case "correct":
            return None
        case "bad_gold":
            return _fault("unparseable_gold", [problem], f"the gold cannot be read: {gold!r}")
        case "grader_timeout" | "grader_error" as outcome:
            return _fault("ungradable_gold", [problem], f"the grader does not come to an end with it ({outcome}): {gold!r}")
        case _:
            return _fault("inconsistent_gold", [problem], f"the gold in a box is not equal to itself: {gold!r}")


def levels_that_are_no_number(problems: Sequence[Problem]) -> list[Fault]:
    """Rows without a level in a file whose other rows have one: `Level ?` was not read as a number."""
    if all(problem.level is None for problem in problems):
        return []
    reason = "the level is missing or no number"
    return [_fault("level_is_no_number", [problem], reason) for problem in problems if problem.level is None]


def duplicates(problems: Sequence[Problem], judge: Judge = algebraic_verdict) -> list[Fault]:
    """Rows of one file that share an id, or a text in `loose_text`; the reason says whether their golds agree."""
    faults: list[Fault] = []
    for key, what in (
        (_id, "the same id"),
        (exact_text, "the same text"),
        (loose_text, "the same text but for case, spacing and punctuation"),
    ):
        shared = [group for group in _groups(problems, key) if len(group) > 1 and key(group[0])]  # an empty text is a fault of its own
        faults += [_shared_fault("duplicate", key, group, what, judge) for group in shared]
    return _first_of_each(faults)


def overlaps(files: Mapping[str, Sequence[Problem]], judge: Judge = algebraic_verdict) -> list[Fault]:
    """Problems that two files share, exactly or in `loose_text`.

    Ignoring punctuation makes `1+2` and `12` alike: where the texts differ in signs of mathematics and the golds differ too, it is a
    possible_overlap, for a person to read.

    Args:
        files: the problems of each file, under the name that the reason shall give it.
        judge: whether two golds are the same answer.
    """
    faults = []
    names = list(files)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            faults += _shared(name, files[name], other, files[other], judge)
    return faults


def _shared(name: str, problems: Sequence[Problem], other: str, others: Sequence[Problem], judge: Judge) -> list[Fault]:
    faults = []
    for key, what in ((exact_text, "the same text"), (loose_text, "the same text but for case, spacing and punctuation")):
        ours = {text: group for group in _groups(problems, key) if (text := key(group[0]))}
        for group in _groups(others, key):
            text = key(group[0])
            if text in ours:
                faults.append(_shared_fault("overlap", key, [*ours[text], *group], f"{what} in {name} and {other}", judge))
    return _first_of_each(faults)


def _shared_fault(
    kind: Literal["duplicate", "overlap"], key: Callable[[Problem], str], group: Sequence[Problem], what: str, judge: Judge
) -> Fault:
    same_gold = _same_gold(group, judge)
    golds = "same gold" if same_gold else f"different golds: {_some(sorted({repr(problem.gold) for problem in group}))}"
    is_doubtful = key is loose_text and not same_gold and len({plain_text(problem.problem) for problem in group}) > 1
    doubtful: FaultKind = "possible_duplicate" if kind == "duplicate" else "possible_overlap"
    return _fault(doubtful if is_doubtful else kind, group, f"{what}, {golds}")


def _some(golds: Sequence[str]) -> str:
    """The first golds and how many more there are. Ids are never shortened; the reason stands beside each row that is left out."""
    more = f" and {len(golds) - _MOST_GOLDS_SHOWN} more" if len(golds) > _MOST_GOLDS_SHOWN else ""
    return ", ".join(golds[:_MOST_GOLDS_SHOWN]) + more


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


def _same_gold(group: Sequence[Problem], judge: Judge) -> bool:
    """Whether the golds are the same answer, however it is spelt."""
    first = group[0].gold
    distinct = {problem.gold for problem in group} - {first}
    return all((quick_verdict(gold, first) or judge(gold, first)) == "correct" for gold in distinct)


def _fault(kind: FaultKind, group: Sequence[Problem], reason: str) -> Fault:
    return Fault(kind, tuple(problem.problem_id for problem in group), reason, tuple(group))


def _first_of_each(faults: Iterable[Fault]) -> list[Fault]:
    """A pair that is exactly alike is loosely alike too: only the stronger reason stays."""
    kept: dict[tuple[int, ...], Fault] = {}
    for fault in faults:
        kept.setdefault(tuple(map(id, fault.problems)), fault)
    return list(kept.values())
