import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loop_scene import LoopScene, sections
from samples import recipe_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.superseded import Position, supersede
from mathrl_ray.driver.tensorboard_files import TensorBoardFiles
from mathrl_ray.driver.tracked_values import code_block, sample_text, tracked_row
from mathrl_ray.driver.trackers import Following, hyperparameters, tracking

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def quiet_tensorboard():
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # its reader says that it forgets what came before a restart


def events(folder):
    """All numbers as TensorBoard reads them: {tag: [(step, value), ...]}, and the reader."""
    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}, reader


def texts(reader, tag):
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in reader.Tensors(tag)]


def train(scene):
    recorder = scene.run.recorder
    with tracking(recorder, scene.run.recipe, scene.said.append):
        asyncio.run(scene.train())
    recorder.close()


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_all_numbers_are_there(folder):
    found, _ = events(folder)
    expected = 0
    for row in metrics_of(folder):
        for name, value in row.items():
            if name in ("time_s", "stage", "step", "policy_version", "spans"):
                continue
            expected += 1
            tags = [tag for tag in found if tag.split("/")[0] in (row["stage"], f"{row['stage']}_system") and tag.endswith(name)]
            number = float(np.float32(value))
            assert any((row["step"], pytest.approx(number, abs=0, rel=0, nan_ok=True)) in found[tag] for tag in tags), (row["step"], name)
    assert sum(len(points) for tag, points in found.items() if not tag.startswith("accuracy/")) == expected
    return found


def test_every_number_of_a_run_is_there_with_its_step(tmp_path):
    scene = LoopScene(tmp_path, eval={"validate_every": 2})
    train(scene)
    found = check_all_numbers_are_there(scene.run.recorder.folder)
    assert [step for step, _ in found["grpo/reward_mean"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in found["grpo/validation_accuracy"]] == [2, 4, 6]
    assert "grpo_system/step_s" in found
    assert not any("warning" in text for text in scene.said)


def test_a_run_that_goes_on_shows_each_step_once_and_nothing_of_what_was_moved_aside(tmp_path):
    first = LoopScene(tmp_path, **sections())
    train(first)
    folder = first.run.recorder.folder
    before, _ = events(folder)
    again = LoopScene(tmp_path, num_dull=16, **sections(str(folder / "checkpoints" / "grpo-3")))  # other rewards from step 4 on
    train(again)
    after = check_all_numbers_are_there(folder)
    assert [step for step, _ in after["grpo/reward_mean"]] == [1, 2, 3, 4, 5, 6]
    assert after["grpo/reward_mean"][:3] == before["grpo/reward_mean"][:3]
    assert after["grpo/reward_mean"][3:] != before["grpo/reward_mean"][3:]
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_a_run_that_goes_back_in_its_middle_forgets_the_steps_after_that(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path))
    with tracking(recorder, recipe_for(tmp_path), print):
        for step in (1, 2, 3, 4):
            recorder.metrics("grpo", step, step, {"reward_mean": step / 10})
        with recorder.closed_metrics():
            supersede(recorder.folder, Position([], "grpo", 2))
        for step in (3, 4):
            recorder.metrics("grpo", step, step, {"reward_mean": step / 5})
    recorder.close()
    found = check_all_numbers_are_there(recorder.folder)
    assert found["grpo/reward_mean"] == [(step, float(np.float32(reward))) for step, reward in ((1, 0.1), (2, 0.2), (3, 0.6), (4, 0.8))]


