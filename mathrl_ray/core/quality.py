"""How good a response is to learn from, as one number in [0, 1]: what the elite pool's threshold and order look at.

Called by core/elite_pool.py with one group at a time. Pure: records in, floats out.

    quality = (w_correct c + w_format f + c (w_length l + w_agreement a)) / (w_correct + w_format + w_length + w_agreement)

    c  correct     1 where the outcome is correct, else 0; f alone needs no gold answer
    f  format      the format reward, 1 where the prompt's rule was kept; a wrong answer in the right form is worth this much and no more
    l  length      of a right answer, the share of the allowed tokens that it left over: of two right ways the shorter says less by chance
    a  agreement   of a right answer, the share of its graded siblings that say the same, itself included: an answer that the policy
                   reaches again and again was hardly guessed. It also is the share of siblings that are right, so it prefers problems
                   that are easy by now; the pool's share of a problem and its order, hard problems first, work against that

Length and agreement are no merit of a wrong answer: being short or popular does not make it better. Since w_correct >= w_format, every
right response is worth at least as much as every wrong one. With the weights 1, 0, 0, 0 it is A5's filter: 1 for right, 0 for wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mathrl_ray.core.reward_weights import length_part
from mathrl_ray.sections import ExpertIterationSection
from mathrl_ray.types import UNGRADED, Grade, Trajectory

NUM_DIGITS = 9
"""A quality is rounded to this, so that 0.7 + 0.1 passes a threshold of 0.8."""


@dataclass(frozen=True, slots=True)
class QualityWeights:
    """What each part counts. Any scale: they are divided by their sum.

    Raises:
        ValueError: a weight below 0, nothing for being right, or more for the format than for being right.
    """

    correct: float = 1.0
    format: float = 0.0
    length: float = 0.0
    agreement: float = 0.0

    def __post_init__(self) -> None:
        if min(self.correct, self.format, self.length, self.agreement) < 0 or self.correct <= 0 or self.correct < self.format:
            raise ValueError(
                f"{self}: no weight may be below 0, and correct must be above 0 and at least as large as format, or a wrong answer could "
                "be worth more than a right one. See expert_iteration.weight_correct and the keys beside it"
            )


CORRECT_ONLY = QualityWeights()


def weights_of(settings: ExpertIterationSection) -> QualityWeights:
    """The weights that the recipe's [expert_iteration] names."""
    if settings.quality == "correct":
        return CORRECT_ONLY
    return QualityWeights(settings.weight_correct, settings.weight_format, settings.weight_length, settings.weight_agreement)


def quality(weights: QualityWeights, *, correct: bool, format_part: float, length: float, agreement: float) -> float:
    """The formula above.

    >>> weights = QualityWeights(correct=0.7, format=0.1, length=0.1, agreement=0.1)
    >>> quality(weights, correct=True, format_part=1.0, length=0.5, agreement=0.25)
    0.875
    >>> quality(weights, correct=False, format_part=1.0, length=0.9, agreement=1.0)
    0.1
    """
    earned = weights.correct * correct + weights.format * format_part
    earned += correct * (weights.length * length + weights.agreement * agreement)
    return round(earned / (weights.correct + weights.format + weights.length + weights.agreement), NUM_DIGITS)


def group_qualities(siblings: Sequence[Trajectory], weights: QualityWeights, *, max_tokens: int) -> list[float | None]:
    """The quality of each sibling of one problem, in their order; None for one that could not be graded.

    Args:
        siblings: graded.
        weights: of the parts.
        max_tokens: the longest response that could be sampled.
    """
    answers = [answer_key(each.grade) for each in siblings if each.grade.outcome not in UNGRADED]

    def of(trajectory: Trajectory) -> float | None:
        grade = trajectory.grade
        if grade.outcome in UNGRADED:
            return None
        return quality(
            weights,
            correct=grade.outcome == "correct",
            format_part=min(1.0, max(0.0, grade.format_reward)),  # a reward function may call anything "format"
            length=length_part(1.0, len(trajectory.completion.token_ids), max_tokens),
            agreement=answers.count(answer_key(grade)) / len(answers),
        )

    return [of(each) for each in siblings]


def answer_key(grade: Grade) -> tuple[bool, str]:
    """What two responses that say the same have in common: that both are right, however they write it, or else the answer's text."""
    is_right = grade.outcome == "correct"
    return is_right, "" if is_right else " ".join((grade.extracted_answer or "").split())
