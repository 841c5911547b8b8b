import asyncio
import json
import shutil
import threading
import time

import fsspec
import pytest
from fakes import scene
from fsspec.implementations.memory import MemoryFileSystem
from loop_scene import LoopScene
from samples import recipe_for

from mathrl_ray.driver import mirror as mirror_module
from mathrl_ray.driver.mirror import MARKER, MAX_TRIES, Mirror, mirrored
from mathrl_ray.driver.recorder import Recorder


class WeakFileSystem(MemoryFileSystem):
    """A store in memory that fails as a test says, and writes down what was put there, in order."""

    protocol = "weak"
    cachable = False
    failures = 0
    """How many of the next writes fail."""
    writes: list[str] = []  # noqa: RUF012  # one for the class, as MemoryFileSystem's store is
    hold = threading.Event()
    """Unset: a write waits."""

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("weak://"))

    def _write(self, path):
        assert self.hold.wait(20)
        cls = type(self)
        if cls.failures > 0:
            cls.failures -= 1
            raise PermissionError(f"no writing with key AKIA{'ABCDEFGH' * 2}")
        cls.writes.append(self._strip_protocol(path))

    def put_file(self, lpath, rpath, **kwargs):
        self._write(rpath)
        return super().put_file(lpath, rpath, **kwargs)

    def pipe_file(self, path, value, **kwargs):
        self._write(path)
        return super().pipe_file(path, value, **kwargs)


fsspec.register_implementation("weak", WeakFileSystem, clobber=True)


def mirror_threads():
    return [thread for thread in threading.enumerate() if thread.name == "mirror"]


@pytest.fixture
def store():
    assert mirror_threads() == []
    WeakFileSystem.store.clear()
    WeakFileSystem.pseudo_dirs[:] = [""]
    WeakFileSystem.failures, WeakFileSystem.writes = 0, []
    WeakFileSystem.hold.set()
    yield WeakFileSystem()
    WeakFileSystem.hold.set()
    for thread in mirror_threads():  # one that a test left hanging would write into the next test's store, under the same names
        thread.join(20)
        assert not thread.is_alive()
    WeakFileSystem.store.clear()


@pytest.fixture
def recorder(tmp_path):
    made = Recorder.create(recipe_for(tmp_path / "runs"))
    yield made
    made.close()


def save_checkpoint(recorder, name, text="weights"):
    folder = recorder.folder / "checkpoints" / name
    aside = folder.with_name(f".{name}.writing")
    (aside / "trainer").mkdir(parents=True)
    (aside / "model.safetensors").write_text(text)
    (aside / "trainer" / "state.json").write_text("{}")
    aside.rename(folder)
    return folder


def run_mirrored(url, recorder, body=lambda: None, **settings):
    """Give the body a mirrored run; what was said."""
    said = []

    async def run():
        async with mirrored(url, recorder.folder, said.append, **{"look_every_s": 0.02, "wait_s": 0.02, **settings}):
            await asyncio.to_thread(body)

    asyncio.run(run())
    return said


def until(holds, limit_s=10):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_metrics_reports_and_checkpoints_are_in_the_mirror_when_the_run_has_ended(tmp_path, recorder, kind, store):
    url = f"file://{tmp_path}/far/away" if kind == "file" else "memory://far/away"

    def body():
        recorder.metrics("grpo", 1, 1, {"loss": 0.5})
        (recorder.folder / "report.html").write_text("<html>")
        (recorder.folder / "digests.json").write_text("{}")
        (recorder.folder / "evaluations" / "grpo-v1.parquet").write_bytes(b"PAR1")
        (recorder.folder / "trajectories" / "grpo-1.parquet").write_bytes(b"PAR1")
        for name in ("elite_pool", "problem_memory"):
            (recorder.folder / name).mkdir()
            (recorder.folder / name / "expert_iteration-1.parquet").write_bytes(b"PAR1")
        save_checkpoint(recorder, "grpo-1")

    run_mirrored(url, recorder, body)
    there = fsspec.filesystem(kind)
    root = f"{tmp_path}/far/away/test" if kind == "file" else "/far/away/test"
    files = {path.removeprefix(f"{root}/") for path in there.find(root)}
    checkpoint = {f"checkpoints/grpo-1/{name}" for name in ("model.safetensors", "trainer/state.json", MARKER)}
    plain = {"recipe.toml", "digests.json", "metrics.jsonl", "report.html", "evaluations/grpo-v1.parquet"}
    read_again = {f"{name}/expert_iteration-1.parquet" for name in ("elite_pool", "problem_memory")}
    assert files == plain | read_again | checkpoint
    assert there.cat_file(f"{root}/metrics.jsonl") == (recorder.folder / "metrics.jsonl").read_bytes()
    assert there.cat_file(f"{root}/checkpoints/grpo-1/model.safetensors") == b"weights"


