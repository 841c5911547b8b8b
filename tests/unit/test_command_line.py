import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from samples import recipe_for

from mathrl_ray.__main__ import main as command
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.entry import main as job

REPOSITORY = Path(__file__).parent.parent.parent
RECIPE = str(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml")


def test_check_says_what_it_looked_at_and_starts_nothing(capsys):
    assert job("study", [RECIPE, "--check", "grpo.num_steps=3"]) == 0
    assert "fine for study (stages baseline, sft, grpo)" in capsys.readouterr().out


def test_check_is_quick_and_loads_no_torch():
    check = f"from mathrl_ray.entry import main; main('study', [{RECIPE!r}, '--check'])"
    code = f"import sys; {check}; print('torch' in sys.modules, 'ray' in sys.modules)"
    began = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines()[-1] == "False False"
    assert time.monotonic() - began < 30  # a bound against loading engines, not a measurement; the command itself takes 0.4 s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RECIPE, "grpo.num_step=3"], "the nearest is grpo.num_steps"),
        ([RECIPE, "learner.warmup_steps=500", "grpo.num_steps=200"], "learner.warmup_steps = 500 is as long as the sft stage"),
        (["absent.toml"], "absent.toml: no such file"),
        ([RECIPE, "model.path=./absent"], "absent: no such folder"),
    ],
)
def test_a_recipe_that_cannot_run_ends_with_one_message_and_status_1(capsys, arguments, message):
    assert job("study", [*arguments, "--check"]) == 1
    assert message in capsys.readouterr().err


def test_a_wrong_command_line_ends_with_status_1(capsys):
    with pytest.raises(SystemExit) as ended:
        job("grpo", [])
    assert ended.value.code == 1
    assert "RECIPE.toml" in capsys.readouterr().err


def test_bad_data_is_refused_before_any_engine_or_cluster_starts(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": ""}\n')
    answer = subprocess.run(
        [sys.executable, str(REPOSITORY / "jobs" / "baseline.py"), RECIPE, f"data.test={tmp_path / 'bad.jsonl'}", f"run.root={tmp_path}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 1
    assert "data.test" in answer.stderr
    assert "2" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


@pytest.mark.parametrize("stage", ["baseline", "sft", "grpo", "study"])
def test_every_job_file_explains_itself(stage):
    answer = subprocess.run(
        [sys.executable, str(REPOSITORY / "jobs" / f"{stage}.py"), "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "RECIPE.toml" in answer.stdout
    assert "section.key=value" in answer.stdout


def test_summary_shows_each_accuracy_with_its_interval_and_number_of_problems(tmp_path, capsys):
    recorder = Recorder.create(recipe_for(tmp_path))
    stage = {
        "name": "grpo", "accuracy": 0.5, "ci95": [0.4, 0.6], "num_problems": 100, "num_ungraded": 3, "format_rate": 0.9,
        "mean_entropy_nats": 0.1, "mean_response_tokens": 20.0, "generated_tokens": 12345, "graded": 1, "optimizer_steps": 5, "wall_s": 7.0,
        "device_s": {},
    }  # fmt: skip
    recorder.summary([stage])
    assert command(["summary", str(recorder.folder)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("50.0 %", "40.0 to 60.0", " 97 ", "12,345", "temperature 1", "r1_zero"))
    assert json.loads((recorder.folder / "summary.json").read_text())["stages"] == [stage]


def test_summary_of_no_run_says_so(tmp_path, capsys):
    assert command(["summary", str(tmp_path / "absent")]) == 1
    assert "no such run directory" in capsys.readouterr().err
    assert command(["summary", str(tmp_path)]) == 1
    assert "holds no recipe.toml" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys):
    assert command([]) == 0
    assert "summary" in capsys.readouterr().out
