"""The methods that `grpo.loss` names: which surrogate, clip, aggregation and baseline each paper puts together.

Read by config.py, which writes what a method sets into the recipe's [loss] and [advantage] sections; a key that the recipe names itself
wins. Values only; the formulas are in core/losses.py and core/advantages.py.
"""

from typing import Any, Literal, assert_never

Method = Literal["reinforce", "reinforce_baseline", "rloo", "grpo", "grpo_clip", "dr_grpo", "dapo", "gspo", "cispo"]
Settings = dict[str, dict[str, Any]]


def method_settings(method: Method) -> Settings:
    """The [loss] and [advantage] keys that a method sets.

    >>> method_settings("dapo")["loss"]["clip_high"]
    0.28
    """
    match method:
        case "reinforce":  # Williams 1992: the reward itself
            return _settings("log_prob", "sequence", baseline="none")
        case "reinforce_baseline":  # the same with the group's mean as baseline (CS336 assignment 5)
            return _settings("log_prob", "sequence")
        case "rloo":  # Ahmadian et al. 2024: a response is one action, so its length is in no divisor
            return _settings("log_prob", "constant", baseline="leave_one_out")
        case "grpo":  # importance ratio without a clip; with one optimizer step a batch, GRPO itself
            return _settings("ratio", "sequence", divide_by_std=True)
        case "grpo_clip":  # Shao et al. 2024, eq. 3
            return _settings("clip", "sequence", divide_by_std=True)
        case "dr_grpo":  # Liu et al. 2025: no length and no standard deviation in a divisor
            return _settings("clip", "constant")
        case "dapo":  # Yu et al. 2025: clip-higher (3.1), token-level loss (3.3), soft overlong punishment (3.4)
            return _settings("clip", "token", divide_by_std=True, overlong_fraction=0.2, clip_high=0.28)
        case "gspo":  # Zheng et al. 2025, eq. 5 and section 5.1
            return _settings("gspo", "sequence", divide_by_std=True, clip_low=3e-4, clip_high=4e-4)
        case "cispo":  # MiniMax-M1 2025, eq. 4: no lower bound; it names no upper one, a weight of at most 5 is our choice
            return _settings("cispo", "token", divide_by_std=True, clip_low=1.0, clip_high=4.0)
        case _:
            assert_never(method)


def _settings(
    surrogate: str,
    aggregation: str,
    *,
    baseline: str = "group_mean",
    divide_by_std: bool = False,
    overlong_fraction: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Settings:
    return {
        "loss": {"surrogate": surrogate, "aggregation": aggregation, "clip_low": clip_low, "clip_high": clip_high},
        "advantage": {"baseline": baseline, "divide_by_std": divide_by_std, "overlong_fraction": overlong_fraction},
    }
