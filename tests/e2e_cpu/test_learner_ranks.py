"""The learner with real DeepSpeed on one rank and on two: the same gradient however the work is cut, and no step from a bad one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mathrl_ray.actors.process_group import free_port

pytestmark = pytest.mark.timeout(240)
SCRIPT = Path(__file__).parent / "learner_rank.py"


def run_ranks(folder, num_ranks, start_model, **job):
    """The results of a job that `num_ranks` processes did together."""
    output = folder / "results.pt"
    content = {"num_ranks": num_ranks, "port": free_port(), "model": str(start_model), "folder": str(folder), "output": str(output), **job}
    (folder / "job.json").write_text(json.dumps(content))
    command = [sys.executable, str(SCRIPT), str(folder / "job.json")]
    logs = [(folder / f"rank-{rank}.log").open("w+") for rank in range(num_ranks)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=log, stderr=subprocess.STDOUT) for rank, log in enumerate(logs)]
    try:
        statuses = [rank.wait(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for log in logs:
        log.seek(0)
    assert statuses == [0] * num_ranks, "\n".join(log.read()[-3000:] for log in logs)
    return torch.load(output)


@pytest.fixture(scope="module")
def one_rank(start_model, tmp_path_factory):
    variants = [{"zero_stage": 1, "every": 1, "cuts": [1, 2, 4, 8]}]
    return run_ranks(tmp_path_factory.mktemp("one"), 1, start_model, what="gradients", variants=variants)[1]


@pytest.fixture(scope="module")
def two_ranks(start_model, tmp_path_factory):
    # beyond stage 1 every 11th case: a policy loss, one with an addition, and sft
    variants = [{"zero_stage": stage, "every": 1 if stage == 1 else 11, "cuts": [1, 4, 8] if stage == 1 else [1, 4]} for stage in (1, 2, 3)]
    return run_ranks(tmp_path_factory.mktemp("two"), 2, start_model, what="gradients", variants=variants)


def assert_equal_gradients(results, reference):
    for case, (loss, gradient) in results.items():
        expected_loss, expected = reference[f"{case.split(' | ')[0]} | 1"]
        norm = expected.norm()
        assert norm > 1e-4, f"{case}: a gradient of nothing shows nothing"
        assert (gradient - expected).norm() <= 1e-5 * norm, case
        assert loss == pytest.approx(expected_loss, abs=1e-5 * float(norm)), case


def test_behaviour_14_every_loss_and_aggregation_has_one_gradient_for_1_2_4_and_8_micro_batches(one_rank):
    assert len(one_rank) == (9 * 3 + 5 + 1) * 4
    assert_equal_gradients(one_rank, one_rank)


def test_behaviour_14_two_ranks_have_the_gradient_of_one(one_rank, two_ranks):
    assert len(two_ranks[1]) == (9 * 3 + 5 + 1) * 3
    assert_equal_gradients(two_ranks[1], one_rank)


@pytest.mark.parametrize("stage", [2, 3])
def test_behaviour_14_divided_gradients_and_weights_change_nothing(one_rank, two_ranks, stage):
    assert len(two_ranks[stage]) == 3 * 2
    assert_equal_gradients(two_ranks[stage], one_rank)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_behaviour_15_a_loss_or_gradient_that_is_no_number_changes_no_weight_on_any_rank(start_model, tmp_path, num_ranks):
    variants = [
        {"name": "float32", "dtype": "float32", "zero_stage": 1},
        {"name": "bfloat16", "dtype": "bfloat16", "zero_stage": 1},
        {"name": "divided gradients", "dtype": "float32", "zero_stage": 2},
        {"name": "divided weights", "dtype": "float32", "zero_stage": 3},
        {"name": "all", "dtype": "bfloat16", "zero_stage": 3},
    ]
    results = run_ranks(tmp_path, num_ranks, start_model, what="skipping", variants=variants)
    for name, result in results.items():
        assert_skipped(result, tmp_path / name / "dumps")


@pytest.mark.slow  # three trainings of two processes: python -m pytest -m slow tests/e2e_cpu/test_learner_ranks.py
def test_behaviour_26_two_ranks_go_on_from_their_checkpoint_as_if_they_had_not_stopped(start_model, tmp_path):
    variants = [
        {"name": f"{zero_stage} {dtype}", "dtype": dtype, "zero_stage": zero_stage}
        for zero_stage, dtype in ((1, "bfloat16"), (2, "float32"), (3, "float32"))
    ]
    for name, result in run_ranks(tmp_path, 2, start_model, what="resuming", variants=variants).items():
        assert result["resumed"][0] == result["whole"][0], name
        assert torch.equal(result["resumed"][1], result["whole"][1]), name
        assert len(set(result["whole"][0])) == 2
        assert sorted(path.name for path in (tmp_path / name / "checkpoint" / "trainer").iterdir()) == [
            "learner.json",
            "optimizer.safetensors",
            "random-rank0.safetensors",
            "random-rank1.safetensors",
        ]


def assert_skipped(result, dump_folder):
    applied, _, good = result["good"]
    assert applied == 1
    for name in ("NaN loss", "inf loss"):
        applied, grad_norm, weights = result[name]
        assert (applied, grad_norm) == (0, float("inf")), name
        assert torch.equal(weights, good), name
    applied, grad_norm, again = result["good again"]
    assert applied == 1
    assert 0 < grad_norm < float("inf")
    assert not torch.equal(again, good)
    applied, _, weights = result["huge gradient"]  # each loss is a number, the norm of the gradient overflows
    assert applied == 0
    assert torch.equal(weights, again)
    dumps = sorted(path.name for path in dump_folder.iterdir())
    assert dumps == ["grpo-update-1-skip-1.json", "grpo-update-1-skip-2.json", "grpo-update-2-skip-1.json"]
    assert len(json.loads((dump_folder / dumps[0]).read_text())["batch"]) == 16
