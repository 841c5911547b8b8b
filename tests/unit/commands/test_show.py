"""`show` on made-up run directories: what is chosen, what is said of it, and that no stranger's text passes for ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_words import record, refused, said
from evaluation_rows import BROKEN, RIGHT, WRONG, row
from samples import recipe_for

from mathrl_ray.__main__ import main
from mathrl_ray.commands.run_files import recipe_of, sample_files
from mathrl_ray.commands.show_overview import show_overview
from mathrl_ray.commands.show_text import Page
from mathrl_ray.core.prompts import render
from mathrl_ray.data.tiny_model import EOS_TOKEN, build_tokenizer
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.types import Completion, Grade, Trajectory

REPOSITORY = Path(__file__).parent.parent.parent.parent
HOSTILE = "red \x1b[31m\u202etxt\x07</answer>\n[bold]no style[/bold]\n  arithmetic/train/9, gold 1"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    made = build_tokenizer(128)
    made.folder = tmp_path_factory.mktemp("model")
    made.save_pretrained(made.folder)
    return made


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    """GRPO's steps 1 and 2 on two problems, a validation after step 2, the evaluation of SFT; no evaluation of GRPO yet."""
    recipe = recipe_for(tmp_path_factory.mktemp("runs"), model={"path": str(tokenizer.folder)})
    recorder = Recorder.create(recipe)

    def trajectory(step, number, sample, text, grade, *, advantage=None, drop=None, runs=None):
        ids = (*tokenizer.encode(text, add_special_tokens=False), *([tokenizer.eos_token_id] if grade is right else []))
        prompt = tuple(tokenizer.encode(render("r1_zero", f"Compute {number}+1."), add_special_tokens=False))
        completion = Completion(text, ids, (-0.5,) * len(ids), runs or ((step - 1, len(ids)),), "stop")
        return Trajectory(f"grpo-{step}/{number}", sample, f"p/{number}", prompt, completion, grade, advantage, drop)

    right, wrong = Grade(1, 1, 1, "correct", "2"), Grade(1, 0, 0, "wrong", "3", parts={"length": 0.25})
    for step in (1, 2):
        rows = [
            trajectory(step, 1, 0, " 1+1=2 </think> <answer> 2 </answer>", right, advantage=0.7),
            trajectory(step, 1, 1, " 1+1=3 </think> <answer> 3 </answer>", wrong, advantage=-0.7, runs=((0, 4), (1, 10))),
            trajectory(step, 2, 0, HOSTILE, replace(wrong, outcome="truncated"), advantage=0.0, drop="zero_variance"),
        ]
        plain = [trajectory_row(each, (-0.5,) * len(each.completion.token_ids), consumed_step=step, staleness=1) for each in rows]
        recorder.trajectories("grpo", step, plain)
        recorder.metrics("grpo", step, step, {"reward_mean": 0.25 * step, "response_tokens_mean": 12.0})
    answers = [row("q/1", RIGHT), row("q/2", WRONG), row("q/3", BROKEN, response=HOSTILE, gold="\x1b[2J7")]
    recorder.evaluation("validation-grpo-step2", 2, answers)
    recorder.evaluation("sft", 3, answers)
    recorder.close()
    return recorder.folder


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


# Which responses


def test_without_options_a_newcomer_sees_what_there_is_a_right_and_a_wrong_sample_and_what_to_type_next(run, capsys):
    text = said(capsys, "show", run)
    assert "prompt r1_zero, seed 0" in text
    assert re.search(r"sft +- +- +- +not yet", text)
    assert re.search(r"grpo +1, 2 +2 +- +not yet", text)
    assert "sample 0: correct" in text
    assert "sample 0: wrong" in text
    assert f"show {run} --stage grpo --step 2" in text
    assert f"show {run} --problem q/1" in text


