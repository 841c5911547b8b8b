"""The mirror: a run's finished checkpoints, metrics and reports, copied to another place while the run goes on (run.mirror).

Called by the job around its stages. Knows the run's folder and fsspec; knows no actor and no loop, and nothing waits for it before the
job's end: a thread of its own looks at the folder every LOOK_EVERY_S and copies what is new.

    <run.mirror>/<run's folder>/metrics.jsonl, summary.json, ...       as they were at the last look
                                evaluations/, elite_pool/, problem_memory/    *.parquet; the latter two are read by a run that goes on
                                checkpoints/<stage>-<step>/            whole where it holds mirrored.json, which is written last
                                                                       {"files": {name: [bytes, modified in ns]}}

A copy that fails is tried again later, up to MAX_TRIES times, then left until the file changes; only the first failure is told. What the
run removes (old checkpoints) stays in the mirror. A run can go on from what is there, brought back into a run.root: metrics.jsonl is copied
before a checkpoint that counts on its rows. Trajectories are not copied: they are large, and no run needs them to go on.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl_ray.config import RecipeError
from mathrl_ray.core.masking import masked_text
from mathrl_ray.driver.file_names import GUARDS_FILE, SWEEP_FILE

MARKER = "mirrored.json"
"""The last file of a mirrored checkpoint."""
METRICS = "metrics.jsonl"
RECORD = "mirror.json"
"""In the run's folder: where its mirror is, so that a resumed run goes on there."""
PLAIN_FILES = (
    "recipe.toml",
    "environment.json",
    "digests.json",
    SWEEP_FILE,
    METRICS,
    "summary.json",
    GUARDS_FILE,
    "report.html",
    *(f"{folder}/*.parquet" for folder in ("evaluations", "elite_pool", "problem_memory")),
)
EXAMPLES = "file:///folder or s3://bucket/folder"
LOOK_EVERY_S = 30.0
MAX_TRIES = 5
WAIT_S = 5.0
"""After the first failure of a copy; doubled after each further one."""
END_LIMIT_S = 600.0
"""What the last copies may take when a run has ended by itself."""
FAILURE_LIMIT_S = 60.0
"""The same when it failed."""
STOP_LIMIT_S = 1.0
"""The same from when it was told to stop: it has 30 s for all, and must save."""

Stamp = dict[str, list[int]]
"""File name -> [bytes, time of its last change in ns]: what tells one state of files from another."""


@dataclass
class _Tries:
    stamp: Stamp
    num: int = 0
    not_before_s: float = 0.0


def open_destination(url: str) -> tuple[Any, str]:
    """(file system, path there) of an fsspec URL; some protocols connect here, others at the first use.

    Raises:
        RecipeError: a chain of file systems; a protocol that is not known, or whose package is not installed; a place that is not reached.
    """
    import fsspec

    if "::" in url:  # a cache or an archive, which would also hide where the files end up
        raise RecipeError(f"run.mirror = {masked_text(url)} is a chain of places (::): name the last one by itself, for example {EXAMPLES}")
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # border: each file system raises kinds of its own
        protocol = url.partition("://")[0]
        raise RecipeError(
            masked_text(f"run.mirror = {url}: {type(error).__name__}: {error}. ")
            + f"Install what fsspec needs for {protocol}:// where the driver runs, or name a place that it reaches, for example {EXAMPLES}"
        ) from error
    return file_system, path.rstrip("/")


def check_mirror(url: str, folder: Path) -> None:
    """Refuse a mirror that cannot work.

    Raises:
        RecipeError: as `open_destination`; or a local folder that is, or lies in, `folder`, where runs themselves are.
    """
    from fsspec.implementations.local import LocalFileSystem

    file_system, path = open_destination(url)
    if isinstance(file_system, LocalFileSystem) and Path(path).resolve().is_relative_to(folder.resolve()):
        raise RecipeError(f"run.mirror = {url} lies in run.root = {folder}, where the runs themselves are: name a folder outside it")


