import asyncio

from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.types import ScoreRequest


def test_a_boxed_answer_is_graded_where_the_request_says_so():
    async def score():
        scorer = Scorer(limit_s=5.0)
        try:
            return await scorer.score(
                [
                    ScoreRequest(r"so $\boxed{\frac{2}{4}}$.", "0.5", style="question_only"),
                    ScoreRequest(r"so $\boxed{5}$, no $\boxed{6}$.", "5", style="question_only"),
                    ScoreRequest("it is 5", "5", style="question_only"),
                    ScoreRequest(r"it is \boxed{5", "5", "length", style="question_only"),
                    ScoreRequest(r"so $\boxed{5}$.", "5"),
                    ScoreRequest("</think> <answer> 5 </answer>", "5", style="question_only"),
                ]
            )
        finally:
            await scorer.shutdown()

    grades = asyncio.run(score())
    assert [(grade.outcome, grade.format_reward, grade.reward) for grade in grades] == [
        ("correct", 1.0, 1.0),
        ("wrong", 1.0, 0.0),  # the last box counts
        ("no_answer", 0.0, 0.0),
        ("truncated", 0.0, 0.0),
        ("no_answer", 0.0, 0.0),  # a box is no answer to r1_zero
        ("no_answer", 0.0, 0.0),
    ]