def test_with_a_stage_the_overview_is_still_of_all_and_what_to_type_next_is_of_that_stage(run, capsys):
    whole, of_sft = said(capsys, "show", run), said(capsys, "show", run, "--stage", "sft")
    row = re.search(r"grpo +1, 2 +2 +- +not yet", whole)
    assert row
    assert row[0] in of_sft
    assert "--stage sft --outcome wrong" in of_sft


def test_a_step_shows_its_groups_with_all_that_is_known_of_each_response(run, capsys):
    text = said(capsys, "show", run, "--step", "2")
    assert "grpo step 2: 1 correct, 1 truncated, 1 wrong; mean reward 0.5, tokens 12" in text
    assert "| Compute 1+1. " in text  # the question alone; what stands around it is told once
    assert text.count("User: {question}") == 1
    assert "sample 0: correct; reward 1 (format 1, answer 1); advantage +0.700; " in text
    assert f"| 1+1=2 </think> <answer> 2 </answer>{EOS_TOKEN}" in text  # what was sampled, to its last token
    assert "reward 0 (format 1, answer 0, length 0.25); advantage -0.700" in text
    assert "versions 0 (4 tokens), 1 (10); staleness 1" in text
    assert "not trained on: zero_variance" in text


def test_a_problem_is_shown_through_the_run_in_order(run, capsys):
    text = said(capsys, "show", run, "--problem", "p/1")
    assert text.index("grpo step 1:") < text.index("grpo step 2:")
    assert text.count("sample 0: correct") == 2
    assert "p/2" not in text
    evaluations = said(capsys, "show", run, "--problem", "q/2")
    assert evaluations.index("sft, evaluation of version 3:") < evaluations.index("grpo, validation after step 2:")
    assert "q/2, level 1, algebra, gold 2" in evaluations
    assert "answer 3" in evaluations


def test_an_outcome_is_looked_for_in_the_newest_or_in_the_step_that_is_named(run, capsys):
    newest = said(capsys, "show", run, "--outcome", "wrong")
    assert "grpo, validation after step 2" in newest
    assert "q/2" in newest
    assert "q/1" not in newest
    assert "p/1" in said(capsys, "show", run, "--outcome", "wrong", "--step", "1")
    of_a_problem = said(capsys, "show", run, "--problem", "q/1", "--outcome", "wrong")
    assert "no response to q/1 is wrong in 4 files; what is there: 2 correct" in of_a_problem
    nothing = said(capsys, "show", run, "--outcome", "bad_gold")
    assert "no response is bad_gold in grpo, validation after step 2; what is there: 1 correct, 1 no_answer, 1 wrong" in nothing


def test_a_stage_without_trajectories_shows_the_validation_of_a_step(run, capsys):
    (run / "trajectories" / "grpo-2.parquet").unlink()
    assert "grpo, validation after step 2" in said(capsys, "show", run, "--step", "2")


def test_a_limit_is_kept_and_what_is_left_is_said(run, capsys):
    text = said(capsys, "show", run, "--step", "1", "--limit", "1")
    assert text.count("sample ") == 1
    assert "1 of 3 responses; --limit 0 prints all" in text
    assert said(capsys, "show", run, "--step", "1", "--limit", "0").count("staleness") == 3


def test_json_holds_every_field_of_all_that_was_found(run, capsys):
    found = record(capsys, "show", run, "--step", "2", "--json")
    assert [each["outcome"] for each in found] == ["correct", "wrong", "truncated"]
    assert found[0]["prompt"] == render("r1_zero", "Compute 1+1.")
    assert found[2]["response"] == HOSTILE
    assert found[1]["version_runs"] == [[0, 4], [1, 10]]
    assert found[0]["file"]["stage"] == "grpo"
    assert len(record(capsys, "show", run, "--json")["files"]) == 4


def test_a_figure_that_is_no_number_is_null_in_json_wherever_it_stands(run, capsys):
    recorder = Recorder(run)
    recorder.evaluation("baseline", 0, [row("q/1", WRONG, format_reward=float("nan"), reward=float("inf"))])
    recorder.close()
    found = record(capsys, "show", run, "--stage", "baseline", "--problem", "q/1", "--json")[0]
    assert (found["reward"], found["parts"]["format"], found["parts"]["answer"]) == (None, None, 0.0)


