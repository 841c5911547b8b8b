"""The import rules of DESIGN.md, held by walking every import of the package."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "mathrl_ray"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"types", "sections", "guard_section", "config", "methods", "recipe_checks"},
    {"core"},
    {"data", "device", "weight_sync", "recipe_file", "custom", "policy", "sweep_recipe"},
    {"actors"},
    {"driver", "cs336"},
    {"stages"},
    {"report"},
    {"commands"},
    {"job", "sweep_job"},
    {"entry", "__main__"},
)
"""Each layer may import itself and those before it."""

ENGINE_OWNERS = {
    "ray": {"actors/engine_statistics.py", "actors/nodes.py", "actors/placement.py", "actors/remote.py", "driver/ray_metrics.py"},
    "deepspeed": {"actors/process_group.py", "actors/deepspeed_engine.py"},
    "vllm": {
        "actors/engine_statistics.py",
        "actors/generator.py",
        "weight_sync/receiver.py",
        "weight_sync/sender.py",
        "weight_sync/vllm_engine.py",
    },
}


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def layer_of(part: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if part in layer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_layer_imports_a_later_one(file):
    part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    for module in imported_modules(file):
        if module.startswith("mathrl_ray."):
            assert layer_of(module.split(".")[1]) <= layer_of(part), f"{file.name} imports {module}"


@pytest.mark.parametrize("engine", ENGINE_OWNERS)
def test_an_engine_is_imported_by_its_owners_only(engine):
    importers = {
        str(file.relative_to(PACKAGE)) for file in FILES if any(module.split(".")[0] == engine for module in imported_modules(file))
    }
    assert importers == ENGINE_OWNERS[engine]


@pytest.mark.parametrize("file", sorted((PACKAGE / "core").rglob("*.py")), ids=lambda file: file.name)
def test_core_is_pure(file):
    allowed = {"torch", "numpy", "scipy", "sympy", "math_verify", "latex2sympy2_extended", "mathrl_ray"}
    third_party = {module.split(".")[0] for module in imported_modules(file)} - set(sys.stdlib_module_names)
    assert third_party <= allowed
    assert not {"time", "pathlib", "os", "io", "subprocess"} & {module.split(".")[0] for module in imported_modules(file)}


def test_importing_every_stage_loads_no_engine():
    stages = [f"mathrl_ray.stages.{file.stem}" for file in sorted((PACKAGE / "stages").glob("*.py")) if file.stem != "__init__"]
    code = f"import sys, {', '.join(stages)}; print(sorted({{'ray', 'vllm', 'deepspeed'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=REPOSITORY)
    assert answer.stdout.strip() == "[]"


def test_packages_have_empty_init_files():
    assert all(not file.read_text() for file in PACKAGE.rglob("__init__.py"))
