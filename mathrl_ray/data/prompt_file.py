"""The prompt that a recipe's word means: one that comes with mathrl_ray, or a text file of the user's own.

Called by recipe_file.py (--check) and stages/inputs.py. Reads the file; the texts and what follows from them are in core/prompts.py.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mathrl_ray.config import RecipeError
from mathrl_ray.core.prompts import PROMPT_NAMES, Prompt, named_prompt, own_prompt

_FILE_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def load_prompt(spec: str, key: str) -> Prompt:
    """The prompt of a name, or of an absolute path, whose name is then the file's without its suffix.

    Args:
        spec: r1_zero, question_only, chat, or a path.
        key: the recipe's key, for messages.

    Raises:
        RecipeError: no such name or file, no UTF-8, `{question}` not exactly once in it, or a name that is taken or no file name.
    """
    if spec in PROMPT_NAMES:
        return named_prompt(spec)
    file = Path(spec)
    if not file.is_file():
        raise RecipeError(f"{key} = {file.name}: neither {', '.join(PROMPT_NAMES)}, nor a text file that is there (no {file})")
    if not _FILE_NAME.fullmatch(file.stem):
        raise RecipeError(f"{key} = {spec}: its name goes into file names: rename it to letters, digits, '-', '_' and '.' only")
    try:
        return own_prompt(file.stem, file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{key} = {spec}: not UTF-8 ({error})") from error
    except ValueError as error:
        raise RecipeError(f"{key} = {spec}: {error}") from error


def load_prompts(training: str, evaluation: Sequence[str]) -> dict[str, Prompt]:
    """Every prompt of a run, by the recipe's word for it.

    Args:
        training: data.prompt.
        evaluation: eval.prompts.

    Raises:
        RecipeError: as `load_prompt`; two different files with one name, whose evaluations would overwrite each other.
    """
    prompts = {training: load_prompt(training, "data.prompt")}  # first: eval.prompts is by default the same word, which nobody wrote
    prompts |= {spec: load_prompt(spec, "eval.prompts") for spec in evaluation if spec != training}
    names = [prompt.name for prompt in prompts.values()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"data.prompt and eval.prompts name two files called {twice[0]}: rename one, results are kept by that name")
    return prompts