def test_rows_get_tags_by_what_they_are():
    place = {"time_s": 1.5, "stage": "expert_iteration", "step": 2, "policy_version": 2}
    tags = {
        "validation": tracked_row({**place, "validation_accuracy": 0.5, "consumed_tokens_total": 9}).values,
        "test": tracked_row({**place, "accuracy": 0.25, "ci95_low": 0.2, "entropy_nats": 1.0, "spans": [["a", "b", 0, 1]]}).values,
        "other prompt": tracked_row({**place, "accuracy_chat": 0.25}).values,
        "size": tracked_row({**place, "stage": "sft", "sft_size": 128, "loss": 1.0}).values,
        "system": tracked_row({**place, "sync_s": 0.5, "is_first": True, "remark": "none"}).values,
    }
    assert tags == {
        "validation": {
            "accuracy/expert_iteration_validation": 0.5,
            "expert_iteration/validation_accuracy": 0.5,
            "expert_iteration/validation_consumed_tokens_total": 9,
        },
        "test": {
            "accuracy/expert_iteration_test": 0.25,
            "expert_iteration/test_accuracy": 0.25,
            "expert_iteration/test_ci95_low": 0.2,
            "expert_iteration/test_entropy_nats": 1.0,
        },
        "other prompt": {"expert_iteration/test_accuracy_chat": 0.25},
        "size": {"sft_size128/loss": 1.0},
        "system": {"expert_iteration_system/sync_s": 0.5},
    }
    update = tracked_row({**place, "loss": 3.0, "optimizer_step": 77})
    assert (update.step, update.values) == (77, {"expert_iteration/sft_loss": 3.0})


def evaluation_file(folder, name, problem, response):
    rows = [{"problem_id": f"p{index}", "problem": problem, "gold": "5", "response": response, "outcome": "wrong"} for index in range(3)]
    (folder / "evaluations").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "evaluations" / f"{name}.parquet")
    return folder / "evaluations" / f"{name}.parquet"


def test_responses_are_shown_as_text_that_is_no_markdown(tmp_path):
    path = evaluation_file(
        tmp_path, "validation-grpo-step10-v10", "2+3?", "# head\n<script>x</script>\x1b[31m\n\n    ```\nhub_token=a1b2c3d4e5"
    )
    found = sample_text(path, 2)
    assert (found.tag, found.step) == ("grpo/validation_samples", 10)
    assert found.text.count("**wrong**") == 2
    response = found.text.split("    2+3?\n\n")[1].split("\n\n---")[0]
    assert response == "    # head\n    <script>x</script>[31m\n    \n        ```\n    hub_token=*masked*"
    assert sample_text(evaluation_file(tmp_path, "sft-chat-v4", "", ""), 1).tag == "sft/test_samples_chat"
    assert sample_text(evaluation_file(tmp_path, "of the user", "", ""), 1) is None


def test_a_long_response_keeps_its_ends():
    shown = code_block("a" * 3000 + "b" * 3000)
    assert len(shown) < 4200
    assert "[... 2,000 characters ...]" in shown
    assert shown.startswith("    aaa")
    assert shown.endswith("bbb")


def test_validations_bring_their_responses_and_the_start_brings_the_recipe_without_secrets(tmp_path):
    recipe = recipe_for(tmp_path, reward={"function": "here:there", "kwargs": {"api_key": "sesame-42-open", "slope": 2}})
    recorder = Recorder.create(recipe)
    with tracking(recorder, recipe, print):
        path = evaluation_file(recorder.folder, "validation-grpo-step10-v10", "2+3?", "it is sesame-42-open")
        for watcher in recorder._watchers:
            watcher.evaluated(path)
    recorder.close()
    _, reader = events(recorder.folder)
    [(step, samples)] = texts(reader, "grpo/validation_samples")
    assert step == 10
    assert "it is *masked*" in samples
    assert 'function = "here:there"' in texts(reader, "recipe")[0][1]
    assert all(b"sesame" not in path.read_bytes() for path in (recorder.folder / "tensorboard").iterdir())


def test_hyperparameters_are_those_that_differ_and_a_few_more():
    settings = {"run": {"seed": 3, "name": "x"}, "grpo": {"num_steps": 7, "minibatches": 1}, "eval": {"prompts": ["chat"]}}
    assert hyperparameters(settings) == {"run.seed": 3, "grpo.num_steps": 7, "eval.prompts": '["chat"]'}


class Breaking:
    """A tracker that fails at its third row."""

    name = "Breaking"

    def __init__(self):
        self.steps = []

    def open(self, wall_time_s):
        self.steps.clear()

    def numbers(self, step, wall_time_s, values):
        if step == 3:
            raise OSError(28, "No space left on device")
        self.steps.append(step)

    def text(self, tag, step, wall_time_s, markdown):
        raise AssertionError

    def flush(self):
        pass

    def close(self):
        raise OSError(28, "No space left on device")


def row(step, **numbers):
    return {"time_s": float(step), "stage": "grpo", "step": step, "policy_version": step, "reward_mean": 0.5, **numbers}


