"""Which settings of a sweep end early: the validations of its runs, and the rule of core/sweep.py.

Called by sweep_runs.py. Reads metrics.jsonl of the variants, of those too that have ended; decides, and ends nothing itself.

    what counts   validation_accuracy of the last stage of the job that is validated at least twice: each stage begins from a start model of
                  its own, so an earlier one says nothing of it
    when          a setting is judged at the latest rung that all of its runs at work have reached, against all settings of which the same
                  is true. Seeds that have not begun are not waited for: where there is room for one run only, they would come last.
    what ends     all runs of the setting, and those of its seeds that have not begun; what has finished stays finished
    fairness      settings are compared at the same step. Where they differ in what a step costs or in how they are validated
                  (`unlike_keys`), nothing ends early.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mathrl_ray.config import Recipe
from mathrl_ray.core.sweep import SEED_SD, Standing, hopeless_settings, is_rung, standings_text
from mathrl_ray.driver.superseded import row_of
from mathrl_ray.recipe_checks import LEAST_LEFT, RIVALS, num_grpo_steps, num_sft_steps, token_budget

METRICS_FILE = "metrics.jsonl"
UNLIKE_SECTIONS = frozenset({"eval", "data", "model"})
"""Other values validate on other problems or by other prompts, or make a step cost something else."""
UNLIKE_KEYS = frozenset(
    {
        *("generator.max_tokens", "sft.batch_size"),
        *(f"expert_iteration.{key}" for key in ("questions", "group_size", "capacity", "max_per_problem", "epochs", "start")),
        *(f"grpo.{key}" for key in ("prompts_per_step", "group_size", "dynamic_sampling", "max_replaced", "epochs")),
    }
)


@dataclass(frozen=True, slots=True)
class Rungs:
    """The validations that a run will have in the stage that counts."""

    stage: str
    every: int
    """Steps from one to the next."""
    num_validations: int
    """Fewer where a budget ends the stage before."""
    budget: int = 0
    """Of tokens sampled for learning (recipe_checks.token_budget); 0: none."""
    most_step_tokens: int = 0
    """That a step may sample of it; 0 where steps are cut to what is left."""

    def is_rung(self, step: int, consumed_tokens: int = 0) -> bool:
        """Whether the rule is asked after a step, by which the stage has consumed so many tokens: not at what may be its last one."""
        is_followed = not self.budget or consumed_tokens + self.every * self.most_step_tokens < (1 - LEAST_LEFT) * self.budget
        return is_followed and step % self.every == 0 and is_rung(step // self.every, self.num_validations)


def rungs_of(recipe: Recipe, stages: Sequence[str]) -> Rungs | None:
    """None where nothing of a run can end early: no stage is validated twice.

    >>> recipe = Recipe.model_validate({"eval": {"validate_every": 10}, "grpo": {"num_steps": 45}})
    >>> rungs_of(recipe, ["baseline", "grpo"]) == Rungs("grpo", 10, 4)
    True
    """
    if not recipe.data.num_validation_problems:
        return None
    several = (rungs for stage in reversed(stages) if (rungs := _rungs(recipe, stage)) and rungs.num_validations >= 2)
    found, grpo, budget = next(several, None), recipe.grpo, token_budget(recipe, stages)
    if found is None or found.stage not in RIVALS or not budget:
        return found
    most = grpo.prompts_per_step * grpo.group_size * recipe.generator.max_tokens * (1 + grpo.dynamic_sampling * grpo.max_replaced)
    return replace(found, budget=budget, most_step_tokens=most if found.stage == "grpo" else 0)


def unlike_keys(keys: Iterable[str]) -> list[str]:
    """Those of a sweep's keys whose values cannot be compared at the same step.

    >>> unlike_keys(["grpo.learning_rate", "grpo.group_size", "eval.temperature"])
    ['grpo.group_size', 'eval.temperature']
    """
    return [key for key in keys if key in UNLIKE_KEYS or key.partition(".")[0] in UNLIKE_SECTIONS]


def _rungs(recipe: Recipe, stage: str) -> Rungs | None:
    every, sft = recipe.eval.validate_every, recipe.sft
    match stage:
        case "expert_iteration":
            return Rungs(stage, 1, recipe.expert_iteration.rounds)
        case "grpo" if every:
            return Rungs(stage, every, num_grpo_steps(recipe.grpo, recipe.data.num_train_problems) // every)
        case "sft_filtered" if every:
            return Rungs(stage, every, num_sft_steps(sft, sft.num_examples) // every)
        case "sft" if every and not sft.sizes:  # else it trains several models, and validates each
            return Rungs(stage, every, num_sft_steps(sft, sft.num_examples) // every)
        case _:
            return None


@dataclass
class Validations:
    """Of one run and stage, read as its file grows."""

    stage: str
    by_step: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(right, graded)."""
    consumed: dict[int, int] = field(default_factory=dict)
    """Tokens that the stage had taken or dropped by then (driver/ledger.py, consumed_tokens)."""
    _file: int = 0
    _position: int = 0

    def read(self, folder: Path) -> None:
        """Look at what is new. A run that goes on may have replaced the file by a shorter one."""
        try:
            with (folder / METRICS_FILE).open("rb") as file:
                facts = (folder / METRICS_FILE).stat()
                if facts.st_ino != self._file or facts.st_size < self._position:
                    self._file, self._position, self.by_step, self.consumed = facts.st_ino, 0, {}, {}
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._position += len(line)
                    self._note(line)
        except FileNotFoundError:
            return

    def _note(self, line: bytes) -> None:
        if b"validation_accuracy" not in line or (row := row_of(line)) is None or row["stage"] != self.stage:
            return
        num_graded = int(row["validation_num_problems"]) - int(row.get("validation_num_ungraded", 0))
        self.by_step[int(row["step"])] = round(row["validation_accuracy"] * num_graded), num_graded
        self.consumed[int(row["step"])] = int(row.get("consumed_tokens_total", 0))


