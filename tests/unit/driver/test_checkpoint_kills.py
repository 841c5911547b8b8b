"""Behaviour 27: after kill -9 at any moment of a save, a run goes on from its last whole checkpoint and says so."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_writer import FILE_BYTES, NUM_FILES, loops_at
from samples import recipe_for

import mathrl_ray
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.resume import find_resumption

WRITER = Path(__file__).parent / "checkpoint_writer.py"
NUM_KILLS = 50


def killed_after(root, seconds):
    """Run the writer and kill it so long after its first checkpoint. Returns the number of checkpoints that it has told of."""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, str(WRITER), str(root)], stdout=subprocess.PIPE, text=True, env=path) as writer:
        try:
            lines = iter(writer.stdout.readline, "")
            assert next(lines) == f"{mathrl_ray.__path__[0]}\n", "the writer is not of the package that is tested"
            assert any(line == "ready\n" for line in lines), "the writer has failed"
            time.sleep(seconds)
        finally:
            writer.kill()
        return 1 + sum(line == "ready\n" for line in lines)


def assert_whole(checkpoint):
    step = checkpoint.step
    for number in range(NUM_FILES):
        assert (checkpoint.folder / f"model-{number}.bin").read_bytes() == bytes([step % 251]) * FILE_BYTES
    assert checkpoint.loops() == loops_at(step)
    assert checkpoint.content["policy_version"] == 0


def check_after_a_kill(root, told):
    """What a resumed run would find. Returns its step, and whether the kill left something unfinished."""
    folder = root / "test"
    leftovers = [path.name for path in (folder / "checkpoints").glob(".*")]
    for checkpoint in whole_checkpoints(folder):
        assert_whole(checkpoint)
    recipe = recipe_for(root, run={"resume": "auto"})
    found = find_resumption(recipe, ["grpo"])
    step = found.checkpoint.step
    assert step in (told, told + 1)  # the word may come after the folder, never before it
    said = []
    recorder = found.open(recipe, ["grpo"], said.append)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    recorder.close()
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, step + 1))
    assert f"from checkpoint grpo-{step} (grpo after step {step})" in said[-1]
    assert not list((folder / "checkpoints").glob(".*"))
    return step, bool(leftovers)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_behaviour_27_fifty_kills_of_the_writer_never_leave_half_a_checkpoint(tmp_path):
    draw, step, num_unfinished = random.Random(27), 0, 0
    for _ in range(NUM_KILLS):
        told = step + killed_after(tmp_path, draw.random() * 0.15)
        step, is_unfinished = check_after_a_kill(tmp_path, told)
        num_unfinished += is_unfinished
    assert num_unfinished >= NUM_KILLS // 5, "the kills came between the saves: they show nothing"


def test_behaviour_27_three_kills_of_the_writer(tmp_path):
    step = 0
    for seconds in (0.03, 0.07, 0.11):
        step, _ = check_after_a_kill(tmp_path, step + killed_after(tmp_path, seconds))
