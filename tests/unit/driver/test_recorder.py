import json
import tomllib

import pyarrow.parquet as pq
import pytest
from samples import recipe_for

from mathrl_ray.driver import recorder
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.rows import EVALUATION_SCHEMA, TRAJECTORY_SCHEMA, evaluation_row, trajectory_row
from mathrl_ray.types import Completion, Grade, Problem, SamplingSettings, Trajectory

COMPLETION = Completion(" 1 </answer>", (5, 6), (-0.5, -0.25), ((3, 1), (4, 1)), "stop")
GRADE = Grade(1.0, 0.0, 0.0, "wrong", "1", 0.002)


def test_a_run_that_exists_is_never_overwritten(tmp_path):
    folders = [Recorder.create(recipe_for(tmp_path)).folder.name for _ in range(3)]
    assert folders == ["test", "test-2", "test-3"]


def test_the_resolved_recipe_stands_in_the_run_with_every_default(tmp_path):
    recipe = recipe_for(tmp_path)
    written = tomllib.loads((Recorder.create(recipe).folder / "recipe.toml").read_text())
    assert written == recipe.model_dump(mode="json")


def test_a_file_that_is_replaced_is_there_at_every_moment_and_what_it_held_stays(tmp_path, monkeypatch):
    path = tmp_path / "recipe.toml"
    recorder.replace_text(path, "one")

    def full(target, text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "write_whole", full)
        with pytest.raises(OSError, match="No space left"):
            recorder.replace_text(path, "two")
    assert path.read_text() == "one"
    recorder.replace_text(path, "two")
    recorder.replace_text(path, "two")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"recipe.toml": "two", "recipe-1.toml": "one"}


def test_metrics_are_there_row_by_row_while_the_run_goes_on(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path))
    recorder.metrics("grpo", 4, 3, {"loss": 0.5})
    row = json.loads((recorder.folder / "metrics.jsonl").read_text())
    assert row == {"time_s": row["time_s"], "stage": "grpo", "step": 4, "policy_version": 3, "loss": 0.5}
    assert 0 <= row["time_s"] < 60


def test_an_evaluation_row_survives_with_its_types(tmp_path):
    problem = Problem("p1", "1+1?", "2", level=None, subject="algebra")
    row = evaluation_row(
        problem, COMPLETION, GRADE, SamplingSettings(1.0, 64), prompt_name="r1_zero", prompt="Q: 1+1?", sample=0, seed=7,
        mean_token_entropy_nats=0.3,
    )  # fmt: skip
    path = Recorder.create(recipe_for(tmp_path)).evaluation("baseline", 4, [row])
    assert path.name == "baseline-v4.parquet"
    table = pq.read_table(path)
    assert table.schema.equals(EVALUATION_SCHEMA)
    assert table.to_pylist() == [row]
    assert row["policy_version"] == 4


def test_a_trajectory_row_survives_with_its_types(tmp_path):
    trajectory = Trajectory("g/0", 1, "p1", (1, 2, 3), COMPLETION, GRADE, advantage=-0.5)
    row = trajectory_row(trajectory, (-0.5, -0.25), consumed_step=9, staleness=1)
    table = pq.read_table(Recorder.create(recipe_for(tmp_path)).trajectories("grpo", 9, [row]))
    assert table.schema.equals(TRAJECTORY_SCHEMA)
    read = table.to_pylist()[0]
    assert (read["version_runs"], read["reward_parts"]) == ([[3, 1], [4, 1]], {"format": 1.0, "answer": 0.0})
    assert (read["prompt_ids"], read["learner_logprobs"], read["drop_reason"]) == ([1, 2, 3], [-0.5, -0.25], None)
