import pytest

from mathrl_ray.config import RecipeError
from mathrl_ray.core.prompts import Prompt
from mathrl_ray.data.prompt_file import load_prompt, load_prompts


def test_a_text_file_is_a_prompt_with_the_files_name(tmp_path):
    (tmp_path / "mine.txt").write_text("Q: {question}\nA:\n")
    assert load_prompt(str(tmp_path / "mine.txt"), "data.prompt") == Prompt("mine", "Q: {question}\nA:")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "neither r1_zero, question_only, chat, nor a text file"),
        ("mine.txt", b"no place", "stands 0 times"),
        ("mine.txt", b"\xe4 {question}", "not UTF-8"),
        ("chat.txt", b"{question}", "rename the file"),
        ("two words.txt", b"{question}", "rename it"),
    ],
)
def test_a_file_that_is_no_prompt_is_refused_with_the_key(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=rf"eval\.prompts = .*{name}: .*{message}"):
        load_prompt(str(tmp_path / name), "eval.prompts")


def test_a_runs_prompts_are_found_by_the_recipes_word():
    prompts = load_prompts("r1_zero", ["question_only", "chat"])
    assert {word: prompt.name for word, prompt in prompts.items()} == {name: name for name in ("r1_zero", "question_only", "chat")}


def test_a_word_for_training_that_evaluations_took_over_is_told_under_data_prompt():
    with pytest.raises(RecipeError, match=r"^data\.prompt = r1zero"):
        load_prompts("/recipes/r1zero", ["/recipes/r1zero"])


def test_two_files_of_one_name_are_refused_since_their_results_would_meet(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.txt").write_text("{question}")
    with pytest.raises(RecipeError, match="two files called mine"):
        load_prompts(str(tmp_path / "a" / "mine.txt"), [str(tmp_path / "b" / "mine.txt")])
