"""Whether start model and tokenizer fit each other, and the recipe's prompts, stop strings and lengths.

Called by preflight.py with what start_model.py has read; opens no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from mathrl_ray.commands.findings import Finding, gigabytes
from mathrl_ray.commands.start_model import StartModel
from mathrl_ray.config import Recipe
from mathrl_ray.core.memory_estimate import DTYPE_BYTES
from mathrl_ray.core.prompts import Prompt, fill
from mathrl_ray.stages.inputs import Inputs

NUM_SAMPLED = 32
"""Texts whose tokens are counted for a mean."""
BYTES_PER_TOKEN = 3.0
"""Of mathematical English; a guess where no tokenizer is at hand."""


def check_model(recipe: Recipe, model: StartModel) -> Finding:
    """Its size, and whether model.max_length is one that it knows positions for; vLLM refuses a longer one at its start."""
    width = DTYPE_BYTES[recipe.model.dtype]
    size = f"{model.num_parameters / 1e6:,.4g} M parameters, {gigabytes(width * model.num_parameters)} in {recipe.model.dtype}"
    limit = model.num_positions
    if limit is not None and recipe.model.max_length > limit:
        found = f"the model knows {limit} positions (max_position_embeddings in its config.json)"
        needed = f"model.max_length = {recipe.model.max_length}"
        return Finding("model", "failed", found, needed, f"lower model.max_length to {limit} or less, and what depends on it")
    if model.shape is None:
        kind = model.config.get("model_type", "unknown")
        return Finding("model", "warning", f"{size}; of type {kind}, whose memory is not estimated", "", "watch the first steps' memory")
    return Finding("model", "ok", size, f"{recipe.model.max_length} positions" + ("" if limit is None else f" of {limit}"))


def check_tokenizer(recipe: Recipe, model: StartModel, prompts: Mapping[str, Prompt], example: str) -> Iterator[Finding]:
    """Model, tokenizer, stop strings and prompts together: what would only be seen as a bad accuracy, or as an error in the first step.

    Args:
        recipe: names them.
        model: with its tokenizer.
        prompts: by the recipe's word for each.
        example: a problem's text.
    """
    faults = list(_tokenizer_faults(recipe, model, prompts))
    if faults:
        yield from (Finding("tokenizer", "failed", fault, "", change) for fault, change in faults)
        return
    remarks = list(_prompt_remarks(model.tokenizer, prompts, example))
    yield from (Finding("prompts", "warning", remark, "", "look at the prompt's text, or choose another model.path") for remark in remarks)
    stops = sorted({stop for prompt in prompts.values() for stop in prompt.stop})
    size = "?" if model.num_rows is None else f"{model.num_rows:,}"
    ends = f"responses end at {', '.join(stops)} or EOS" if stops else "responses end at EOS"
    yield Finding("tokenizer", "ok", f"{len(model.tokenizer):,} tokens for {size} rows of the embedding; {ends}")


def _tokenizer_faults(recipe: Recipe, model: StartModel, prompts: Mapping[str, Prompt]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to change)."""
    tokenizer, path, num_rows = model.tokenizer, recipe.model.path, model.num_rows
    same_folder = f"put the model's own tokenizer into the folder of model.path = {path}"
    if num_rows is not None and len(tokenizer) > num_rows:
        yield f"it has {len(tokenizer)} tokens, the model's embedding {num_rows} rows", same_folder
    if tokenizer.eos_token_id is None:
        yield "it has no EOS token, which ends traces and responses", f'set "eos_token" in tokenizer_config.json of model.path = {path}'
    ends = model.generation_config.get("eos_token_id") or []
    if outside := [end for end in (ends if isinstance(ends, list) else [ends]) if not _is_token(end, num_rows)]:
        fault = f"generation_config.json's eos_token_id {outside} is outside of the model's {num_rows} tokens"
        yield fault, f"correct it in model.path = {path}"
    for word, prompt in prompts.items():
        for stop in prompt.stop:
            end = f"</think> <answer> 5 {stop}"  # in the middle of a text: some tokenizers add or drop a space at its beginning
            if end not in (written := _round_trip(tokenizer, f"so it is 5. {end}")):
                yield (
                    f"it cannot write {end!r} (it comes back as {written!r}), so no response to "
                    f"data.prompt or eval.prompts = {word!r} could be right",
                    "set data.prompt and eval.prompts to question_only, or choose another model.path",
                )


def _is_token(value: Any, num_rows: int | None) -> bool:
    return isinstance(value, int) and value >= 0 and (num_rows is None or value < num_rows)


def _prompt_remarks(tokenizer: Any, prompts: Mapping[str, Prompt], example: str) -> Iterator[str]:
    for word, prompt in prompts.items():
        text = fill(prompt, example, tokenizer)
        if _round_trip(tokenizer, text) != text:
            yield f"the tokenizer changes the prompt {word}: an example does not come back as it was (spaces, unknown characters)"


def _round_trip(tokenizer: Any, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def mean_tokens(tokenizer: Any, texts: Sequence[str]) -> float:
    """Mean length of some of the texts, evenly taken; 0.0 of none. Without a tokenizer a guess by their bytes."""
    if not texts:
        return 0.0
    some = texts[:: max(1, len(texts) // NUM_SAMPLED)]
    if tokenizer is None:
        return fmean(len(text.encode()) / BYTES_PER_TOKEN for text in some)
    return fmean(len(tokenizer.encode(text, add_special_tokens=False)) for text in some)


def mean_prompt_tokens(recipe: Recipe, inputs: Inputs, tokenizer: Any) -> float:
    """Of the training prompt, or of the first evaluation prompt where there is nothing to train on."""
    problems = inputs.train or inputs.test
    prompt = inputs.prompts[recipe.data.prompt]
    if tokenizer is None and prompt.name == "chat":
        return mean_tokens(None, [problem.problem for problem in problems])
    some = problems[:: max(1, len(problems) // NUM_SAMPLED)]
    return mean_tokens(tokenizer, [fill(prompt, problem.problem, tokenizer) for problem in some])