class Mirror:
    """Copies one run's folder. Its methods are for one caller; the thread is its own."""

    def __init__(self, url: str, folder: Path, say: Callable[[str], None], *, look_every_s: float = LOOK_EVERY_S, wait_s: float = WAIT_S):
        """
        Args:
            url: of a folder, as fsspec has it; the run gets a folder of its own in it.
            folder: the run's.
            say: for the one warning.
            look_every_s: from one look at the folder to the next.
            wait_s: from a copy's first failure to its second try.

        Raises:
            RecipeError: as `open_destination`.
        """
        self._url, self._folder, self._say = url, folder, say
        self._look_every_s, self._wait_s = look_every_s, wait_s
        self._file_system, self._root = open_destination(url)
        self._home = ""
        self._copied: dict[str, Stamp] = {}
        self._failures: dict[str, _Tries] = {}
        self._has_warned = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look_again_and_again, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self, limit_s: float, told_to_stop: Callable[[], bool]) -> None:
        """Copy what is left, for at most `limit_s`, STOP_LIMIT_S once told to stop; says what is not in the mirror afterwards."""
        self._ending.set()
        deadline_s = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < deadline_s:
            if told_to_stop():
                deadline_s = min(deadline_s, time.monotonic() + STOP_LIMIT_S)
            await asyncio.sleep(0.05)  # a thread tells an event loop nothing, and being told to stop must shorten the wait at once
        if missing := self.missing():
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            self._say(f"warning: not in the mirror {masked_text(self._url)}: {shown}")

    def missing(self) -> list[str]:
        """What of the run's folder is not in the mirror, or there in an older state."""
        return [name for name, stamp in _mirrored_parts(self._folder) if self._copied.get(name) != stamp]

    def _look_again_and_again(self) -> None:
        while not self._ending.wait(self._look_every_s):
            self._look(is_last=False)
        self._look(is_last=True)

    def _look(self, *, is_last: bool) -> None:
        """Copy what is new; at the last look also what has just failed or was given up, once more."""
        try:
            parts = list(_mirrored_parts(self._folder))
        except OSError as error:  # the disk, or the share that the folder is on
            self._note_failure("the run's folder", {}, error)
            return
        for name, stamp in parts:
            if self._copied.get(name) != stamp and (is_last or self._may_try(name, stamp)):
                self._try(name, stamp)

    def _may_try(self, name: str, stamp: Stamp) -> bool:
        tries = self._failures.get(name)
        if tries is None:
            return True
        if tries.num >= MAX_TRIES:
            return tries.stamp != stamp
        return time.monotonic() >= tries.not_before_s

    def _try(self, name: str, stamp: Stamp) -> None:
        try:
            self._home = self._home or self._find_home()
            self._copy(name, stamp)
        except Exception as error:  # border: each file system raises kinds of its own, and none may end the run
            if (self._folder / name).exists():  # else an old checkpoint that was just removed: nothing is lost that anyone keeps
                self._note_failure(name, stamp, error)
        else:
            self._copied[name] = stamp
            self._failures.pop(name, None)

    def _note_failure(self, name: str, stamp: Stamp, error: Exception) -> None:
        tries = self._failures.setdefault(name, _Tries(stamp))
        tries.num = tries.num + 1 if tries.stamp == stamp or tries.num < MAX_TRIES else 1
        tries.stamp = stamp
        tries.not_before_s = time.monotonic() + self._wait_s * 2 ** (tries.num - 1)
        if not self._has_warned:
            self._has_warned = True
            cause = f"{type(error).__name__}: {error}"
            self._say(
                masked_text(f"warning: run.mirror = {self._url}: {name} was not copied ({cause}); it is tried again, the run goes on")
            )

    def _find_home(self) -> str:
        """The run's folder there: the one that it had before it was resumed, else a new one, -2, -3, ... where another run has its name."""
        record, url = self._folder / RECORD, masked_text(self._url)
        known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        if known.get("url") != url:
            known = {"url": url, "folder": self._free_name()}
            aside = record.with_name(f".{RECORD}.writing")
            aside.write_text(json.dumps(known) + "\n", encoding="utf-8")
            aside.rename(record)
        return f"{self._root}/{known['folder']}"

    def _free_name(self) -> str:
        self._file_system.invalidate_cache()
        name, number = self._folder.name, 1
        while self._file_system.exists(f"{self._root}/{name}"):
            number += 1
            name = f"{self._folder.name}-{number}"
        return name

    def _copy(self, name: str, stamp: Stamp) -> None:
        if name.startswith("checkpoints/"):
            self._copy_checkpoint(name, stamp)
        else:
            self._write(name, _whole_lines(self._folder / name))

    def _copy_checkpoint(self, name: str, stamp: Stamp) -> None:
        marker = f"{self._home}/{name}/{MARKER}"
        self._file_system.invalidate_cache()
        if self._file_system.exists(marker):
            if json.loads(self._file_system.cat_file(marker)) == {"files": stamp}:
                return  # before the run was resumed
            self._file_system.rm_file(marker)  # from here on it is not whole
        self._write(METRICS, _whole_lines(self._folder / METRICS))  # a resume wants all rows that it was written after
        for file in stamp:
            there = f"{self._home}/{name}/{file}"
            self._make_folder_of(there)
            self._file_system.put_file(str(self._folder / name / file), there)
        if _stamp(self._folder / name) != stamp:
            raise OSError("it changed while it was copied")
        self._write(f"{name}/{MARKER}", json.dumps({"files": stamp}).encode())

    def _write(self, name: str, data: bytes) -> None:
        there = f"{self._home}/{name}"
        self._make_folder_of(there)
        self._file_system.pipe_file(there, data)

    def _make_folder_of(self, there: str) -> None:
        with suppress(Exception):  # an object store has no folders, and may not allow what making one asks for; else the write fails
            self._file_system.makedirs(there.rpartition("/")[0], exist_ok=True)


