"""How long a run may take, what it may sample and cost: first from the device's speed, then from its own first steps.

Called by commands/preflight before a run, and by whoever counts steps in one (StepForecast). Pure arithmetic: knows no clock, no recipe.
The first estimate is for orientation, within a factor of two or three; it takes every response at its longest, so it is rather too long.
"""

from dataclasses import dataclass, field
from statistics import median

from mathrl_ray.core.memory_estimate import DTYPE_BYTES, ModelShape, kv_bytes_per_token
from mathrl_ray.core.throughput import peak_flops, training_flops

GPU_EFFICIENCY = 0.4
"""Share of the peak rate that training reaches."""
GPU_BANDWIDTH_EFFICIENCY = 0.6
"""Share of the memory's rate that decoding reaches, log-probs and scheduling included."""
CPU_FLOPS_PER_CORE = {"float32": 75e9, "bfloat16": 150e9}
"""Of one core with AVX-512, measured on an AMD EPYC (torch 2.13): what training and decoding reach."""
CPU_BANDWIDTH = 10e9
CPU_TOKEN_S = 1.4e-4
"""vLLM's own work for a token on one core, whatever the model."""
UNKNOWN_GPU_FLOPS, UNKNOWN_GPU_BANDWIDTH = 100e12, 1e12
BANDWIDTH_TB_PER_S = {"B200": 8.0, "H200": 4.8, "H100 PCIe": 2.0, "H100": 3.35, "A100": 2.0, "L40S": 0.864, "RTX 4090": 1.008, "A10": 0.6}
"""From the vendor's data sheets; the first that a device's name holds."""
NUM_MEASURED = 3
"""Steps after which what was measured replaces what was estimated."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What one engine's device does in a second."""

    flops: float
    """Floating-point operations of training and of decoding."""
    bandwidth: float
    """Bytes that decoding reads."""
    token_s: float = 0.0
    """Seconds a sampled token costs beside the model."""


def speeds(gpu_name: str, dtype: str, num_threads: int = 1) -> Speeds:
    """Of a GPU by its name, or of `num_threads` cores where the name is "".

    >>> speeds("NVIDIA H100 80GB HBM3", "bfloat16").bandwidth
    2010000000000.0
    """
    if not gpu_name:
        return Speeds(CPU_FLOPS_PER_CORE[dtype] * num_threads, CPU_BANDWIDTH * num_threads, CPU_TOKEN_S)
    flops = (peak_flops(gpu_name) or UNKNOWN_GPU_FLOPS) * (1 if dtype == "bfloat16" else 0.5)
    bandwidth = next((rate * 1e12 for name, rate in BANDWIDTH_TB_PER_S.items() if name in gpu_name), UNKNOWN_GPU_BANDWIDTH)
    return Speeds(GPU_EFFICIENCY * flops, GPU_BANDWIDTH_EFFICIENCY * bandwidth)


def sampled_tokens_per_s(shape: ModelShape, dtype: str, device: Speeds, *, batch: int, context: float) -> float:
    """Tokens that one generator decodes in a second: batch / (read (w P + batch context k) + compute 2 P batch + own work).

    One decoding step reads the weights once and every sequence's keys and values, k bytes a token (Pope et al. 2022, section 2), and
    computes 2 P operations a token; the longer of the two counts.

    Args:
        shape: of the model, with P parameters of w bytes.
        dtype: of weights and cache.
        device: one generator's.
        batch: sequences decoded at once.
        context: their mean tokens so far.
    """
    read_s = (DTYPE_BYTES[dtype] * shape.num_parameters + batch * context * kv_bytes_per_token(shape, dtype)) / device.bandwidth
    compute_s = 2 * shape.num_parameters * batch / device.flops
    return batch / (max(read_s, compute_s) + batch * device.token_s)


