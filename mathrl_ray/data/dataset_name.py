"""What a recipe's word for a data set means: a file, the built-in task, or a name or folder for the `datasets` library.

Called by recipe_file.py (paths, --check) and by rows.py (reading). Light: imports no engine and opens no file's content.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mathrl_ray.config import RecipeError
from mathrl_ray.sections import BUILTIN

ROW_SUFFIXES = (".jsonl", ".parquet")
_OTHER_FILE_SUFFIXES = (".json", ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst", ".zip")
_FORM = re.compile(r"(?P<name>[^:@#]+)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?")
FORM = "NAME[:CONFIG][@REVISION][#SPLIT]"


@dataclass(frozen=True, slots=True)
class DatasetName:
    """What `datasets.load_dataset` is asked for.

    Example: DatasetName("openai/gsm8k", config="main", revision=None, split="train")
    """

    name: str
    """On the hub, or an absolute folder."""
    config: str | None
    revision: str | None
    split: str | None
    """None: the key's own."""

    @property
    def is_folder(self) -> bool:
        return os.path.isabs(self.name)


def parse_dataset_name(spec: str, key: str) -> DatasetName:
    """The parts of NAME[:CONFIG][@REVISION][#SPLIT]; NAME may be a folder, in whose path `:`, `@` and `#` are allowed when it exists.

    Args:
        spec: as in the recipe.
        key: the recipe's key, for messages.

    Raises:
        RecipeError: not of this form, or a folder with a revision, which no folder has.

    >>> parse_dataset_name("openai/gsm8k:main@refs/pr/1#train[:100]", "data.train")
    DatasetName(name='openai/gsm8k', config='main', revision='refs/pr/1', split='train[:100]')
    """
    if os.path.isdir(spec):
        return DatasetName(spec, None, None, None)
    match = _FORM.fullmatch(spec)
    if match is None:
        raise RecipeError(f"{key} = {spec!r}: name a .jsonl or .parquet file, {BUILTIN}, or a data set as {FORM}")
    name = DatasetName(match["name"], match["config"], match["revision"], match["split"])
    if name.is_folder and name.revision:
        raise RecipeError(f"{key} = {spec}: a folder has no revision: remove @{name.revision}")
    return name


def is_row_file(spec: str) -> bool:
    """Whether a word can only mean a file, by its suffix; whether such a file can be read is another question."""
    return Path(spec).suffix.lower() in ROW_SUFFIXES + _OTHER_FILE_SUFFIXES


def absolute_spec(spec: str, folder: Path) -> str:
    """A recipe's word with its path made absolute; a name on a hub (and builtin:arithmetic) stays as it is.

    A path is what has a file's suffix, begins with `.`, `/` or `~`, exists in the recipe's folder, or has more than one slash.
    """
    if spec in ("", BUILTIN):
        return spec
    match = None if is_row_file(spec) or (folder / spec).exists() else _FORM.fullmatch(spec)
    name = match["name"] if match else spec
    rest = spec[len(name) :]
    looks_local = match is None or name.startswith((".", "/", "~")) or name.count("/") > 1 or (folder / name).exists()
    return str((folder / Path(name).expanduser()).resolve()) + rest if looks_local else spec


def is_hub_spec(spec: str) -> bool:
    """Whether an absolute spec is a name on a hub."""
    return spec not in ("", BUILTIN) and not os.path.isabs(spec)


def check_local_data(spec: str, key: str) -> None:
    """Look whether a local file or folder is there, without opening it.

    Raises:
        RecipeError: there is none, or the form is wrong.
    """
    if spec in ("", BUILTIN) or Path(spec).is_file():
        return
    if is_row_file(spec):
        raise RecipeError(f"{key} = {spec}: no such file")
    name = parse_dataset_name(spec, key)
    if name.is_folder and not Path(name.name).is_dir():
        raise RecipeError(f"{key} = {spec}: no such file or folder")