@dataclass(frozen=True, slots=True)
class Look:
    """One variant as the judge sees it."""

    setting: str
    rungs: Rungs
    is_open: bool
    """Neither ended nor finished."""
    is_running: bool
    by_step: Mapping[int, tuple[int, int]]
    consumed: Mapping[int, int] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        """The latest rung; 0 before the first."""
        return max((step for step in self.by_step if self.rungs.is_rung(step, self.consumed.get(step, 0))), default=0)


def hopeless(looks: Sequence[Look], keep: float, seed_sd: float = SEED_SD) -> dict[str, str]:
    """The settings that end now, with the numbers that end them.

    Args:
        looks: at all variants of the sweep.
        keep: sweep.keep.
        seed_sd: sweep.seed_sd.
    """
    settings = dict.fromkeys(look.setting for look in looks)
    ended = {}
    for setting in settings:
        own = [look for look in looks if look.setting == setting]
        if (step := _latest(own)) and any(look.is_open for look in own):
            there = [look for look in looks if step in look.by_step and _is_there(looks, look, step)]
            standings = [Standing(look.setting, *look.by_step[step]) for look in there]
            if setting in hopeless_settings(standings, num_settings=len(settings), keep=keep, seed_sd=seed_sd):
                ended[setting] = f"at {own[0].rungs.stage} step {step}, of what had got there: {standings_text(standings, seed_sd)}"
    return ended


def _latest(own: Sequence[Look]) -> int:
    """The latest rung that all of a setting's runs at work have reached; 0: none."""
    at_work = [look.reached for look in own if look.is_running]
    return min(at_work) if at_work else max((look.reached for look in own), default=0)


def _is_there(looks: Sequence[Look], look: Look, step: int) -> bool:
    """Whether all runs at work of its setting have come as far as this step."""
    return all(max(other.by_step, default=0) >= step for other in looks if other.setting == look.setting and other.is_running)
