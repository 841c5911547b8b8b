"""Whether run.mirror takes files: one small file is written there and removed again.

Called by preflight.py. Knows fsspec's file systems through driver/mirror.py; no run is looked at.
"""

import uuid
from contextlib import suppress
from pathlib import Path
from threading import Thread

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import masked_text
from mathrl_ray.driver.mirror import check_mirror, open_destination

LIMIT_S = 15.0
"""A place that does not answer must not hold the preflight."""


def check_mirror_takes_files(recipe: Recipe, limit_s: float = LIMIT_S) -> str:
    """Returns the place, for a person.

    Raises:
        RecipeError: as `check_mirror`; or a file could not be written and removed there within `limit_s`.
    """
    url, faults = recipe.run.mirror, list[Exception]()
    check_mirror(url, Path(recipe.run.root))

    def attempt() -> None:
        try:
            _write_and_remove(url)
        except Exception as error:  # border: each file system raises kinds of its own
            faults.append(error)

    thread = Thread(target=attempt, name="mirror check", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not thread.is_alive() and not faults:
        return f"{masked_text(url)} took a file, which was removed again"
    fault = f"{type(faults[0]).__name__}: {faults[0]}" if faults else f"no answer within {limit_s:g} s"
    raise RecipeError(masked_text(f"run.mirror = {url} takes no files ({fault}): name a place where the driver may write and remove them"))


def _write_and_remove(url: str) -> None:
    file_system, root = open_destination(url)
    was_there = file_system.exists(root)
    with suppress(Exception):  # an object store has no folders; else the write fails
        file_system.makedirs(root, exist_ok=True)
    marker = f"{root}/.preflight-{uuid.uuid4().hex}"
    try:
        file_system.pipe_file(marker, b"preflight\n")
    finally:
        if file_system.exists(marker):
            file_system.rm_file(marker)
        if not was_there and "local" in file_system.protocol:  # an object store might take this for its bucket
            with suppress(OSError):
                file_system.rmdir(root)
