"""Made-up responses for tests of the elite pool and of the memory of problems."""

from mathrl_ray.core.elite_pool import EliteResponse
from mathrl_ray.types import Completion, Grade, Outcome, Trajectory, TrajectoryGroup


def elite(problem="p", sample=0, *, quality=1.0, round=1, text="", num_tokens=3):
    """A response of a group of its problem and round; by default its text is like no other's."""
    return EliteResponse(
        problem_id=problem,
        group_id=f"g-{round}/{problem}",
        sample=sample,
        prompt_ids=(1,),
        response_ids=tuple(range(num_tokens)),
        text=text or f"{problem} {round} {sample}",
        quality=quality,
        round=round,
        policy_version=round - 1,
        temperature=1.0,
        reward=1.0,
        format_reward=1.0,
        answer_reward=1.0,
        outcome="correct",
    )


def group(*outcomes: Outcome, problem="p", group_id="g-1/p", answers=None, num_tokens=None, format_reward=1.0, version=0):
    """Graded siblings with these outcomes."""
    lengths = num_tokens or [4] * len(outcomes)
    said = answers or ["9" if outcome == "correct" else "8" for outcome in outcomes]
    return TrajectoryGroup(
        group_id,
        problem,
        tuple(
            Trajectory(
                group_id,
                sample,
                problem,
                (1, 2),
                Completion(f"text {sample}", (5,) * lengths[sample], (-0.5,) * lengths[sample], ((version, lengths[sample]),), "stop"),
                Grade(format_reward, float(outcome == "correct"), float(outcome == "correct"), outcome, said[sample]),
            )
            for sample, outcome in enumerate(outcomes)
        ),
    )
