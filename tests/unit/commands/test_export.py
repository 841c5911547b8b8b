"""`python -m mathrl_ray export`: which weights, what the card says, and what is refused."""

import json
import shutil
import tomllib

import pytest
import torch
import yaml
from made_up_runs import metrics_of, recipe_with, write_metrics, write_run
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from mathrl_ray.__main__ import main
from mathrl_ray.commands.model_card import FIGURES_FILE
from mathrl_ray.core.prompts import R1_ZERO
from mathrl_ray.data.tiny_model import build_tokenizer

WORDS = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


def save_model(folder, seed):
    """A model of a few thousand weights, as a checkpoint holds it, with a trainer's state beside it."""
    tokenizer = build_tokenizer(512)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "trainer").mkdir()
    (folder / "trainer" / "state.safetensors").write_bytes(b"moments")
    return model, tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """baseline, sft, expert_iteration and grpo, with checkpoints of the last two of grpo."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "made_up", ungraded=3)
    for step in (10, 20):
        save_model(folder / "checkpoints" / f"grpo-{step}", seed=step)
    save_model(folder / "checkpoints" / "sft-20", seed=1)
    return folder


def edited(run, tmp_path, *, evaluated_step=20, **of_last_stage):
    """A copy of the run whose last stage's summary says more, and whose figures are of another step."""
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    *rows, last = metrics_of(copy)
    write_metrics(copy, [*rows, {**last, "step": evaluated_step}])
    summary = json.loads((copy / "summary.json").read_text())
    summary["stages"][-1] |= of_last_stage
    (copy / "summary.json").write_text(json.dumps(summary))
    return copy


def export(run, output, *words):
    return main(["export", str(run), "--output", str(output), *words])


def greedy(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Compute 6+3-7.", return_tensors="pt").input_ids
    return tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0])


def test_the_folder_opens_and_says_what_the_checkpoint_said_without_the_trainers_state(run, tmp_path, capsys):
    assert export(run, tmp_path / "model") == 0
    assert "grpo-20" in capsys.readouterr().out
    assert greedy(tmp_path / "model") == greedy(run / "checkpoints" / "grpo-20") != greedy(run / "checkpoints" / "grpo-10")
    held = {path.name for path in (tmp_path / "model").iterdir()}
    assert held >= {*WORDS, "README.md", "recipe.toml", FIGURES_FILE}
    assert "trainer" not in held


def test_a_stage_that_was_stopped_early_gives_its_best_checkpoint(run, tmp_path):
    stopped = edited(run, tmp_path, evaluated_step=10, ended_by="early stopping", best_step=10, last_step=20)
    assert export(stopped, tmp_path / "model") == 0
    assert greedy(tmp_path / "model") == greedy(run / "checkpoints" / "grpo-10")
    assert "ended by early stopping" in (tmp_path / "model" / "README.md").read_text()


def test_one_that_was_stopped_early_and_kept_its_last_weights_gives_these(run, tmp_path):
    kept = edited(run, tmp_path, ended_by="early stopping", best_step=5, last_step=20)  # the best one's checkpoint was not there
    assert export(kept, tmp_path / "model") == 0
    assert greedy(tmp_path / "model") == greedy(run / "checkpoints" / "grpo-20")


def test_figures_never_come_with_the_weights_of_another_step(run, tmp_path, capsys):
    lost = edited(run, tmp_path)
    shutil.rmtree(lost / "checkpoints" / "grpo-20")
    assert export(lost, tmp_path / "model") == 1
    told = capsys.readouterr().err
    assert "the figures of grpo are of the weights after step 20, whose checkpoint is not there (of grpo it holds grpo-10)" in told

    assert not (tmp_path / "model").exists()


def test_another_stage_can_be_named(run, tmp_path):
    assert export(run, tmp_path / "model", "--stage", "sft") == 0
    assert greedy(tmp_path / "model") == greedy(run / "checkpoints" / "sft-20")
    assert json.loads((tmp_path / "model" / FIGURES_FILE).read_text())["stage"]["name"] == "sft"


def card_of(folder):
    """(the YAML head, the text below it)."""
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


def test_the_cards_figures_are_those_of_the_summary(run, tmp_path):
    export(run, tmp_path / "model")
    head, text = card_of(tmp_path / "model")
    stages = {stage["name"]: stage for stage in json.loads((run / "summary.json").read_text())["stages"]}
    for name in ("baseline", "grpo"):
        stage, (low, high) = stages[name], stages[name]["ci95"]
        row = f"| {name} | {100 * stage['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f}) | 40 (3 ungraded) |"
        assert stage["num_problems"] == 40
        assert row in text
    assert "| sft |" not in text
    (result,) = head["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": stages["grpo"]["accuracy"]}]
    assert "Prompt r1_zero, temperature 1, top-p 1, at most 64 tokens, one answer a problem, grader default" in text
    assert repr(R1_ZERO) in text
    assert f"| optimizer steps | {stages['grpo']['optimizer_steps']} |" in text


def test_the_exported_recipe_has_all_settings_of_the_run(run, tmp_path):
    export(run, tmp_path / "model")
    exported, given = (tomllib.loads((folder / "recipe.toml").read_text()) for folder in (tmp_path / "model", run))
    assert exported["grpo"]["learning_rate"] == given["grpo"]["learning_rate"]
    assert exported["run"]["root"] == "runs"  # /runs: nobody else's business
    assert exported["learner"]["betas"] == [0.9, 0.95]  # a default


