"""The sections of a recipe: every setting of a run with its default, and what a single key may be.

Put together by config.py, and read by every layer above through it. Light on purpose: no torch, no Ray, no engine, so that `--check`
answers at once. Each default stands here and nowhere else.
"""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from mathrl_ray.methods import Method

StageName = Literal["baseline", "sft", "sft_filtered", "expert_iteration", "grpo"]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LEARNING_RATE = 5e-4
"""What suits the embedded task; a stage without a rate of its own takes learner.learning_rate."""
STAGES_WITH_A_RATE = ("sft", "expert_iteration", "grpo")
"""Sections whose learning_rate is by default learner.learning_rate."""
BUILTIN = "builtin:arithmetic"
"""The embedded task and model (data/arithmetic.py, data/tiny_model.py): need no download."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunSection(Section):
    name: str = Field(
        "", pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$", max_length=100, description="folder under root; default: the recipe's file name"
    )
    root: str = Field("", description="where runs are kept; default: $MATHRL_RUNS, else mathrl_runs in the home folder")
    seed: NonNegativeInt = 0
    commit: str = Field("", description="source revision to note in environment.json; default: asked from git")
    max_hours: Annotated[float, Field(ge=0)] = Field(
        0, description="hours from the job's start to its end, the last checkpoint and the full evaluation included; 0: no limit"
    )
    resume: str = Field(
        "", description='"auto": go on from the last whole checkpoint of this run.name; or a path of a checkpoint or run; "": a new run'
    )
    resume_with_changes: bool = Field(False, description="go on although keys of the recipe differ from those that were saved")
    checkpoint_every: NonNegativeInt = Field(0, description="training steps from one checkpoint to the next; 0: not by steps")
    checkpoint_minutes: Annotated[float, Field(ge=0)] = Field(30, description="the same in minutes; 0: not by time")
    keep_last: PositiveInt = Field(2, description="newest checkpoints of each stage that are kept; its last one is among them")
    keep_best: NonNegativeInt = Field(1, description="and those with the best validation accuracy, of the steps that were validated")
    report: bool = Field(True, description="write report.html when the job has ended well; `python -m mathrl_ray report` does at any time")
    mirror: str = Field(
        "", description="where finished checkpoints, metrics and reports are copied to meanwhile: s3://bucket/folder, file:///folder, ..."
    )

    @field_validator("mirror")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        protocol, separator, place = value.partition("://")
        if value and not (separator and protocol.replace("+", "").isalnum() and place and (protocol != "file" or place.startswith("/"))):
            raise ValueError("give a URL that fsspec opens, for example s3://bucket/folder or file:///folder (absolute), or nothing")
        return value


class ModelSection(Section):
    path: str = Field(BUILTIN, description="a model folder, a hub name, or builtin:arithmetic")
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model; weights are read from safetensors only")
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_length: PositiveInt = Field(512, description="longest prompt + response in tokens, for both engines")


class DataSection(Section):
    """A data set is a .jsonl or .parquet file, builtin:arithmetic, or what `datasets` opens: a hub name or a folder, as
    NAME[:CONFIG][@REVISION][#SPLIT], where SPLIT is by default the key's own name (train, validation, test)."""

    train: str = Field(BUILTIN, description="problems to sample from")
    validation: str = Field(
        "",
        description="problems for what is logged during training and for every choice: among sft.sizes, of checkpoints to keep "
        "(run.keep_best), of the step to stop at (eval.stop_after); default: a part of train by hash, removed from it",
    )
    test: str = Field(BUILTIN, description="held-out problems, for the evaluation at the end of a stage only")
    seed: NonNegativeInt = Field(
        0,
        description="which problems are used where a set has more, and which built-in ones; not run.seed, so that all seeds share a split",
    )
    num_train_problems: PositiveInt = Field(4096, description="how many of train are used at most")
    num_validation_problems: NonNegativeInt = Field(500, description="how many validation problems; of train at most a fifth")
    columns: dict[str, str] = Field({}, description='maps our names to a file\'s columns, e.g. {problem = "question"}')
    bad_rows: Literal["refuse", "drop"] = Field("refuse", description="rows without problem or gold, with an id or text that came before")
    overlap: Literal["refuse", "drop", "allow"] = Field("drop", description="train problems (and traces) that validation or test has too")
    prompt: str = Field("r1_zero", description="r1_zero, question_only, chat, or a text file with {question} in it; for training")


class EvalSection(Section):
    num_problems: PositiveInt = Field(1500, description="how many of data.test are used at most")
    num_samples: PositiveInt = Field(
        1, description="responses to each of them; several give pass@k and maj@k. A validation always takes one"
    )
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: PositiveInt = 64
    prompts: Annotated[list[str], Field(min_length=1)] = Field(
        ["r1_zero"], description="as data.prompt, which is the default; the first one gives the stage's figures"
    )
    validate_every: NonNegativeInt = Field(0, description="steps between logged evaluations of data.validation; 0: none")
    stop_after: NonNegativeInt = Field(
        0,
        description="validations in a row without a better one, after which a stage ends early and its best validated checkpoint is its "
        "model; 0: never. expert_iteration validates each round",
    )
    stop_margin: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="with stop_after: by how much accuracy must rise above the last better one's to count as better"
    )
    graders: Annotated[list[str], Field(min_length=1)] = Field(
        ["default"], description="and more of the same responses: module:function or path/file.py:function (forms: core/rewards.py)"
    )


