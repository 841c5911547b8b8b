"""What the grader says beyond the verdicts that stand in an evaluation: which wrong answers are equal, and which answers in a broken format
would be right.

Called by analyse.py. Asks the grader in processes that can be ended, for what spelling alone does not tell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.display import progress
from mathrl_ray.core.breakdown import Key, answer_key, graded_by_problem, is_right
from mathrl_ray.core.grading.extraction import extract
from mathrl_ray.core.grading.grade import quick_verdict
from mathrl_ray.core.prompts import grading_style

Row = Mapping[str, Any]


def would_be_right(rows: Sequence[Row], judge: GoldJudge) -> list[bool]:
    """Of each row, whether its answer is right with the format rule waived.

    Args:
        rows: of one evaluation; a column lenient_answer_correct is believed.
        judge: asked for answers in a broken format only.
    """
    pairs = {index: pair for index, row in enumerate(rows) if (pair := _pair_to_judge(row))}
    verdicts = {index: quick_verdict(*pair) for index, pair in pairs.items()}
    _ask(judge, (pairs[index] for index, verdict in verdicts.items() if verdict is None), "answers in a broken format")
    return [
        (verdicts[index] or judge.verdict(*pairs[index])) == "correct" if index in pairs else _known(row) for index, row in enumerate(rows)
    ]


def _pair_to_judge(row: Row) -> tuple[str, str] | None:
    """(answer, gold) of an answer in a broken format; None where there is no answer, or nothing left to ask."""
    if row["format_reward"] or row.get("lenient_answer_correct") is not None:
        return None
    answer = extract(row["response"] or "", grading_style(row["prompt_name"], row["prompt"])).answer_to_judge
    return (answer, row["gold"]) if answer else None


def _known(row: Row) -> bool:
    return bool(row.get("lenient_answer_correct")) or is_right(row)


def grader_keys(rows: Sequence[Row], judge: GoldJudge) -> Callable[[Row], Key]:
    """What a sample votes for in maj@k, where the grader says which wrong answers are equal.

    Answers of one problem that the grader calls equal, either as the gold of the other, get one key, and so do those that a chain of such
    pairs joins: the grader takes x=3 for 3 and 3 for y=3, but not x=3 for y=3, and which of them were one must not depend on the order of
    the samples. What it cannot read keeps its spelling. Only problems with several wrong spellings are asked about.

    Args:
        rows: of one evaluation.
        judge: asked pair by pair.
    """
    spellings = {problem_id: _wrong_spellings(samples) for problem_id, samples in graded_by_problem(rows).items()}
    _ask(judge, (pair for texts in spellings.values() for pair in permutations(texts, 2)), "which answers are equal")
    keys = {problem_id: _merged(texts, judge) for problem_id, texts in spellings.items()}
    return lambda row: keys[row["problem_id"]].get(spelling, spelling) if isinstance(spelling := answer_key(row), str) else None


def _wrong_spellings(rows: Sequence[Row]) -> list[str]:
    keys = (answer_key(row) for row in rows if not is_right(row))
    return [*dict.fromkeys(key for key in keys if isinstance(key, str))]


def _merged(spellings: Sequence[str], judge: GoldJudge) -> dict[str, str]:
    """Spelling -> one of those that it is joined with, the same for all of them."""
    merged = {spelling: spelling for spelling in spellings}
    for one, other in permutations(spellings, 2):
        if merged[one] != merged[other] and judge.verdict(one, other) == "correct":
            kept, gone = merged[one], merged[other]
            merged |= {spelling: kept for spelling, held in merged.items() if held == gone}
    return merged


def _ask(judge: GoldJudge, pairs: Iterable[tuple[str, str]], what: str) -> None:
    """Let the judge know the verdicts on all pairs, several at once."""
    distinct = [*dict.fromkeys(pairs)]
    with progress(what, len(distinct)) as advance:
        judge.judge(distinct, advance)