OWN = {
    "model__path": "/home/anna/models/start", "data__train": "/home/anna/countdown/train.jsonl",
    "data__test": "/home/anna/countdown/test.jsonl",
    "reward__function": "/home/anna/countdown/countdown.py:reward", "loss__function": "/home/anna/countdown/countdown.py:gentle",
    "loss__kwargs": {"push": 0.5}, "eval__prompts": ["/home/anna/countdown/prompt.txt"],
    "eval__graders": ["default", "/home/anna/countdown/countdown.py:right"],
}  # fmt: skip
GRADER = {"accuracy": 0.52, "ci95": [0.45, 0.6], "num_ungraded": 0, "num_graded_problems": 40}


def test_the_card_of_a_run_with_functions_of_its_own_names_them_and_their_grader_and_no_folder_of_this_machine(tmp_path):
    run = write_run(tmp_path / "run", stages=("grpo",), recipe=recipe_with(**OWN))
    save_model(run / "checkpoints" / "grpo-20", seed=0)
    summary = json.loads((run / "summary.json").read_text())
    summary["stages"][-1]["graders"] = {"default": {}, "/home/anna/countdown/countdown.py:right": GRADER}
    (run / "summary.json").write_text(json.dumps(summary))
    assert export(run, tmp_path / "model") == 0
    head, text = card_of(tmp_path / "model")
    assert "| grpo, by countdown.py:right | 52.0 % (45.0 to 60.0) | 40 |" in text
    assert "| `loss.function` | countdown.py:gentle |" in text
    assert "| `loss.kwargs` | {'push': 0.5} |" in text
    assert "| `reward.function` | countdown.py:reward |" in text
    assert head["model-index"][0]["results"][0]["dataset"] == {"name": "test.jsonl", "type": "test.jsonl"}
    assert not [path.name for path in (tmp_path / "model").iterdir() if b"anna" in path.read_bytes()]


def test_a_run_that_began_with_an_export_knows_what_that_one_began_with(run, tmp_path):
    assert export(run, tmp_path / "start") == 0
    second = write_run(tmp_path / "second", stages=("grpo",), recipe=recipe_with(model__path=str(tmp_path / "start")))
    save_model(second / "checkpoints" / "grpo-20", seed=0)
    assert export(second, tmp_path / "model") == 0
    head, text = card_of(tmp_path / "model")
    assert head["license"] == "apache-2.0"
    assert "an earlier export (`start`), which began with `builtin:arithmetic`" in text


QWEN, MATH = "Qwen/Qwen2.5-Math-1.5B", "DigitalLearningGmbH/MATH-lighteval@0530c78699ea5e8eb5530600900e1f328b48acad"
LICENCES = {
    (QWEN, MATH): ("apache-2.0", "MIT (its first home", "start model's licence is apache-2.0"),
    ("somebody/model", "somebody/problems"): ("other", "licence not known", "does not know it"),
}


@pytest.mark.parametrize("names", LICENCES)
def test_licences_that_are_not_known_are_the_users_to_state(names, tmp_path):
    licence, of_data, of_model = LICENCES[names]
    recipe = recipe_with(model__path=names[0], data__train=names[1], data__test=names[1])
    run = write_run(tmp_path / "run", stages=("grpo",), recipe=recipe)
    save_model(run / "checkpoints" / "grpo-20", seed=0)
    assert export(run, tmp_path / "model") == 0
    head, text = card_of(tmp_path / "model")
    assert (head["license"], head["base_model"], head["datasets"]) == (licence, names[0], [names[1].split("@")[0]])
    assert of_data in text
    assert of_model in text


def test_an_earlier_export_is_replaced_and_nothing_else(run, tmp_path, capsys):
    assert export(run, tmp_path / "model", "--stage", "sft") == 0
    assert export(run, tmp_path / "model") == 0
    assert greedy(tmp_path / "model") == greedy(run / "checkpoints" / "grpo-20")
    (tmp_path / "model" / ".git").mkdir()  # a clone of what was put on a hub
    assert export(run, tmp_path / "model") == 1
    assert (tmp_path / "model" / ".git").is_dir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("text")
    assert export(run, tmp_path / "mine") == 1
    assert export(run, tmp_path / "mine" / "thesis.tex") == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    assert "name another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_what_cannot_be_exported_is_refused_by_name(run, tmp_path, capsys):
    assert export(run, tmp_path / "a", "--stage", "baseline") == 1
    assert export(run, tmp_path / "b", "--stage", "sft_filtered") == 1
    assert export(run, tmp_path / "c", "--stage", "expert_iteration") == 1
    assert export(tmp_path, tmp_path / "d") == 1
    baseline, no_such, no_checkpoint, no_run = capsys.readouterr().err.splitlines()
    assert "train a stage first" in baseline
    assert "has not finished it; finished: sft, expert_iteration, grpo" in no_such
    assert "the figures of expert_iteration are of the weights after step 5" in no_checkpoint
    assert "no run directory" in no_run
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_weights_is_no_model(run, tmp_path, capsys):
    broken = edited(run, tmp_path)
    (broken / "checkpoints" / "grpo-20" / "model.safetensors").unlink()
    assert export(broken, tmp_path / "model") == 1
    assert "grpo-20: holds no whole model" in capsys.readouterr().err