class GeneratorSection(Section):
    replicas: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    top_p: float = 1.0
    max_tokens: PositiveInt = 64
    min_tokens: NonNegativeInt = 4
    max_sequences: PositiveInt = Field(256, description="responses decoded at once by one replica")
    num_threads: PositiveInt = Field(1, description="CPU threads of one replica's engine")
    kv_cache_gib: PositiveFloat = Field(1.0, description="memory for the KV cache where the engine runs on the CPU")
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.85, description="share of its GPU that an engine takes: weights, activations, and the KV cache with the rest of it"
    )
    gpu_kv_cache_gib: NonNegativeFloat = Field(
        0, description="memory for the KV cache on a GPU, at most what gpu_memory_utilization leaves for it; 0: all of that"
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = Field(
        "auto", description="of the KV cache; auto: model.dtype. fp8 holds twice the tokens, and moves log-probs away from the learner's"
    )
    prefix_caching: bool = Field(True, description="siblings share their prompt's KV cache; off in any case with kv_on_update = keep")
    chunked_prefill: bool = Field(True, description="long prompts are read in parts between decoding steps; never on the CPU")
    max_batched_tokens: PositiveInt = Field(8192, description="tokens that one engine step may take; raised to model.max_length")
    cuda_graphs: bool = Field(True, description="decode by recorded CUDA graphs: faster, for some memory and a slower start; GPUs only")
    sleep: bool = Field(
        False,
        description="on one GPU with the learner: give the memory of weights and KV cache back while the learner computes, and take it "
        "again with the next request or new weights, when its share must fit beside the learner at rest; needs driver.max_staleness = 0",
    )
    kv_on_update: Literal["recompute", "keep"] = Field(
        "recompute", description="the KV cache of responses in flight when new weights come; keep: it stays the old weights'"
    )
    limit_s: PositiveFloat = Field(600, description="longest wait for the responses to one prompt")

    @property
    def share_left(self) -> float:
        """What the learner may take of a GPU that it shares with the generator: the rest, less 2 % for both engines' contexts; nearly all
        of it while the generator sleeps."""
        return 0.95 if self.sleep else max(0.02, 0.98 - self.gpu_memory_utilization)


class LearnerSection(Section):
    num_ranks: PositiveInt = Field(1, description="learner actors that share one batch, a GPU or CPU each")
    zero_stage: Literal[1, 2, 3] = Field(1, description="what the ranks divide: 1 optimizer state, 2 gradients too, 3 weights too")
    offload: Literal["none", "optimizer", "all"] = Field("none", description="to host memory: optimizer state, or (ZeRO 3) all")
    learning_rate: PositiveFloat = LEARNING_RATE
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = Field(0, description="optimizer steps over which the learning rate rises from 0")
    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="the same as a share of the stage's steps")
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: PositiveFloat = 1.0
    max_skipped_steps: PositiveInt = Field(3, description="updates in a row that may be skipped for a non-finite loss or gradient")
    micro_batch_tokens: PositiveInt = Field(16384, description="padded tokens that one forward pass may hold")
    logits_chunk_tokens: PositiveInt = Field(4096, description="tokens whose logits are alive at once")
    gradient_checkpointing: bool = False
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    lora_rank: NonNegativeInt = Field(0, description="0 trains all weights; above, LoRA adapters of this rank on every linear layer")
    lora_alpha: PositiveInt = Field(32, description="adapters are scaled by lora_alpha / lora_rank")
    average: Literal["none", "ema", "last_k"] = Field(
        "none",
        description="a stage's model: its last weights, or an average over its updates (of float32 weights, with LoRA of the adapters): "
        "ema, which weighs newer ones more, or last_k, the mean of the last ones; in expert_iteration of each round's",
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.95,
        description="of ema: it reaches about 1 / (1 - ema_decay) updates back, here 20: a stage of 30 to 200 forgets its beginning",
    )
    average_last: Annotated[int, Field(ge=2)] = Field(5, description="of last_k: how many sets of weights; each takes host memory")
    average_every: PositiveInt = Field(1, description="updates from one set of weights that an average takes in to the next")
    num_threads: PositiveInt = 1
    limit_s: PositiveFloat = Field(600, description="longest wait for one training step")

    @property
    def num_averaged_sets(self) -> int:
        """Sets of weights in float32 that an average keeps."""
        match self.average:
            case "none":
                return 0
            case "ema":
                return 1
            case "last_k":
                return self.average_last
            case _:
                assert_never(self.average)


