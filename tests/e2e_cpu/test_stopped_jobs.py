"""Behaviour 23 and 33 on whole jobs: told to stop, killed, and two at once; what is left is looked for by name, by parent and by file, and
jobs that were ended are run again to their end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from mathrl_ray.actors.footprint import own_files

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml"
PROMISED_S = 30
# Long answers, few of which teach anything: the learner waits for the generator, so that something is in flight at every moment.
ENDLESS = (
    "grpo.num_steps=1000", "grpo.prompts_per_step=8", "grpo.group_size=4", "driver.max_staleness=1", "eval.num_problems=8",
    "study.generated_tokens=0", "eval.validate_every=0",
    "generator.min_tokens=200", "generator.max_tokens=256", "generator.kv_cache_gib=0.25", "learner.micro_batch_tokens=1024",
)  # fmt: skip

pytestmark = pytest.mark.timeout(280)


class Family:
    """Every process that was ever seen below some, and the files that these had in shared memory, by the processes' own word."""

    def __init__(self, root):
        self.root, self.members, self.files = root, set(), set()

    def look(self):
        """Remember all descendants, Ray's and the engines', by pid and creation time, and the watchdogs, which are nobody's."""
        for pid, created_s in {*self.members, (self.root, None)}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if created_s in (None, process.create_time()):
                    self.members |= {(each.pid, each.create_time()) for each in process.children(recursive=True)}
        pids = {str(pid) for pid, _ in {*self.members, (self.root, None)}}
        for each in psutil.process_iter(["cmdline", "create_time"]):
            words = each.info["cmdline"] or []
            if "mathrl_ray.actors.watchdog" in words and pids & set(words):
                self.members.add((each.pid, each.info["create_time"]))
        self.files |= {file for member in self.members for file in own_files(member)}
        for pid, _ in self.members:
            with contextlib.suppress(psutil.Error):
                self.files |= {psutil.Process(pid).environ().get("VLLM_RPC_BASE_PATH", "")} - {""}
        self.files |= {str(file) for pid in pids for file in Path("/dev/shm").glob(f"mathrl-weights-{pid}-*")}

    def alive(self):
        """(pid, how it is called) of those that still run."""
        for pid, created_s in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == created_s and process.status() != psutil.STATUS_ZOMBIE:
                    yield pid, " ".join([process.name(), *process.cmdline()])

    def left(self, marker=""):
        """Processes that still run, those among all processes that name `marker`, and files that are still there."""
        self.look()
        named = [each.pid for each in psutil.process_iter(["cmdline"]) if marker and marker in " ".join(each.info["cmdline"] or [])]
        return [(pid, name[:80]) for pid, name in self.alive()], named, sorted(file for file in self.files if Path(file).exists())


