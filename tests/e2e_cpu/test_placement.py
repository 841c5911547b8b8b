"""Ranks of a learner as Ray has them: a minute, so it is slow.

python -m pytest -m slow tests/e2e_cpu/test_placement.py
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "placed_ranks.py"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_ranks_in_a_placement_group_train_and_publish_divided_weights_behind_adapters(start_model, tmp_path):
    command = [sys.executable, str(SCRIPT), str(start_model), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"] == ["generator-0", "learner-0", "learner-1", "scorer-0"]
    assert found["left"] == []
    assert found["placement_groups"] == ["REMOVED"]
    assert found["metrics"]["canary_max_logprob_diff"] < 1e-3  # what rank 0 published is what both ranks hold
    assert found["metrics"]["importance_ratio_mean"] == pytest.approx(1, abs=1e-3)
    assert found["metrics"]["grad_norm"] > 0
    assert found["metrics"]["num_micro_batches"] % 2 == 0