class ScorerSection(Section):
    num_actors: PositiveInt = 1
    num_processes: PositiveInt = Field(1, description="grading processes of one actor: how many answers it grades at once")
    limit_s: PositiveFloat = Field(5.0, description="time for one answer; the process that exceeds it is ended")
    memory_gib: Annotated[float, Field(ge=0.125)] = Field(2.0, description="memory of one grading process; 60 MiB are math-verify itself")


def _rising_points(value: Any) -> Any:
    """A weight as a recipe may give it, before pydantic looks at its types: its own message would name each type that was tried."""
    numbers = (int, float)
    if isinstance(value, numbers) and not isinstance(value, bool):
        return value
    points = list(value) if isinstance(value, list | tuple) else []
    well_formed = bool(points) and all(
        isinstance(point, list | tuple) and len(point) == 2 and all(isinstance(part, numbers) for part in point) for point in points
    )
    steps = [point[0] for point in points] if well_formed else []
    if not steps or steps[0] < 0 or any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError("give a number, or [step, weight] points with rising steps, for example [[0, 0.2], [100, 0.0]]")
    return points


Weight = Annotated[float | list[tuple[int, float]], BeforeValidator(_rising_points)]
"""A number, or [step, weight] points between which it goes in a straight line; before the first and after the last it stays."""


class RewardSection(Section):
    """What a response is paid in training; an evaluation's accuracy never depends on it. The formula is in core/reward_weights.py."""

    function: str = Field("", description="your own reward: module:function or path/file.py:function; core/rewards.py has the forms")
    kwargs: dict[str, Any] = Field({}, description="keyword arguments of reward.function")
    answer: Weight = Field(1.0, description="weight of the answer part: 1 where format and answer are right")
    format: Weight = Field(0.0, description="weight of the format part: 1 where the tag rule (or the box) was kept")
    length: Weight = Field(0.0, description="weight of the length part: of a right answer, the share of generator.max_tokens left over")