class Job:
    """A job in a session of its own."""

    def __init__(self, root, model, *overrides, stage="grpo"):
        self.root = root
        command = [sys.executable, f"jobs/{stage}.py", str(RECIPE), f"run.root={root}", f"model.path={model}", *ENDLESS, *overrides]
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.log = (root / f"log-{time.monotonic()}").open("w+")
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.family = Family(self.process.pid)

    def text(self):
        return Path(self.log.name).read_text()

    def until_it_says(self, pattern, limit_s=120):
        deadline = time.monotonic() + limit_s
        while not re.search(pattern, self.text()):
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)  # a file that grows wakes nobody
        self.family.look()

    def send(self, number, *, to_group=False):
        self.sent_s = time.monotonic()
        if to_group:
            os.killpg(self.process.pid, number)  # as a terminal does
        else:
            self.process.send_signal(number)

    def wait_until_nothing_is_left(self, limit_s=PROMISED_S):
        """Returns how long after the signal that was."""
        while self.process.poll() is None or any(self.family.left(str(self.root))):
            assert time.monotonic() - self.sent_s < limit_s, (self.family.left(str(self.root)), self.text()[-3000:])
            time.sleep(0.2)  # grandchildren's ends are told to nobody
        return time.monotonic() - self.sent_s

    def destroy(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def job(start_model, tmp_path):
    job = Job(tmp_path, start_model)
    yield job
    job.destroy()


def _metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _saved_steps(folder):
    return sorted(int(path.name.removeprefix("grpo-")) for path in (folder / "checkpoints").glob("grpo-*"))


def check_that_it_goes_on_to_its_end(job, start_model):
    """Run an ended job again, with a few steps more than it had saved."""
    folder, saved = job.root / "arithmetic_cpu", _saved_steps(job.root / "arithmetic_cpu")[-1]
    again = Job(job.root, start_model, "run.resume=auto", "run.resume_with_changes=true", f"grpo.num_steps={saved + 3}")
    try:
        assert again.process.wait(200) == 0, again.text()
    finally:
        again.destroy()
    assert f"resumed: from checkpoint grpo-{saved} (grpo after step {saved})" in again.text()
    assert [row["step"] for row in _metrics(folder) if "reward_mean" in row] == list(range(1, saved + 4))
    assert [stage["num_problems"] for stage in json.loads((folder / "summary.json").read_text())["stages"]] == [8]
    assert _saved_steps(folder)[-1] == saved + 3


def report(what, seconds):
    print(f"{what}: nothing left after {seconds:.1f} s")


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("number", "to_group", "goes_on"),
    [
        pytest.param(signal.SIGTERM, False, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, False, marks=pytest.mark.slow),
    ],
)
def test_behaviour_23_a_job_that_is_told_to_stop_leaves_nothing_but_what_it_goes_on_from(job, start_model, number, to_group, goes_on):
    job.until_it_says(r"grpo step [3-9]")
    names = "\n".join(name for _, name in job.family.alive())
    assert all(role in names for role in ("VLLM", "raylet", "grading_keeper", "watchdog")), names
    job.send(number, to_group=to_group)
    report(signal.Signals(number).name, job.wait_until_nothing_is_left())
    assert job.process.returncode == 1
    text = job.text()
    assert f"error: stopped by {signal.Signals(number).name}" in text
    assert "Traceback" not in text
    assert "warning" not in text[text.index("stopping;") :], text
    assert "groups were in flight" in text, text
    (partial,) = (job.root / "arithmetic_cpu" / "partial").iterdir()
    rows = pq.read_table(partial).to_pylist()
    assert {row["drop_reason"] for row in rows} == {"stopped"}
    aborted = [row for row in rows if row["finish_reason"] == "abort"]
    assert aborted
    for row in rows:
        num_tokens = len(row["response_ids"])
        assert len(row["generator_logprobs"]) == num_tokens == sum(num for _, num in row["version_runs"])
    steps = [row["step"] for row in _metrics(job.root / "arithmetic_cpu") if "reward_mean" in row]
    assert steps == list(range(1, steps[-1] + 1))
    assert {path.name for path in (job.root / "arithmetic_cpu" / "checkpoints").iterdir()} == {f"grpo-{steps[-1]}"}
    if goes_on:
        check_that_it_goes_on_to_its_end(job, start_model)


def test_behaviour_23_a_job_whose_driver_is_killed_leaves_nothing(job):
    job.until_it_says(r"grpo step [3-9]")
    assert all(any(kind in file for file in job.family.files) for kind in ("/mathrl-weights-", "/psm_", "/tmp/mathrl-")), job.family.files
    job.send(signal.SIGKILL)
    report("SIGKILL", job.wait_until_nothing_is_left())
    assert job.process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_behaviour_27_a_job_whose_driver_was_killed_goes_on_from_its_last_checkpoint_to_its_end(start_model, tmp_path):
    job = Job(tmp_path, start_model, "run.checkpoint_every=2")
    try:
        job.until_it_says(r"grpo step 5")
        job.send(signal.SIGKILL)
        job.wait_until_nothing_is_left()
        check_that_it_goes_on_to_its_end(job, start_model)
    finally:
        job.destroy()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("after_s", [0.0, 2.0, 5.0])
def test_behaviour_23_a_job_that_is_ended_while_its_engines_start_leaves_nothing(job, number, after_s):
    job.until_it_says("starting the engines")
    time.sleep(after_s)  # the moment of the signal
    job.family.look()
    job.send(number)
    report(f"{signal.Signals(number).name} {after_s:g} s into the start", job.wait_until_nothing_is_left())
    assert job.process.returncode != 0
    assert "Traceback" not in job.text()


@pytest.mark.slow
def test_behaviour_33_two_jobs_that_are_started_together_both_come_up_and_go_on(start_model, tmp_path):
    short = ("grpo.num_steps=2", "driver.max_staleness=0")
    jobs = [Job(tmp_path, start_model, *short) for _ in range(2)]
    try:
        for job in jobs:
            assert job.process.wait(200) == 0, job.text()
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"arithmetic_cpu", "arithmetic_cpu-2"}
    finally:
        for job in jobs:
            job.destroy()


