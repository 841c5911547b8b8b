"""A language model seen as a policy of reinforcement learning: a state is a text, an action a token, an episode one response.

For teaching and inspection: called from notebooks and by hand, by no stage (those use actors/generator.py, which is many times faster);
commands/replayed_step.py asks it which ids end a response.
Knows transformers and one model in this process; no engine, no Ray, no recipe.

    prompt --State--> sample_action --token id--> next_state --State--> sample_action --> ...  until `</answer>`, EOS or max_steps
                      one forward pass of what the KV cache lacks: one token where the state grew by one
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from mathrl_ray.core.logprobs import adjust_logits, selected_log_probs
from mathrl_ray.device import DeviceKind, attention_implementation

STOP = "</answer>"
REPLACEMENT_CHARACTER = "\ufffd"
"""What decoding makes of bytes that are no character, or none yet."""


class State(str):
    """A text that knows the token ids it was made of, so that ids that were sampled are never made from text again.

    Wherever a text will do, it is one; what is made of it by text operations (`state + "x"`) is a plain text without ids.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """All sampled ids. The text may lag behind them by the bytes of a character that is not complete, and leaves out special tokens."""

    @property
    def response(self) -> str:
        """The text behind the prompt: what a reward function of one response wants."""
        return self[len(self.prompt) :]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids


def start_state(tokenizer: Any, prompt: str) -> State:
    """The state before the first action."""
    return _state(prompt, prompt, tuple(tokenizer.encode(prompt, add_special_tokens=False)), ())


def next_state(tokenizer: Any, state: State, action: int) -> State:
    """The state after an action: all response ids are decoded together, since a character's bytes may be spread over tokens.

    The bytes of a character that is not complete wait until it is, so the text of a state always begins the text of the next. Special
    tokens, EOS among them, add an id and no text.
    """
    response_ids = (*state.response_ids, action)
    # Decoded with the prompt in front: some tokenizers drop the space before a text's first word.
    start = len(_decode(tokenizer, state.prompt_ids))
    response = _decode(tokenizer, state.prompt_ids + response_ids)[start:].rstrip(REPLACEMENT_CHARACTER)
    return _state(state.prompt + response, state.prompt, state.prompt_ids, response_ids)


