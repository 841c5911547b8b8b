"""What a person should hear about a step's responses before hours are lost on it.

Called by the stages and the evaluations, which say it. Pure: records in, sentences out. Each sentence shows one response and names the
setting to change.
"""

from collections import Counter
from collections.abc import Sequence

from mathrl_ray.config import Recipe
from mathrl_ray.types import UNGRADED, Grade, Trajectory, TrajectoryGroup

MOST_UNGRADED = 0.01
"""The share of responses that may go ungraded without a word."""
MOST_CUT_OFF = 0.5
_SHOWN_AT_EACH_END = 150


def step_warnings(groups: Sequence[TrajectoryGroup], recipe: Recipe, *, learns_from_rewards: bool = True) -> dict[str, str]:
    """Sentences about one step's groups by kind: `format` where no response kept the format rule, `cut_off` where more than half reached
    generator.max_tokens, `ungraded` where more than 1 % could not be graded. Empty when all is well.

    learns_from_rewards: False for expert iteration, whose pool looks at its own quality and never at reward.format.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        return {}
    found = {
        "format": _no_format(trajectories, recipe, "set reward.format above 0, " if learns_from_rewards else ""),
        "cut_off": _cut_off(trajectories, recipe),
        "ungraded": ungraded_warning([trajectory.grade for trajectory in trajectories]),
    }
    return {kind: text for kind, text in found.items() if text}


def _no_format(trajectories: Sequence[Trajectory], recipe: Recipe, advice: str) -> str:
    if any(trajectory.grade.format_reward > 0 for trajectory in trajectories):
        return ""
    if recipe.reward.function and not any("format" in trajectory.grade.parts for trajectory in trajectories):
        return ""  # the function has its own idea of a format, or none
    return (
        f"none of {len(trajectories)} responses passed the format check of data.prompt = {recipe.data.prompt}, so none can be right. "
        f"One of them: {_shown(trajectories[0])}. Train the stage sft first, {advice}or name a data.prompt that fits the model."
    )


def _cut_off(trajectories: Sequence[Trajectory], recipe: Recipe) -> str:
    cut_off = [trajectory for trajectory in trajectories if trajectory.completion.finish_reason == "length"]
    if len(cut_off) <= MOST_CUT_OFF * len(trajectories):
        return ""
    return (
        f"{len(cut_off)} of {len(trajectories)} responses were cut off at generator.max_tokens = {recipe.generator.max_tokens}. "
        f"One of them: {_shown(cut_off[0])}. Raise generator.max_tokens (and model.max_length with it)."
    )


def ungraded_warning(grades: Sequence[Grade]) -> str:
    """A sentence where more than 1 % of the grades are grader_error or bad_gold; "" otherwise.

    >>> ungraded_warning([Grade(1.0, 1.0, 1.0, "correct", "5")] * 99 + [Grade(1.0, 0.0, 0.0, "bad_gold", "5")])
    ''
    """
    ungraded = [grade for grade in grades if grade.outcome in UNGRADED]
    if len(ungraded) <= MOST_UNGRADED * len(grades):
        return ""
    kinds = ", ".join(f"{outcome} {number}" for outcome, number in sorted(Counter(grade.outcome for grade in ungraded).items()))
    remark = next((f" One was: {grade.remark}." for grade in ungraded if grade.remark), "")
    return (
        f"{len(ungraded)} of {len(grades)} responses could not be graded ({kinds}); neither training nor an accuracy counts them.{remark} "
        "For bad_gold see `python -m mathrl_ray check-data`; for grader_error raise scorer.memory_gib or correct the reward function."
    )


def _shown(trajectory: Trajectory) -> str:
    text = trajectory.completion.text
    if len(text) > 2 * _SHOWN_AT_EACH_END:
        text = f"{text[:_SHOWN_AT_EACH_END]} [...] {text[-_SHOWN_AT_EACH_END:]}"
    return f"{trajectory.problem_id} {text!r}"
