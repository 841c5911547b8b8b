"""The order in which a job ends, with made-up actors and a made-up process."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import Stage, scene, settle, until
from loop_scene import LoopScene

from mathrl_ray.driver import stopping as module
from mathrl_ray.driver.evaluation import validate
from mathrl_ray.driver.ledger import Counts
from mathrl_ray.driver.stopping import FORCE_LIMIT_S, SAVE_LIMIT_S, StoppedError, Stopping, farewell

REPOSITORY = Path(__file__).parent.parent.parent.parent


class Told:
    """A Stopping whose process does not end, and whose clock stands."""

    def __init__(self):
        self.now_s, self.ends, self.said = 0.0, [], []
        self.stopping = Stopping(clock=lambda: self.now_s, end_at_once=self.ends.append)

    def signal(self, number=signal.SIGTERM):
        self.stopping.on_signal(number)

    async def interruptible(self, work, before_the_end):
        try:
            return await self.stopping.interruptible(work, before_the_end, self.said.append)
        finally:
            self.no_force()

    def no_force(self):
        if self.stopping._force:
            self.stopping._force.cancel()


@pytest.fixture
def told():
    told = Told()
    yield told
    told.no_force()


async def nothing():
    pass


# --- where a signal finds the job ---


def test_a_signal_while_the_job_is_loading_ends_it_where_it_is(told):
    with pytest.raises(KeyboardInterrupt):
        told.signal()
    with pytest.raises(StoppedError, match="stopped by SIGTERM"):
        told.stopping.check()


@scene
async def test_work_that_ends_by_itself_gives_what_it_gives():
    told = Told()

    async def work():
        return 7

    assert await told.interruptible(work(), nothing) == 7
    told.signal()  # while the actors are being ended: nothing is to be done, and the second one still ends all at once
    assert told.ends == []
    told.now_s = 2
    told.signal()
    assert len(told.ends) == 1
    told.no_force()


@scene
async def test_behaviour_23_a_signal_brings_the_farewell_then_the_end_of_the_work_then_the_error():
    told, order = Told(), []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            order.append("work ended")

    async def before_the_end():
        order.append("farewell")
        await settle()
        order.append("said")

    ending = asyncio.create_task(told.interruptible(work(), before_the_end))
    await settle()
    told.signal(signal.SIGINT)
    with pytest.raises(StoppedError, match="stopped by SIGINT"):
        await ending
    assert order == ["farewell", "said", "work ended"]
    assert told.said == ["SIGINT: stopping; a second one ends the job at once"]


@scene
async def test_work_that_has_failed_says_its_own_error_and_not_that_it_was_stopped():
    told = Told()

    async def work():
        await settle()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await told.interruptible(work(), nothing)


@scene
async def test_a_failure_during_the_farewell_is_said_and_the_job_still_counts_as_stopped():
    told, go_on = Told(), asyncio.Event()

    async def work():
        try:
            await go_on.wait()
        finally:
            raise RuntimeError("the learner died")

    ending = asyncio.create_task(told.interruptible(work(), nothing))
    await settle()
    told.signal()
    with pytest.raises(StoppedError):
        await ending
    assert told.said[-1] == "warning: while it was stopped, the stage failed: the learner died"


@scene
async def test_work_that_does_not_end_when_it_is_cancelled_is_left_behind(monkeypatch):
    monkeypatch.setattr(module, "_CANCEL_LIMIT_S", 0.05)
    told, ended = Told(), asyncio.Event()

    async def work():
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    ending = asyncio.create_task(told.interruptible(work(), nothing))
    await settle()
    told.signal()
    with pytest.raises(StoppedError):
        await ending
    assert "did not end within" in told.said[-1]
    ended.set()
    await settle()


# --- a second signal ---


def test_a_second_signal_ends_the_job_at_once_wherever_it_is(told):
    with pytest.raises(KeyboardInterrupt):
        told.signal(signal.SIGINT)
    told.now_s = 5
    told.signal(signal.SIGINT)
    assert told.ends == ["SIGINT after SIGINT"]


def test_the_same_signal_sent_twice_by_one_hand_counts_once(told):
    # `timeout 60 python jobs/grpo.py ...` signals the process and then its group
    with pytest.raises(KeyboardInterrupt):
        told.signal()
    told.now_s = 0.9
    told.signal()
    assert told.ends == []


def test_the_limits_fit_into_the_30_s_that_are_promised():
    assert module.ABORT_LIMIT_S < SAVE_LIMIT_S < 25
    # what cannot be saved is given up, then the stage is cancelled, and each actor asked to end; and force comes last
    assert SAVE_LIMIT_S + module._CANCEL_LIMIT_S + module.END_LIMIT_S < FORCE_LIMIT_S < 30


SCRIPT = """
import asyncio, sys, time
from mathrl_ray.driver import stopping
stopping.FORCE_LIMIT_S = float(sys.argv[2])
told = stopping.Stopping()
async def work():
    print("at work", flush=True)
    await asyncio.sleep(60)
