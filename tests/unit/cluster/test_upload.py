"""What `python -m cluster.submit` says that it uploads, against what Ray packs."""

import zipfile
from pathlib import Path

import pytest

from cluster.upload import upload_of

packaging = pytest.importorskip("ray._private.runtime_env.packaging")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with everything that must stay at home, and two files that go."""
    for name, size in {
        "jobs/grpo.py": 10, "notes.txt": 2 * 2**20, ".git/objects/pack": 9, ".venv/lib/torch.so": 9, "pkg/__pycache__/x.pyc": 9,
        "runs/out.parquet": 3 * 2**20, "data/private.jsonl": 9,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "data" / ".rayignore").write_text("private.jsonl\n")
    return tmp_path


def test_it_counts_what_ray_packs_and_nothing_else(checkout):
    from ray._private import ray_constants

    excludes = ray_constants.get_runtime_env_default_excludes()
    packed = checkout.parent / "package.zip"
    packaging.create_package(str(checkout), packed, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(packed) as package:
        sent = {name: info.file_size for info in package.infolist() if not (name := info.filename).endswith("/")}
    upload = upload_of(str(checkout))
    assert (upload.num_files, upload.num_bytes) == (len(sent), sum(sent.values()))
    assert {"jobs/grpo.py", "notes.txt"} <= set(sent)
    assert not any(part in " ".join(sent) for part in (".git/", ".venv", "__pycache__", "out.parquet", "private.jsonl"))


def test_large_files_are_named_and_an_upload_that_ray_may_refuse_says_what_to_do(checkout):
    text = upload_of(str(checkout)).text
    assert "The largest: notes.txt 2.0 MiB" in text
    assert ".rayignore, as" not in text
    with (checkout / "model.bin").open("wb") as file:
        file.truncate(101 * 2**20)
    assert "Ray takes 100 MiB, packed: name what a job does not need in a file .rayignore" in upload_of(str(checkout)).text


def test_this_repository_is_far_from_the_limit():
    repository = Path(__file__).parent.parent.parent.parent
    assert upload_of(str(repository)).num_bytes < 20 * 2**20


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=r"--working-dir .*none: no such folder"):
        upload_of(str(tmp_path / "none"))
