import pytest

from mathrl_ray.core.prompts import PROMPTS, render


def test_r1_zero_is_the_text_of_the_assignment_to_the_character():
    # prompts/r1_zero.prompt of CS336 assignment 5: 449 characters, three lines, no newline at the end
    template = PROMPTS["r1_zero"]
    assert len(template) == 449
    preamble, user, assistant = template.split("\n")
    assert preamble.startswith("A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The")
    assert preamble.endswith("tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.")
    assert (user, assistant) == ("User: {question}", "Assistant: <think>")


@pytest.mark.parametrize("question", [r"Simplify $\frac{1}{2}$.", "{", "{question}", "{0}", r"\g<0> \1", "two\nlines", ""])
def test_a_question_stands_in_the_prompt_as_it_is(question):
    before, after = PROMPTS["r1_zero"].split("{question}")
    assert render("r1_zero", question) == before + question + after


def test_every_template_has_one_place_for_the_question():
    assert {name: template.count("{question}") for name, template in PROMPTS.items()} == dict.fromkeys(PROMPTS, 1)


def test_an_unknown_prompt_is_refused_with_the_key_and_the_names():
    with pytest.raises(ValueError, match=r"'r1_zer0'.*eval\.prompts.*r1_zero"):
        render("r1_zer0", "1+1?")
