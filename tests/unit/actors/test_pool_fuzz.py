"""Random and mutated LaTeX, and long runs of one piece, through the pool: each gets its grade within the limit, and no memory is kept."""

import asyncio
import random

import psutil
import pytest

from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.types import ScoreRequest

GOLDS = [
    r"\frac{1}{2}",
    r"\sqrt{12}",
    r"(1,\infty)",
    r"x^2+1",
    r"\{1,2,3\}",
    "4:30",
    r"12\text{ cm}",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
]
PIECES = [
    *"0123456789xyn+-*/=<>^_(){}[]|,.!% \\", r"\frac", r"\sqrt", r"\pm", r"\text{", r"\sum_{k=1}^{9}", r"\infty", r"\boxed{",
    " or ", "cm", "½", "\n",
]  # fmt: skip
NUM_TEXTS = 2_000
REPEATED = [*".({5$ )}\\-^x,|!", r"\frac", ". ", "5 ", r"\text{", r"\boxed{", "<answer>"]
LENGTHS = [300, 2_000, 20_000]


def mutated(draw: random.Random) -> str:
    """A gold with a piece cut out, doubled or replaced; every third text has no gold behind it."""
    junk = "".join(draw.choices(PIECES, k=draw.randrange(12)))
    if draw.randrange(3) == 0:
        return junk
    gold = draw.choice(GOLDS)
    start, end = sorted(draw.choices(range(len(gold) + 1), k=2))
    return gold[:start] + draw.choice(["", gold[start:end] * 2, junk]) + gold[end:]


def resident_mib() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    return sum(process.memory_info().rss for process in (own, *own.children(recursive=True)) if process.is_running()) / 2**20


@pytest.mark.timeout(240)
def test_2_000_mutated_texts_lose_no_worker_and_keep_no_memory():
    draw = random.Random(0)
    requests = [ScoreRequest(rf"so \boxed{{{mutated(draw)}}}", draw.choice(GOLDS), style="question_only") for _ in range(NUM_TEXTS)]

    async def run() -> tuple[list, float, float, list]:
        scorer = Scorer(limit_s=5.0, num_processes=2)
        await scorer.setup()
        try:
            grades = await scorer.score(requests[: NUM_TEXTS // 2])
            half = resident_mib()
            grades += await scorer.score(requests[NUM_TEXTS // 2 :])
            afterwards = await scorer.score([ScoreRequest(r"\boxed{2\sqrt{3}}", r"\sqrt{12}", style="question_only")] * 50)
            return grades, half, resident_mib(), afterwards
        finally:
            await scorer.shutdown()

    grades, half, end, afterwards = asyncio.run(run())
    assert len(grades) == NUM_TEXTS
    lost = {grade.outcome for grade in grades} & {"grader_timeout", "grader_error", "bad_gold"}
    assert not lost, [grade for grade in grades if grade.outcome in lost]
    assert all(grade.reward in (0.0, 1.0) for grade in grades)
    assert [grade.outcome for grade in afterwards] == ["correct"] * 50
    assert end - half < 40


@pytest.mark.timeout(240)
@pytest.mark.parametrize("length", LENGTHS)
def test_long_runs_of_one_piece_are_graded_within_the_limit_and_never_right(length):
    runs = [piece * (length // len(piece)) for piece in REPEATED]
    requests = [
        ScoreRequest(text, gold, style=style)
        for run in runs
        for style, text in (
            ("r1_zero", f"</think> <answer> {run} </answer>"),
            ("r1_zero", run),
            ("question_only", rf"so \boxed{{{run}}}"),
            ("question_only", run),
        )
        for gold in ("5", r"\frac{1}{2}", "x+1")
    ]

    async def run_all() -> list:
        scorer = Scorer(limit_s=5.0, num_processes=2)
        await scorer.setup()
        try:
            return await scorer.score(requests)
        finally:
            await scorer.shutdown()

    grades = asyncio.run(run_all())
    bad = [
        (request.response[:40], request.gold, grade.outcome)
        for request, grade in zip(requests, grades, strict=True)
        if grade.outcome not in ("wrong", "no_answer", "unparseable_answer")
    ]
    assert not bad
    assert max(grade.grading_s for grade in grades) < 5.0  # what is settled without a process has no limit that would tell
