"""The exit status of a job, whatever becomes of it; the job itself is made up."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import mathrl_ray.job
from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.config import RecipeError
from mathrl_ray.driver.canary import CanaryError
from mathrl_ray.driver.replicas import GivenUpError
from mathrl_ray.driver.stopping import StoppedError
from mathrl_ray.driver.time_limit import TimeIsUpError
from mathrl_ray.driver.waiting import WaitError
from mathrl_ray.entry import main

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")


@pytest.fixture
def ending(monkeypatch):
    """Runs a job that ends with an error, or without one."""

    def run(error, *settings):
        def made_up(recipe, stages, stopping):
            if error is not None:
                raise error

        monkeypatch.setattr(mathrl_ray.job, "run_job", made_up)
        return main("grpo", [RECIPE, *settings])

    return run


def test_only_a_job_that_reached_its_end_has_status_0(ending):
    assert ending(None) == 0


@pytest.mark.parametrize(
    "error",
    [
        ActorError("learner-0 died in train_policy()"),
        ActorError("driver.max_restarts = 10 replacements were made, and generator-0 failed again"),
        GivenUpError("8 prompts in a row failed, the last one: scorer-0 did not answer"),
        CanaryError("generator-0 and the learner differ"),
        WaitError("waited 10 s for a slot"),
        FloatingPointError("3 updates in a row"),
        RecipeError("the run needs 8 CPUs"),
        ValueError("too old"),
        OSError(28, "No space left on device"),
        KeyError("reward"),
        ExceptionGroup("two", [ValueError("one"), TypeError("other")]),
        TimeIsUpError("run.max_hours = 1"),
        StoppedError("stopped by SIGTERM"),
        KeyboardInterrupt(),
        SystemExit(15),  # Ray's own answer to SIGTERM while it starts
        SystemExit(0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_behaviour_23_every_other_end_has_status_1_and_says_why(ending, error, capsys):
    assert ending(error) == 1
    told = capsys.readouterr().err
    assert "error: " in told
    assert str(error) in told or isinstance(error, (KeyboardInterrupt, SystemExit))


def test_the_fault_of_nobody_shows_its_place_and_the_users_own_does_not(ending, capsys):
    ending(ActorError("died"))
    assert "Traceback" in capsys.readouterr().err
    for error in (RecipeError("wrong"), FloatingPointError("nan"), TimeIsUpError("up"), StoppedError("stopped")):
        ending(error)
        assert "Traceback" not in capsys.readouterr().err


def test_whatever_is_raised_no_secret_of_its_text_the_environment_or_the_recipe_is_printed(ending, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text("def paid(response, gold, **settings):\n    return 1.0\n")
    monkeypatch.setenv("JUDGE_TOKEN", "sesame-of-the-environment-1")
    settings = [f"reward.function={tmp_path / 'own.py'}:paid", "reward.kwargs={api_key='sesame-of-the-recipe-2'}"]
    text = "ftp://me:hunter22hunter@host/x, password: xyz, sesame-of-the-environment-1, sesame-of-the-recipe-2"
    for error in (OSError(28, "No space left on device", text), KeyError(text), RecipeError(text), ActorError(text), StoppedError(text)):
        assert ending(error, *settings) == 1
        told = capsys.readouterr().err
        assert "error: " in told
        assert not [secret for secret in ("hunter22", "xyz", "sesame") if secret in told], told


def test_a_recipe_that_cannot_even_be_looked_for_is_an_error_and_no_raw_traceback(ending, capsys):
    assert main("grpo", ["x" * 300]) == 1
    assert "error: " in capsys.readouterr().err


def test_the_handlers_of_whoever_called_stand_again_afterwards(ending):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    ending(ActorError("died"))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_data_is_loaded_ends_the_job_with_status_1_and_nothing_written(tmp_path, number):
    script = textwrap.dedent(f"""
        import sys, time
        import mathrl_ray.job
        def load(*arguments, **named):
            print("loading", flush=True)
            time.sleep(60)
        mathrl_ray.job.load_inputs = load
        from mathrl_ray.entry import main
        sys.exit(main("baseline", [{RECIPE!r}, "run.root={tmp_path}"]))
    """)
    job = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    while "loading" not in (line := job.stdout.readline()):
        assert line, job.stderr.read()
    began = time.monotonic()
    job.send_signal(number)
    _, errors = job.communicate(timeout=20)
    assert job.returncode == 1
    assert "error: stopped before the engines had started" in errors
    assert "Traceback" not in errors
    assert time.monotonic() - began < 5
    assert list(tmp_path.iterdir()) == []
