"""The numbers of a run that Ray's metrics show, one line each: name, meaning, and the key of metrics.jsonl that it is.

Read by ray_metrics.py, which fills them, and by cluster/monitoring and its tests, which ask for them by name. Knows names only. Prometheus
knows each with Ray's prefix `ray_`; all carry the labels run and stage. They are gauges: each is the last row's value as it stands there,
a running total too, since a run that goes back to a checkpoint takes some of it back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, get_args

from mathrl_ray.types import Outcome

ROLES = ("generator", "learner", "scorer")
RUN_LABELS = ("run", "stage")
PREFIX = "ray_"
"""What Ray puts before each name."""
LAST_ROW = "mathrl_last_row_timestamp_seconds"
STALENESS_BOUND = "mathrl_staleness_bound"


@dataclass(frozen=True)
class ShownMetric:
    """One name. Example: ShownMetric("mathrl_wait_seconds", "...", {"learner_wait_s": {"role": "learner"}, ...})"""

    name: str
    help: str
    keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The row's key of each series, with what sets it apart; none where the number is no row's (LAST_ROW)."""

    @property
    def labels(self) -> tuple[str, ...]:
        own = next(iter(self.keys.values()), {})
        return (*RUN_LABELS, *own)


def _plain(name: str, help: str, key: str) -> ShownMetric:
    return ShownMetric(f"mathrl_{name}", help, {key: {}})


def _by_role(name: str, help: str, suffix: str, roles: Sequence[str] = ROLES) -> ShownMetric:
    return ShownMetric(f"mathrl_{name}", help, {f"{role}_{suffix}": {"role": role} for role in roles})


def _by(label: str, name: str, help: str, keys: Mapping[str, str]) -> ShownMetric:
    return ShownMetric(f"mathrl_{name}", help, {key: {label: value} for key, value in keys.items()})


SHOWN: tuple[ShownMetric, ...] = (
    ShownMetric(LAST_ROW, "Unix time of the stage's last row of metrics.jsonl, or of the beginning where none has come"),
    ShownMetric(STALENESS_BOUND, "driver.max_staleness: what staleness may be at most"),
    _plain("step", "Training step, or round, of the last row", "step"),
    _plain("policy_version", "Publications of weights since the stage began", "policy_version"),
    _plain("run_time_seconds", "Seconds since the run began, of the last row", "time_s"),
    _by(
        "split", "accuracy", "Share of right answers, of test and of validation", {"accuracy": "test", "validation_accuracy": "validation"}
    ),
    _by("split", "format_rate", "Share of answers in the right tags", {"format_rate": "test", "validation_format_rate": "validation"}),
    _plain("reward_mean", "Mean reward of the step's responses", "reward_mean"),
    _plain("format_reward_mean", "Mean format reward", "format_reward_mean"),
    _plain("answer_reward_mean", "Mean answer reward", "answer_reward_mean"),
    _plain("response_tokens_mean", "Mean length of the step's responses", "response_tokens_mean"),
    _plain("truncated_ratio", "Share of responses cut off at generator.max_tokens", "truncated_fraction"),
    _plain("zero_variance_ratio", "Share of groups whose siblings all earned the same", "zero_variance_fraction"),
    _by(
        "outcome",
        "outcome_ratio",
        "Share of responses by the grader's outcome",
        {f"outcome_{each}_fraction": each for each in get_args(Outcome)},
    ),
    _plain("ungraded_ratio", "Share of responses that the grader could not judge (grader_error, bad_gold)", "ungraded_fraction"),
    _plain("loss", "Loss of the step", "loss"),
    _plain("grad_norm", "Norm of the gradient before clipping", "grad_norm"),
    _plain("learning_rate", "Learning rate of the step", "learning_rate"),
    _plain("entropy_nats", "Mean entropy of a response token", "entropy_nats"),
    _plain("clip_ratio", "Share of clipped tokens", "clip_fraction"),
    _plain("importance_ratio_mean", "Mean of the policy's over the sampler's probability", "importance_ratio_mean"),
    _plain("mismatch_kl_nats", "Mean of exp(d) - 1 - d, d = learner minus generator log-prob", "mismatch_kl"),
    _plain("canary_max_logprob_diff_nats", "Largest gap between generator and learner on fixed prompts", "canary_max_logprob_diff"),
    _by("of", "staleness", "Versions between sampling and training", {"staleness_mean": "mean", "staleness_max": "max"}),
    _by(
        "state",
        "groups",
        "Trajectory groups by where they are",
        {f"groups_{each}": each for each in ("in_flight", "scoring", "buffered", "free")},
    ),
    _by_role("tokens_per_second", "Tokens of the step over its seconds", "tokens_per_s", ("generator", "learner")),
    _by_role("work_seconds", "Seconds of the step in which the role worked", "work_s"),
    _by_role("wait_seconds", "Seconds of the step in which the role waited", "wait_s"),
    _plain("step_seconds", "Seconds of the step", "step_s"),
    _plain("overlap_efficiency", "Busy share of the busiest role", "overlap_efficiency"),
    _plain("sync_seconds", "Seconds that generation stood still for new weights", "sync_s"),
    _by_role("restarts", "Actors replaced since the run began", "restarts_total", ("generator", "scorer")),
    _plain("consumed_tokens", "Sampled tokens trained on or dropped since the stage began", "consumed_tokens_total"),
    _plain(
        "kv_cache_usage_ratio", "Largest share of the KV cache in use since the row before, mean of the generators", "kv_cache_usage_max"
    ),
    _plain("preemptions", "Requests that lost their place in the KV cache since the row before", "num_preemptions"),
    _plain("prefix_cache_hit_ratio", "Prompt tokens found in the prefix cache since the row before", "prefix_cache_hit_rate"),
    _by(
        "state",
        "engine_requests",
        "Most requests in the engines at one time since the row before",
        {"engine_running_max": "running", "engine_waiting_max": "waiting"},
    ),
)


def values_of(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """(name, labels beside run and stage, value) of all numbers of a row that are shown; NaN where the row says so, or null.

    >>> list(values_of({"learner_wait_s": 2.5, "spans": []}))
    [('mathrl_wait_seconds', {'role': 'learner'}, 2.5)]
    """
    for metric in SHOWN:
        for key, labels in metric.keys.items():
            value = row.get(key, "")
            if value is None:  # measured, and there is none: the number of an earlier row must not stay
                yield metric.name, labels, nan
            elif isinstance(value, (int, float)):
                yield metric.name, labels, float(value)
