"""Whether prompts and traces fit model.max_length, told before any engine starts.

Called by job.py. Asks the tokenizer only about texts that could be too long: most are too short to be, whatever the tokenizer does.
"""

from collections.abc import Iterator
from typing import Any
from unicodedata import normalize

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.prompts import fill
from mathrl_ray.stages.inputs import Inputs

TOKENIZER_MARGIN_TOKENS = 4
"""What a tokenizer may add to a text of its own accord: SentencePiece puts a space in front, and byte fallback never splits further."""
MOST_SHOWN = 5


def check_lengths(recipe: Recipe, inputs: Inputs, tokenizer: Any) -> None:
    """Refuse prompts and traces that do not fit model.max_length, by name.

    Raises:
        RecipeError: up to five ids with their lengths, and the settings that would do; or a prompt that this tokenizer cannot make.
    """
    longest_response = max(recipe.generator.max_tokens, recipe.eval.max_tokens)
    room = recipe.model.max_length - longest_response
    try:
        prompts = {
            name: length
            for name, text in _prompts(recipe, inputs, tokenizer)
            if most_tokens(text) > room and (length := _num_tokens(tokenizer, text)) > room
        }
    except ValueError as error:  # a chat prompt for a model without a chat template
        raise RecipeError(str(error)) from error
    if prompts:
        raise RecipeError(
            f"{len(prompts)} prompts are too long: prompt + {longest_response} new tokens must fit model.max_length = "
            f"{recipe.model.max_length}. {_first_ones(prompts)}.\nRaise model.max_length to {max(prompts.values()) + longest_response}, "
            "lower generator.max_tokens and eval.max_tokens, or drop these rows."
        )
    room = recipe.model.max_length - 1  # each trace ends with EOS
    traces = {
        trace.problem_id: length + 1
        for trace in inputs.traces
        if most_tokens(trace.prompt) + most_tokens(trace.response) > room
        and (length := _num_tokens(tokenizer, trace.prompt) + _num_tokens(tokenizer, trace.response)) > room
    }
    if traces:
        raise RecipeError(
            f"{len(traces)} traces are longer than model.max_length = {recipe.model.max_length} tokens: {_first_ones(traces)}.\n"
            f"Raise model.max_length to {max(traces.values())} or drop these rows."
        )


def most_tokens(text: str) -> int:
    """A bound on the tokens of a text, whatever the tokenizer.

    No token of a byte-level or SentencePiece tokenizer is empty, so a text has at most as many as UTF-8 bytes. Some tokenizers normalise
    first (Qwen's with NFC), which can make a character longer, but not longer than its full decomposition, NFKD; ASCII never changes.

    >>> most_tokens("1+1?") - TOKENIZER_MARGIN_TOKENS
    4
    """
    num_bytes = len(text) if text.isascii() else sum(max(_num_bytes(sign), _num_bytes(normalize("NFKD", sign))) for sign in text)
    return num_bytes + TOKENIZER_MARGIN_TOKENS


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _num_tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def _prompts(recipe: Recipe, inputs: Inputs, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """(problem_id, full text) of every prompt that the run may send to an engine."""
    training, first = inputs.prompts[recipe.data.prompt], inputs.prompts[recipe.eval.prompts[0]]
    for problem in inputs.train:
        yield problem.problem_id, fill(training, problem.problem, tokenizer)
    for problem in inputs.validation:
        yield problem.problem_id, fill(first, problem.problem, tokenizer)
    for spec in recipe.eval.prompts:
        for problem in inputs.test:
            yield problem.problem_id, fill(inputs.prompts[spec], problem.problem, tokenizer)


def _first_ones(lengths: dict[str, int]) -> str:
    shown = ", ".join(f"{name} ({length} tokens)" for name, length in list(lengths.items())[:MOST_SHOWN])
    return shown + (f" and {len(lengths) - MOST_SHOWN} more" if len(lengths) > MOST_SHOWN else "")
