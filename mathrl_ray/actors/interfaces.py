"""What the driver and the stages may ask of the actors, and all that they see of them.

The real ones are generator.py, learner.py and scorer.py, wrapped by Ray in placement.py; tests/fakes.py has hand-written ones.
Everything is asynchronous, and nothing here knows Ray or an engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mathrl_ray.types import (
    Completion,
    EngineStatistics,
    GenerationRequest,
    Grade,
    PolicyUpdate,
    ResponseStatistics,
    SamplingSettings,
    ScoreRequest,
    SftExample,
    StageSettings,
    Trajectory,
    WeightManifest,
    WeightMeeting,
)


class ActorError(RuntimeError):
    """An actor failed, died or did not answer in time; the message says which, in what call, and where its log is."""


class Generator(Protocol):
    """Samples responses (vLLM)."""

    name: str

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """One completion a request, in the requests' order, each stamped with the versions that sampled it."""
        ...

    async def apply_weights(self, manifest: WeightManifest) -> float:
        """Freeze what is in flight, load the published weights, go on. Returns the seconds that generation stood still.

        Raises:
            ValueError: the published names are not the ones that the engine expects; nothing was changed.
            ActorError: the update failed; the engine must be replaced.
        """
        ...

    async def meet(self, meeting: WeightMeeting, index: int) -> None:
        """Join the learner and the other generators, as number `index` of them, where the transport needs it."""
        ...

    async def abort(self) -> None:
        """End all generation, for good: what is in flight, and comes later, is answered as far as it is, with finish_reason abort."""
        ...

    async def engine_statistics(self) -> EngineStatistics:
        """What the engine says of itself since the last call; at once."""
        ...

    async def restart(self) -> None:
        """Put a fresh engine on the start model in this one's place, whatever state it is in; what was in flight is lost.

        Raises:
            ActorError: it did not start within driver.start_limit_s.
        """
        ...


class Learner(Protocol):
    """Holds the policy that is trained (DeepSpeed)."""

    async def start_stage(self, settings: StageSettings) -> None:
        """Load a model folder and begin a new optimizer and learning-rate schedule."""
        ...

    async def train_sft(self, batch: Sequence[SftExample]) -> dict[str, float]:
        """One optimizer step of supervised learning; returns the step's metrics."""
        ...

    async def train_policy(self, batch: Sequence[Trajectory], sampling: SamplingSettings) -> PolicyUpdate:
        """The optimizer steps of one batch of trajectories that have advantages."""
        ...

    async def response_statistics(self, sequences: Sequence[SftExample], sampling: SamplingSettings) -> list[ResponseStatistics]:
        """Log-probabilities and entropy of given responses under the present weights; no gradient."""
        ...

    async def invite(self, num_generators: int) -> WeightMeeting:
        """Say where generators meet the learner; at once."""
        ...

    async def meet(self, meeting: WeightMeeting) -> None:
        """Wait for the generators there, where the transport needs it."""
        ...

    async def publish(self, policy_version: int) -> WeightManifest:
        """Name the present weights `policy_version`, and write them where generators can read them, where the transport does that."""
        ...

    async def send_weights(self, manifest: WeightManifest) -> None:
        """Send what was published while the generators apply it, where the transport does that."""
        ...

    async def use_average(self) -> dict[str, float]:
        """Put the average of the stage's weights (learner.average) in their place, for good, to be published and saved.

        At a stage's end: nothing trains after it.

        Returns:
            num_averaged, average_distance (norm of the average less the last weights) and average_relative_distance (by the norm of
            these); {} where there is no average, or it is in place already: the weights are as before.
        """
        ...

    async def save(self, folder: str) -> None:
        """Write a folder that AutoModelForCausalLM and vLLM open; it appears whole or not at all."""
        ...

    async def save_checkpoint(self, folder: str) -> dict[str, float]:
        """Write model and trainer state into an empty folder; returns its checkpoint_bytes and checkpoint_memory_gib."""
        ...

    async def load_checkpoint(self, folder: str) -> None:
        """After `start_stage`: go on from where the learner was that wrote the folder."""
        ...


class Scorer(Protocol):
    """Grades responses (math-verify), in processes that can be ended."""

    name: str

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Grade]:
        """One grade a request, in the requests' order; never raises for what a response contains."""
        ...

    async def restart(self) -> None:
        """Put a fresh scorer in this one's place; what was in flight is lost."""
        ...


@dataclass(frozen=True, slots=True)
class Actors:
    """One run's actors, as a stage sees them."""

    learner: Learner
    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    stop_token_ids: tuple[int, ...]
    """Ids that end a response, as the generators report them."""
