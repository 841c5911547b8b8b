"""Behaviour 21 on real engines: what is killed is replaced, and the run learns what it would have learned.

`python -m pytest -m slow tests/e2e_cpu/test_killed_actors.py` takes 5 minutes, since five engines are started
anew. test_replacement.py looks at one replacement at a time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "killed_actors.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("num_generators", "killed", "restarts"),
    [
        (
            1,
            [
                "actor of generator-0 in generate",
                "worker of generator-0 in score",
                "core of generator-0 in apply_weights",
                "actor of scorer-0 in score",
            ],
            [3, 1],
        ),
        (2, ["worker of generator-1 in generate", "core of generator-0 in apply_weights"], [2, 0]),
    ],
)
def test_behaviour_21_a_run_whose_actors_are_killed_in_each_phase_ends_with_the_same_responses_and_losses(
    start_model, tmp_path, num_generators, killed, restarts
):
    shared_memory = set(os.listdir("/dev/shm"))
    command = [sys.executable, str(SCRIPT), str(start_model), str(tmp_path), str(num_generators)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == killed
    assert found["restarts"] == restarts
    assert found["generators"] == [f"generator-{index}" for index in range(num_generators)]  # both of two have worked
    assert found["redone"] > 0 or num_generators == 2  # of two, the victim may have answered before it died
    assert found["num_rows"] == 6 * 6 * 4
    assert found["rows_differ"] == []  # ids, log-probs, rewards, advantages, versions, staleness: nothing lost, nothing doubled
    assert found["losses"][0] == found["losses"][1]
    assert found["canary"] < 1e-3
    assert not {name for name in set(os.listdir("/dev/shm")) - shared_memory if name.startswith(("psm_", "mathrl-"))}
