"""Random and mutated LaTeX through the pool: every answer gets its grade, no worker is lost for good, and no memory is kept."""

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
        scorer = Scorer(limit_s=2.0, num_processes=2)
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
    assert not [grade for grade in grades if grade.outcome in ("grader_error", "bad_gold")]
    assert all(grade.reward in (0.0, 1.0) for grade in grades)
    assert [grade.outcome for grade in afterwards] == ["correct"] * 50
    assert end - half < 40