def test_a_broken_tracker_is_left_out_with_one_warning_and_the_others_go_on(tmp_path):
    said, breaking, whole = [], Breaking(), TensorBoardFiles(tmp_path, "", {})
    both = [Following(tmp_path, tracker, said.append, began_s=0.0) for tracker in (breaking, whole)]
    for step in range(1, 7):
        for following in both:
            following.row(row(step))
    for following in both:
        following.close()
    assert breaking.steps == [1, 2]
    assert said == ["warning: Breaking is left out from now on: OSError: [Errno 28] No space left on device"]
    assert [step for step, _ in events(tmp_path)[0]["grpo/reward_mean"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_costs_the_tracker_and_not_the_run(tmp_path):
    said, files = [], TensorBoardFiles(tmp_path, "", {})
    following = Following(tmp_path, files, said.append, began_s=0.0)
    following.row(row(1))
    deadline = time.monotonic() + 10
    while not files._file and time.monotonic() < deadline:
        time.sleep(0.01)
    os.dup2(os.open("/dev/full", os.O_WRONLY), files._file.fileno())
    following.row(row(2))
    following.row(row(3))
    following.close()
    assert len(said) == 1
    assert "TensorBoard is left out from now on: OSError: [Errno 28]" in said[0]


class Hanging(Breaking):
    def __init__(self):
        super().__init__()
        self.may_go_on = threading.Event()

    def numbers(self, step, wall_time_s, values):
        self.may_go_on.wait(20)


def test_a_tracker_that_hangs_holds_up_neither_a_step_nor_the_end(tmp_path):
    said, hanging = [], Hanging()
    following = Following(tmp_path, hanging, said.append, began_s=0.0)
    began = time.monotonic()
    for step in range(1, 101):
        following.row(row(step))
    following.close(limit_s=0.2)
    following.row(row(101))
    following.close(limit_s=0.2)
    assert time.monotonic() - began < 5
    hanging.may_go_on.set()
    assert said == ["warning: Breaking had not written everything 0.2 s after the run's end. The run's own files are complete."]


def test_a_step_pays_less_than_a_millisecond(tmp_path):
    following = Following(tmp_path, TensorBoardFiles(tmp_path, "", {}), print, began_s=0.0)
    numbers = {f"number_{index}": index / 7 for index in range(60)}
    began, mine = time.process_time(), 0.0
    for step in range(1, 301):
        before = time.thread_time()
        following.row(row(step, **numbers))
        mine += time.thread_time() - before
    following.close(30)
    assert mine / 300 < 1e-3
    assert (time.process_time() - began) / 300 < 3e-3  # of processor time in the thread beside it; about 1 ms


def in_a_process(code, *, path=()):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes)


def test_neither_tensorflow_nor_torch_is_loaded_where_there_is_one(tmp_path):
    (tmp_path / "lib" / "tensorflow").mkdir(parents=True)
    (tmp_path / "lib" / "tensorflow" / "__init__.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()\n")
    code = f"""
import sys, pathlib
from mathrl_ray.driver.trackers import Following
from mathrl_ray.driver.tensorboard_files import TensorBoardFiles
folder = pathlib.Path({str(tmp_path)!r})
following = Following(folder, TensorBoardFiles(folder, "", {{"run.seed": 1}}), print, began_s=0.0)
following.row({row(1)!r})
following.close(50)
print(sorted({{"tensorflow", "torch"}} & set(sys.modules)))
"""
    process = in_a_process(code, path=[tmp_path / "lib"])
    assert process.communicate(timeout=60)[0].strip() == "[]"
    assert not (tmp_path / "loaded").exists()
    assert "grpo/reward_mean" in events(tmp_path)[0]


def test_without_its_package_or_with_it_switched_off_there_is_no_wandb_folder(tmp_path):
    recipe = recipe_for(tmp_path, trackers={"wandb": "off"})
    recorder = Recorder.create(recipe)
    with tracking(recorder, recipe, print):
        recorder.metrics("grpo", 1, 1, {"reward_mean": 0.5})
    recorder.close()
    assert not (recorder.folder / "wandb").exists()
    assert (recorder.folder / "tensorboard").exists()