def _mirrored_parts(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """What of a run's folder belongs into its mirror: plain files, then checkpoints; with what tells their states apart.

    What begins with a dot is being written.
    """
    for pattern in PLAIN_FILES:
        for file in sorted(folder.glob(pattern)):
            if not file.name.startswith(".") and (stamp := _stamp(file)):
                yield str(file.relative_to(folder)), stamp
    checkpoints = folder / "checkpoints"
    for checkpoint in sorted(checkpoints.iterdir(), key=_age) if checkpoints.is_dir() else ():
        if checkpoint.is_dir() and not checkpoint.name.startswith(".") and (stamp := _stamp(checkpoint)):
            yield f"checkpoints/{checkpoint.name}", stamp


def _stamp(path: Path) -> Stamp:
    """Of a file, or of all files in a folder; empty for what is gone, or was removed meanwhile. Links are not followed."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        facts = {str(file.relative_to(path) if file != path else file.name): file.stat() for file in files}
    except FileNotFoundError:
        return {}
    return {name: [fact.st_size, fact.st_mtime_ns] for name, fact in facts.items()}


def _age(path: Path) -> tuple[float, str]:
    try:
        return (path.stat().st_mtime, path.name)
    except FileNotFoundError:
        return (0.0, path.name)


def _whole_lines(file: Path) -> bytes:
    """A file's content; of one that grows line by line, without a last line that is not complete."""
    data = file.read_bytes()
    return data[: data.rfind(b"\n") + 1] if file.suffix == ".jsonl" else data


@asynccontextmanager
async def mirrored(
    url: str, folder: Path, say: Callable[[str], None], told_to_stop: Callable[[], bool] = lambda: False, **settings: float
) -> AsyncIterator[None]:
    """Mirror a run's folder while the block runs, and for a limited time afterwards.

    Args:
        url: as Mirror takes it; "" for no mirror.
        folder: the run's.
        say: for what a person should know.
        told_to_stop: whether the run shall end now.
        settings: as Mirror takes them.
    """
    if not url:
        yield
        return
    mirror = Mirror(url, folder, say, **settings)
    mirror.start()
    try:
        yield
    except BaseException as error:  # a stop or Ctrl-C too: the last files are copied whatever ended the run
        is_cancelled = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        await mirror.close(STOP_LIMIT_S if is_cancelled else FAILURE_LIMIT_S, told_to_stop)
        raise
    say(f"copying the last files to {masked_text(url)}")
    await mirror.close(END_LIMIT_S, told_to_stop)
