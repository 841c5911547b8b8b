import json
import subprocess
import sys
import textwrap
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
    assert "fine for study (stages baseline, sft, sft_filtered, expert_iteration, grpo)" in capsys.readouterr().out


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


# check-loss

LOSSES = """
import torch

def right(batch, scale=1.0):
    return scale * torch.where(batch.mask, -batch.advantages * batch.learner_logprobs, 0.0).sum() / batch.num_tokens

def wrong(batch):
    return -right(batch)
"""


@pytest.fixture
def losses(tmp_path):
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "one.py").write_text(LOSSES[: LOSSES.index("def wrong")])
    return tmp_path


def test_check_loss_of_a_right_loss_ends_with_status_0(losses, capsys):
    assert command(["check-loss", f"{losses}/losses.py:right"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("sign", "detach", "gradient", "micro-batches", "mask", "NaN safety"))
    assert shown.splitlines()[-1] == f"{losses}/losses.py:right: 0 of 8 tries found a fault"


def test_check_loss_of_a_wrong_loss_ends_with_status_1_and_says_what_to_do(losses, capsys):
    assert command(["check-loss", f"{losses}/losses.py:wrong"]) == 1
    shown = capsys.readouterr().out
    assert "pushed the wrong" in shown
    assert shown.splitlines()[-1] == f"{losses}/losses.py:wrong: 1 of 8 tries found a fault"


def test_brackets_of_a_message_are_shown(losses, capsys):
    # rich would take [mask] for a style and leave it out
    (losses / "shape.py").write_text("def shape(batch):\n    raise ValueError('no [mask] here')\n")
    assert command(["check-loss", f"{losses}/shape.py"]) == 1
    assert "no [mask] here" in " ".join(capsys.readouterr().out.split())


def test_a_file_with_one_public_function_needs_no_name(losses, capsys):
    assert command(["check-loss", f"{losses}/one.py"]) == 0
    assert "one.py:right: 0 of 8" in capsys.readouterr().out


def test_a_file_with_several_lists_them(losses, capsys):
    assert command(["check-loss", f"{losses}/losses.py"]) == 1
    assert "error: " in (told := capsys.readouterr().err)
    assert f"losses.py holds right, wrong: name the loss as {losses}/losses.py:right" in told


def test_a_function_of_a_module_can_be_checked(losses, monkeypatch):
    monkeypatch.syspath_prepend(str(losses))
    assert command(["check-loss", "one:right"]) == 0


@pytest.mark.parametrize(("argument", "status"), [("scale=2.0", 0), ("scale=-1", 1), ("scale=-1e-3", 1)])
def test_keyword_arguments_reach_the_loss(losses, argument, status):
    assert command(["check-loss", f"{losses}/one.py", argument]) == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one.py:left"], "has no function left; it has right"),
        (["absent.py"], "absent.py: no such file"),
        (["empty.py"], "empty.py holds no public function"),
        (["no_such_module:loss"], "no_such_module cannot be imported"),
        (["nothing"], "give module:function or path/file.py:function"),
        (["one.py", "scale"], "'scale': a keyword argument of the loss is name=value"),
        (["one.py", "=1"], "'=1': a keyword argument"),
    ],
)
def test_check_loss_of_no_loss_ends_with_one_message_and_status_1(losses, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(losses)
    (losses / "empty.py").write_text("LIMIT = 1\n")
    assert command(["check-loss", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told


def test_a_wrong_argument_of_the_loss_is_refused_with_those_it_has(losses, capsys):
    assert command(["check-loss", f"{losses}/one.py", "power=1"]) == 1
    assert "does not fit right(batch, scale=1.0)" in capsys.readouterr().err


def test_check_loss_loads_no_engine_and_the_example_of_its_help_is_right(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "mathrl_ray", "check-loss", "--help"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    example = told[told.index("    import torch") : told.index("    python -m mathrl_ray")]
    (tmp_path / "my_loss.py").write_text(textwrap.dedent(example))
    run = f"from mathrl_ray.__main__ import main; print(main(['check-loss', {str(tmp_path / 'my_loss.py')!r}, 'power=1.0']))"
    code = f"import sys; {run}; print(sorted({{'ray', 'vllm', 'deepspeed', 'transformers'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines()[-2:] == ["0", "[]"]


@pytest.mark.parametrize("arguments", [["check-los"], ["check-loss"], ["summary"], ["check-loss", "--unknown", "x"]])
def test_a_wrong_command_ends_with_status_1(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 1
    assert "error: " in capsys.readouterr().err
