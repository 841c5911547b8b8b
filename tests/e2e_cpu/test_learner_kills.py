"""Behaviour 27 with the real learner: after kill -9 at random moments of its saves, training goes on from the last whole checkpoint, and
what it computes then is what a training that nobody killed computes."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from learner_writer import recipe_of

from mathrl_ray.driver.resume import find_resumption

WRITER = Path(__file__).parent / "learner_writer.py"
NUM_KILLS = 5


def killed_in_a_save(root, model, draw):
    """Let it save once, and kill it in its next save, at a moment by chance. Returns the last step that it has told to be saved."""
    with subprocess.Popen([sys.executable, str(WRITER), str(root), str(model)], stdout=subprocess.PIPE, text=True) as writer:
        told = []

        def until(word):
            for line in iter(writer.stdout.readline, ""):
                told.append(line)
                if line.startswith(f"{word} "):
                    return time.monotonic()
            raise AssertionError(f"the writer has ended: {told}")

        try:
            began_s = until("saving")
            save_s = until("saved") - began_s
            until("saving")
            time.sleep(draw.random() * save_s)  # the moment of the kill
        finally:
            writer.kill()
        told += writer.stdout
    return max(int(line.split()[1]) for line in told if line.startswith("saved "))


def rows(root):
    lines = (root / "test" / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row["loss"], row["grad_norm"], row["learning_rate"]) for row in map(json.loads, lines) if "loss" in row]


def train_to(root, model, num_steps):
    subprocess.run([sys.executable, str(WRITER), str(root), str(model), str(num_steps)], check=True, timeout=200, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_behaviour_27_a_learner_killed_five_times_in_its_saves_ends_as_one_that_nobody_killed(start_model, tmp_path):
    draw, num_unfinished = random.Random(27), 0
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for _ in range(NUM_KILLS):
        told = killed_in_a_save(killed, start_model, draw)
        num_unfinished += any((killed / "test" / "checkpoints").glob(".*"))
        step = find_resumption(recipe_of(killed), ["grpo"]).checkpoint.step
        assert step in (told, told + 1)  # the word may come after the folder, never before it
    assert num_unfinished > 0, "the kills came between the saves: they show nothing"
    train_to(killed, start_model, step + 2)
    train_to(whole, start_model, step + 2)
    assert [number for number, *_ in rows(whole)] == list(range(1, step + 3))
    assert rows(killed) == rows(whole)
