"""Writes dashboard.json: `python -m cluster.monitoring.make_dashboard`. One line a panel; a test keeps the file equal to what this gives.

Knows PromQL and Grafana's format, and names of mathrl_ray/driver/shown_metrics.py, which a test asks a real Prometheus for.
"""

import json
from pathlib import Path
from typing import Any

from cluster.monitoring.settings import DASHBOARD_UID, DATASOURCE

SELECTED = 'run=~"$run",stage=~"$stage"'
WIDTH, HEIGHT, PER_ROW = 8, 7, 3
_SOURCE = {"type": "prometheus", "uid": DATASOURCE}

PANELS: tuple[tuple[str, str, str, str], ...] = (
    ("Reward", "reward_mean", "{{run}} {{stage}}", "none"),
    ("Accuracy", "accuracy", "{{run}} {{stage}} {{split}}", "percentunit"),
    ("Format rate", "format_rate", "{{run}} {{stage}} {{split}}", "percentunit"),
    ("Loss", "loss", "{{run}} {{stage}}", "none"),
    ("Gradient norm", "grad_norm", "{{run}} {{stage}}", "none"),
    ("Entropy (nats)", "entropy_nats", "{{run}} {{stage}}", "none"),
    ("Staleness (versions)", "staleness", "{{run}} {{of}}", "none"),
    ("Groups by state", "groups", "{{run}} {{state}}", "none"),
    ("Tokens a second by role", "tokens_per_second", "{{run}} {{role}}", "none"),
    ("Waiting, of a step", "wait_seconds", "{{run}} {{role}}", "s"),
    ("Working, of a step", "work_seconds", "{{run}} {{role}}", "s"),
    ("New weights: generation stands still", "sync_seconds", "{{run}} {{stage}}", "s"),
    ("Grader's outcomes", "outcome_ratio", "{{run}} {{outcome}}", "percentunit"),
    ("Zero-variance groups", "zero_variance_ratio", "{{run}} {{stage}}", "percentunit"),
    ("Generator against learner (mismatch KL)", "mismatch_kl_nats", "{{run}} {{stage}}", "none"),
    ("KV cache in use", "kv_cache_usage_ratio", "{{run}}", "percentunit"),
    ("Preemptions, of a step", "preemptions", "{{run}}", "none"),
    ("Prefix cache hits", "prefix_cache_hit_ratio", "{{run}}", "percentunit"),
    ("Requests in the engines", "engine_requests", "{{run}} {{state}}", "none"),
    ("Step", "step", "{{run}} {{stage}}", "none"),
    ("Actors replaced", "restarts", "{{run}} {{role}}", "none"),
)
"""Title, name after ray_mathrl_, legend, unit."""


def dashboard() -> dict[str, Any]:
    variables = [
        _variable("run", "label_values(ray_mathrl_step, run)"),
        _variable("stage", 'label_values(ray_mathrl_step{run=~"$run"}, stage)'),
    ]
    return {
        "uid": DASHBOARD_UID,
        "title": "mathrl_ray",
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(index, *panel) for index, panel in enumerate(PANELS)],
    }


def _panel(index: int, title: str, name: str, legend: str, unit: str) -> dict[str, Any]:
    row, column = divmod(index, PER_ROW)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": f"ray_mathrl_{name}{{{SELECTED}}}", "legendFormat": legend}],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "dashboard.json").write_text(text())
