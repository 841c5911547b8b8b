import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ByteTokenizer, recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.core.prompts import fill, named_prompt
from mathrl_ray.data.traces import SftRow
from mathrl_ray.stages.inputs import Inputs, load_inputs
from mathrl_ray.stages.lengths import check_lengths, most_tokens
from mathrl_ray.types import Problem


class CountingTokenizer(ByteTokenizer):
    """One id a byte, and it keeps what it was asked."""

    eos_token_id = 1
    chat_template = None

    def __init__(self):
        self.asked = []

    def encode(self, text, *, add_special_tokens):
        self.asked.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def inputs_of(questions=(), traces=()):
    problems = [Problem(f"p{index}", text, "1") for index, text in enumerate(questions)]
    return Inputs(problems, [], [], list(traces), {name: named_prompt(name) for name in ("r1_zero", "question_only", "chat")})


def recipe_of(tmp_path, max_length, prompt="question_only", max_tokens=10):
    return recipe_for(
        tmp_path,
        model={"max_length": max_length},
        generator={"max_tokens": max_tokens, "min_tokens": 0},
        eval={"max_tokens": max_tokens, "prompts": [prompt]},
        data={"prompt": prompt},
    )


def test_behaviour_29_an_over_long_prompt_is_named_with_what_would_do(tmp_path):
    # one token a byte: the r1_zero preamble alone is longer than 256 - 64
    recipe = recipe_for(tmp_path, model={"max_length": 256}, eval={"num_problems": 2})
    inputs = load_inputs(recipe, ["baseline"])
    with pytest.raises(RecipeError, match=r"prompts are too long.*model\.max_length = 256\. arithmetic/train/0 \(\d+ tokens\)") as caught:
        check_lengths(recipe, inputs, CountingTokenizer())
    needed = int(str(caught.value).split("Raise model.max_length to ")[1].split(",")[0])
    check_lengths(recipe_for(tmp_path, model={"max_length": needed}, eval={"num_problems": 2}), inputs, CountingTokenizer())


def test_the_limit_is_exact(tmp_path):
    # 30 - 10 new tokens leave room for 20
    check_lengths(recipe_of(tmp_path, 30), inputs_of(["x" * 20]), CountingTokenizer())
    with pytest.raises(RecipeError, match=r"1 prompts are too long.*p1 \(21 tokens\)\.\nRaise model\.max_length to 31"):
        check_lengths(recipe_of(tmp_path, 30), inputs_of(["x" * 20, "x" * 21]), CountingTokenizer())


def test_a_trace_must_fit_with_its_eos(tmp_path):
    # 12 bytes of prompt, 17 of response and EOS are 30
    fits, not_quite = SftRow("a", "x" * 12, "y" * 17), SftRow("b", "x" * 12, "y" * 18)
    check_lengths(recipe_of(tmp_path, 30), inputs_of(traces=[fits]), CountingTokenizer())
    with pytest.raises(RecipeError, match=r"1 traces are longer than model\.max_length = 30 tokens: b \(31 tokens\)\.\nRaise .* to 31"):
        check_lengths(recipe_of(tmp_path, 30), inputs_of(traces=[fits, not_quite]), CountingTokenizer())


def test_only_texts_that_could_be_too_long_are_tokenised(tmp_path):
    tokenizer = CountingTokenizer()
    traces = [SftRow(f"t{index}", "question", "answer " * index) for index in range(10)]
    check_lengths(recipe_of(tmp_path, 80), inputs_of(["short", "q" * 65], traces), tokenizer)
    # room is 70 for prompts: 65 bytes and 4 tokens of the tokenizer's own fit. Of traces 79: 8 + 4 and 7 n + 4 do up to n = 9.
    assert tokenizer.asked == []
    with pytest.raises(RecipeError, match=r"t9 \(72 tokens\)"):
        check_lengths(recipe_of(tmp_path, 71), inputs_of(["short", "q" * 57], traces), tokenizer)
    # room is 61 and 70: the prompt of 57 bytes just fits, and only the two traces of 8 + 7 n + 8 > 70, n = 8 and 9, are looked at
    assert tokenizer.asked == ["question", "answer " * 8, "question", "answer " * 9]


def test_every_prompt_of_an_evaluation_is_looked_at(tmp_path):
    inputs = Inputs([], [], [Problem("t", "x" * 20, "1")], [], {name: named_prompt(name) for name in ("question_only", "r1_zero")})
    recipe = recipe_for(
        tmp_path, model={"max_length": 100}, eval={"prompts": ["question_only", "r1_zero"]}, data={"prompt": "question_only"}
    )
    with pytest.raises(RecipeError, match=rf"t \({len(fill(named_prompt('r1_zero'), 'x' * 20))} tokens\)"):
        check_lengths(recipe, inputs, CountingTokenizer())


def test_a_chat_prompt_for_a_model_without_a_template_is_refused_before_an_engine_starts(tmp_path):
    with pytest.raises(RecipeError, match=r"data\.prompt"):
        check_lengths(recipe_of(tmp_path, 100, prompt="chat"), inputs_of(["1+1?"]), CountingTokenizer())


@given(st.text())
def test_the_bound_holds_for_bytes_of_every_normalised_form(text):
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))]
    assert max(len(form.encode("utf-8", "surrogatepass")) for form in forms) <= most_tokens(text) - 4


@pytest.mark.parametrize("text", ["½ of \ufdfa", "\U0001d160", "plain", "Ω and ﬁ"])
def test_the_bound_holds_where_normalising_makes_a_text_longer(text):
    assert most_tokens(text) - 4 >= max(len(unicodedata.normalize(form, text).encode()) for form in ("NFC", "NFD", "NFKC", "NFKD"))
