"""The model card of an export: what the model is, how well it does and how that was measured, how it was made, and what it may be used for.

Called by export_model.py. Pure but for its template; the head is made by huggingface_hub's own card class, so that the hub reads it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from mathrl_ray.config import Recipe
from mathrl_ray.core.prompts import Prompt
from mathrl_ray.driver.console import protocol
from mathrl_ray.recipe_checks import DEFAULT_GRADER, SFT_STAGES
from mathrl_ray.recipe_file import is_hub_name, load_prompts
from mathrl_ray.sections import BUILTIN

FIGURES_FILE = "mathrl_ray.json"
"""The stage's figures in an export, and what tells that a folder is one."""
OWN_LICENCE = "apache-2.0"
MODEL_LICENCES = {BUILTIN: OWN_LICENCE, "Qwen/Qwen2.5-Math-1.5B": "apache-2.0"}
"""Of base models whose licence we have read."""
DATA_LICENCES = {
    "DigitalLearningGmbH/MATH-lighteval": "MIT (its first home on the hub was taken down after a copyright claim in January 2025)",
    "EleutherAI/hendrycks_math": "MIT (the first home of MATH on the hub was taken down after a copyright claim in January 2025)",
    "HuggingFaceH4/MATH-500": "MIT",
    "openai/gsm8k": "MIT",
    BUILTIN: "made by this program from a seed; Apache-2.0",
}
UNKNOWN_DATA = "licence not known to this program: look it up before you pass the model on"
KEYS = (
    "learner.schedule", "learner.lora_rank", "learner.zero_stage", "learner.num_ranks", "model.dtype",
    "generator.temperature", "generator.max_tokens", "driver.max_staleness", "run.seed",
)  # fmt: skip
"""Named for every stage."""
STAGE_KEYS = {
    "sft": ("sft.learning_rate", "sft.num_examples", "sft.batch_size", "sft.epochs", "sft.keep"),
    "sft_filtered": ("sft.learning_rate", "sft.num_examples", "sft.batch_size", "sft.epochs"),
    "expert_iteration": (
        "expert_iteration.learning_rate", "expert_iteration.rounds", "expert_iteration.questions", "expert_iteration.group_size",
        "expert_iteration.temperatures", "expert_iteration.capacity",
    ),
    "grpo": (
        "loss.function", "loss.kwargs", "advantage.function", "reward.function", "reward.kwargs", "grpo.learning_rate", "grpo.loss",
        "grpo.num_steps", "grpo.prompts_per_step", "grpo.group_size", "loss.kl_coefficient",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exported:
    """One stage of one run, as its card tells of it."""

    recipe: Recipe
    run: str
    stage: Mapping[str, Any]
    """The stage's entry of summary.json."""
    stages: Sequence[Mapping[str, Any]]
    """All that have finished."""
    environment: Mapping[str, Any]
    """environment.json; {} where it is gone."""
    checkpoint: str

    @property
    def baseline(self) -> Mapping[str, Any] | None:
        return next((stage for stage in self.stages if stage["name"] == "baseline"), None)

    @property
    def base(self) -> tuple[str, str]:
        """(name, licence) of the model that training of any kind began with: that of an earlier export, where it began with one; "" where
        a name or licence is not known."""
        path = self.recipe.model.path
        earlier = Path(path) / FIGURES_FILE
        if earlier.is_file():
            told = json.loads(earlier.read_text(encoding="utf-8"))
            return told.get("base_model", ""), told.get("licence", "")
        return ("" if os.path.isabs(path) else path), MODEL_LICENCES.get(path, "")

    @property
    def figures(self) -> dict[str, Any]:
        """For programs: the file beside the card."""
        name, licence = self.base
        stages = {"stage": dict(self.stage), "baseline": dict(self.baseline or {}) or None}
        return without_folders({"run": self.run, "checkpoint": self.checkpoint, "base_model": name, "licence": licence, **stages})


def model_card(exported: Exported) -> str:
    """README.md: the hub's YAML head, then Markdown."""
    template = files("mathrl_ray.commands").joinpath("templates/model_card.md.j2").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)  # no HTML
    return environment.from_string(template).render(
        head=_head(exported),
        exported=exported,
        stage=exported.stage,
        recipe=exported.recipe,
        results=[row for stage in exported.stages if stage["name"] in ("baseline", exported.stage["name"]) for row in _results(stage)],
        protocol=protocol(exported.recipe).replace(exported.recipe.eval.prompts[0], shown(exported.recipe.eval.prompts[0])),
        settings=_settings(exported),
        data=_data(exported),
        base=exported.base,
        shown=shown,
        prompt=_prompt(exported.recipe),
        versions=exported.environment.get("versions", {}),
        commit=exported.environment.get("commit", ""),
    )


def _head(exported: Exported) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    recipe, stage = exported.recipe, exported.stage
    base, licence = exported.base
    data = sorted({_hub_name(spec) for _, spec in _sets(exported) if "/" in _hub_name(spec) and not spec.startswith("/")})
    result = EvalResult(
        task_type="text-generation",
        dataset_type=shown(_hub_name(recipe.data.test)),
        dataset_name=shown(recipe.data.test),
        metric_type="accuracy",
        metric_value=stage["accuracy"],
    )
    card = ModelCardData(
        base_model=base if is_hub_name(base) else None,
        license=licence or "other",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["mathematics", "reinforcement-learning", "mathrl_ray", stage["name"]],
        datasets=data or None,
        model_name=f"{exported.run}-{stage['name']}",
        eval_results=[result],
    )
    return str(card.to_yaml())


def _results(stage: Mapping[str, Any]) -> list[dict[str, str]]:
    """The stage's row, and one of each further grader (eval.graders), which judged the same responses."""
    others = {name: figures for name, figures in stage.get("graders", {}).items() if name != DEFAULT_GRADER}
    rows = {stage["name"]: stage} | {f"{stage['name']}, by {shown(name)}": {**stage, **figures} for name, figures in others.items()}
    return [_result(name, figures) for name, figures in rows.items()]


def _result(name: str, figures: Mapping[str, Any]) -> dict[str, str]:
    low, high = figures["ci95"]
    return {
        "name": name,
        "accuracy": f"{100 * figures['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
        "problems": f"{figures['num_problems']:,}" + (f" ({figures['num_ungraded']} ungraded)" if figures.get("num_ungraded") else ""),
        "format": f"{100 * figures['format_rate']:.1f} %",
        "length": f"{figures['mean_response_tokens']:.1f}",
    }


def shown(spec: str) -> str:
    """A name for others: of a path on this machine its last part, with the function or split behind it.

    >>> shown("/home/me/countdown/countdown.py:reward"), shown("openai/gsm8k:main#test"), shown("r1_zero")
    ('countdown.py:reward', 'openai/gsm8k:main#test', 'r1_zero')
    """
    return os.path.basename(spec.rstrip("/")) if os.path.isabs(spec) else spec


def without_folders(value: Any) -> Any:
    """The same, however nested, with `shown` in place of each path of this machine, of keys too."""
    match value:
        case dict():
            return {without_folders(key): without_folders(each) for key, each in value.items()}
        case list():
            return [without_folders(each) for each in value]
        case str():
            return shown(value)
        case _:
            return value


def _settings(exported: Exported) -> list[tuple[str, str]]:
    values = exported.recipe.model_dump(mode="json")
    keys = [*STAGE_KEYS[exported.stage["name"]], *KEYS]
    found = [(key, values[key.split(".")[0]][key.split(".")[1]]) for key in keys]
    return [(key, str(without_folders(value))) for key, value in found if value not in ("", [], {})]


def _sets(exported: Exported) -> list[tuple[str, str]]:
    recipe, name = exported.recipe, exported.stage["name"]
    learned = ("sft.traces", recipe.sft.traces) if name in SFT_STAGES else ("data.train", recipe.data.train)
    return [learned, ("data.test", recipe.data.test)]


def _data(exported: Exported) -> list[tuple[str, str, str]]:
    """(key, set, licence) of what was learned from and what it was measured on."""
    return [(key, shown(spec), DATA_LICENCES.get(_hub_name(spec), UNKNOWN_DATA)) for key, spec in _sets(exported)]


def _hub_name(spec: str) -> str:
    """
    >>> _hub_name("openai/gsm8k:main@740312a#train"), _hub_name("builtin:arithmetic")
    ('openai/gsm8k', 'builtin:arithmetic')
    """
    return spec if spec == BUILTIN else spec.split("#")[0].split("@")[0].split(":")[0]


def _prompt(recipe: Recipe) -> Prompt | None:
    """That of the figures; None where its file is not on this machine."""
    name = recipe.eval.prompts[0]
    try:
        return load_prompts(name, [name])[name]
    except ValueError:
        return None
