"""A real run under a head and a Prometheus of its own: what Prometheus has at its end is the last row of metrics.jsonl. Slow.

python -m pytest -m slow tests/e2e_cpu/test_watched_run.py
"""

import json
import os
import subprocess
import sys
import time

import pytest
from test_monitoring import REPOSITORY, ask, programs  # noqa: F401 -- a fixture

from cluster.monitoring import __main__ as monitoring
from mathrl_ray.driver.shown_metrics import LAST_ROW, PREFIX, SHOWN, STALENESS_BOUND

LINGER_S = 20
"""Two of Ray's export intervals."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def module(*words, limit_s):
    return subprocess.run([sys.executable, "-m", *words], cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, timeout=limit_s)


@pytest.fixture
def watched_head(programs, monkeypatch):  # noqa: F811 -- the fixture
    """Monitoring first, then the head: the order in which nothing has to be told anything."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monitoring.up()
    started = module("cluster.head", "start", limit_s=150)
    try:
        assert started.returncode == 0, started.stderr
        yield
    finally:
        module("cluster.head", "stop", limit_s=90)
        monitoring.down()


def test_prometheus_has_the_last_row_of_a_real_run_also_of_the_vllm_engine(watched_head, start_model, tmp_path):
    settings = [
        f"run.root={tmp_path}", "run.name=watched", f"model.path={start_model}", "grpo.num_steps=4", "grpo.prompts_per_step=4",
        "eval.num_problems=50", "data.num_train_problems=300", "driver.max_staleness=1", "run.report=false",
    ]  # fmt: skip
    job = module("cluster.submit", "--", "python", "jobs/grpo.py", "jobs/recipes/arithmetic_cpu.toml", *settings, limit_s=300)
    ended_s = time.time()
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-1000:]
    rows = [json.loads(line) for line in (tmp_path / "watched" / "metrics.jsonl").read_text().splitlines()]
    last, step = rows[-1], next(row for row in reversed(rows) if "reward_mean" in row)
    assert ended_s - (tmp_path / "watched" / "metrics.jsonl").stat().st_mtime > LINGER_S
    num_compared = 0
    for metric in SHOWN:
        if metric.name in (LAST_ROW, STALENESS_BOUND):
            continue
        for key, labels in metric.keys.items():
            if (value := {**step, **last}.get(key)) is None:
                continue
            wanted = ",".join(f'{name}="{label}"' for name, label in {"run": "watched", "stage": "grpo", **labels}.items())
            (found,) = ask(f"last_over_time({PREFIX}{metric.name}{{{wanted}}}[10m])")
            assert float(found["value"][1]) == pytest.approx(value), key
            num_compared += 1
    assert num_compared > 40
    assert ask("last_over_time(ray_vllm_kv_cache_usage_perc[10m])")
    assert 0 < step["kv_cache_usage_max"] <= 1
