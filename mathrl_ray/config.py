"""The recipe: every setting of a run with its default, and which settings cannot go together.

Read from a file by recipe_file.py, given to every layer above. Light on purpose: no torch, no Ray, no engine, so that `--check` answers
at once. Each default stands here and nowhere else.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

StageName = Literal["baseline", "sft", "grpo"]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
LEARNING_RATE = 5e-4
"""What suits the embedded task; a stage without a rate of its own takes learner.learning_rate."""
BUILTIN = "builtin:arithmetic"
"""The embedded task and model (data/arithmetic.py, data/tiny_model.py): need no download."""


class RecipeError(ValueError):
    """A recipe that cannot run; the message names the key, what was given and what is allowed."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunSection(Section):
    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", description="folder under root; default: the recipe's file name")
    root: str = Field("", description="where runs are kept; default: $MATHRL_RUNS, else mathrl_runs in the home folder")
    seed: NonNegativeInt = 0
    commit: str = Field("", description="source revision to note in environment.json; default: asked from git")


class ModelSection(Section):
    path: str = Field(BUILTIN, description="a model folder, a hub name, or builtin:arithmetic")
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_length: PositiveInt = Field(512, description="longest prompt + response in tokens, for both engines")


class DataSection(Section):
    train: str = Field(BUILTIN, description="problems to sample from: .jsonl, .parquet, or builtin:arithmetic")
    test: str = Field(BUILTIN, description="held-out problems, for evaluations only")
    num_train_problems: PositiveInt = Field(4096, description="how many of train are used at most")
    columns: dict[str, str] = Field({}, description='maps our names to a file\'s columns, e.g. {problem = "question"}')


class EvalSection(Section):
    num_problems: PositiveInt = Field(1500, description="how many of data.test are used at most")
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: PositiveInt = 64
    prompts: list[Literal["r1_zero"]] = ["r1_zero"]


class GeneratorSection(Section):
    replicas: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    top_p: float = 1.0
    max_tokens: PositiveInt = 64
    min_tokens: NonNegativeInt = 4
    max_sequences: PositiveInt = Field(256, description="responses decoded at once by one replica")
    num_threads: PositiveInt = Field(1, description="CPU threads of one replica's engine")
    kv_cache_gib: PositiveFloat = Field(1.0, description="memory for the KV cache where the engine runs on the CPU")
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.85
    limit_s: PositiveFloat = Field(600, description="longest wait for one batch of responses")


class LearnerSection(Section):
    num_ranks: PositiveInt = 1
    zero_stage: Literal[1] = 1
    learning_rate: PositiveFloat = LEARNING_RATE
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = Field(0, description="optimizer steps over which the learning rate rises from 0")
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: PositiveFloat = 1.0
    micro_batch_tokens: PositiveInt = Field(16384, description="padded tokens that one forward pass may hold")
    logits_chunk_tokens: PositiveInt = Field(4096, description="tokens whose logits are alive at once")
    gradient_checkpointing: bool = False
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    num_threads: PositiveInt = 1
    limit_s: PositiveFloat = Field(600, description="longest wait for one training step")


class ScorerSection(Section):
    num_actors: PositiveInt = 1
    limit_s: PositiveFloat = Field(5.0, description="time for one answer; the process that exceeds it is ended")
    memory_gib: PositiveFloat = Field(2.0, description="memory of one grading process")


class DeviceSection(Section):
    kind: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: GPUs when the cluster has enough of them")


class DriverSection(Section):
    max_staleness: NonNegativeInt = 0
    sync_limit_s: PositiveFloat = Field(120, description="longest wait for one publication of weights")
    start_limit_s: PositiveFloat = Field(300, description="longest wait for the engines to start")
    canary_prompts: PositiveInt = Field(8, description="prompts of the log-prob comparison after each sync")
    canary_max_logprob_diff: PositiveFloat = Field(1e-3, description="a gap beyond this and beyond 3 times the first one ends the run")


class SftSection(Section):
    traces: str = Field(BUILTIN, description='rows of {"prompt", "response"} (.jsonl), or builtin:arithmetic')
    num_examples: PositiveInt = Field(512, description="how many traces are used at most")
    batch_size: PositiveInt = 16
    epochs: PositiveInt = 1
    learning_rate: PositiveFloat = Field(LEARNING_RATE, description="default: learner.learning_rate")


class GrpoSection(Section):
    num_steps: PositiveInt = 50
    prompts_per_step: PositiveInt = 32
    group_size: Annotated[int, Field(ge=2)] = 8
    loss: Literal["grpo", "grpo_clip"] = Field("grpo", description="grpo: importance ratio unclipped; grpo_clip: clipped")
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: PositiveFloat = 0.2
    divide_by_std: bool = Field(True, description="GRPO divides a group's advantages by their standard deviation, Dr. GRPO does not")
    advantage_epsilon: PositiveFloat = 1e-6
    aggregation: Literal["sequence", "token", "constant"] = Field("sequence", description="what a token's loss is divided by")
    minibatches: PositiveInt = Field(1, description="optimizer steps that one batch of rollouts is cut into")
    epochs: PositiveInt = Field(1, description="passes over one batch of rollouts")
    learning_rate: PositiveFloat = Field(LEARNING_RATE, description="default: learner.learning_rate")


