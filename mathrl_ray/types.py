"""The records that cross Ray: who makes each, who reads it, and what its fields mean.

Read by every layer; knows none of them. Plain values only (no tensor, no handle), so that a record can be pickled, logged and compared.
Names follow one table: a count is `num_x`, a unit stands in the name (`_s`, `_tokens`, `_nats`, `_bytes`), [T] is a number of tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]
GradingStyle = Literal["r1_zero", "question_only", "boxed"]
"""Where a response says its answer: between answer tags behind `</think>`, or in its last `\\boxed{...}` (two names)."""
Outcome = Literal["correct", "wrong", "no_answer", "unparseable_answer", "truncated", "grader_timeout", "grader_error", "bad_gold"]
UNGRADED: frozenset[str] = frozenset({"grader_error", "bad_gold"})
"""Outcomes that are nobody's error: not in an accuracy's denominator, masked in training."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its answer. Made by data/, read by the stages and the scorers.

    Example: Problem(problem_id="arithmetic/test/17", problem="Compute 6+3-7.", gold="2", level=2, subject="algebra")
    """

    problem_id: str
    problem: str
    gold: str
    level: int | None = None
    subject: str | None = None
    solution: str | None = None
    """A worked solution, when the data has one."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """The data row's other columns, as they were."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a response is drawn; the learner needs the same values to compute the same log-probabilities."""

    temperature: float
    max_tokens: int
    min_tokens: int = 0
    """No stop token before this many; the generator masks them there, so the learner does too."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ("</answer>",)
    """Strings that end a response and stay in it."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a response, as the generator reports them; what min_tokens masks."""


OWN_DISTRIBUTION = SamplingSettings(temperature=1.0, max_tokens=1)
"""What supervised learning and entropies use: the model's own distribution, with no temperature and no masked stop ids."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response wanted. Made by the driver, eaten by a generator; (group_id, sample) is its key from prompt to loss."""

    group_id: str
    sample: int
    problem_id: str
    prompt_ids: tuple[int, ...]
    seed: int
    """From (run.seed, problem_id, step, sample), so a response does not depend on what else is in flight."""
    sampling: SamplingSettings


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response. Made by a generator, scored by a scorer, trained on by the learner.

    Example: Completion(text=" 6+3=9 </think> <answer> 9 </answer>", token_ids=(31, 8, 2), logprobs=(-0.1, -0.3, -0.0),
                        version_runs=((4, 2), (5, 1)), finish_reason="stop")
    """

    text: str
    """What is graded; may go on after `</answer>` inside the last token."""
    token_ids: tuple[int, ...]
    """[T] the sampled ids, which are the ids that are trained."""
    logprobs: tuple[float, ...]
    """[T] nats, after temperature, from the weights that sampled each token."""
    version_runs: tuple[tuple[int, int], ...]
    """(policy_version, num_tokens) in order; the lengths add up to T."""
    finish_reason: FinishReason

    @property
    def min_policy_version(self) -> int:
        return min(version for version, _ in self.version_runs)

    @property
    def max_policy_version(self) -> int:
        return max(version for version, _ in self.version_runs)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One response to grade. Made by the driver, eaten by a scorer, which answers in the same order."""

    response: str
    gold: str
    finish_reason: FinishReason = "stop"
    style: GradingStyle = "r1_zero"
    function: str = ""
    """A reward function of the user's own, as the recipe names it, which takes the place of the verdict; "" for none."""
    problem: Problem | None = None
    """What a function is given; None without one."""
    prompt: str = ""
    """The full text that the model saw, for a function that asks for it."""
    step: int = 0
    """The training step, for a function."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a response earned. Rewards are floats; `reward` is what is trained on.

    Example: Grade(format_reward=1.0, answer_reward=1.0, reward=1.0, outcome="correct", extracted_answer="9")
    """

    format_reward: float
    answer_reward: float
    reward: float
    outcome: Outcome
    extracted_answer: str | None
    grading_s: float = 0.0
    lenient_answer_correct: bool = False
    """Whether the answer would be right if the format rule were waived: tells "format wrong, answer right" from "both wrong"."""
    parts: Mapping[str, float] = field(default_factory=dict, repr=False)
    """What a reward function gave, by name, "reward" among it where it said so; and the length part where the recipe weighs it."""
    remark: str = field(default="", repr=False)
    """For a person: why a function could not grade it."""
    from_quarantine: bool = field(default=False, repr=False)
    """Answered without grading, since the same input ran into a limit before."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One response with all that was learned about it. Made by the driver, trained on by the learner, stored by the recorder."""

    group_id: str
    sample: int
    problem_id: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    grade: Grade
    advantage: float | None = None
    """None until its group is complete; None too where `drop_reason` says why it is not trained on."""
    drop_reason: str | None = None

    def graded(self, grade: Grade) -> "Trajectory":
        """The same response with its grade, and nothing said yet of its advantage."""
        return Trajectory(self.group_id, self.sample, self.problem_id, self.prompt_ids, self.completion, grade)

    def judged(self, advantage: float | None, drop_reason: str | None) -> "Trajectory":
        """The same graded response with its advantage, or why it has none."""
        return Trajectory(self.group_id, self.sample, self.problem_id, self.prompt_ids, self.completion, self.grade, advantage, drop_reason)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The siblings of one prompt, in the order of their `sample`."""

    group_id: str
    problem_id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def min_policy_version(self) -> int:
        return min(trajectory.completion.min_policy_version for trajectory in self.trajectories)

    def with_drop_reason(self, reason: str) -> "TrajectoryGroup":
        """The group as dropped whole: the reason stands on every trajectory, in the place of a reason of its own."""
        return replace(self, trajectories=tuple(each.judged(None, reason) for each in self.trajectories))


@dataclass(frozen=True, slots=True)
class SftExample:
    """One row of supervised data: the loss is on the response only, and the parts are tokenised apart."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResponseStatistics:
    """What the learner thinks of one response."""

    logprobs: tuple[float, ...]
    """[T] nats, under the learner's weights and the request's sampling settings."""
    mean_token_entropy_nats: float
    """Mean over the response's tokens of the entropy of the full next-token distribution."""


