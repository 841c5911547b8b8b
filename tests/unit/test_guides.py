"""README.md and the guides say only what is so: their commands, paths, keys and figures."""

import re
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
from guide_commands import DOCUMENTS, GUIDES, REPOSITORY, blocks, commands, fault_of, placed

from mathrl_ray.config import Recipe
from mathrl_ray.methods import Method
from mathrl_ray.recipe_file import load_recipe

COMMANDS = [command for document in DOCUMENTS for command in commands(document)]
SYMBOLS = {"RUN", "RUN_A", "RUN_B", "ID", "FILE", "FOLDER"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's folder that has what the guides' commands make on their way: Countdown's data, a model, a loss."""
    folder = tmp_path_factory.mktemp("home")
    words, sys.argv = sys.argv, ["make_data.py", "--output", str(folder / "countdown")]
    try:
        runpy.run_path(str(REPOSITORY / "jobs" / "examples" / "countdown" / "make_data.py"), run_name="__main__")
    finally:
        sys.argv = words
    (folder / "countdown" / "start").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / "countdown" / "start" / name).touch()
    (folder / "my_loss.py").write_text("def mine(batch):\n    return batch.learner_logprobs.sum()\n")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_would_be_taken(command, home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MATHRL_RUNS", str(home / "runs"))
    assert not fault_of(command.words, home)


def test_the_documents_have_commands_and_both_languages_have_the_same():
    assert len(COMMANDS) > 60
    assert blocks(GUIDES[0]) == blocks(GUIDES[1])
    assert blocks(GUIDES[0], "python") == blocks(GUIDES[1], "python") != []


WRONG = {
    "python jobs/grpo.py jobs/recipes/arithmetic_cpu.toml grpo.num_step=3": "refuses",
    "python jobs/grpo.py jobs/recipes/no_such.toml": "refuses",
    "python jobs/ppo.py jobs/recipes/arithmetic_cpu.toml": "no file",
    "python -m mathrl_ray reprot RUN": "refuses",
    "python -m mathrl_ray show RUN --outcomes wrong": "refuses",
    "python -m mathrl_ray preflight jobs/recipes/arithmetic_cpu.toml grpo.steps=3": "refuses",
    "bash cluster/install.sh tpu": "does not know",
    "bash cluster/quickstart.sh run.seeed=1": "refuses",
    "python -m cluster.monitoring start": "takes",
    "python -m cluster.submit -- python jobs/study.py jobs/recipes/arithmetic_cpu.toml run.sed=1": "refuses",
    "ray job submit --working-directory . -- python jobs/grpo.py jobs/recipes/arithmetic_cpu.toml": "has no --working-directory",
    "ray start --heads": "has no --heads",
    "pip install mathrl_ray": "nobody knows",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_command_that_would_be_refused_is_found(text, home):
    assert WRONG[text] in fault_of(tuple(text.split()), home)


def in_backticks(document):
    text = re.sub(r"```.*?```", "", (REPOSITORY / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_of_the_repository_that_is_named_is_there(document):
    named = {word for text in in_backticks(document) for word in re.findall(r"(?:jobs|cluster|tests|mathrl_ray)/[\w./-]*\w", text)}
    assert named
    assert [
        name for name in sorted(named) if not (REPOSITORY / name).exists() and not name.startswith(("tests/unit/core/", "cluster/.state"))
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document):
    text, folder = (REPOSITORY / document).read_text(encoding="utf-8"), (REPOSITORY / document).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (folder / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (folder / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


SECTIONS = {name: field.annotation for name, field in Recipe.model_fields.items()}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_key_of_a_recipe_that_is_named_exists(document):
    named = {
        match for text in in_backticks(document) for match in re.findall(rf"\b({'|'.join(SECTIONS)})\.([a-z_0-9]+)\b(?!\.?[a-z]*\()", text)
    }
    assert named
    files = {"toml", "py", "json", "jsonl", "yaml", "html", "sh", "svg"}
    missing = sorted(
        f"{section}.{key}"
        for section, key in named
        if key not in SECTIONS[section].model_fields and section != "sweep" and key not in files and key != "kwargs"
    )
    assert missing == []


def test_the_methods_are_counted_as_the_guides_say():
    assert len(Method.__args__) == 9


OTHERS = {
    # what others report of Qwen2.5-Math-1.5B on MATH, and the course notes' claims (the heads of its recipes name the sources)
    "2.7", "2.9", "18.7", "22.3", "25.1", "28.9", "42.1", "53.4", "47.1", "71.3",
    # settings, no results: of an interval, of a limit, of a share
    "95", "90", "1", "2", "3", "15", "30", "68",
}  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_percentage_is_a_measured_one_or_somebody_elses_by_name(document):
    results = (REPOSITORY / "tests" / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"\d+(?:\.\d+)?", results))
    text = re.sub(r"<!-- hyperparameters.*?<!-- end", "", (REPOSITORY / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    text = text.replace("\uff08", "(").replace("\uff09", ")").replace(" \u5230 ", " to ")  # brackets and ranges of the Chinese guide
    groups = re.findall(r"((?:\d+(?:\.\d+)?(?: / | to |, | and )?)+) %", text) + re.findall(r"\((\d+\.\d to \d+\.\d)\)", text)
    named = {number for group in groups for number in re.findall(r"\d+(?:\.\d+)?", group)}
    assert len(named) > 10
    assert sorted(named - measured - OTHERS) == []


RESULTS = (REPOSITORY / "tests" / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")


def read(document):
    """With the brackets and ranges of the Chinese guide written as in the English one."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return text.replace("\uff08", "(").replace("\uff09", ")").replace(" \u5230 ", " to ").replace("\uff0c", ", ")


def numbers(text):
    return re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_interval_is_one_of_the_results(document):
    pairs = re.findall(r"\(([-+]?\d+\.\d+ to [-+]?\d+\.\d+)\)", read(document))
    assert pairs
    assert [pair for pair in pairs if pair not in " ".join(RESULTS.split())] == []


@pytest.mark.parametrize("guide", GUIDES)
def test_the_table_of_what_came_out_has_the_quickstarts_accuracies_in_their_order(guide):
    ours = [numbers(line.rsplit("|", 2)[1]) for line in read(guide).splitlines() if line.count("|") == 5 and " % |" in line]
    accuracies = [number for row in ours for number in row]
    assert f"{', '.join(accuracies)} %, 1,500 problems each" in RESULTS


@pytest.mark.parametrize("guide", GUIDES)
def test_every_number_of_countdowns_result_is_in_its_entry_of_the_results(guide):
    (told,) = [block for block in read(guide).split("\n\n") if "52.4 %" in block]
    (entry,) = [block for block in RESULTS.split("\n\n") if block.startswith("Countdown")]
    assert set(numbers(told)) <= set(numbers(entry))
    assert {"170", "60", "64", "18.8", "52.4"} <= set(numbers(told))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_is_named_with_a_value_can_be_given(document):
    settings = {text for text in in_backticks(document) if re.fullmatch(r"[a-z_]+\.[a-z_]+=\S+", text)} - {"section.key=value"}
    assert document == "README.md" or len(settings) > 8
    needs = {"eval.stop_after=3": ["eval.validate_every=10"]}
    for setting in settings:
        load_recipe(REPOSITORY / "jobs" / "recipes" / "arithmetic_cpu.toml", [setting, *needs.get(setting, [])])


SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "mathrl_ray").rglob("*.py"))
MADE_OF_PARTS = {"reward_uses_all_mean", "generator_tokens_per_s", "generator_restarts_total"}
"""Metrics whose names are a part of a reward, or a role, and an end."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_name_with_underscores_is_one_of_the_programs(document):
    named = {text for text in in_backticks(document) if re.fullmatch(r"[a-z]+(_[a-z]+)+", text)} - MADE_OF_PARTS
    assert named
    unknown = {name for name in named if not re.search(rf"\b{name.removesuffix('_total')}\b", SOURCE)}
    assert unknown == set()


def test_both_guides_name_the_same_things_and_the_same_numbers():
    texts = [re.sub(r"```.*?```", "", read(guide), flags=re.DOTALL) for guide in GUIDES]
    assert Counter(in_backticks(GUIDES[0])) == Counter(in_backticks(GUIDES[1]))
    decimals = [Counter(re.findall(r"\d+\.\d+", text)) for text in texts]
    assert decimals[0] == decimals[1]


def test_the_figures_of_the_countdown_example_are_in_the_recipes_head_too():
    head = (REPOSITORY / "jobs" / "examples" / "countdown" / "countdown.toml").read_text().partition("\n[")[0]
    for guide in GUIDES:
        text = (REPOSITORY / guide).read_text(encoding="utf-8")
        assert all(number in text for number in re.findall(r"\d+\.\d(?= %)", head))


def test_placeholders_are_those_that_are_explained():
    words = {word for command in COMMANDS for word in command.words if re.fullmatch(r"[A-Z_]{2,}", word)}
    assert words <= SYMBOLS


def test_what_the_guides_put_into_their_reader_s_hands_has_no_path_of_ours():
    for document in DOCUMENTS:
        assert not re.search(r"/(?:tmp|work|root)/", (REPOSITORY / document).read_text(encoding="utf-8").replace("/root>/", ""))
    assert placed("~/a $HOME/b", Path("/h")) == "/h/a /h/b"