async def farewell():
    print("farewell", flush=True)
    await asyncio.sleep(float(sys.argv[3]))
with told.listening():
    try:
        if sys.argv[1] == "loading":
            print("loading", flush=True)
            time.sleep(60)
        asyncio.run(told.interruptible(work(), farewell, print))
    except (stopping.StoppedError, KeyboardInterrupt) as error:
        print(type(error).__name__, flush=True)
        sys.exit(1)
"""


class Script:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, arguments)], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.line()

    def line(self):
        return self.process.stdout.readline().strip()

    def send(self, number):
        self.sent_s = time.monotonic()
        self.process.send_signal(number)

    def end(self):
        """Its output, its errors, its status, and how long after the last signal."""
        out, errors = self.process.communicate(timeout=20)
        return out.split(), errors, self.process.returncode, time.monotonic() - self.sent_s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_real_signal_ends_a_real_process_in_order_with_status_1(number):
    script = Script("at work", 20, 0.1)
    script.send(number)
    out, errors, status, seconds = script.end()
    assert out[-2:] == ["farewell", "StoppedError"]
    assert (errors, status) == ("", 1)
    assert seconds < 5


def test_a_real_signal_during_the_start_ends_a_blocked_process():
    script = Script("loading", 20, 0)
    script.send(signal.SIGTERM)
    assert script.end()[:3] == (["KeyboardInterrupt"], "", 1)


def test_a_second_ctrl_c_ends_a_process_that_is_saving():
    script = Script("at work", 20, 60)
    script.send(signal.SIGINT)
    while script.line() != "farewell":
        pass
    time.sleep(1.1)
    script.send(signal.SIGINT)
    _, errors, status, seconds = script.end()
    assert "ended at once (SIGINT after SIGINT)" in errors
    assert status == 1
    assert seconds < 2


def test_a_process_that_hangs_in_its_farewell_is_ended_by_force():
    script = Script("at work", 0.5, 60)
    script.send(signal.SIGTERM)
    _, errors, status, seconds = script.end()
    assert "not ended 0.5 s after SIGTERM" in errors
    assert status == 1
    assert seconds < 5


@pytest.mark.parametrize(("number", "status"), [(signal.SIGHUP, None), (signal.SIGTERM, 1)])
def test_what_nohup_ignores_stays_ignored(number, status):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        script = Script("at work", 20, 0)
    finally:
        signal.signal(signal.SIGHUP, before)
    script.send(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        script.process.wait(0.5 if status is None else 10)
    assert script.process.poll() == status
    script.process.kill()
    script.process.communicate()


def test_signals_are_taken_back_from_whoever_took_them_meanwhile(told):
    # ray.init puts sys.exit in the place of SIGTERM's handler
    before = signal.getsignal(signal.SIGTERM)
    with told.stopping.listening():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        told.stopping.listen()
        assert signal.getsignal(signal.SIGTERM) == told.stopping.on_signal
    assert signal.getsignal(signal.SIGTERM) == before


# --- the farewell ---


class Farewell(LoopScene):
    """A stage that samples when the job is told to stop."""

    def __init__(self, folder, **sections):
        self.stage = Stage("generate")
        super().__init__(folder, self.stage, **sections)
        self.told = Told()
        for generator in self.generators:
            generator.abort = self._abort
            generator._answer = self._answer
        self.is_aborted = False
        self.order = []
        self.save_now = None
        """In the loops' place, which set their own when they begin."""

    async def _abort(self):
        self.order.append("abort")
        self.is_aborted = True
        self.stage.let_all_go_on()

    def _answer(self, request, began_with):
        completion = type(self.generators[0])._answer(self.generators[0], request, began_with)
        finish_reason = "abort" if self.is_aborted and request.sample == 0 else completion.finish_reason
        return type(completion)(completion.text, completion.token_ids, completion.logprobs, completion.version_runs, finish_reason)

    async def stopped(self):
        """Train, be told to stop when prompts are in flight, and end."""
        ending = asyncio.create_task(self.told.interruptible(self.train(), lambda: farewell(self.run, self.told.stopping)))
        await until(lambda: len(self.stage.waiting("generate")) >= 2)
        self.run.save_now = self.save_now
        self.told.signal()
        with pytest.raises(StoppedError):
            await ending


