import asyncio
import importlib
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
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from mathrl_ray.driver import trackers
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.superseded import Position, supersede
from mathrl_ray.driver.tensorboard_files import TensorBoardFiles
from mathrl_ray.driver.tracked_values import code_block, sample_text, tracked_row
from mathrl_ray.driver.trackers import Following, hyperparameters, tracking
from mathrl_ray.driver.wandb_run import has_wandb

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
    assert sorted(path.stat().st_size > 0 for path in (folder / "tensorboard").iterdir()) == [False, True]


def test_a_tensorboard_that_is_open_meanwhile_forgets_what_was_moved_aside(tmp_path):
    files = TensorBoardFiles(tmp_path, "", {})
    files.open(1.0)
    for step in range(1, 6):
        files.numbers(step, 1.0, {"grpo/reward_mean": step / 8})
    files.numbers(5, 1.0, {"grpo/validation_accuracy": 0.5})
    files.flush()
    found, reader = events(tmp_path)
    assert len(found["grpo/reward_mean"]) == 5
    for _ in range(2):
        files.open(1.0)
        files.numbers(1, 1.0, {"grpo/reward_mean": 0.5})
        files.flush()
        reader.Reload()
        assert [(event.step, event.value) for event in reader.Scalars("grpo/reward_mean")] == [(1, 0.5)]
        assert not reader.Scalars("grpo/validation_accuracy")
        assert len(list((tmp_path / "tensorboard").iterdir())) == 2, "the one before it, emptied, and no older one"


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
    update = tracked_row({**place, "loss": 3.0, "optimizer_step": 77, "skipped_updates": 0.0})
    assert (update.step, update.values["expert_iteration/sft_loss"]) == (77, 3.0)
    assert not tracked_row({**place, "loss": float("nan"), "optimizer_step": 77, "skipped_updates": 1.0}).values, "no second point at 77"
    last, average = {"reward_mean": 0.5, "step_s": 1.0, "sync_s": 0.5}, {"num_averaged": 5, "average_relative_distance": 0.1}
    of_average = tracked_row({**place, **average, "sync_s": 0.25}).values
    assert of_average == {
        "expert_iteration/average_num_averaged": 5,
        "expert_iteration/average_relative_distance": 0.1,
        "expert_iteration/average_sync_s": 0.25,
    }
    assert not of_average.keys() & tracked_row({**place, **last}).values.keys()
    assert "expert_iteration/reward_mean" in tracked_row({**place, **last, **average}).values, "a round's row holds its average"


def evaluation_file(folder, name, problem, response):
    rows = [{"problem_id": f"p{index}", "problem": problem, "gold": "5", "response": response, "outcome": "wrong"} for index in range(3)]
    (folder / "evaluations").mkdir(parents=True, exist_ok=True)
    path = folder / "evaluations" / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".writing"))
    return path.with_suffix(".writing").rename(path)  # whole at once, as a recorder's


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


@pytest.mark.parametrize(
    ("secret", "response"),
    [
        ("sesame-42-open-0123456789", "a" * 1988 + "{}" + "b" * 3000),  # the cut goes through it
        ("-----BEGIN KEY-----\nAbCd1234efgh\nXyZ98765\n-----END KEY-----", "x {}"),  # indented it is another text
    ],
)
def test_no_secret_gets_through_what_is_cut_or_indented(tmp_path, secret, response):
    text = sample_text(evaluation_file(tmp_path, "sft-v4", "q", response.format(secret)), 1, [secret]).text
    assert "*masked*" in text
    assert not any(part in text for part in ("sesame", "AbCd"))


def test_no_secret_gets_through_what_is_escaped(tmp_path):
    text = sample_text(evaluation_file(tmp_path, "sft-v4", "q", "x"), 1, ["p0", "5"]).text  # the first row's id, and all golds
    assert text.startswith("**wrong** · problem &#42;masked&#42; · gold &#42;masked&#42;\n")


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


def wait_until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Noting:
    """Keeps what it is told; `open` begins anew."""

    name = "Noting"

    def __init__(self):
        self.opened, self.told, self.texts = [], [], []

    def open(self, wall_time_s):
        self.opened.append(wall_time_s)
        self.told, self.texts = [], []

    def numbers(self, step, wall_time_s, values):
        self.told.append((step, wall_time_s, dict(values)))

    def text(self, tag, step, wall_time_s, markdown):
        self.texts.append((tag, step, wall_time_s))

    def flush(self):
        pass

    def close(self):
        pass


