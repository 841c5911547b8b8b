import json
import random
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from mathrl_ray.core.grading.grade import grade
from mathrl_ray.core.prompts import render
from mathrl_ray.data.arithmetic import TraceMix, make_problems, make_traces
from mathrl_ray.data.tiny_model import BaseModelSettings, TrainingPhase, build_model, build_tokenizer, ensure_base_model

EVEN = TraceMix(good=0.25, slip=0.25, guess=0.25, no_format=0.25)
TINY = BaseModelSettings(
    hidden_size=16,
    intermediate_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    batch_size=4,
    phases=(TrainingPhase(2, 1e-3, EVEN, num_warmup_steps=1), TrainingPhase(1, 1e-3, EVEN)),
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ensure_base_model(tmp_path_factory.mktemp("cache"), seed=0, settings=TINY)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_whole_prompt_is_a_few_tokens_and_each_digit_is_one(tokenizer):
    ids = tokenizer(render("r1_zero", "Compute 6+3-7."))["input_ids"]
    pieces = [tokenizer.decode([token]) for token in ids]
    assert pieces[0].startswith("A conversation between")
    assert pieces[1:] == ["Compute ", "6", "+", "3", "-", "7", ".", "\nAssistant: <think>"]


def test_a_response_is_digits_signs_and_pieces(tokenizer):
    ids = tokenizer(" 6+3=9 </think> <answer> 9 </answer>")["input_ids"]
    assert [tokenizer.decode([token]) for token in ids] == [" ", "6", "+", "3", "=", "9", " </think> <answer> ", "9", " </answer>"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_the_tokenizer_up_to_unicode_normalisation(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_every_prompt_and_trace_survives_token_by_token(tokenizer):
    for problem, response in make_traces(make_problems("test", 300, 0), EVEN, seed=0):
        for text in (render("r1_zero", problem.problem), response):
            assert "".join(tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]) == text


def test_a_question_of_another_kind_costs_its_bytes_and_not_the_preamble_s(tokenizer):
    # the preamble, one token a byte of the question, and the turn to the assistant
    assert len(tokenizer(render("r1_zero", "What is half of 8?"))["input_ids"]) == 1 + len("What is half of 8?") + 1


def test_the_default_model_is_a_small_qwen2_with_tied_embeddings(tokenizer):
    model = build_model(tokenizer, 0, BaseModelSettings())
    # embeddings 277 x 128; a layer: attention 128 x (128 + 64 + 64) + 256 + 128 x 128, MLP 3 x 128 x 384, norms 2 x 128; last norm 128
    assert model.num_parameters() == 277 * 128 + 3 * (128 * 256 + 256 + 128 * 128 + 3 * 128 * 384 + 256) + 128 == 626_944
    assert model.config.model_type == "qwen2"
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_folder_opens_with_the_auto_classes_and_gives_the_same_tokens(folder, tokenizer):
    opened, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    texts = [text for problem, response in make_traces(make_problems("test", 50, 0), EVEN, seed=0) for text in (problem.problem, response)]
    texts += [render("r1_zero", "Find $\\frac{1}{2}$ é\n\n  of 10, please.")]
    # the auto class rebuilds Qwen2's word splitting, whatever was saved: only tokens that survive it are the model's
    assert [opened(text)["input_ids"] for text in texts] == [tokenizer(text)["input_ids"] for text in texts]
    assert model.config.vocab_size == len(opened)
    assert model.dtype == torch.float32


def test_the_end_token_is_one_and_the_same_everywhere(folder):
    opened, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert opened.eos_token == "<|endoftext|>"
    assert opened.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert opened.pad_token_id == model.config.pad_token_id == model.generation_config.pad_token_id != opened.eos_token_id
    assert opened.model_max_length == model.config.max_position_embeddings == 512


def test_the_second_call_only_names_the_folder_and_needs_no_torch(folder):
    code = f"""
import sys
from pathlib import Path
from mathrl_ray.data.arithmetic import TraceMix
from mathrl_ray.data.tiny_model import BaseModelSettings, TrainingPhase, ensure_base_model
print(ensure_base_model(Path({str(folder.parent)!r}), seed=0, settings={TINY!r}))
sys.exit("torch" in sys.modules)
"""
    before = weights(folder)
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (second.returncode, second.stdout) == (0, f"{folder}\n")
    assert weights(folder) == before


def test_every_setting_and_the_seed_have_a_folder_of_their_own_and_one_tokenizer(folder):
    other_seed = ensure_base_model(folder.parent, seed=1, settings=TINY)
    other_mix = ensure_base_model(folder.parent, seed=0, settings=replace(TINY, phases=TINY.phases[:1]))
    assert len({weights(one) for one in (folder, other_seed, other_mix)}) == 3
    assert (folder / "tokenizer.json").read_bytes() == (other_seed / "tokenizer.json").read_bytes()
    assert json.loads((folder / "base_model.json").read_text())["settings"]["hidden_size"] == 16


def test_the_same_settings_give_the_same_weights_and_nothing_global_moves(folder, tmp_path):
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_default_dtype()
    again = ensure_base_model(tmp_path, seed=0, settings=TINY)
    found = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.get_default_dtype()
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]
    assert again.name == folder.name
    assert weights(again) == weights(folder)


def test_of_two_that_make_the_model_at_once_the_later_uses_the_first_one_s(tmp_path):
    first: list[tuple[Path, int]] = []

    def overtaken(step, num_steps):
        # while this one trains, the other makes the whole folder
        if step == num_steps:
            made = ensure_base_model(tmp_path, seed=0, settings=TINY)
            first.append((made, (made / "model.safetensors").stat().st_ino))

    later = ensure_base_model(tmp_path, seed=0, settings=TINY, progress=overtaken)
    assert first == [(later, (later / "model.safetensors").stat().st_ino)]
    assert list(tmp_path.iterdir()) == [later]


def test_a_making_that_is_broken_off_leaves_nothing(tmp_path):
    def stop(step, num_steps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_base_model(tmp_path, seed=0, settings=TINY, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_the_system_s_own_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OSError, match="cache"):
        ensure_base_model(tmp_path / "cache", seed=0, settings=TINY)


def test_progress_counts_all_steps_of_all_phases(tmp_path):
    seen = []
    ensure_base_model(tmp_path / "new" / "cache", seed=0, settings=TINY, progress=lambda *steps: seen.append(steps))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_base_is_right_on_8_to_20_percent_and_often_breaks_the_format(tmp_path):
    folder = ensure_base_model(tmp_path, seed=0)
    tokenizer, model = AutoTokenizer.from_pretrained(folder, padding_side="left"), AutoModelForCausalLM.from_pretrained(folder)
    problems = make_problems("test", 1000, seed=0)
    prompts = tokenizer([render("r1_zero", problem.problem) for problem in problems], padding=True, return_tensors="pt")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        sampled = model.generate(**prompts, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=64)
    responses = tokenizer.batch_decode(sampled[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    grades = [grade(response, problem.gold) for response, problem in zip(responses, problems, strict=True)]
    # measured 16.4 % and 62 % on 1,500 problems; the standard deviation on 1,000 is 1.1 and 1.5
    assert 0.08 <= fmean(verdict.answer_reward for verdict in grades) <= 0.20
    assert 0.5 < fmean(verdict.format_reward for verdict in grades) < 0.75