def trained_tokens_per_s(shape: ModelShape, device: Speeds, *, mean_length: float, num_ranks: int = 1, recomputes: bool = False) -> float:
    """Tokens that forward and backward take in a second; gradient checkpointing adds a forward pass, a third."""
    flops = training_flops(shape.num_parameters, shape.num_layers, shape.hidden_size, 1, mean_length)
    return device.flops * num_ranks / (flops * (4 / 3 if recomputes else 1))


@dataclass
class StepForecast:
    """What is left of a stage's steps: as estimated, until three were measured, and as measured from then on.

    Fed once a step, in order. The median of all steps counts, so that neither a first slow step nor one with a validation misleads.

    >>> forecast = StepForecast(num_steps=10, estimated_step_s=5.0)
    >>> for seconds in (4.0, 2.0, 2.0): forecast.measured(seconds, generated_tokens=100)
    >>> forecast.step_s, forecast.left_s, forecast.generated_tokens
    (2.0, 14.0, 1000)
    """

    num_steps: int
    estimated_step_s: float
    estimated_step_tokens: int = 0
    price_per_hour: float = 0.0
    """0: no price is known."""
    _seconds: list[float] = field(default_factory=list)
    _tokens: int = 0

    def measured(self, step_s: float, generated_tokens: int = 0, num_left: int | None = None) -> None:
        """A step has ended.

        Args:
            step_s: since the one before ended.
            generated_tokens: sampled for it.
            num_left: how many follow, where that is known better by now: a resumed stage has made some before.
        """
        self._seconds.append(step_s)
        self._tokens += generated_tokens
        if num_left is not None:
            self.num_steps = len(self._seconds) + num_left

    @property
    def is_corrected(self) -> bool:
        return len(self._seconds) >= NUM_MEASURED

    @property
    def step_s(self) -> float:
        return median(self._seconds) if self.is_corrected else self.estimated_step_s

    @property
    def left_s(self) -> float:
        return self.step_s * max(0, self.num_steps - len(self._seconds))

    @property
    def generated_tokens(self) -> int:
        """Of all the stage's steps."""
        a_step = self._tokens / len(self._seconds) if self.is_corrected else self.estimated_step_tokens
        return round(a_step * self.num_steps)

    @property
    def total_s(self) -> float:
        return sum(self._seconds) + self.left_s

    @property
    def cost(self) -> float | None:
        """Of the whole stage's steps, in the price's currency; None without a price."""
        return self.total_s / 3600 * self.price_per_hour if self.price_per_hour else None

    def correction(self) -> str:
        """One line for a person at the step that ends the measurement, "" at every other."""
        if len(self._seconds) != NUM_MEASURED:
            return ""
        cost = "" if self.cost is None else f", cost {self.cost:.2f}"
        return (
            f"{NUM_MEASURED} steps measured: {self.step_s:.3g} s a step (estimated {self.estimated_step_s:.3g} s), "
            f"{duration(self.left_s)} to go; all {self.num_steps}: {duration(self.total_s)}{cost}, "
            f"{self.generated_tokens:,} generated tokens"
        )


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage before it runs."""

    name: str
    num_steps: int
    step_s: float
    step_tokens: int = 0
    """Sampled for one step, at most."""
    evaluation_tokens: int = 0
    """Sampled for the evaluation at the end and all validations, at most."""
    evaluation_s: float = 0.0
    most_tokens: int | None = None
    """Of all steps, where a budget may end them before; num_steps is then at most."""

    @property
    def total_s(self) -> float:
        return self.num_steps * self.step_s + self.evaluation_s

    @property
    def generated_tokens(self) -> int:
        tokens = self.num_steps * self.step_tokens
        return (tokens if self.most_tokens is None else min(tokens, self.most_tokens)) + self.evaluation_tokens

    def forecast(self, price_per_hour: float = 0.0) -> StepForecast:
        """Of its steps, to be corrected by them."""
        return StepForecast(self.num_steps, self.step_s, self.step_tokens, price_per_hour)


def duration(seconds: float) -> str:
    """
    >>> duration(50), duration(600), duration(7200)
    ('50 s', '10.0 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
