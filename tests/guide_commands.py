"""The commands of README.md and the guides, taken from their code blocks, and whether the programs that they name would take them.

Used by unit/test_guides.py. Nothing is started: jobs are asked with --check, commands and Ray's own options by their parsers.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "jobs/README.md", "jobs/README.zh-CN.md")
GUIDES = DOCUMENTS[1:]
NOT_OURS = {"tensorboard", "source", "export", "(umask", "wandb"}
"""Words that begin a line which is the shell's or another program's."""


@dataclass(frozen=True)
class Command:
    """One command of a document, as words."""

    document: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}: {' '.join(self.words)}"


def blocks(document: str, language: str = "bash") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)


def commands(document: str) -> Iterator[Command]:
    for block in blocks(document):
        for line in block.replace("\\\n", " ").splitlines():
            said = re.sub(r"(^|\s)# .*$", "", line)
            for part in re.split(r"\s(?:&&|\|\||\|)\s|;\s", said):
                if words := tuple(shlex.split(part)):
                    yield Command(document, words)


def placed(word: str, home: Path) -> str:
    """With the folders of a made-up user in place of theirs."""
    return (
        word.replace("~/", f"{home}/")
        .replace("$HOME", str(home))
        .replace("$PWD", str(home))
        .replace("/folder/that/every/node/sees", str(home))
    )


def fault_of(words: tuple[str, ...], home: Path) -> str:
    """Why a command would be refused; "" where it would not.

    Args:
        words: as typed.
        home: a folder that has what the guides' commands before it have made.
    """
    match [placed(word, home) for word in words]:
        case ["python", program, *rest] if program.startswith("jobs/examples/"):
            return _script_fault(program, rest)
        case ["python", program, *rest] if program.startswith("jobs/"):
            return _job_fault(program, rest)
        case ["python", program, *_] if program.startswith("tests/"):
            return "" if (REPOSITORY / program).is_file() else f"no file {program}"
        case ["python" | ".venv/bin/python", "-m", "mathrl_ray", *rest]:
            return _command_fault(rest)
        case ["python" | ".venv/bin/python", "-m", module, *rest] if module.startswith("cluster."):
            return _cluster_fault(module, rest, home)
        case ["bash", script, *rest] if script.startswith("cluster/"):
            return _script_words_fault(script, rest)
        case ["ray", *rest]:
            return _ray_fault(rest, home)
        case [first, *_] if first in NOT_OURS:
            return ""
        case [first, *_]:
            return f"nobody knows the program {first}"
    return "no words"


def _job_fault(program: str, words: list[str]) -> str:
    from mathrl_ray.entry import main

    if not (REPOSITORY / program).is_file():
        return f"no file {program}"
    try:
        status = main(Path(program).stem, [str(REPOSITORY / word) if word.endswith(".toml") else word for word in words] + ["--check"])
    except SystemExit as ended:
        status = ended.code
    return "" if status == 0 else "the job refuses it"


def _script_fault(program: str, words: list[str]) -> str:
    """A script with options of its own: they must be in its text."""
    path = REPOSITORY / program
    if not path.is_file():
        return f"no file {program}"
    unknown = [word for word in words if word.startswith("--") and f'"{word}"' not in path.read_text()]
    return f"{program} has no {', '.join(unknown)}" if unknown else ""


def _command_fault(words: list[str]) -> str:
    from mathrl_ray.__main__ import _parsed, _parser
    from mathrl_ray.recipe_file import load_recipe

    if words == ["--help"]:
        return ""
    try:
        options = _parsed(_parser(), words)
        if "recipe" in vars(options):
            load_recipe(REPOSITORY / options.recipe, options.overrides)
    except (SystemExit, ValueError) as error:
        return f"python -m mathrl_ray refuses it: {error}"
    return ""


def _cluster_fault(module: str, words: list[str], home: Path) -> str:
    path = REPOSITORY / module.replace(".", "/")
    if not (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()):
        return f"no module {module}"
    if module == "cluster.submit":
        if "--" not in words:
            return "cluster.submit needs the job behind --"
        return fault_of(tuple(words[words.index("--") + 1 :]), home)
    allowed = {"cluster.head": {"start", "status", "stop"}, "cluster.monitoring": {"up", "down", "status", "--forget"}}[module]
    return "" if set(words) <= allowed else f"{module} takes {allowed}"


def _script_words_fault(script: str, words: list[str]) -> str:
    path = REPOSITORY / script
    if not path.is_file():
        return f"no file {script}"
    for word in words:
        if "." in word and "=" in word and script.endswith("quickstart.sh"):
            if fault := _job_fault("jobs/study.py", ["jobs/recipes/arithmetic_cpu.toml", word]):
                return fault
        elif word.startswith("-m") or script.endswith("test.sh"):
            continue  # pytest's own
        elif not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", path.read_text()):
            return f"{script} does not know {word}"
    return ""


def _ray_fault(words: list[str], home: Path) -> str:
    import click
    from ray.scripts.scripts import cli

    rest: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        name, *words = words
        if name not in command.commands:
            return f"ray has no {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    if unknown:
        return f"ray {command.name} has no {', '.join(unknown)}"
    return fault_of(tuple(rest), home) if rest and rest[-1] != "..." else ""
