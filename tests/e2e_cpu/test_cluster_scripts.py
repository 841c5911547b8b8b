"""The scripts in cluster/ as a person calls them: in processes of their own, with a real Ray head that is not the only one here."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "cluster").glob("*.sh"), ROOT / ".ci" / "run"])
STAMP = ROOT / ".venv" / ".mathrl-installed"


def run(*command: str, limit_s: float = 30, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def alive_in_session(session: int) -> list[int]:
    alive = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and is_alive(pid):
                alive.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):  # it ended while we looked
            continue
    return alive


# --- without Ray ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_parses(script):
    assert run("bash", "-n", str(script)).returncode == 0


@pytest.mark.parametrize("name", ["install.sh", "quickstart.sh", "down.sh", "test.sh"])
def test_help_says_how_to_call_the_script_and_does_nothing(name):
    shown = run("bash", f"cluster/{name}", "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: bash cluster/{name}")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("install.sh", "bash cluster/install.sh cpu"),
        ("install.sh tpu", "unknown argument 'tpu'; allowed: cpu, gpu"),
        ("install.sh cpu --build-flash-attn", "goes with gpu"),
        ("install.sh cpu --torch-index", "needs a URL or a folder"),
        ("quickstart.sh seed=1", "'seed=1' is not section.key=value, for example run.seed=1"),
        ("quickstart.sh --fast", "'--fast' is not section.key=value"),
        ("down.sh everything", "no arguments are taken"),
    ],
)
def test_a_wrong_call_gets_status_1_and_the_right_way(command, message):
    refused = run("bash", *f"cluster/{command}".split())
    assert refused.returncode == 1
    assert message in refused.stderr


def test_quickstart_prints_the_study_over_seeds_with_the_users_own_settings(tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "cluster" / "quickstart.sh", tmp_path / "cluster")
    shutil.copy(ROOT / "cluster" / "progress.sh", tmp_path / "cluster")
    (tmp_path / "cluster" / "install.sh").write_text("true\n")
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/bin/true")  # neither a head nor a job is started
    settings = ("run.name=second", "grpo.num_steps=9", "run.seed=4", "data.train=a file.jsonl")
    shown = run("bash", str(tmp_path / "cluster" / "quickstart.sh"), *settings, MATHRL_RUNS=str(tmp_path.parent / "my runs"))
    assert shown.returncode == 0, shown.stderr
    command = shlex.split(next(line for line in shown.stdout.splitlines() if "_seeds.toml" in line))
    expected = [
        "jobs/recipes/arithmetic_cpu_seeds.toml",
        f"run.root={tmp_path.parent}/my runs",
        "grpo.num_steps=9",
        "data.train=a file.jsonl",
    ]
    assert command[command.index("jobs/study.py") + 1 :] == expected


def test_runs_inside_the_uploaded_repository_are_refused():
    refused = run("bash", "cluster/quickstart.sh", MATHRL_RUNS=str(ROOT / "runs"))
    assert refused.returncode == 1
    assert "choose a folder outside" in refused.stderr


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_other_platforms_are_refused_in_the_first_second_with_what_is_supported(tmp_path, system, machine):
    uname = tmp_path / "uname"
    uname.write_text(f"#!/bin/sh\ncase $1 in -s) echo {system} ;; -m) echo {machine} ;; esac\n")
    uname.chmod(0o755)
    start_s = time.monotonic()
    refused = run("bash", "cluster/install.sh", "cpu", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert time.monotonic() - start_s < 1
    assert refused.returncode == 1
    assert f"this is {system} on {machine}; supported are Linux on x86-64 or arm64" in refused.stderr
    assert "on macOS a linux/arm64 container" in refused.stderr


@pytest.mark.skipif(not STAMP.exists(), reason="this .venv was not made by cluster/install.sh")
def test_a_second_install_does_nothing_and_says_so():
    extra = STAMP.read_text().split()[0]
    before = STAMP.stat().st_mtime_ns
    start_s = time.monotonic()
    again = run("bash", "cluster/install.sh", extra)
    assert time.monotonic() - start_s < 1
    assert (again.returncode, again.stdout) == (0, f"install: .venv is complete for {extra}, nothing to do\n")
    assert STAMP.stat().st_mtime_ns == before


def test_an_engine_that_cannot_be_imported_is_named_with_status_1():
    checked = run(sys.executable, "cluster/check_imports.py", "pyarrow", "no_such_engine")
    assert checked.returncode == 1
    assert re.search(r"^  pyarrow \d+\.\d+\.\d+ \(", checked.stdout, re.MULTILINE)
    assert "no_such_engine (not installed): import no_such_engine failed with ModuleNotFoundError" in checked.stdout


def test_down_with_nothing_running_is_fine(tmp_path):
    down = run("bash", "cluster/down.sh", MATHRL_STATE_DIR=str(tmp_path))
    assert (down.returncode, down.stdout) == (0, "head: nothing is running\n")


def test_a_pid_that_someone_else_has_by_now_is_left_alone(tmp_path):
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    temp_dir = tmp_path / "mr-gone"
    temp_dir.mkdir()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    stale = {"pid": stranger.pid, "start_ticks": 1, "boot_id": boot_id, "dashboard": "http://127.0.0.1:9", "temp_dir": str(temp_dir)}
    (tmp_path / "head.json").write_text(json.dumps(stale))
    try:
        down = run("bash", "cluster/down.sh", MATHRL_STATE_DIR=str(tmp_path))
        assert down.returncode == 0
        assert "was gone already; ended 0 processes" in down.stdout
        assert stranger.poll() is None
        assert not temp_dir.exists()
        assert not (tmp_path / "head.json").exists()
    finally:
        stranger.kill()
        stranger.wait(10)


def test_an_empty_token_is_replaced_by_one_that_only_its_user_can_read(tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("\n")
    made = run(sys.executable, "-c", "from cluster.head import _make_token; _make_token()", limit_s=60, HOME=str(tmp_path))
    assert made.returncode == 0, made.stderr
    assert len(token.read_text().strip()) >= 32
    assert token.stat().st_mode & 0o077 == 0


def test_submitting_without_a_head_says_how_to_start_one(tmp_path):
    refused = run(sys.executable, "-m", "cluster.submit", "--", "true", MATHRL_STATE_DIR=str(tmp_path))
    assert refused.returncode == 1
    assert "python -m cluster.head start" in refused.stderr


# --- with a head of our own beside a foreign one ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def variables(tmp_path_factory) -> Iterator[dict[str, str]]:
    """Environment of a user with an empty home; RAY_ADDRESS points nowhere, and nobody may follow it."""
    home = tmp_path_factory.mktemp("home")
    variables = {"HOME": str(home), "MATHRL_STATE_DIR": str(home / "state"), "RAY_ADDRESS": "127.0.0.1:9"}
    yield variables
    run("bash", "cluster/down.sh", limit_s=120, **variables)


@pytest.fixture(scope="module")
def foreign_head(variables) -> Iterator[str]:
    """Dashboard address of a head that someone else started on this machine."""
    run(sys.executable, "-c", "from cluster.head import _make_token; _make_token()", **variables)
    temp_dir = tempfile.mkdtemp(prefix="mf-", dir="/tmp")  # pytest's folders are too deep for Ray's sockets
    ports = free_ports(3)
    options = f"--port={ports[0]} --ray-client-server-port={ports[1]} --dashboard-port={ports[2]} --dashboard-agent-listen-port=0"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats", *options.split()]
    environment = os.environ | {"HOME": variables["HOME"], "RAY_AUTH_MODE": "token", "TMPDIR": temp_dir}
    environment.pop("RAY_ADDRESS", None)
    started = subprocess.Popen(
        [*command, f"--temp-dir={temp_dir}"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    yield f"http://127.0.0.1:{ports[2]}"
    for pid in alive_in_session(started.pid):
        with contextlib.suppress(ProcessLookupError):  # some end with the one before
            os.kill(pid, signal.SIGKILL)
    started.wait(10)
    shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture
def own_head(variables, foreign_head) -> dict[str, str]:
    """The record of our head, which the first test starts and the others find running."""
    started = run(sys.executable, "-m", "cluster.head", "start", limit_s=150, **variables)
    assert started.returncode == 0, started.stdout + started.stderr
    return json.loads((Path(variables["MATHRL_STATE_DIR"]) / "head.json").read_text())


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def answers(dashboard: str, variables: dict[str, str]) -> bool:
    code = f"from cluster.connection import *; speak_to_own_head_only(); connect({dashboard!r}).list_jobs()"
    return run(sys.executable, "-c", code, **variables).returncode == 0


@pytest.fixture
def job_dir(tmp_path) -> Path:
    """A checkout with a history and with outputs that are each larger than what Ray takes (500 MiB), though they take no disk."""
    (tmp_path / "job.py").write_text("import os, sys\nprint('speaks from', os.getcwd(), os.listdir())\nsys.exit(int(sys.argv[1]))\n")
    shutil.copy(ROOT / ".gitignore", tmp_path)
    for folder in (".git", "mathrl_runs"):
        (tmp_path / folder).mkdir()
        with (tmp_path / folder / "large").open("wb") as file:
            file.truncate(600 * 2**20)
    return tmp_path


def submit_command(job_dir: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cluster.submit", "--working-dir", str(job_dir), "--", "python", "job.py", *arguments]


@pytest.mark.parametrize(("job_status", "end", "status"), [("0", "SUCCEEDED", 0), ("3", "FAILED", 1)])
def test_behaviour_32_a_job_runs_from_a_large_checkout_and_its_end_is_passed_on(own_head, variables, job_dir, job_status, end, status):
    submitted = run(*submit_command(job_dir, job_status), limit_s=120, **variables)
    assert submitted.returncode == status, submitted.stderr
    assert f"speaks from {own_head['temp_dir']}" in submitted.stdout  # it ran in a copy below our head's own folder
    assert "'job.py'" in submitted.stdout
    assert "'.git'" not in submitted.stdout
    assert "'mathrl_runs'" not in submitted.stdout
    assert submitted.stdout.rstrip().endswith(end)


def test_only_this_user_may_read_the_token(own_head, variables):
    assert (Path(variables["HOME"]) / ".ray" / "auth_token").stat().st_mode & 0o077 == 0


JOB_THAT_NEEDS_TIME_TO_STOP = """
import os, pathlib, signal, sys, time

