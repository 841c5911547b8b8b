"""The image without Docker: what its context holds, and (slow) the steps of its cpu target, in order, on a bare copy of that.

python -m pytest -m slow tests/unit/cluster/test_dockerfile.py
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent.parent
SYSTEM_STEPS = ("apt-get", "useradd", "userdel", "echo 'PATH=")
"""Steps that change a machine and not the image's folder: they are looked at, not run."""


def stages():
    """{stage: [(instruction, words), ...]}, continued lines joined, comments gone."""
    text = re.sub(r"\\\n", " ", (REPOSITORY / "Dockerfile").read_text())
    found, held = {}, []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, words = line.split(maxsplit=1)
        if instruction == "FROM":
            held = found.setdefault(words.split(" AS ")[1], [])
        held.append((instruction, words))
    return found


def ignored(path):
    """As .dockerignore says, whose form is simple: all but some names, and less of these."""
    return path.name in ("__pycache__", ".state") or path.suffix == ".pyc"


def context(folder):
    """A copy of what Docker would be sent."""
    kept = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in kept:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=lambda at, names: [each for each in names if ignored(Path(at) / each)])
        else:
            shutil.copy(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    return context(tmp_path_factory.mktemp("context"))


def test_the_context_is_small_and_holds_neither_tests_nor_state(sent):
    files = [path for path in sent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5 * 2**20
    assert {path.name for path in sent.iterdir()} == {"pyproject.toml", "README.md", "LICENSE", "cluster", "jobs", "mathrl_ray"}
    assert not [path for path in files if ".state" in path.parts or path.suffix == ".pyc"]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_all_that_is_copied_is_there_and_no_step_runs_as_root(sent, target):
    steps = stages()[target]
    instructions = [instruction for instruction, _ in steps]
    assert instructions.index("USER") < instructions.index("RUN")
    assert ("USER", "mathrl") in steps
    for words in (words for instruction, words in steps if instruction == "COPY"):
        *sources, _ = [word for word in shlex.split(words) if not word.startswith("--")]
        assert all((sent / source).exists() for source in sources), words


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_what_a_stage_runs_are_the_scripts_that_people_run(target):
    runs = [words for instruction, words in stages()[target] if instruction == "RUN"]
    assert runs[0] == f"bash cluster/install.sh {target}"
    assert all((REPOSITORY / word).is_file() for run in runs for word in run.split() if "/" in word and not word.startswith(".venv"))


def test_bases_are_pinned_by_a_version():
    bases = re.findall(r"^ARG \w+_BASE=(\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"[\w/]+:\d[\w.-]*", base) for base in bases)


def test_the_base_for_gpus_has_the_cuda_of_the_pinned_torch():
    cuda = {"2.13.0": "13.0"}  # of torch's wheel: it needs cuda-toolkit 13.0; look again where the pin changes
    (torch,) = re.findall(r'"torch==(\d[\d.]*)"', (REPOSITORY / "pyproject.toml").read_text())
    assert f"nvidia/cuda:{cuda[torch]}." in (REPOSITORY / "Dockerfile").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_steps_of_the_cpu_target_run_in_order_outside_docker(tmp_path):
    for name in ("sent", "image"):
        (tmp_path / name).mkdir()
    sent, image = context(tmp_path / "sent"), tmp_path / "image"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = []
    for instruction, words in [*stages()["cpu-system"], *stages()["cpu"]]:
        if instruction == "COPY":
            *sources, target = [word for word in shlex.split(words) if not word.startswith("--")]
            for source in sources:
                copy(sent / source, image / target, of_folder=target in (".", "./") and (sent / source).is_file())
        elif instruction == "RUN" and not words.startswith(SYSTEM_STEPS):
            subprocess.run(["bash", "-euc", words], cwd=image, env=environment, check=True, timeout=500)
            ran.append(words)
    assert ran == ["bash cluster/install.sh cpu", ".venv/bin/python jobs/study.py jobs/recipes/arithmetic_cpu.toml --check"]


def copy(source, target, *, of_folder):
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        place = target / source.name if of_folder else target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