@scene
async def test_partial_responses_are_kept_before_the_state_is_saved_and_nothing_is_trained_on_them(tmp_path):
    scene = Farewell(tmp_path)

    async def save_now():
        assert scene.is_aborted
        assert [path.name for path in (scene.run.recorder.folder / "partial").iterdir()] == ["1.parquet"]
        assert not any(replica.load for replica in scene.run.generators)
        scene.order.append("save")

    scene.save_now = save_now
    await scene.stopped()
    assert scene.order == ["abort", "save"]
    rows = pq.read_table(scene.run.recorder.folder / "partial" / "1.parquet").to_pylist()
    assert [(row["group_id"], row["sample"], row["finish_reason"]) for row in rows[:2]] == [
        ("grpo-1/0", 0, "abort"), ("grpo-1/0", 1, "stop"),
    ]  # fmt: skip
    assert {row["drop_reason"] for row in rows} == {"stopped"}
    assert all(row["response_ids"] and row["generator_logprobs"] and row["version_runs"] for row in rows)
    assert scene.diary.of("train_policy", "score") == []
    assert not list((scene.run.recorder.folder / "trajectories").iterdir())
    assert scene.run.ledger.counts == Counts(redone=scene.run.ledger.counts.redone)  # sampled again, and counted, by a run that goes on


@scene
async def test_without_anything_to_save_with_the_responses_are_still_kept(tmp_path):
    scene = Farewell(tmp_path)
    await scene.stopped()
    assert (scene.run.recorder.folder / "partial" / "1.parquet").exists()


@scene
async def test_a_second_stop_of_a_run_writes_beside_the_first(tmp_path):
    scene = Farewell(tmp_path)
    (scene.run.recorder.folder / "partial").mkdir()
    (scene.run.recorder.folder / "partial" / "1.parquet").write_text("the first")
    await scene.stopped()
    assert (scene.run.recorder.folder / "partial" / "1.parquet").read_text() == "the first"
    assert (scene.run.recorder.folder / "partial" / "2.parquet").exists()


@scene
async def test_a_save_that_takes_too_long_is_given_up(tmp_path):
    scene, cancelled = Farewell(tmp_path), []

    async def save_now():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    scene.save_now = save_now
    scene.told.stopping._clock = iter([0.0, *[SAVE_LIMIT_S - 0.05] * 1000]).__next__
    await scene.stopped()
    assert cancelled == [True]
    assert any("the save did not end in time" in said for said in scene.said)


@scene
async def test_a_save_that_fails_and_a_generator_that_does_not_abort_keep_nothing_else_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ABORT_LIMIT_S", 0.05)
    scene = Farewell(tmp_path)

    async def hang():
        await asyncio.sleep(60)

    async def fail():
        raise OSError("no space left on device")

    scene.generators[0].abort, scene.save_now = hang, fail
    await scene.stopped()
    assert any("generation did not end within 0.05 s" in said for said in scene.said)
    assert "warning: nothing was saved: OSError: no space left on device" in scene.said
    assert not (scene.run.recorder.folder / "partial").exists()


@scene
async def test_an_evaluation_that_is_aborted_counts_for_nothing(tmp_path):
    scene = Farewell(tmp_path)
    ending = asyncio.create_task(scene.told.interruptible(validate(scene.run, "grpo", 1), lambda: farewell(scene.run, scene.told.stopping)))
    await until(lambda: bool(scene.stage.waiting("generate")))
    scene.told.signal()
    with pytest.raises(StoppedError):
        await ending
    assert scene.diary.of("score") == []
    assert not list((scene.run.recorder.folder / "evaluations").iterdir())
    assert scene.run.stopped_groups == []