def test_rows_and_responses_stand_at_the_time_and_step_at_which_they_were_and_again_where_it_begins_anew(tmp_path):
    noting, lines = Noting(), "".join(f"{json.dumps(row(step))}\n" for step in (1, 2))
    following = Following(tmp_path, noting, print, began_s=1000.0, num_samples=1)
    following.row(row(3))
    wait_until(lambda: noting.told)  # else its first reading may find the file
    following.evaluated(evaluation_file(tmp_path, "grpo-v3", "2+3?", "5"))
    following.close()
    assert noting.told == [(3, 1003.0, {"grpo/reward_mean": 0.5})]
    assert noting.texts == [("grpo/test_samples", 3, 1003.0)]

    again, path = Noting(), tmp_path / "metrics.jsonl"
    path.write_text(lines)
    following = Following(tmp_path, again, print, began_s=1000.0, num_samples=1)
    following.rewound(path.stat().st_size)
    following.close()
    assert again.opened == [1000.0, 1000.0]
    assert [(step, time_s) for step, time_s, _ in again.told] == [(1, 1001.0), (2, 1002.0)]
    assert again.texts == [("grpo/test_samples", 2, 1002.0)]


def test_responses_that_could_not_be_read_at_first_are_shown_when_they_are_there(tmp_path):
    noting, said = Noting(), []
    path = tmp_path / "evaluations" / "grpo-v3.parquet"
    path.parent.mkdir()
    path.write_bytes(b"half")
    following = Following(tmp_path, noting, said.append, began_s=0.0, num_samples=1)
    wait_until(lambda: said)
    assert "no samples of grpo-v3.parquet" in said[0]
    following.evaluated(evaluation_file(tmp_path, "grpo-v3", "2+3?", "5"))
    following.close()
    assert [tag for tag, _, _ in noting.texts] == ["grpo/test_samples"]


def test_the_time_of_a_run_that_goes_on_begins_where_it_first_began_and_its_settings_are_hyperparameters(tmp_path):
    recipe = recipe_for(tmp_path, trackers={"wandb": "off"}, run={"seed": 7})
    Recorder.create(recipe).close()
    recorder = Recorder.reopen(next(tmp_path.iterdir()), elapsed_s=500.0)
    with tracking(recorder, recipe, print):
        pass
    recorder.close()
    _, reader = events(recorder.folder)
    assert reader.FirstEventTimestamp() == pytest.approx(time.time() - 500, abs=60)
    content = HParamsPluginData.FromString(reader.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert content.session_start_info.hparams["run.seed"].number_value == 7


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
    wait_until(lambda: files._file)
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
    assert said == ["warning: Breaking had not written everything when the run ended. The run's own files are complete."]


@pytest.mark.parametrize(("is_stopping", "limit_s"), [(False, 1.0), (True, 0.1)])
def test_trackers_that_hang_are_waited_for_side_by_side_and_not_for_long_where_the_run_is_told_to_stop(
    tmp_path, monkeypatch, is_stopping, limit_s
):
    both, said = [Hanging(), Hanging()], []
    monkeypatch.setattr(trackers, "_chosen", lambda folder, recipe: iter(both))
    monkeypatch.setattr(trackers, "CLOSE_LIMIT_S", 1.0)
    monkeypatch.setattr(trackers, "HURRIED_LIMIT_S", 0.1)
    recipe = recipe_for(tmp_path)
    recorder = Recorder.create(recipe)
    with tracking(recorder, recipe, said.append, lambda: is_stopping):
        recorder.metrics("grpo", 1, 1, {"reward_mean": 0.5})
        began = time.monotonic()
    assert limit_s <= time.monotonic() - began < limit_s + 0.9
    assert len(said) == 2
    for hanging in both:
        hanging.may_go_on.set()
    recorder.close()


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


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "wandb" / "offline-run").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    importlib.invalidate_caches()
    assert not has_wandb()


def test_without_its_package_or_with_it_switched_off_there_is_no_wandb_folder(tmp_path):
    recipe = recipe_for(tmp_path, trackers={"wandb": "off"})
    recorder = Recorder.create(recipe)
    with tracking(recorder, recipe, print):
        recorder.metrics("grpo", 1, 1, {"reward_mean": 0.5})
    recorder.close()
    assert not (recorder.folder / "wandb").exists()
    assert (recorder.folder / "tensorboard").exists()
