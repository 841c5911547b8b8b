import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.prompts import (
    CHAT_MESSAGE,
    PROMPT_NAMES,
    PROMPTS,
    Prompt,
    fill,
    grading_style,
    named_prompt,
    own_prompt,
    question_in,
    render,
)


class ChatTokenizer:
    """Keeps what a chat template is asked to make."""

    chat_template = "there is one"

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, True)
        return "".join(f"<{message['role']}>{message['content']}" for message in conversation) + "<assistant>"


def test_r1_zero_is_the_text_of_the_assignment_to_the_character():
    # prompts/r1_zero.prompt of CS336 assignment 5: 449 characters, three lines, no newline at the end
    template = PROMPTS["r1_zero"]
    assert len(template) == 449
    preamble, user, assistant = template.split("\n")
    assert preamble.startswith("A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The")
    assert preamble.endswith("tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.")
    assert (user, assistant) == ("User: {question}", "Assistant: <think>")


def test_question_only_is_the_question_only():
    assert render("question_only", r"What is $\frac{1}{2}$?") == r"What is $\frac{1}{2}$?"


@pytest.mark.parametrize("question", [r"Simplify $\frac{1}{2}$.", "{", "{question}", "{0}", r"\g<0> \1", "two\nlines", ""])
def test_a_question_stands_in_the_prompt_as_it_is(question):
    before, after = PROMPTS["r1_zero"].split("{question}")
    assert render("r1_zero", question) == before + question + after


def test_every_template_has_one_place_for_the_question():
    templates = {name: named_prompt(name).template for name in PROMPT_NAMES}
    assert {name: template.count("{question}") for name, template in templates.items()} == dict.fromkeys(
        ("r1_zero", "question_only", "chat"), 1
    )


def test_an_unknown_prompt_is_refused_with_the_key_and_the_names():
    with pytest.raises(ValueError, match=r"'r1_zer0'.*eval\.prompts.*r1_zero, question_only, chat"):
        render("r1_zer0", "1+1?")


def test_the_chat_prompt_is_one_users_message_that_asks_for_a_box_and_opens_the_models_turn():
    text = fill(named_prompt("chat"), "1+1?", ChatTokenizer())
    assert text == "<user>1+1?\nPlease reason step by step, and put your final answer within \\boxed{}.<assistant>"


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_key():
    class Plain:
        chat_template = None

    for tokenizer in (Plain(), None):
        with pytest.raises(ValueError, match=r"data\.prompt or eval\.prompts = \"chat\".*no chat template"):
            fill(named_prompt("chat"), "1+1?", tokenizer)


def test_an_own_prompt_loses_the_newline_that_an_editor_puts_at_its_end_and_no_other():
    assert own_prompt("mine", "Q: {question}\nA:\n") == Prompt("mine", "Q: {question}\nA:")
    assert own_prompt("mine", "Q: {question}\n\n").template == "Q: {question}\n"


@pytest.mark.parametrize(("text", "count"), [("no place", 0), ("{question} and {question}", 2), ("", 0)])
def test_an_own_prompt_has_exactly_one_place_for_the_question(text, count):
    with pytest.raises(ValueError, match=rf"stands {count} times .* exactly once"):
        own_prompt("mine", text)


def test_an_own_prompt_cannot_take_the_name_of_another():
    with pytest.raises(ValueError, match="rename the file"):
        own_prompt("chat", "{question}")


@pytest.mark.parametrize(
    ("name", "template", "style", "stop"),
    [
        ("r1_zero", PROMPTS["r1_zero"], "r1_zero", ("</answer>",)),
        ("question_only", "{question}", "question_only", ()),
        ("chat", CHAT_MESSAGE, "question_only", ()),
        ("mine", "Reply in <answer> tags: {question}", "r1_zero", ("</answer>",)),
        ("mine", "Box it: {question}", "question_only", ()),
    ],
)
def test_the_prompt_decides_how_answers_are_graded_and_where_they_stop(name, template, style, stop):
    prompt = Prompt(name, template)
    assert grading_style(name, template) == style
    assert (prompt.style, prompt.stop) == (style, stop)


@given(st.text())
def test_a_question_is_found_again_in_its_prompt(question):
    for prompt in (named_prompt("r1_zero"), named_prompt("question_only"), Prompt("mine", "Q: {question} A: Q")):
        assert question_in(prompt, fill(prompt, question)) == question


@pytest.mark.parametrize("text", ["User: 1+1?", "", PROMPTS["r1_zero"][:-1], PROMPTS["r1_zero"].split("{question}")[0]])
def test_a_text_that_is_none_of_the_prompts_asks_nothing(text):
    assert question_in(named_prompt("r1_zero"), text) is None


def test_overlapping_ends_of_a_template_are_not_counted_twice():
    assert question_in(Prompt("mine", "aba{question}ba"), "aba") is None


def test_a_chat_prompts_text_is_only_known_to_the_tokenizer():
    assert question_in(named_prompt("chat"), fill(named_prompt("chat"), "1+1?", ChatTokenizer())) is None