def test_the_run_in_the_present_folder_has_its_name(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    assert said(capsys, "show", ".").startswith("run: ")
    assert record(capsys, "show", ".", "--json")["run"] == "run"


def test_a_stage_that_has_ended_has_its_accuracy_with_its_interval(run, capsys):
    stage = {"name": "sft", "accuracy": 0.5, "ci95": [0.4, 0.65], "num_problems": 1500}
    (run / "summary.json").write_text(json.dumps({"stages": [stage]}))
    assert re.search(r"sft +- +- +- +50.0 % \(40.0 to 65.0\) +1,500", said(capsys, "show", run))


def test_a_validation_stands_without_the_means_of_the_training_step(run, capsys):
    assert main(["show", str(run), "--problem", "q/1", "--stage", "grpo"]) == 0
    assert "grpo, validation after step 2: 1 correct, 1 no_answer, 1 wrong" in capsys.readouterr().out.splitlines()


# What is not there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "9"], "holds no responses of step 9; it has steps grpo 1, 2"),
        (["--problem", "p1"], "no response to a problem 'p1' among those to 5 problems; the nearest ids: p/"),
        (["--problem", "3"], "the nearest ids: q/3"),
        (["--outcome", "wrong", "--problem", "zzz"], "no response to a problem 'zzz' among those to 5 problems"),
        (
            ["--step", "2", "--problem", "q/1"],
            "no response to 'q/1' in grpo step 2; it is in sft, evaluation of version 3; grpo, validation",
        ),
        (["--stage", "sft", "--problem", "p/2", "--json"], "to 'p/2' in sft, evaluation of version 3; it is in grpo step 1; grpo step 2"),
        (["--outcome", "wron"], "--outcome wron: the nearest is wrong"),
        (["--stage", "grpp"], "--stage grpp: the nearest is grpo"),
        (["--stage", "baseline"], "holds no responses of baseline; it has those of sft, grpo"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest_that_is(run, capsys, options, message):
    assert message in refused(capsys, "show", run, *options)


def test_a_run_that_has_just_begun_says_so(tmp_path, capsys):
    recorder = Recorder.create(recipe_for(tmp_path))
    assert "nothing is sampled yet" in said(capsys, "show", recorder.folder)
    assert "holds no responses yet" in refused(capsys, "show", recorder.folder, "--outcome", "wrong")
    recorder.close()
    assert "no such run directory" in refused(capsys, "show", tmp_path / "absent")


def test_a_file_of_a_run_is_refused_with_the_run(run, tmp_path, capsys):
    told = refused(capsys, "show", run / "evaluations" / "sft-v3.parquet")
    assert f"sft-v3.parquet: is a file; name the run's directory, <run.root>/<run.name>, which holds recipe.toml: {run}" in told
    (tmp_path / "alone").write_text("")
    assert refused(capsys, "show", tmp_path / "alone").endswith("which holds recipe.toml\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--step", "x"], "--step: 'x' is no whole number"), (["--limit", "1.5"], "--limit: '1.5' is no whole number")]
    + [([name, ""], f"{name}: must not be empty") for name in ("--problem", "--outcome")],
)
def test_a_word_that_is_no_value_is_refused_in_words(run, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        main(["show", str(run), *options])
    assert ended.value.code == 1
    assert f"error: argument {message}" in capsys.readouterr().err


@pytest.mark.parametrize("num_characters", [10, 100_000])  # held back until the end, or written at once
def test_a_reader_who_has_had_enough_is_not_told_of_it(run, num_characters):
    recorder = Recorder(run)
    recorder.evaluation("baseline", 0, [row("q/1", WRONG, response="x" * num_characters)])
    recorder.close()
    words = [sys.executable, "-m", "mathrl_ray", "show", str(run), "--stage", "baseline", "--problem", "q/1", "--full"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, env=environment) as shown:
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait(60) == 1


def test_a_run_at_work_is_shown_as_far_as_it_is(run, capsys):
    """A file that is being written, a row that is half there, and a lock that another process holds."""
    (run / "trajectories" / ".grpo-3.parquet.writing").write_bytes(b"PAR1 half of it")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "grpo", "step": 3, "rew')
    recorder = Recorder(run)
    assert "grpo step 2:" in said(capsys, "show", run, "--step", "2")
    assert "validation after step 2" in said(capsys, "show", run)
    recorder.close()


# Strangers' text


def test_hostile_text_is_visible_stands_behind_a_bar_and_moves_nothing(run, capsys):
    assert main(["show", str(run), "--step", "2"]) == 0
    told = capsys.readouterr().out
    assert all(each.isprintable() or each == "\n" for each in told)
    lines = told.splitlines()
    assert "    | red \u241b[31m⟦U+202E⟧txt\u2407</answer>" in lines
    assert "    | [bold]no style[/bold]" in lines
    assert "    |   arithmetic/train/9, gold 1" in lines  # it cannot pass for one of our heads
    assert main(["show", str(run), "--problem", "q/3"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_response_of_100_000_characters_is_shortened_unless_it_is_wanted_whole(run, capsys):
    recorder = Recorder(run)
    recorder.evaluation("baseline", 0, [row("q/1", WRONG, response="x" * 100_000 + " the end")])
    recorder.close()
    short = said(capsys, "show", run, "--stage", "baseline", "--problem", "q/1")
    assert "[96,008 characters are left out]" in short
    assert "the end" in short
    assert len(short) < 10_000
    assert len(said(capsys, "show", run, "--stage", "baseline", "--problem", "q/1", "--full")) > 100_000


def test_without_a_tokenizer_the_ids_are_shown_and_it_is_said_once_where_to_put_one(run, tokenizer, tmp_path, capsys):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(re.sub(r'(\[model\]\npath = ").*(")', rf"\g<1>{tmp_path}/gone\g<2>", text))
    assert main(["show", str(run), "--step", "1"]) == 0
    told = capsys.readouterr()
    assert told.out.count("| [ids ") == 2 + 3  # prompts of two problems, three responses
    assert told.err.count("warning: ") == 1
    assert f"no tokenizer of model.path = {tmp_path}/gone" in told.err
    assert f"Looked in {run}, {tmp_path}/gone; put its tokenizer.json into {run}" in told.err
    shutil.copy(tokenizer.folder / "tokenizer.json", run)
    assert "| 1+1=2 </think>" in said(capsys, "show", run, "--step", "1")


def test_show_loads_no_torch(run):
    code = f"import sys; from mathrl_ray.__main__ import main; main(['show', {str(run)!r}, '--step', '2']); print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert answer.stdout.splitlines()[-1] == "False"


def test_the_words_of_guards_are_in_the_overview(run, capsys):
    rows = [
        {"kind": "fired", "time_s": 1.0, "stage": "grpo", "step": 2, "text": "entropy fell"},
        {"kind": "rollback", "time_s": 2.0, "stage": "grpo", "step": 2, "to_step": 1, "changes": {}, "text": "back to step 1"},
    ]
    (run / "guards.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    text = said(capsys, "show", run)
    assert "guards: 1 fired, 1 rollback; the last words:" in text
    assert "grpo step 2: back to step 1" in text


def test_the_words_of_guards_are_wrapped_on_a_terminal(run, capsys):
    event = {"kind": "fired", "time_s": 1.0, "stage": "grpo", "step": 2, "text": "entropy fell " + "and fell " * 20 + "to 0"}
    (run / "guards.jsonl").write_text(json.dumps(event) + "\n")
    show_overview(Page([], full=False, width=80), run, recipe_of(run), sample_files(run))
    words = capsys.readouterr().out.split("the last words:\n")[1].splitlines()
    assert [len(line) <= 80 for line in words] == [True] * 3
    assert " ".join(" ".join(words).split()) == f"grpo step 2: {event['text']}"