def stop(*_):
    time.sleep(5)  # longer than the 3 s that Ray gives by itself
    pathlib.Path(sys.argv[1]).write_text("written")
    sys.exit(1)

if os.fork() == 0:  # a daemon: neither a child of the job nor in its session
    os.setsid()
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        time.sleep(100)
    os._exit(0)
os.wait()
signal.signal(signal.SIGTERM, stop)
time.sleep(100)
"""


def test_a_job_outlives_ctrl_c_and_down_lets_it_finish_and_spares_the_foreign_head(own_head, foreign_head, variables, tmp_path):
    (tmp_path / "job.py").write_text(JOB_THAT_NEEDS_TIME_TO_STOP)
    checkpoint = tmp_path / "checkpoint"
    following = subprocess.Popen(
        submit_command(tmp_path, str(checkpoint)), cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )
    try:
        daemon = next(int(line.split()[1]) for line in following.stdout if line.startswith("daemon"))
        following.send_signal(signal.SIGINT)
        rest, _ = following.communicate(timeout=30)
    finally:
        following.kill()
    assert following.returncode == 130
    assert "goes on" in rest
    assert "bash cluster/down.sh" in rest
    assert is_alive(daemon)

    down = run("bash", "cluster/down.sh", limit_s=150, **variables)
    assert down.returncode == 0, down.stderr
    assert "stopping job" in down.stdout
    assert checkpoint.read_text() == "written"
    assert not is_alive(daemon)
    assert alive_in_session(own_head["pid"]) == []
    assert not Path(own_head["temp_dir"]).exists()
    assert answers(foreign_head, variables)


@pytest.mark.slow
def test_what_a_killed_head_leaves_is_cleaned_up_by_the_next_start(own_head, variables):
    os.kill(own_head["pid"], signal.SIGKILL)
    assert alive_in_session(own_head["pid"])
    started = run(sys.executable, "-m", "cluster.head", "start", limit_s=150, **variables)
    assert started.returncode == 0, started.stderr
    assert f"(pid {own_head['pid']}) was gone already; ended" in started.stdout
    assert alive_in_session(own_head["pid"]) == []
    assert not Path(own_head["temp_dir"]).exists()