@pytest.mark.slow
def test_run_max_hours_ends_a_stage_in_time_with_evaluation_and_checkpoint(start_model, tmp_path):
    hours = 60 / 3600
    began = time.monotonic()
    job = Job(tmp_path, start_model, f"run.max_hours={hours}")
    try:
        assert job.process.wait(150) == 0, job.text()
        seconds = time.monotonic() - began
        assert "left room for" in job.text()
        folder = tmp_path / "arithmetic_cpu"
        assert json.loads((folder / "summary.json").read_text())["stages"][0]["num_problems"] == 8
        steps = [path.name for path in (folder / "checkpoints").iterdir()]
        assert any(re.fullmatch(r"grpo-\d+", name) for name in steps)
        assert seconds < 60 + 15  # Ray's end and Python's start are not in the limit's steps; they are in this
    finally:
        job.destroy()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["learner", "generator", "scorer"])
def test_behaviour_23_a_job_whose_actor_dies_for_good_ends_with_status_1_and_leaves_nothing(start_model, tmp_path, role):
    job = Job(tmp_path, start_model, "driver.max_restarts=0", "driver.max_tries=1")
    try:
        job.until_it_says(r"grpo step [2-9]")
        # Ray names an actor's process after its class and method, or its class alone
        victims = [pid for pid, name in job.family.alive() if f"ray::{role.title()}" in name]
        assert len(victims) == 1, list(job.family.alive())
        os.kill(victims[0], signal.SIGKILL)
        job.sent_s = time.monotonic()
        report(f"dead {role}", job.wait_until_nothing_is_left(60))
        assert job.process.returncode == 1
        assert re.search(rf"^error: .*{role}-0", job.text(), re.MULTILINE)
    finally:
        job.destroy()


RAY_JOB_STOP = """
import sys, time
from cluster.connection import connect, recorded_head, speak_to_own_head_only
speak_to_own_head_only()
client = connect(recorded_head().dashboard)
(job,) = client.list_jobs()
began = time.monotonic()
client.stop_job(job.submission_id)
while not client.get_job_status(job.submission_id).is_terminal():
    time.sleep(0.2)  # Ray has no call that waits for a job
print(client.get_job_status(job.submission_id).value, time.monotonic() - began)
"""


@pytest.mark.slow
def test_behaviour_23_ray_job_stop_ends_a_submitted_job_in_order_and_its_status_says_so(start_model, tmp_path_factory, tmp_path):
    home, runs = tmp_path_factory.mktemp("home"), tmp_path / "runs"
    environment = {**os.environ, "HOME": str(home), "MATHRL_STATE_DIR": str(home / "state")}
    environment.pop("RAY_ADDRESS", None)

    def run(*command, limit_s=150):
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=limit_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    log = (tmp_path / "log").open("w+")
    settings = [f"run.root={runs}", f"model.path={start_model}", *ENDLESS]
    try:
        run(sys.executable, "-m", "cluster.head", "start")
        command = [sys.executable, "-m", "cluster.submit", "--", "python", "jobs/grpo.py", "jobs/recipes/arithmetic_cpu.toml", *settings]
        following = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 150
        while not re.search(r"grpo step [3-9]", Path(log.name).read_text()):
            assert following.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.2)  # a file that grows wakes nobody
        family = Family(json.loads((home / "state" / "head.json").read_text())["pid"])
        family.look()
        status, seconds = run(sys.executable, "-c", RAY_JOB_STOP).split()
        report("ray job stop", float(seconds))
        assert status == "STOPPED"
        assert float(seconds) < PROMISED_S
        assert following.wait(60) == 1  # only SUCCEEDED is 0
        text = Path(log.name).read_text()
        assert "error: stopped by SIGTERM" in text
        assert list((runs / "arithmetic_cpu" / "partial").iterdir())
        deadline = time.monotonic() + 5
        while (left := family.left(str(runs)))[1] or left[2]:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)  # grandchildren's ends are told to nobody
        engines = [
            name for _, name in left[0] if any(word in name for word in ("VLLM", "ray::Learner", "ray::Generator", "watchdog", "keeper"))
        ]
        assert engines == []
    finally:
        run("bash", "cluster/down.sh")