@dataclass(frozen=True, slots=True)
class StageSettings:
    """How the learner trains in one stage; a stage fills it from the recipe."""

    model_path: str
    learning_rate: float
    num_optimizer_steps: int
    """Length of the learning-rate schedule."""
    stage: str = ""
    """Its name, for the files below."""
    dump_folder: str = ""
    """Where the batches of skipped updates are kept; nowhere when empty."""
    first_step: int = 0
    """Optimizer steps of the schedule that are done already."""
    reference_path: str = ""
    """The model that a KL is taken to; "" for model_path."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the recipe, each "section.key", that have other values in this stage: a guard's remedies."""


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """What one call of `Learner.train_policy` did."""

    metrics: Mapping[str, float]
    learner_logprobs: tuple[tuple[float, ...], ...]
    """One [T] row a trajectory, in the batch's order, from before the first optimizer step."""
    num_optimizer_steps: int
    """0 when every gradient was non-finite and nothing changed."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What one engine did since it was last asked. Made by a generator, read by the driver (engine_numbers.py).

    Example: EngineStatistics(kv_cache_usage_max=0.12, num_preemptions=0, num_prefix_queries=5120, num_prefix_hits=4480,
                              num_running_max=256, num_waiting_max=31)
    """

    kv_cache_usage_max: float
    """Share of the KV cache in use, at its highest."""
    num_preemptions: int
    """Requests that lost their place in the cache, and are computed again."""
    num_prefix_queries: int
    """Prompt tokens looked for in the prefix cache."""
    num_prefix_hits: int
    num_running_max: int
    num_waiting_max: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in a published block of weights."""

    name: str
    """As in a Hugging Face checkpoint."""
    dtype: str
    """A torch dtype's name: "float32", "bfloat16"."""
    shape: tuple[int, ...]
    offset_bytes: int


WeightTransport = Literal["shared_memory", "object_store", "nccl", "ipc"]


@dataclass(frozen=True, slots=True)
class WeightMeeting:
    """Where learner and generators meet before weights move between them; only some transports need it. Made by the learner."""

    transport: WeightTransport
    address: str = ""
    port: int = 0
    num_generators: int = 0


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """One publication of weights. Made by the learner, applied by every generator."""

    policy_version: int
    path: str
    """A file in shared memory that holds every tensor at its offset; "" where the transport has none."""
    tensors: tuple[TensorEntry, ...]
    transport: WeightTransport = "shared_memory"

    @property
    def is_for_all_at_once(self) -> bool:
        """Whether learner and generators meet for a transfer, which all of them take part in; else each generator reads by itself."""
        return self.transport in ("nccl", "ipc")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.tensors)