class DeviceSection(Section):
    kind: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: GPUs when the cluster has enough of them")
    placement: Literal["separate", "shared"] = Field(
        "separate",
        description="separate: a GPU for each learner rank and each generator. shared: one GPU for the one learner and the one generator, "
        "by fixed shares: generator.gpu_memory_utilization of it is the generator's, the rest the learner's",
    )


class DriverSection(Section):
    max_staleness: NonNegativeInt = Field(0, description="publications that a group may be behind when it is trained on; 0: in turns")
    on_stale: Literal["wait", "drop", "train"] = Field(
        "wait",
        description="wait: admit so that nothing gets too old, consume in order; drop or train: consume what is finished, and drop what is "
        "too old, or train on it with loss.correction",
    )
    in_flight_updates: bool = Field(True, description="new weights in the middle of responses; false: after those in flight have ended")
    weight_transport: Literal["auto", "shared_memory", "object_store", "nccl", "ipc"] = Field(
        "auto",
        description="auto: what the devices allow. shared_memory: all on one node. object_store: that, and Ray's object store to "
        "generators on other nodes",
    )
    canary_every: PositiveInt = Field(1, description="publications from one canary to the next; each makes the learner wait for it")
    max_tries: PositiveInt = Field(3, description="times that a prompt is sent, before it is dropped and counted")
    max_restarts: NonNegativeInt = Field(10, description="generators that one run replaces before it ends, and scorers likewise")
    sync_limit_s: PositiveFloat = Field(120, description="longest wait for one publication of weights")
    start_limit_s: PositiveFloat = Field(300, description="longest wait for the engines to start")
    canary_prompts: PositiveInt = Field(8, description="prompts of the log-prob comparison after each sync")
    canary_max_logprob_diff: PositiveFloat = Field(1e-3, description="a gap beyond this and beyond 3 times the first one ends the run")


