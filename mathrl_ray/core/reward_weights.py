"""The reward of a graded response: its parts, each with the recipe's weight at this step.

Called by the driver with a step's grades. Pure: records in, records out; the parts themselves come from the scorers.

    reward = w_answer(step) answer + w_format(step) format + w_length(step) length

answer is 1 where format and answer are right, format 1 where the rule of the prompt's style was kept. The default weights 1, 0, 0 are A5's
reward. What a reward function of the user's own calls "reward" is taken as it is.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from mathrl_ray.core.grading.extraction import Extraction
from mathrl_ray.core.reward_parts import REWARD
from mathrl_ray.sections import RewardSection
from mathrl_ray.types import UNGRADED, Grade, Outcome

RIGHT_ABOVE = 0.5
"""A reward function's response counts as correct where its reward is above this: of 0 and 1, of -1 and 1, of shares."""
LENGTH = "length"

Weight = float | list[tuple[int, float]]


def weight_at(weight: Weight, step: int) -> float:
    """A weight of the recipe at a step: itself, or between its [step, weight] points in a straight line, outside of them the nearest.

    >>> [weight_at([(0, 1.0), (100, 0.0)], step) for step in (0, 25, 100, 300)]
    [1.0, 0.75, 0.0, 0.0]
    """
    if not isinstance(weight, list):
        return float(weight)
    if step <= weight[0][0]:
        return weight[0][1]
    for (begin, low), (end, high) in pairwise(weight):
        if step <= end:
            return low + (high - low) * (step - begin) / (end - begin)
    return weight[-1][1]


def length_part(answer_reward: float, num_tokens: int, max_tokens: int) -> float:
    """The share of the allowed tokens that a right answer left over, in [0, 1]; 0 for a wrong one, which is not to be short.

    >>> length_part(1.0, 16, 64), length_part(0.0, 16, 64)
    (0.75, 0.0)
    """
    return answer_reward * max(0.0, 1 - num_tokens / max_tokens)


def rewarded(grade: Grade, settings: RewardSection, *, step: int, num_tokens: int, max_tokens: int) -> Grade:
    """The grade with the reward that is trained on.

    A grade that is nobody's error, or that ran into the time limit, keeps its 0: no weight pays for not being graded.

    Args:
        grade: of the default grader, or of reward.function.
        settings: the weights.
        step: the training step.
        num_tokens: of the response.
        max_tokens: the longest response that could be sampled.
    """
    if grade.outcome in UNGRADED or grade.outcome == "grader_timeout" or REWARD in grade.parts:
        return grade
    parts = dict(grade.parts)
    if settings.length != 0:
        parts.setdefault(LENGTH, length_part(grade.answer_reward, num_tokens, max_tokens))
    graders_own = {} if grade.parts else {"answer": grade.answer_reward, "format": grade.format_reward}
    reward = weighted_sum(graders_own | parts, settings, step)
    return grade if reward == grade.reward and not parts else replace(grade, reward=reward, parts=parts)


def weighted_sum(parts: Mapping[str, float], settings: RewardSection, step: int) -> float:
    """Sum of the parts: answer, format and length each times its weight, every other one as it is."""
    weights = {"answer": settings.answer, "format": settings.format, LENGTH: settings.length}
    return sum(weight_at(weights.get(name, 1.0), step) * value for name, value in parts.items())


def grade_of_parts(extraction: Extraction, parts: Mapping[str, float], *, cut_off: bool, grading_s: float) -> Grade:
    """What a reward function's parts say of a response, as a grade. The tag rule decides nothing here: the function did.

    Its parts `format` and `answer` are the grade's, where it gives them; else the tag rule's, and whether it is correct. A response without
    any answer that earned nothing is no_answer, or truncated.
    """
    reward = parts.get(REWARD, sum(parts.values()))
    is_right = reward > RIGHT_ABOVE
    outcome: Outcome = "correct" if is_right else "wrong"
    if not is_right and extraction.answer is None:
        outcome = "truncated" if cut_off else "no_answer"
    return Grade(
        format_reward=parts.get("format", float(extraction.format_ok)),
        answer_reward=parts.get("answer", float(is_right)),
        reward=reward,
        outcome=outcome,
        extracted_answer=extraction.answer,
        grading_s=grading_s,
        lenient_answer_correct=is_right,
        parts=dict(parts),
    )


def ungraded(extraction: Extraction, outcome: Outcome, *, grading_s: float, remark: str = "") -> Grade:
    """The grade where a reward function gave nothing: grader_timeout or grader_error. It pays 0, and is never hidden behind the tags."""
    return Grade(float(extraction.format_ok), 0.0, 0.0, outcome, extraction.answer, grading_s, remark=remark)