class StudySection(Section):
    stages: Annotated[list[StageName], Field(min_length=1)] = ["baseline", "sft", "grpo"]


class Recipe(Section):
    """All sections of a recipe; what stands here is what a run used (recipe.toml in its folder)."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    eval: EvalSection = EvalSection()
    generator: GeneratorSection = GeneratorSection()
    learner: LearnerSection = LearnerSection()
    scorer: ScorerSection = ScorerSection()
    device: DeviceSection = DeviceSection()
    driver: DriverSection = DriverSection()
    sft: SftSection = SftSection()
    grpo: GrpoSection = GrpoSection()
    study: StudySection = StudySection()

    @model_validator(mode="before")
    @classmethod
    def _stages_inherit_the_learning_rate(cls, values: Any) -> Any:
        rate = values.get("learner", {}).get("learning_rate") if isinstance(values, dict) else None
        if rate is None:
            return values
        return {**values, **{stage: {"learning_rate": rate, **values.get(stage, {})} for stage in ("sft", "grpo")}}

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        problems = list(_contradictions(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """Settings that are each allowed and cannot go together, one sentence each."""
    generator, learner, grpo, model = recipe.generator, recipe.learner, recipe.grpo, recipe.model
    if generator.top_p != 1.0:
        yield (
            f"generator.top_p = {generator.top_p}: training needs 1.0, since a cut distribution's log-probabilities are not the policy's. "
            "Remove it; eval.top_p may be lower."
        )
    if generator.min_tokens > generator.max_tokens:
        yield f"generator.min_tokens = {generator.min_tokens} is more than generator.max_tokens = {generator.max_tokens}: lower the first."
    for key, max_tokens in (("generator.max_tokens", generator.max_tokens), ("eval.max_tokens", recipe.eval.max_tokens)):
        if max_tokens >= model.max_length:
            yield (
                f"{key} = {max_tokens} leaves no room for a prompt in model.max_length = {model.max_length}: lower it or raise the latter."
            )
    if learner.micro_batch_tokens < model.max_length:
        yield (
            f"learner.micro_batch_tokens = {learner.micro_batch_tokens} is less than model.max_length = {model.max_length}: "
            f"one sequence may not fit. Raise it to {model.max_length} or more."
        )
    num_responses = grpo.prompts_per_step * grpo.group_size
    if num_responses % grpo.minibatches:
        divisors = [n for n in range(1, num_responses + 1) if num_responses % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - grpo.minibatches))
        yield (
            f"grpo.minibatches = {grpo.minibatches} does not divide grpo.prompts_per_step x grpo.group_size = "
            f"{grpo.prompts_per_step} x {grpo.group_size} = {num_responses} responses: {nearest} would work."
        )
    if learner.num_ranks != 1:
        yield f"learner.num_ranks = {learner.num_ranks}: this version trains on one rank. Set it to 1."
    if recipe.driver.max_staleness != 0:
        yield f"driver.max_staleness = {recipe.driver.max_staleness}: this version's driver goes step by step. Set it to 0."
    if recipe.data.num_train_problems < grpo.prompts_per_step:
        yield (
            f"data.num_train_problems = {recipe.data.num_train_problems} is less than grpo.prompts_per_step = {grpo.prompts_per_step}: "
            "a batch may not hold a problem twice. Raise the first or lower the second."
        )


def check_stage_settings(recipe: Recipe, stages: Sequence[str]) -> None:
    """Refuse what only matters to the stages that will run: a warm-up as long as a stage, a batch larger than its data.

    Raises:
        RecipeError: the sentence names the values, and what would work.
    """
    lengths = {
        "sft": (num_sft_steps(recipe.sft, recipe.sft.num_examples), "sft.num_examples x sft.epochs / sft.batch_size"),
        "grpo": (recipe.grpo.num_steps * recipe.grpo.minibatches * recipe.grpo.epochs, "grpo.num_steps x grpo.minibatches x grpo.epochs"),
    }
    for stage in stages:
        num_steps, formula = lengths.get(stage, (None, ""))
        if num_steps is not None and recipe.learner.warmup_steps >= num_steps:
            raise RecipeError(
                f"learner.warmup_steps = {recipe.learner.warmup_steps} is as long as the {stage} stage ({formula} = {num_steps} optimizer "
                f"steps), so the learning rate would never be reached. Lower learner.warmup_steps to {num_steps // 10} or train longer."
            )
    if "sft" in stages and recipe.sft.batch_size > recipe.sft.num_examples:
        raise RecipeError(
            f"sft.batch_size = {recipe.sft.batch_size} is more than sft.num_examples = {recipe.sft.num_examples}: lower the first."
        )


def num_sft_steps(sft: SftSection, num_examples: int) -> int:
    """Optimizer steps of the SFT stage; an epoch's last batch may be smaller and is stepped too."""
    return sft.epochs * -(-num_examples // sft.batch_size)
