"""The section [guards] of a recipe: what is done when training goes wrong, and from when it counts as wrong.

Put together with the other sections by config.py. Light on purpose, as sections.py is. Each default stands here and nowhere else.
"""

from typing import Annotated, Literal

from pydantic import Field

from mathrl_ray.sections import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section

Share = Annotated[float, Field(gt=0, lt=1)]
Factor = Annotated[float, Field(gt=1)]
GuardName = Literal[
    "entropy",
    "format_rate",
    "reward",
    "reward_variance",
    "response_length",
    "importance_ratio",
    "loss_spike",
    "grad_norm_spike",
    "validation",
]
GuardAction = Literal["warn", "stop", "rollback"]
Remedy = Literal["lower_rate", "tighter_clip", "larger_batch", "more_regularisation", "average_checkpoints", "temperature"]


class GuardsSection(Section):
    """What is done when training goes wrong, and from when it counts as wrong. Each guard's rule is in core/guard_rules.py."""

    action: GuardAction = Field("warn", description="what every guard does; rollback: back to the last good checkpoint, with a remedy")
    actions: dict[GuardName, Literal["warn", "stop", "rollback", "off"]] = Field(
        {}, description='single guards: {entropy = "stop", reward = "off"}'
    )
    window: Annotated[int, Field(ge=5)] = Field(20, description="steps of the running medians")
    patience: PositiveInt = Field(3, description="bad steps in a row before a guard fires; of spikes, within half a window")
    entropy_fall: Share = Field(0.7, description="entropy: share that may go within half a window")
    entropy_low: Share = Field(0.5, description="entropy: share that is left after half a window, below which there must have been a gain")
    entropy_gain: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5,
        description="entropy: share of what was unsolved at first that must be solved when no entropy is left; before in proportion",
    )
    entropy_rise: Factor = Field(2.0, description="entropy: times its running median")
    format_fall: Share = Field(0.2, description="format_rate: below its best running median")
    reward_fall: Share = Field(0.25, description="reward: below its best running median, as a share of all that was won")
    equal_groups: Share = Field(0.95, description="reward_variance: share of groups with equal rewards, where less than half is solved")
    length_rise: Factor = Field(1.5, description="response_length: times its running median, where the reward does not rise")
    length_fall: Share = Field(0.5, description="response_length: the same downwards")
    truncated_rise: Share = Field(0.25, description="response_length: share of responses cut off, above its running median")
    importance_ratio: Factor = Field(1.2, description="importance_ratio: its mean may lie between 1 / this and this")
    mismatch_kl_nats: PositiveFloat = Field(0.1, description="importance_ratio: mismatch_kl, of learner and generator, a token")
    loss_spike_deviations: PositiveFloat = Field(10.0, description="loss_spike: robust standard deviations above the running median")
    grad_norm_factor: Factor = Field(8.0, description="grad_norm_spike: times its running median")
    validation_deviations: PositiveFloat = Field(3.0, description="validation: standard errors below the best accuracy")
    validation_patience: PositiveInt = Field(2, description="validation: so many validations in a row")
    remedies: list[Remedy] = Field(["lower_rate"], description="tried one after the other, the last one again; none: back without a change")
    rate_factor: Share = Field(0.25, description="lower_rate: times the learning rate")
    clip_factor: Share = Field(0.5, description="tighter_clip: times learner.max_grad_norm and the loss's clip range")
    batch_factor: Annotated[int, Field(ge=2)] = Field(2, description="larger_batch: times the responses of a step")
    kl_coefficient: NonNegativeFloat = Field(0.01, description="more_regularisation: loss.kl_coefficient at least")
    entropy_coefficient: NonNegativeFloat = Field(0.0, description="more_regularisation: loss.entropy_coefficient at least")
    temperature: PositiveFloat = Field(1.0, description="temperature: of the generator")
    max_rollbacks: NonNegativeInt = Field(3, description="of a stage; where a guard fires after the last one, the job ends")

    @property
    def may_roll_back(self) -> bool:
        """Whether any guard takes a stage back."""
        return "rollback" in {self.action, *self.actions.values()}

    @property
    def only_warns(self) -> bool:
        """Whether no guard does anything else."""
        return not {"stop", "rollback"} & {self.action, *self.actions.values()}

    @property
    def may_need_reference(self) -> bool:
        """Whether a remedy loads the start model a second time, for a KL."""
        return self.may_roll_back and "more_regularisation" in self.remedies and self.kl_coefficient > 0
