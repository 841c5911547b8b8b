"""learner.average with two ranks on real DeepSpeed, which divide it: the same average as one rank's, also from the other's checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mathrl_ray.actors.process_group import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # half a minute with both cores
SCRIPT = Path(__file__).parent / "average_rank.py"
ZERO_STAGES = [1, 3]


def run_ranks(folder, num_ranks, start_model, *, go_on=False):
    """(figures, flat weights) of each variant, of a job that `num_ranks` processes did together."""
    output = folder / f"results-{num_ranks}.pt"
    job = {"num_ranks": num_ranks, "port": free_port(), "model": str(start_model), "folder": str(folder), "output": str(output)}
    path = folder / f"job-{num_ranks}.json"
    path.write_text(json.dumps({**job, "zero_stages": ZERO_STAGES, "go_on": go_on}))
    logs = [(folder / f"rank-{num_ranks}-{rank}.log").open("w+") for rank in range(num_ranks)]
    ranks = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(path), str(rank)], stdout=log, stderr=subprocess.STDOUT)
        for rank, log in enumerate(logs)
    ]
    try:
        statuses = [rank.wait(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for log in logs:
        log.seek(0)
    assert statuses == [0] * num_ranks, "\n".join(log.read()[-3000:] for log in logs)
    return torch.load(output)


def test_two_ranks_keep_the_average_that_one_keeps_and_one_goes_on_from_what_two_saved(start_model, tmp_path):
    for each in ("alone", "together"):
        (tmp_path / each).mkdir()
    alone = run_ranks(tmp_path / "alone", 1, start_model)
    together = run_ranks(tmp_path / "together", 2, start_model)
    going_on = run_ranks(tmp_path / "together", 1, start_model, go_on=True)
    (expected_figures, expected), *others = (results[f"zero{stage}"] for results in (alone, together, going_on) for stage in ZERO_STAGES)
    assert expected_figures["num_averaged"] == 5
    assert expected_figures["average_distance"] > 0
    for figures, weights in others:
        # Adam's steps of 1e-3 each differ with the order of sums where a gradient is tiny
        assert figures == pytest.approx(expected_figures, rel=1e-2)
        assert (weights - expected).norm() <= 1e-2 * expected_figures["average_distance"]
