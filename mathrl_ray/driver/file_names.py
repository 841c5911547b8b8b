"""Names of a run's files: one part of a path each, so that nothing that names a file can leave the run's folder.

Called by the recorder, and by what reads a run. Most of these names are the program's own; some hold a word of a recipe's (a prompt's
name). No name is made of data: rows keep problem ids inside files.
"""

from pathlib import Path

SWEEP_FILE = "sweep.json"
"""In the folder of a sweep (sweep_folder.py), and in no run's."""
GUARDS_FILE = "guards.jsonl"
"""In a run's folder: what its guards have seen, tried and found."""
LONGEST_BYTES = 255 - len("..writing")
"""File systems have room for 255; a file is first written as .<name>.writing."""


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, when that lies directly in `folder`.

    Raises:
        ValueError: the name is empty, `.` or `..`, holds a slash or a character that cannot be seen or written, or is too long.

    >>> str(inside(Path("run/evaluations"), "grpo-v3.parquet"))
    'run/evaluations/grpo-v3.parquet'
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(
            f"{name!r} is no name for a file of a run: it must be one part of a path, without slashes "
            "and characters that cannot be seen. Rename what it names."
        )
    if len(name.encode()) > LONGEST_BYTES:
        raise ValueError(f"the name {name[:40]!r}... is too long for a file ({len(name)} characters): at most {LONGEST_BYTES} bytes")
    return folder / name
