"""What others report for the stages of this study: the course notes that the project started from, public runs, and the A5 leaderboard.

Called by tables.py. Constants only. All are about Qwen2.5-Math-1.5B on MATH, self-reported unless noted: another task than the embedded
arithmetic, so no report may set them into one column with its figures.
"""

from dataclasses import dataclass

MODEL, DATA = "Qwen2.5-Math-1.5B", "MATH, 5,000 test problems"


@dataclass(frozen=True, slots=True)
class KnownResult:
    """One row; accuracies as fractions."""

    stage: str
    low: float
    high: float
    """As `low` where one number was given."""
    source: str
    how: str
    """What is known of its making."""


COURSE_NOTES = "course notes (claimed)"
PUBLIC_RUN = "public run (self-reported)"
LEADERBOARD = "A5 leaderboard 2025 (verified by the course staff)"

KNOWN_RESULTS = (
    KnownResult("baseline", 0.027, 0.029, "three public runs (self-reported)", "zero-shot, prompt r1_zero, temperature 1; format 17 %"),
    KnownResult("sft", 0.187, 0.187, COURSE_NOTES, "all traces"),
    KnownResult("sft", 0.421, 0.421, PUBLIC_RUN, "all 4,800 traces"),
    KnownResult("sft_filtered", 0.223, 0.223, COURSE_NOTES, "traces whose answer is right"),
    KnownResult("sft_filtered", 0.534, 0.534, PUBLIC_RUN, "the 3,600 traces whose answer is right"),
    KnownResult("expert_iteration", 0.251, 0.251, COURSE_NOTES, "5 rounds"),
    KnownResult("expert_iteration", 0.471, 0.471, PUBLIC_RUN, "5 rounds"),
    KnownResult("grpo", 0.289, 0.289, COURSE_NOTES, "about three times the baseline"),
    KnownResult(
        "grpo", 0.713, 0.713, PUBLIC_RUN, "learning rate 3e-5, 200 steps, about 100 min on one H100; mean of the last 15 evaluations"
    ),
    KnownResult("grpo", 0.6875, 0.6875, LEADERBOARD, "best of any method, 2 H100 for 4 hours"),
    KnownResult("grpo", 0.538, 0.538, LEADERBOARD, "median of any method, 2 H100 for 4 hours"),
)