def test_a_growing_file_is_copied_again_and_ends_with_a_whole_line(recorder, store):
    def body():
        recorder.metrics("grpo", 1, 1, {"loss": 0.5})
        until(lambda: store.exists("/b/test/metrics.jsonl") and store.cat_file("/b/test/metrics.jsonl"))
        with (recorder.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2}\n{"step": 3, "lo')
            file.flush()
        until(lambda: b'"step": 2' in store.cat_file("/b/test/metrics.jsonl"))

    run_mirrored("weak://b", recorder, body)
    lines = store.cat_file("/b/test/metrics.jsonl").decode().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_a_checkpoint_is_copied_in_mid_run_with_its_marker_last(recorder, store):
    def body():
        save_checkpoint(recorder, "grpo-1")
        until(lambda: store.exists(f"/b/test/checkpoints/grpo-1/{MARKER}"))

    run_mirrored("weak://b", recorder, body)
    order = [path for path in store.writes if "checkpoints" in path]
    assert order[-1] == f"/b/test/checkpoints/grpo-1/{MARKER}"
    assert len(order) == 3
    files = json.loads(store.cat_file(order[-1]))["files"]
    assert {name: size for name, (size, _) in files.items()} == {"model.safetensors": 7, "trainer/state.json": 2}


def test_what_is_still_being_written_is_left_alone(recorder, store):
    (recorder.folder / "checkpoints" / ".grpo-2.writing").mkdir()
    (recorder.folder / "checkpoints" / ".grpo-2.writing" / "model.safetensors").write_text("half")
    (recorder.folder / "evaluations" / ".grpo-v1.parquet.writing").write_text("half")
    said = run_mirrored("weak://b", recorder)
    assert not any("writing" in path for path in store.writes)
    assert not any("warning" in text for text in said)


def test_a_failure_is_told_once_and_tried_again_until_it_works(recorder, store):
    WeakFileSystem.failures = 7

    def body():
        save_checkpoint(recorder, "grpo-1")
        until(lambda: store.exists(f"/b/test/checkpoints/grpo-1/{MARKER}"))

    said = run_mirrored("weak://b", recorder, body)
    warnings = [text for text in said if text.startswith("warning")]
    assert len(warnings) == 1
    assert "run.mirror = weak://b" in warnings[0]
    assert "PermissionError" in warnings[0]
    assert "AKIA" not in warnings[0]


def test_a_copy_that_always_fails_is_given_up_and_named_at_the_end(recorder, store):
    WeakFileSystem.failures = 10**6

    def body():
        until(lambda: 10**6 - WeakFileSystem.failures >= 2 * MAX_TRIES)  # recipe.toml and the metrics
        time.sleep(0.3)
        assert 10**6 - WeakFileSystem.failures == 2 * MAX_TRIES

    said = run_mirrored("weak://b", recorder, body, wait_s=0.001)
    warnings = [text for text in said if text.startswith("warning")]
    assert len(warnings) == 2
    assert warnings[1] == "warning: not in the mirror weak://b: recipe.toml, metrics.jsonl"


def test_what_was_given_up_is_tried_again_when_it_changes(recorder, store):
    WeakFileSystem.failures = 10**6

    def body():
        until(lambda: 10**6 - WeakFileSystem.failures >= 2 * MAX_TRIES)
        WeakFileSystem.failures = 0
        recorder.metrics("grpo", 1, 1, {"loss": 0.5})
        until(lambda: store.exists("/b/test/metrics.jsonl"))

    run_mirrored("weak://b", recorder, body, wait_s=0.001)
    assert store.exists("/b/test/recipe.toml")  # the last look tries everything once more


def test_a_store_that_hangs_holds_up_neither_the_run_nor_its_end(recorder, store, monkeypatch):
    monkeypatch.setattr(mirror_module, "END_LIMIT_S", 0.3)
    WeakFileSystem.hold.clear()
    began = time.monotonic()
    said = run_mirrored("weak://b", recorder, lambda: save_checkpoint(recorder, "grpo-1"))
    assert time.monotonic() - began < 5
    assert said[-1] == "warning: not in the mirror weak://b: recipe.toml, metrics.jsonl, checkpoints/grpo-1"


def test_a_run_that_fails_waits_for_its_mirror_only_shortly(recorder, store, monkeypatch):
    monkeypatch.setattr(mirror_module, "FAILURE_LIMIT_S", 0.2)
    WeakFileSystem.hold.clear()

    def fail():
        raise FloatingPointError("NaN")

    began = time.monotonic()
    with pytest.raises(FloatingPointError):
        run_mirrored("weak://b", recorder, fail)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("when", ["during the run", "during the last copies"])
def test_a_run_that_is_told_to_stop_leaves_its_mirror_within_a_second_or_two(recorder, store, when):
    WeakFileSystem.hold.clear()
    told = threading.Event()

    def body():
        if when == "during the run":
            told.set()
        else:
            threading.Timer(0.3, told.set).start()

    began = time.monotonic()
    said = run_mirrored("weak://b", recorder, body, told_to_stop=told.is_set)
    assert time.monotonic() - began < 4
    assert said[-1].startswith("warning: not in the mirror")


def test_a_run_that_fails_still_gets_its_last_files_across(recorder, store):
    def fail():
        recorder.metrics("grpo", 1, 1, {"loss": 0.5})
        raise FloatingPointError("NaN")

    with pytest.raises(FloatingPointError):
        run_mirrored("weak://b", recorder, fail, look_every_s=60)
    assert b'"loss": 0.5' in store.cat_file("/b/test/metrics.jsonl")


def test_a_checkpoint_that_the_run_removes_while_it_is_copied_is_no_failure_and_has_no_marker(recorder, store):
    def body():
        WeakFileSystem.hold.clear()
        folder = save_checkpoint(recorder, "grpo-1")
        time.sleep(0.1)  # into the copy, which is held at its first file
        shutil.rmtree(folder)
        WeakFileSystem.hold.set()

    said = run_mirrored("weak://b", recorder, body)
    assert not any(text.startswith("warning") for text in said)
    assert not store.exists(f"/b/test/checkpoints/grpo-1/{MARKER}")


def test_what_the_run_removes_later_stays_in_the_mirror(recorder, store):
    def body():
        folder = save_checkpoint(recorder, "grpo-1")
        until(lambda: store.exists(f"/b/test/checkpoints/grpo-1/{MARKER}"))
        shutil.rmtree(folder)

    run_mirrored("weak://b", recorder, body)
    assert store.cat_file("/b/test/checkpoints/grpo-1/model.safetensors") == b"weights"


def test_another_run_of_the_same_name_gets_a_folder_of_its_own(tmp_path, store):
    folders = []
    for machine in ("one", "two"):
        recorder = Recorder.create(recipe_for(tmp_path / machine))
        run_mirrored("weak://b", recorder)
        recorder.close()
        folders.append(json.loads((recorder.folder / "mirror.json").read_text())["folder"])
    assert folders == ["test", "test-2"]
    assert store.exists("/b/test-2/recipe.toml")


def test_a_resumed_run_goes_on_in_its_mirror_and_copies_no_checkpoint_twice(recorder, store):
    save_checkpoint(recorder, "grpo-1")
    run_mirrored("weak://b", recorder)
    store.writes.clear()
    save_checkpoint(recorder, "grpo-2")
    run_mirrored("weak://b", recorder)
    assert {path for path in store.writes if "checkpoints" in path} == {
        f"/b/test/checkpoints/grpo-2/{name}" for name in ("model.safetensors", "trainer/state.json", MARKER)
    }


def test_a_checkpoint_that_was_written_again_loses_its_marker_until_it_is_whole_again(recorder, store):
    folder = save_checkpoint(recorder, "grpo-1")
    run_mirrored("weak://b", recorder)
    shutil.rmtree(folder)
    time.sleep(0.02)
    save_checkpoint(recorder, "grpo-1", text="WEIGHTS")
    mirror = Mirror("weak://b", recorder.folder, print)
    original = WeakFileSystem.put_file

    def put_and_look(self, lpath, rpath, **kwargs):
        assert not self.exists(f"/b/test/checkpoints/grpo-1/{MARKER}")
        return original(self, lpath, rpath, **kwargs)

    WeakFileSystem.put_file = put_and_look
    try:
        mirror._look(is_last=True)
    finally:
        WeakFileSystem.put_file = original
    assert mirror.missing() == []
    assert store.cat_file("/b/test/checkpoints/grpo-1/model.safetensors") == b"WEIGHTS"
    assert store.exists(f"/b/test/checkpoints/grpo-1/{MARKER}")


def test_a_link_in_a_checkpoint_is_not_followed(tmp_path, recorder, store):
    (tmp_path / "outside").write_text("not of the run")
    (save_checkpoint(recorder, "grpo-1") / "link").symlink_to(tmp_path / "outside")
    run_mirrored("weak://b", recorder)
    assert not store.exists("/b/test/checkpoints/grpo-1/link")


def test_the_rows_that_a_checkpoint_counts_on_are_in_the_mirror_before_it(recorder, store):
    mirror = Mirror("weak://b", recorder.folder, print)
    mirror._look(is_last=True)
    parts = mirror_module._mirrored_parts(recorder.folder)
    assert [next(parts)[0], next(parts)[0]] == ["recipe.toml", "metrics.jsonl"]
    recorder.metrics("grpo", 1, 1, {"loss": 0.5})  # this look has passed the metrics by
    save_checkpoint(recorder, "grpo-1")
    store.writes.clear()
    for name, stamp in parts:
        mirror._try(name, stamp)
    assert store.writes[0] == "/b/test/metrics.jsonl"
    assert store.writes[-1] == f"/b/test/checkpoints/grpo-1/{MARKER}"
    assert b'"loss": 0.5' in store.cat_file("/b/test/metrics.jsonl")


@scene
async def test_a_run_that_is_brought_back_from_its_mirror_goes_on(tmp_path):
    settings = {"run": {"checkpoint_every": 2, "resume": "auto"}, "eval": {"validate_every": 1}}
    whole = LoopScene(tmp_path / "here", **settings)
    async with mirrored(f"file://{tmp_path}/mirror", whole.run.recorder.folder, print):
        assert await whole.train() == 6
    whole.run.recorder.close()
    shutil.copytree(tmp_path / "mirror", tmp_path / "there")
    shutil.rmtree(tmp_path / "there" / "test" / "checkpoints" / "grpo-6")
    resumed = LoopScene(tmp_path / "there", **settings)
    assert resumed.said[0].startswith("resumed: from checkpoint grpo-4 (grpo after step 4)")
    assert await resumed.train() == 6
    assert resumed.batches() == whole.batches()[4:]
    assert resumed.validations() == whole.validations()
    assert [row["step"] for row in resumed.metrics()] == [1, 2, 3, 4, 5, 6]
    resumed.run.recorder.close()


def test_no_mirror_is_no_thread(recorder):
    before = threading.active_count()
    run_mirrored("", recorder, lambda: None)
    assert mirror_threads() == []
    assert threading.active_count() <= before + 1
