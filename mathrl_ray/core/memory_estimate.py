"""How much memory a learner and a KV cache will take, from a model's shape and a recipe's numbers.

Called by commands/preflight before anything is loaded. Pure arithmetic: knows no tensor, no file and no recipe. A decoder of Llama's kind
is meant (RMSNorm, rotary positions, grouped queries, gated MLP: Llama, Qwen2, Qwen3, Mistral, SmolLM); others come out roughly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
FLOAT32_BYTES = 4
GRADIENT_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's reduce_bucket_size, which is allocated whole on a GPU; on a CPU only pages that are written to count."""
SENDING_BUFFER_BYTES = 2 * 256 * 2**20
"""What packing holds beside the copy of the weights that is sent: nccl two of weight_sync/sender.py's buffers, ipc one."""
LOGIT_COPIES = 4
"""float32 tensors [chunk, V] alive at once: logits, log-softmax, its exponential, their product (core/logprobs.token_entropy)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model's config decides its memory.

    Example: ModelShape(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_layers=28, num_heads=12, num_kv_heads=2,
                        head_size=128, tied=True, attention_bias=True)
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    tied: bool
    """Whether the head is the embedding."""
    attention_bias: bool = False

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def key_size(self) -> int:
        """Of the keys, and of the values, of one token in one layer."""
        return self.num_kv_heads * self.head_size

    @property
    def num_parameters(self) -> int:
        """Embedding, head unless tied, and a layer's q, k, v, o (with biases on the first three), three MLP matrices and two norms.

        >>> ModelShape(49152, 576, 1536, 30, 9, 3, 64, tied=True).num_parameters
        134515008
        """
        hidden, projected = self.hidden_size, self.query_size + 2 * self.key_size
        attention = hidden * projected + self.query_size * hidden + self.attention_bias * projected
        layer = attention + 3 * hidden * self.intermediate_size + 2 * hidden
        return (1 if self.tied else 2) * self.vocab_size * hidden + self.num_layers * layer + hidden

    def num_adapter_parameters(self, rank: int) -> int:
        """Of LoRA adapters on every linear layer but the head: rank (inputs + outputs) each (Hu et al. 2021, section 4.1)."""
        hidden = self.hidden_size
        sizes = 2 * (hidden + self.query_size) + 2 * (hidden + self.key_size) + 3 * (hidden + self.intermediate_size)
        return self.num_layers * rank * sizes


def model_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a transformers config.json tells; None where it lacks a number that is needed, so it is no model of Llama's kind.

    Raises:
        ValueError: a number is there that no model can have; it names the key.
    """
    if any(key not in config for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")):
        return None
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    if hidden < heads and config.get("head_dim") is None:
        raise ValueError(f"hidden_size = {hidden} is less than num_attention_heads = {heads}")
    return ModelShape(
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(config, "intermediate_size"),
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_size(config, "num_key_value_heads", default=heads),
        head_size=_size(config, "head_dim", default=hidden // heads),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
    )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} = {value!r} is no size: an integer of 1 or more is wanted")
    return value


def kv_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Keys and values of one token in all layers: 2 L (kv heads) (head size) (bytes of a number) (Kwon et al. 2023, section 3).

    >>> kv_bytes_per_token(ModelShape(151936, 1536, 8960, 28, 12, 2, 128, tied=True), "bfloat16")
    28672
    """
    return 2 * shape.num_layers * shape.key_size * DTYPE_BYTES[dtype]


def activation_bytes_per_token(
    shape: ModelShape, dtype: str, *, attention: Literal["fused", "eager"] = "fused", length: int = 1, checkpointing: bool = False
) -> int:
    """What the forward pass of all layers keeps of one token for the backward pass.

    As Korthikanti et al. 2022 (section 4.1) count it, for a layer of Llama's kind in transformers, h hidden, q query, k key, i MLP size, a
    heads, w bytes of a number:

        norms    2 * (4 h + 4 + 2 w h)    the input in float32, its inverse root, the normalised input and the norm's output
        attention    w (2 q + 2 k) + 4 a    rotated q and k, v, the output, and the log of the softmax's denominator
                     eager: 4 w q + a T (4 + w), keys and values a head each, and the softmax over T tokens in float32,
                     which is cast where w is less
        MLP          4 w i                  gate, its activation, up, and their product

    With gradient checkpointing only a layer's input stays, w h, and one layer at a time is computed again, which `learner_memory` adds.

    Args:
        shape: of the model.
        dtype: of weights and activations.
        attention: fused stands for sdpa and FlashAttention, which keep no scores.
        length: tokens of the sequence; matters for eager attention.
        checkpointing: learner.gradient_checkpointing.
    """
    width = DTYPE_BYTES[dtype]
    if checkpointing:
        return shape.num_layers * width * shape.hidden_size
    return shape.num_layers * _layer_bytes_per_token(shape, width, attention, length)


def _layer_bytes_per_token(shape: ModelShape, width: int, attention: str, length: int) -> int:
    norms = 2 * (FLOAT32_BYTES * (shape.hidden_size + 1) + 2 * width * shape.hidden_size)
    if attention == "eager":
        cast = width if width < FLOAT32_BYTES else 0
        kept = 4 * width * shape.query_size + shape.num_heads * length * (FLOAT32_BYTES + cast)
    else:
        kept = width * (2 * shape.query_size + 2 * shape.key_size) + FLOAT32_BYTES * shape.num_heads
    return norms + kept + 4 * width * shape.intermediate_size


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The numbers of a recipe that decide one rank's memory."""

    dtype: str
    max_length: int
    micro_batch_tokens: int
    logits_chunk_tokens: int
    gradient_checkpointing: bool = False
    attention: Literal["fused", "eager"] = "fused"
    num_ranks: int = 1
    zero_stage: int = 1
    offload: Literal["none", "optimizer", "all"] = "none"
    lora_rank: int = 0
    has_reference: bool = False
    """A second copy of the start model is loaded for the KL (loss.kl_coefficient)."""
    on_gpu: bool = False
    sends_weights: bool = False
    """From GPU to GPU, of a copy of all weights on the learner's; else they are written into the host's shared memory."""
    num_averaged_sets: int = 0
    """Float32 copies of the trained weights that learner.average keeps, on the host."""
    num_rows: int | None = None
    """Of the largest batch; 0: nothing is trained. None: more than a micro-batch holds."""

    @property
    def longest_tokens(self) -> int:
        """Tokens of the largest micro-batch: full, since sequences may have any length (core/batching.py), or all rows at their longest."""
        return self.micro_batch_tokens if self.num_rows is None else min(self.micro_batch_tokens, self.num_rows * self.max_length)


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Bytes of one rank on its device, beside what the process itself and its libraries take."""

    weights: int
    reference: int
    optimizer: int
    """Masters and both moments."""
    gradients: int
    """In the backward pass: what was added up before, and the present micro-batch's; and DeepSpeed's bucket where it is allocated whole."""
    step: int
    """In the optimizer step, when gradients of the model's dtype are gone: the float32 gradient and AdamW's temporaries."""
    activations: int
    logits: int
    kept: int = 0
    """On a CPU, where blocks that the backward pass has freed stay with the process: activations and logits, in the step as well."""
    staged: int = 0
    """The copy of all weights that is sent to generators, and the buffers that it is packed into; on the first rank."""
    host: int = 0
    """What lies in the host's memory in any case: what offload moves there, and what learner.average keeps."""

    @property
    def at_rest(self) -> int:
        """Between steps, when gradients are gone: while weights are published, and generators work."""
        return self.weights + self.reference + self.optimizer + self.staged

    @property
    def backward_peak(self) -> int:
        return self.at_rest + self.gradients + self.activations + self.logits

    @property
    def step_peak(self) -> int:
        return self.at_rest + self.step + self.kept

    @property
    def peak(self) -> int:
        """The larger of the backward pass's and the step's."""
        return max(self.backward_peak, self.step_peak)

    def parts(self) -> dict[str, int]:
        """What the peak is made of, by name, largest first."""
        of_step = self.step_peak > self.backward_peak
        left_out = {"host", *(("gradients", "activations", "logits") if of_step else ("step", "kept"))}
        named = {field.name: int(getattr(self, field.name)) for field in fields(self) if field.name not in left_out}
        return dict(sorted(((name, size) for name, size in named.items() if size), key=lambda item: -item[1]))


def learner_memory(shape: ModelShape, settings: LearnerSettings, num_parameters: int = 0) -> LearnerMemory:
    """One rank's memory at its largest micro-batch; where nothing is trained, activations and logits are 0.

    With P parameters of which N are trained, w bytes of a number and R ranks (Rajbhandari et al. 2020, section 3.1, and DeepSpeed 0.19's
    stage_1_and_2.py, which keeps float32 masters beside float32 weights too):

        weights      w P    (/ R under ZeRO 3)
        optimizer    12 N / R    masters and two moments in float32
        gradients    2 w N  (/ R from ZeRO 2 on), and a bucket of 5e8 numbers on a GPU
        step         4 N / R, the flat gradient, and 8 N / R (4 N / R on a GPU) that torch's AdamW makes for its denominator
        activations  (see activation_bytes_per_token) a token; one layer's MLP gradients more, 3 w i; checkpointing: one layer's
        logits       4 float32 tensors [chunk, V], and the head's weight gradient, w V H, before it is added
        staged       w P, and buffers, where weights go from GPU to GPU
        averages     4 N / R on the host for each set of weights that is kept (learner.average), and once more while it is saved or used
        kept         on a CPU activations and logits again, beside the step: the C library keeps freed blocks (a GPU's allocator uses them)

    Args:
        shape: of the model.
        settings: of the recipe.
        num_parameters: where the weights' files tell; default: the shape's.
    """
    width, ranks = DTYPE_BYTES[settings.dtype], settings.num_ranks
    total = num_parameters or shape.num_parameters
    trained = shape.num_adapter_parameters(settings.lora_rank) if settings.lora_rank else total
    weights = width * total // (ranks if settings.zero_stage == 3 else 1)
    gradients = 2 * width * trained // (ranks if settings.zero_stage >= 2 else 1)
    gradients += width * GRADIENT_BUCKET_ELEMENTS if settings.on_gpu else 0
    optimizer = 3 * FLOAT32_BYTES * trained // ranks
    step = (2 if settings.on_gpu else 3) * FLOAT32_BYTES * trained // ranks
    host = 0
    if settings.offload != "none":
        host, optimizer, step = optimizer + step, 0, 0
    if settings.offload == "all":
        host, weights = host + weights, 0
    if settings.num_averaged_sets:
        host += (settings.num_averaged_sets + 1) * FLOAT32_BYTES * trained // ranks
    activations, logits = _activations(shape, settings), _logits(shape, settings)
    return LearnerMemory(
        weights=weights,
        reference=width * total if settings.has_reference else 0,
        optimizer=optimizer,
        gradients=gradients,
        step=step,
        activations=activations,
        logits=logits,
        kept=0 if settings.on_gpu else activations + logits,
        staged=width * total + SENDING_BUFFER_BYTES if settings.sends_weights else 0,
        host=host,
    )


def _activations(shape: ModelShape, settings: LearnerSettings) -> int:
    width = DTYPE_BYTES[settings.dtype]
    kept = activation_bytes_per_token(
        shape, settings.dtype, attention=settings.attention, length=settings.max_length, checkpointing=settings.gradient_checkpointing
    )
    once = 3 * width * shape.intermediate_size
    if settings.gradient_checkpointing:
        once += _layer_bytes_per_token(shape, width, settings.attention, settings.max_length)
    return settings.longest_tokens * (kept + once)


def _logits(shape: ModelShape, settings: LearnerSettings) -> int:
    if settings.num_rows == 0:
        return 0
    chunk = min(settings.logits_chunk_tokens, settings.longest_tokens)
    head_gradient = DTYPE_BYTES[settings.dtype] * shape.vocab_size * shape.hidden_size if settings.lora_rank == 0 else 0
    return LOGIT_COPIES * FLOAT32_BYTES * chunk * shape.vocab_size + head_gradient