def _state(text: str, prompt: str, prompt_ids: tuple[int, ...], response_ids: tuple[int, ...]) -> State:
    state = State(text)
    state.prompt, state.prompt_ids, state.response_ids = prompt, prompt_ids, response_ids
    return state


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a response, as vLLM finds them too: those of the model's generation config, and the tokenizer's EOS."""
    of_model = model.generation_config.eos_token_id
    ids = of_model if isinstance(of_model, list) else [of_model]
    return frozenset(token_id for token_id in (*ids, tokenizer.eos_token_id) if token_id is not None)


class LanguageModelAsPolicy:
    """pi(action | state): sampling from it, and its log-probabilities, in nats.

    Both keep the keys and values of the last text in a KV cache and feed the model only what that text lacks. The cache is emptied when
    torch has counted a change of the weights since, or `.model` is another one, so `.model` may be trained in between. What writes past
    that count, to `.data` or to buffers of its own as DeepSpeed does, must be followed by `forget()`.
    """

    def __init__(
        self,
        model_path: str,
        *,
        device: str | None = None,
        dtype: str | None = None,
        attention: str = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        """
        Args:
            model_path: a folder or hub name that AutoModelForCausalLM opens.
            device: a torch device; by default "cuda" where there is one, else "cpu".
            dtype: a torch dtype's name; by default bfloat16 on a GPU and float32 elsewhere.
            attention: a name of transformers'; "auto" takes FlashAttention-2 where it works, else sdpa.
            trust_remote_code: run Python code that comes with the model.
        """
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind: DeviceKind = "cuda" if self.device.type == "cuda" else "cpu"
        dtype = dtype or ("bfloat16" if kind == "cuda" else "float32")
        implementation, _ = attention_implementation(attention, kind, dtype)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust_remote_code)
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_path,
            dtype=getattr(torch, dtype),
            attn_implementation=implementation,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
        self.model: Any = model.to(self.device).eval()
        self.forget()

    def forget(self) -> None:
        """Empty the KV cache."""
        self._cached_ids: list[int] = []
        self._cache: Any = None
        self._cached_weights: tuple[Any, int] | None = None

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end a response."""
        return stop_token_ids(self.model, self.tokenizer)

    def sample_action(
        self,
        state: str,
        *,
        temperature: float = 1.0,
        greedy: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> int:
        """The id of one token, drawn from softmax(logits / temperature) after the state.

        Args:
            state: a State, or a plain text, which is then tokenised.
            temperature: 0 is greedy, as in vLLM, and so is `greedy`: the most probable token, of equal ones the first.
            greedy: see above.
            seed: for this one token; a whole rollout wants one generator, or every token would get the same draw.
            generator: where chance comes from; by default torch's global one.

        Raises:
            ValueError: a state without any token, a negative temperature, or both seed and generator.
        """
        if seed is not None:
            if generator is not None:
                raise ValueError(f"sample_action takes a seed or a generator, got seed = {seed} and a generator")
            generator = torch.Generator().manual_seed(seed)
        logits = self._logits(self._ids(state), num_last=1)
        adjusted = adjust_logits(
            logits, temperature=temperature, response_position=torch.zeros(1, device=self.device), min_tokens=0, stop_token_ids=()
        )
        if greedy or temperature == 0:
            return int(logits.argmax())
        # On the CPU unless the caller's generator is elsewhere: the draw of a seed does not depend on the device.
        probabilities = adjusted.softmax(dim=-1).to("cpu" if generator is None else generator.device)
        return int(torch.multinomial(probabilities, num_samples=1, generator=generator))

    def log_prob(self, state: str, action: int | str) -> float:
        """log pi(action | state) at temperature 1, the sum over the action's tokens.

        Args:
            state: a State, or a plain text, which is then tokenised.
            action: a token id, or a text of any number of tokens, tokenised apart from the state as a response is.

        Raises:
            ValueError: a state or an action without any token, or an id that the model does not have.
        """
        action_ids = self.tokenizer.encode(action, add_special_tokens=False) if isinstance(action, str) else [int(action)]
        num_ids = self.model.config.vocab_size
        if not action_ids or not all(0 <= token_id < num_ids for token_id in action_ids):
            raise ValueError(f"an action is an id below {num_ids} or a text of at least one token, got {action!r}")
        logits = self._logits(self._ids(state) + action_ids[:-1], num_last=len(action_ids))
        return float(selected_log_probs(logits, torch.tensor(action_ids, device=self.device)).double().sum())

    def _ids(self, state: str) -> list[int]:
        ids = list(state.token_ids) if isinstance(state, State) else self.tokenizer.encode(state, add_special_tokens=False)
        if not ids:
            raise ValueError("a state needs at least one token, from which the model predicts the next: give a prompt")
        return ids

    @torch.no_grad()
    def _logits(self, ids: list[int], num_last: int) -> Tensor:
        """[num_last, V] logits behind each of the last ids."""
        num_kept = self._keep_common_prefix(ids, at_most=len(ids) - num_last)
        new_ids = torch.tensor([ids[num_kept:]], device=self.device)
        # Empty until the pass is through: after an error in it, nothing says how far the cache got.
        cache, self._cached_ids = self._cache, []
        output = self.model(input_ids=new_ids, past_key_values=cache, use_cache=True, logits_to_keep=num_last)
        # All of them, or none where the model makes no use of a cache (gradient checkpointing while it is in training mode).
        self._cached_ids = ids[: cache.get_seq_length()]
        return output.logits[0]

    def _keep_common_prefix(self, ids: list[int], at_most: int) -> int:
        """Cut the cache back to what it shares with `ids`, and return how many tokens that is."""
        weights = self._weights()
        num_kept = _length_of_common_prefix(self._cached_ids, ids, at_most) if weights == self._cached_weights else 0
        if num_kept and num_kept < len(self._cached_ids):
            if self._cache.is_croppable and not any(self._cache.is_sliding):
                self._cache.crop(num_kept - len(self._cached_ids))
            else:  # a sliding window has forgotten what it would have to go back to
                num_kept = 0
        if num_kept == 0:
            self._cache = DynamicCache(config=self.model.config)
        self._cached_weights = weights
        return num_kept

    def _weights(self) -> tuple[Any, int]:
        """Another value after every change in place (torch counts them) and for another model, even at the same address."""
        return weakref.ref(self.model), sum(parameter._version for parameter in self.model.parameters())


def _length_of_common_prefix(left: Sequence[int], right: Sequence[int], at_most: int) -> int:
    length = 0
    while length < min(len(left), len(right), at_most) and left[length] == right[length]:
        length += 1
    return length


class Policy(Protocol):
    """What a rollout asks of a policy; `LanguageModelAsPolicy` has it."""

    tokenizer: Any

    @property
    def stop_token_ids(self) -> frozenset[int]: ...

    def sample_action(
        self, state: str, *, temperature: float = ..., greedy: bool = ..., generator: torch.Generator | None = ...
    ) -> int: ...


class Transition(TypedDict):
    """One step of an episode."""

    state: str
    action: int
    reward: float
    new_state: str


RewardFn = Callable[[str, str], float | Mapping[str, float]]
"""(prompt, final state) -> the reward, or a dict that holds it as "reward". The final state begins with the prompt."""


class RolloutWorker:
    """Lets a policy act until its response ends, and asks for the reward then.

    A reward function of responses wants the response only: the r1_zero prompt itself names the tags, and would earn their reward. So
    `RolloutWorker(policy, lambda prompt, state: r1_zero_reward_fn(state.removeprefix(prompt), gold))`.
    """

    def __init__(self, policy: Policy, reward_fn: RewardFn, max_steps: int = 1024) -> None:
        """
        Args:
            policy: usually a LanguageModelAsPolicy.
            reward_fn: called once a rollout, at its end.
            max_steps: most tokens of a response.

        Raises:
            ValueError: max_steps below 1.
        """
        if max_steps < 1:
            raise ValueError(f"max_steps = {max_steps}: a rollout has at least 1 step")
        self.policy = policy
        self.reward_fn = reward_fn
        self.max_steps = max_steps

    def generate_rollout(self, prompt: str, *, temperature: float = 1.0, greedy: bool = False, seed: int | None = None) -> list[Transition]:
        """One episode, a step a token: it ends behind `</answer>` in the response, at an EOS, or after max_steps.

        Args:
            prompt: the full prompt text.
            temperature, greedy: as in sample_action.
            seed: of the whole rollout; by default torch's global generator is used.

        Returns:
            The steps. Rewards are 0.0 but for the last step's, which is reward_fn(prompt, last new_state), however the rollout ended.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        state = start_state(self.policy.tokenizer, prompt)
        trajectory: list[Transition] = []
        while len(trajectory) < self.max_steps and not self._has_ended(state):
            action = self.policy.sample_action(state, temperature=temperature, greedy=greedy, generator=generator)
            new_state = next_state(self.policy.tokenizer, state, action)
            trajectory.append({"state": state, "action": action, "reward": 0.0, "new_state": new_state})
            state = new_state
        trajectory[-1]["reward"] = _number(self.reward_fn(prompt, state))
        return trajectory

    def _has_ended(self, state: State) -> bool:
        """Looks at the response only: the r1_zero prompt holds `</answer>` too."""
        return STOP in state.response or (bool(state.response_ids) and state.response_ids[-1] in self.policy.stop_token_ids)


def _number(reward: float | Mapping[str, float]) -> float:
    return float(reward["reward"] if isinstance(reward, Mapping) else reward)
