"""Prompts over a limit of tokens, for `check-data --max-prompt-tokens`.

Called by check_data.py. Loads a tokenizer from a folder; loads no model.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mathrl_ray.core.prompts import fill
from mathrl_ray.data.gold_lint import Fault
from mathrl_ray.data.prompt_file import load_prompt
from mathrl_ray.data.rows import DataError
from mathrl_ray.types import Problem

Lengths = Callable[[Sequence[Problem]], list[int]]
"""Problems -> the tokens of each one's full prompt."""


def prompt_lengths(prompt_name: str, tokenizer_folder: str) -> Lengths:
    """How to measure prompts.

    Args:
        prompt_name: r1_zero, question_only, chat, or a text file with {question} in it.
        tokenizer_folder: what AutoTokenizer opens.

    Raises:
        ValueError: no such prompt, a folder without a tokenizer, or a chat prompt for one without a chat template.
    """
    prompt = load_prompt(prompt_name, "--prompt")
    tokenizer = _tokenizer(tokenizer_folder)
    fill(prompt, "", tokenizer)

    def lengths(problems: Sequence[Problem]) -> list[int]:
        texts = [fill(prompt, problem.problem, tokenizer) for problem in problems]
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []

    return lengths


def over_long(problems: Sequence[Problem], lengths: Lengths, limit_tokens: int) -> list[Fault]:
    """The problems whose full prompt has more tokens than the limit.

    >>> problems = [Problem("a", "1+1?", "2"), Problem("b", "1?", "1")]
    >>> [fault.reason for fault in over_long(problems, lambda them: [len(problem.problem) for problem in them], 3)]
    ['its prompt has 4 tokens, over the limit of 3']
    """
    return [
        Fault("prompt_too_long", (problem.problem_id,), f"its prompt has {length} tokens, over the limit of {limit_tokens}", (problem,))
        for problem, length in zip(problems, lengths(problems), strict=True)
        if length > limit_tokens
    ]


def _tokenizer(folder: str) -> Any:
    if not Path(folder).is_dir():
        raise DataError(f"--tokenizer = {folder}: no such folder")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # border: transformers raises many kinds; each means that there is no tokenizer to be had
        raise DataError(f"--tokenizer = {folder}: no tokenizer can be loaded from it: {type(error).__name__}: {error}") from error