class SftSection(Section):
    traces: str = Field(BUILTIN, description='rows of {"prompt", "response"}, as data.train is named')
    num_examples: PositiveInt = Field(512, description="how many traces are used at most, the first ones; a sweep takes all of a file")
    keep: Literal["all", "correct", "best"] = Field("all", description="correct: those graded right; best: best_fraction of them by score")
    best_fraction: Annotated[float, Field(gt=0, le=1)] = 0.6
    sizes: list[PositiveInt | Literal["all"]] = Field([], description='a sweep, e.g. [128, 256, "all"]: the best on validation is kept')
    batch_size: PositiveInt = 16
    epochs: PositiveInt = 1
    learning_rate: PositiveFloat = Field(LEARNING_RATE, description="default: learner.learning_rate")

    @field_validator("sizes", mode="wrap")
    @classmethod
    def _say_what_a_size_is(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:  # which tells each branch of the union by its inner name
            raise ValueError('a list is wanted, of numbers of traces (each at least 1) and "all", e.g. [128, "all"]') from error


class ExpertIterationSection(Section):
    """Rounds of sampling, keeping the best, and SFT on them. A5's sampling and filter are quality = "correct", max_similarity = 1.0 and
    max_per_problem = group_size; what a response is worth is in core/quality.py, what the pool keeps in core/elite_pool.py."""

    rounds: PositiveInt = 5
    questions: PositiveInt = Field(256, description="problems a round; CS336 assignment 5 has 512, 1024 and 2048")
    group_size: PositiveInt = Field(8, description="responses to each (G)")
    temperatures: Annotated[list[PositiveFloat], Field(min_length=1)] = Field(
        [0.8, 1.0, 1.2], description="the ladder that a problem's responses are spread over, in turn"
    )
    min_tokens: NonNegativeInt = Field(4, description="no response ends before this many")
    start: Literal["last_round", "start_model"] = Field(
        "last_round", description="what a round's SFT begins from: the model of the round before, or the stage's start model again"
    )
    epochs: PositiveInt = Field(1, description="passes over the pool in each round")
    batch_size: PositiveInt = 16
    learning_rate: PositiveFloat = Field(LEARNING_RATE, description="default: learner.learning_rate; its schedule is as long as a round")
    capacity: PositiveInt = Field(2000, description="responses that the elite pool holds at most")
    max_per_problem: PositiveInt = Field(4, description="and of one problem")
    max_similarity: Annotated[float, Field(ge=0, le=1)] = Field(
        0.9, description="more alike than this, two responses to a problem are near-duplicates, of which one is kept; 1.0 keeps all"
    )
    threshold: Weight = Field(
        [(1, 0.5), (5, 0.85)], description="quality from which a response is kept: a number, or [round, quality] points that never fall"
    )
    quality: Literal["weighted", "correct"] = Field("weighted", description="correct: 1 for a right answer, 0 for any other")
    weight_correct: PositiveFloat = Field(0.7, description="weighted: of being right; at least weight_format")
    weight_format: Annotated[float, Field(ge=0)] = Field(0.1, description="of the prompt's form")
    weight_length: Annotated[float, Field(ge=0)] = Field(0.1, description="of a right answer's share of generator.max_tokens left over")
    weight_agreement: Annotated[float, Field(ge=0)] = Field(0.1, description="of a right answer's share of siblings that say the same")


class CurriculumSection(Section):
    """Which problems expert iteration and GRPO ask, and when; the rules are in core/problem_memory.py, GRPO's also in
    driver/prompt_stream.py. Each stage begins with an empty memory."""

    order: Literal["shuffled", "level"] = Field("shuffled", description="level: the same problems, easy ones first in each pass")
    skip_after: NonNegativeInt = Field(
        0, description="groups in a row, all solved or all failed by every response, after which a problem is passed over; 0: never"
    )
    retry_after: NonNegativeInt = Field(
        0, description="steps (in expert iteration: rounds) after which a problem that was passed over comes again; 0: never"
    )

    @model_validator(mode="after")
    def _only_what_was_passed_over_comes_again(self) -> Self:
        if self.retry_after and not self.skip_after:
            raise ValueError(f"retry_after = {self.retry_after} without skip_after, which passes problems over: set skip_after, 2 is usual")
        return self


class GrpoSection(Section):
    num_steps: PositiveInt = 50
    num_epochs: NonNegativeInt = Field(0, description="passes over the train problems in place of num_steps, the last batch as it comes")
    dynamic_sampling: bool = Field(False, description="replace zero-variance groups by new prompts (DAPO, Yu et al. 2025, section 3.2)")
    max_replaced: PositiveInt = Field(10, description="with dynamic_sampling: batches' worth of groups that one step may replace")
    prompts_per_step: PositiveInt = 32
    group_size: Annotated[int, Field(ge=2)] = 8
    loss: Method = Field("grpo", description="a method: it sets the keys of [loss] and [advantage] that the recipe does not name")
    minibatches: PositiveInt = Field(1, description="optimizer steps that one batch of rollouts is cut into")
    epochs: PositiveInt = Field(1, description="passes over one batch of rollouts")
    learning_rate: PositiveFloat = Field(LEARNING_RATE, description="default: learner.learning_rate")

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of one batch of rollouts."""
        return self.minibatches * self.epochs


class LossSection(Section):
    """Defaults of the first four keys come from grpo.loss (methods.py); the formulas are in core/losses.py."""

    surrogate: Literal["log_prob", "ratio", "clip", "gspo", "cispo"] = Field("ratio", description="what a token costs")
    aggregation: Literal["sequence", "token", "constant"] = Field("sequence", description="what a token's loss is divided by")
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: PositiveFloat = 0.2
    ratio: Literal["decoupled", "coupled"] = Field("decoupled", description="against the proximal policy, or against the generator")
    correction: Literal["none", "truncated", "masked"] = Field(
        "none", description="importance weight of proximal against generator; truncated where driver.max_staleness is above 0"
    )
    correction_level: Literal["token", "sequence"] = "token"
    correction_low: Annotated[float, Field(ge=0, lt=1)] = Field(0.5, description="masked: smaller weights become 0")
    correction_high: Annotated[float, Field(gt=1)] = Field(2.0, description="truncated: the largest weight; masked: larger ones become 0")
    kl_coefficient: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the KL to the stage's start model")
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the entropy bonus")
    function: str = Field(
        "",
        description="your own loss: module:function or path/file.py:function; replaces all of the above, except that kl_coefficient > 0 "
        "still loads the reference model, which gives it reference_logprobs",
    )
    kwargs: dict[str, Any] = Field({}, description="keyword arguments of loss.function")


class AdvantageSection(Section):
    """Defaults of baseline, divide_by_std and overlong_fraction come from grpo.loss (methods.py)."""

    baseline: Literal["none", "group_mean", "leave_one_out"] = "group_mean"
    divide_by_std: bool = Field(True, description="GRPO divides a group's advantages by their standard deviation, Dr. GRPO does not")
    epsilon: PositiveFloat = 1e-6
    overlong_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="DAPO: over this last share of generator.max_tokens the reward falls by up to 1"
    )
    function: str = Field("", description="your own advantage: module:function or path/file.py:function")
    kwargs: dict[str, Any] = Field({}, description="keyword arguments of advantage.function")


class TrackersSection(Section):
    """Who is told of a run's numbers while it goes on, beside its own files. TensorBoard always is: <run>/tensorboard/."""

    wandb: Literal["auto", "off", "online"] = Field(
        "auto", description="Weights & Biases; auto: offline, under <run>/wandb, where its package is installed; online needs a login"
    )
    wandb_project: str = Field("mathrl_ray", min_length=1, max_length=100, description="the project that runs go to there")
    num_samples: NonNegativeInt = Field(4, description="responses of each evaluation that TensorBoard shows as text; 0: none")


class StudySection(Section):
    stages: Annotated[list[StageName], Field(min_length=1)] = ["baseline", "sft", "sft_filtered", "expert_iteration", "grpo"]
    seeds: list[NonNegativeInt] = Field([], description="values of run.seed, for one run each and their means; none: run.seed alone")
    generated_tokens: NonNegativeInt = Field(
        0,
        description="tokens that expert iteration and GRPO each sample for learning in a study of both, so that they cost the same; a job "
        "without one of them has no such limit; 0: no limit",
    )


class SweepSection(Section):
    """Variants of this recipe, which a job of any stage runs one beside the other in place of the recipe itself. Beside the keys below it
    holds lists of values by recipe key, in quotes: "grpo.learning_rate" = [1e-4, 5e-4]. Names and the rule are in core/sweep.py."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    combine: Literal["grid", "zip"] = Field("grid", description="every value with every other, or the lists row by row")
    seeds: list[NonNegativeInt] = Field([], description="values of run.seed for each setting; none: study.seeds, else run.seed as it is")
    side_by_side: NonNegativeInt = Field(0, description="runs at once at most; 0: as many as the machines have room for")
    end_early: Literal["never", "halving"] = Field(
        "halving", description="halving: settings that are clearly behind at the same step end early; not where steps cost differently"
    )
    keep: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="halving: the share of all settings that goes on in any case")
    seed_sd: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.05, description="halving: by how much a run's validation accuracy differs between training seeds (standard deviation), at least"
    )

    @model_validator(mode="before")
    @classmethod
    def _dotted(cls, values: Any) -> Any:
        """`sweep.grpo.learning_rate=[...]` on the command line means what "grpo.learning_rate" = [...] means in a file."""
        if not isinstance(values, dict):
            return values
        flat: dict[str, Any] = {}
        for key, value in values.items():
            flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        return flat

    @property
    def lists(self) -> dict[str, list[Any]]:
        """The values to try, by recipe key."""
        return dict(self.model_extra or {})
