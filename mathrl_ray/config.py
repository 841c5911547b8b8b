"""The recipe: all sections, which defaults of one follow from another, and which settings cannot go together.

Read from a file by recipe_file.py, given to every layer above. The settings themselves are in sections.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

from pydantic import model_validator

from mathrl_ray.guard_section import GuardsSection
from mathrl_ray.methods import Method, method_settings
from mathrl_ray.sections import (
    STAGES_WITH_A_RATE,
    AdvantageSection,
    CurriculumSection,
    DataSection,
    DeviceSection,
    DriverSection,
    EvalSection,
    ExpertIterationSection,
    GeneratorSection,
    GrpoSection,
    LearnerSection,
    LossSection,
    ModelSection,
    RewardSection,
    RunSection,
    ScorerSection,
    Section,
    SftSection,
    StudySection,
    SweepSection,
    TrackersSection,
)


class RecipeError(ValueError):
    """A recipe that cannot run; the message names the key, what was given and what is allowed."""


class Recipe(Section):
    """All sections of a recipe; what stands here is what a run used (recipe.toml in its folder)."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    eval: EvalSection = EvalSection()
    generator: GeneratorSection = GeneratorSection()
    learner: LearnerSection = LearnerSection()
    scorer: ScorerSection = ScorerSection()
    reward: RewardSection = RewardSection()
    device: DeviceSection = DeviceSection()
    driver: DriverSection = DriverSection()
    sft: SftSection = SftSection()
    expert_iteration: ExpertIterationSection = ExpertIterationSection()
    curriculum: CurriculumSection = CurriculumSection()
    grpo: GrpoSection = GrpoSection()
    loss: LossSection = LossSection()
    advantage: AdvantageSection = AdvantageSection()
    trackers: TrackersSection = TrackersSection()
    guards: GuardsSection = GuardsSection()
    study: StudySection = StudySection()
    sweep: SweepSection = SweepSection()

    @property
    def makes_several_runs(self) -> bool:
        """Whether a job of this recipe is a sweep (sweep_job.py): it names seeds, or lists of values to try."""
        return bool(self.study.seeds or self.sweep.seeds or self.sweep.lists)

    @model_validator(mode="before")
    @classmethod
    def _stages_inherit_the_learning_rate(cls, values: Any) -> Any:
        named = _named_keys(values, ("learner", *STAGES_WITH_A_RATE))
        rate = named["learner"].get("learning_rate") if named else None
        if named is None or rate is None:
            return values
        return {**values, **{stage: {"learning_rate": rate, **named[stage]} for stage in STAGES_WITH_A_RATE}}

    @model_validator(mode="before")
    @classmethod
    def _the_method_sets_what_is_not_named(cls, values: Any) -> Any:
        named = _named_keys(values, ("grpo", "loss", "advantage"))
        if named is None or named["grpo"].get("loss", "grpo") not in get_args(Method):
            return values  # the field's own check names the value and what is allowed
        settings = method_settings(named["grpo"].get("loss", "grpo"))
        return {**values, **{name: {**defaults, **named[name]} for name, defaults in settings.items()}}

    @model_validator(mode="before")
    @classmethod
    def _stale_rollouts_are_corrected(cls, values: Any) -> Any:
        named = _named_keys(values, ("driver", "loss"))
        if named is None or not corrects_by_default(named["driver"].get("max_staleness", 0), named["loss"]):
            return values
        return {**values, "loss": {"correction": "truncated", **named["loss"]}}

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        from mathrl_ray.recipe_checks import contradictions  # it reads the sections above, so it cannot be imported before them

        problems = list(contradictions(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self


def corrects_by_default(max_staleness: Any, loss: Mapping[str, Any]) -> bool:
    """Whether loss.correction is "truncated" unless named: where rollouts get stale, and the ratio does not hold the gap already."""
    return isinstance(max_staleness, int) and max_staleness > 0 and loss.get("ratio") != "coupled" and not loss.get("function")


def _named_keys(values: Any, sections: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """The keys that a recipe names in each of these sections; None where one is no section, which its own check refuses."""
    if not isinstance(values, dict):
        return None
    given = {name: values.get(name, {}) for name in sections}
    named = {name: part.model_dump(exclude_unset=True) if isinstance(part, Section) else part for name, part in given.items()}
    return named if all(isinstance(part, dict) for part in named.values()) else None


def with_changes(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values for some keys, each "section.key"; no other key changes.

    Raises:
        pydantic.ValidationError: it would be a recipe that cannot run; the message names the keys.

    >>> with_changes(Recipe(), {"grpo.group_size": 16}).grpo.group_size
    16
    """
    values = recipe.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    return Recipe.model_validate(values)
