"""A run's token ids as text, without the model and without torch.

Called by show.py. Looks for the tokenizer in the run's folder and its checkpoints, then where the recipe's model is on this machine;
fetches nothing.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mathrl_ray.commands.run_files import checkpoint_names
from mathrl_ray.config import Recipe
from mathrl_ray.data.tiny_model import base_model_folder
from mathrl_ray.recipe_file import is_hub_name
from mathrl_ray.sections import BUILTIN
from mathrl_ray.stages.inputs import BASE_MODEL_SEED

Decode = Callable[[Sequence[int]], str]
FILE = "tokenizer.json"


def decoder(run: Path, recipe: Recipe) -> Decode:
    """What makes text of ids, special tokens included; where there is no tokenizer the ids themselves, and a word to the person."""
    folders = list(_folders(run, recipe))
    for folder in folders:
        if (folder / FILE).is_file():
            return _of_file(folder / FILE)
    for folder in folders:
        if any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json")):
            return _of_folder(folder, recipe)
    looked = ", ".join(map(str, dict.fromkeys(folders)))
    print(
        f"warning: no tokenizer of model.path = {recipe.model.path} is on this machine, so that ids stand in place of texts. "
        f"Looked in {looked}; put its {FILE} into {run}",
        file=sys.stderr,
    )
    return lambda ids: f"[ids {' '.join(map(str, ids))}]"


def _folders(run: Path, recipe: Recipe) -> Iterator[Path]:
    """Where a tokenizer of this run may be."""
    yield run
    yield from (run / "checkpoints" / name for name in checkpoint_names(run))
    if recipe.model.path == BUILTIN:
        for root in (run.resolve().parent, Path(recipe.run.root)):
            yield base_model_folder(root / "cache", seed=BASE_MODEL_SEED)
    elif not is_hub_name(recipe.model.path):
        yield Path(recipe.model.path)
    else:
        from huggingface_hub import try_to_load_from_cache

        for name in (FILE, "tokenizer.model", "vocab.json"):
            if isinstance(found := try_to_load_from_cache(recipe.model.path, name), str):
                yield Path(found).parent


def _of_file(file: Path) -> Decode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    return decode


def _of_folder(folder: Path, recipe: Recipe) -> Decode:
    from mathrl_ray.actors.model_folder import load_tokenizer

    tokenizer = load_tokenizer(str(folder), trust_remote_code=recipe.model.trust_remote_code)
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
