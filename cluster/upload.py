"""What Ray uploads of a folder with a job: how many files, how large, the largest of them. Called by submit.py.

Asks Ray's own functions what it leaves out (.git, .venv, __pycache__, and what .gitignore and .rayignore name), so that what is printed is
what is sent.
"""

from dataclasses import dataclass
from pathlib import Path

LIMIT_MIB = 100
"""Ray's head refuses a package that is larger, which is compressed: a folder may be larger."""
MOST_NAMED = 5
LARGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Upload:
    """Example: Upload(Path("/home/me/mathrl_ray"), num_files=412, num_bytes=3_514_882, largest=((Path("README.md"), 40_961),))"""

    folder: Path
    num_files: int
    num_bytes: int
    largest: tuple[tuple[Path, int], ...]
    """The largest files, by their path in the folder, largest first."""

    @property
    def text(self) -> str:
        """For a person; names the large files, and what to do about them where Ray may refuse the whole."""
        told = (
            f"Uploads {self.folder}: {self.num_files:,} files, {self.num_bytes / 2**20:.1f} MiB (less when packed; without .git, .venv and"
        )
        told += " what .gitignore and .rayignore name)"
        large = [f"{path} {size / 2**20:.1f} MiB" for path, size in self.largest if size >= LARGE_BYTES]
        if large:
            told += f". The largest: {', '.join(large)}"
        if self.num_bytes > LIMIT_MIB * 2**20:
            told += f"\nRay takes {LIMIT_MIB} MiB, packed: name what a job does not need in a file .rayignore, as in .gitignore"
        return told


def upload_of(working_dir: str) -> Upload:
    """Walk a folder as Ray will.

    Raises:
        RuntimeError: it is no folder.
    """
    from ray._private import ray_constants  # Ray has no public function that says what it sends
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    folder = Path(working_dir).absolute()
    if not folder.is_dir():
        raise RuntimeError(f"--working-dir {working_dir}: no such folder")
    found: list[tuple[Path, int]] = []

    def note(path: Path) -> None:
        if path.is_file():
            found.append((path.relative_to(folder), path.stat().st_size))

    excludes = _get_excludes(folder, ray_constants.get_runtime_env_default_excludes())
    _dir_travel(folder, [excludes], note, include_gitignore=True)
    largest = sorted(found, key=lambda each: -each[1])[:MOST_NAMED]
    return Upload(folder, len(found), sum(size for _, size in found), tuple(largest))
