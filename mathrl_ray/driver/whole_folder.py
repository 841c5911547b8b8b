"""Folders that appear whole: written aside, synced to disk, renamed. And their removal, which never leaves a part of one.

Called by checkpoint.py. Knows files only. After any kill, and after a power cut on a disk that keeps what fsync promises, a name is there
with all of its files or not at all. What begins with a dot is no one's to read: it is being written or removed, or was when the run died.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

WRITING, REMOVING = "writing", "removing"


@asynccontextmanager
async def whole_folder(folder: Path, *, replaces: bool = False) -> AsyncIterator[Path]:
    """Yields an empty folder to write into; when the block ends well it is `folder`, else it is gone.

    replaces: `folder` may be there, and is removed at that moment.

    Raises:
        FileExistsError: `folder` is there already.
        OSError: the disk is full, or cannot be written.
    """
    if folder.exists() and not replaces:
        raise FileExistsError(f"{folder} is there already; a checkpoint is never written over")
    aside = folder.with_name(f".{folder.name}.{WRITING}")
    publication = _Publication(aside, folder)
    await asyncio.to_thread(_empty, aside)
    try:
        yield aside
        await asyncio.to_thread(publication.publish)
    except BaseException:  # a stop or Ctrl-C too: what is half written must not look whole
        publication.give_up()
        raise


def _empty(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)


class _Publication:
    """The rename, at whose moment the folder is there; or its removal. A cancelled wait does not end the thread that it waited for, so
    whichever comes first decides: what is being removed is never renamed."""

    def __init__(self, aside: Path, folder: Path) -> None:
        self._aside, self._folder = aside, folder
        self._deciding = threading.Lock()
        self._is_given_up = False

    def publish(self) -> None:
        """Everything in the folder must be on disk before it is renamed."""
        for path in sorted(self._aside.rglob("*"), reverse=True):  # what a folder holds before the folder
            _sync(path)
        _sync(self._aside)
        with self._deciding:
            if self._is_given_up:
                return
            if self._folder.exists():
                remove_whole(self._folder, then=lambda: self._aside.rename(self._folder))
            else:
                self._aside.rename(self._folder)
        _sync(self._folder.parent)

    def give_up(self) -> None:
        """Where it is renamed already, it is whole, and stays."""
        with self._deciding:
            self._is_given_up = True
        shutil.rmtree(self._aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_whole(folder: Path, then: Callable[[], object] = lambda: None) -> None:
    """Remove a folder; a kill in between leaves it whole, or as something that nobody reads. `then` is done when its name is free."""
    aside = folder.with_name(f".{folder.name}.{REMOVING}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    then()
    shutil.rmtree(aside)


def remove_leftovers(parent: Path) -> None:
    """Remove what a killed run was writing or removing in `parent`; nothing else may be at work there."""
    for path in parent.glob(".*"):
        if path.name.endswith((f".{WRITING}", f".{REMOVING}")):
            shutil.rmtree(path, ignore_errors=True)
