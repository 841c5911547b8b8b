import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import recipe_for

from mathrl_ray.__main__ import main as command
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.masking import MASK, is_secret_name, known_secrets, masked, masked_text
from mathrl_ray.driver.console import Console
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.entry import main
from mathrl_ray.recipe_file import load_recipe

SECRET_NAMES = [
    "HF_TOKEN", "token", "api_key", "apiKey", "apikey", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db-password", "PASSWD", "secret",
    "privateKey", "authorization", "X-Amz-Signature", "sig", "credentials", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "judge.token",
]  # fmt: skip
PLAIN_NAMES = [
    "tokenizer", "path", "RAY_AUTH_TOKEN_PATH", "key_column", "monkey", "keyboard", "tokenize", "secretary", "model", "", "token_type",
    "keynote", "passage",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_text_under_the_name_of_a_secret_is_masked(name):
    assert is_secret_name(name)
    assert masked({"reward": {name: "s3cr3t"}}) == {"reward": {name: MASK}}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_text_under_another_name_stays(name):
    assert masked({name: "r1_zero"}) == {name: "r1_zero"}


def test_numbers_of_tokens_stay_and_a_number_as_a_password_does_not():
    assert masked({"max_tokens": 64, "token": 3, "use_token": True}) == {"max_tokens": 64, "token": 3, "use_token": True}
    assert masked({"password": 1234}) == {"password": MASK}


def test_lists_and_tables_under_the_name_of_a_secret_are_masked_to_their_leaves():
    given = {"credentials": {"user": "me", "words": ["a", "b"]}, "api_keys": ["x", "y"], "steps": [[0, 0.2]]}
    assert masked(given) == {"credentials": {"user": MASK, "words": [MASK, MASK]}, "api_keys": [MASK, MASK], "steps": [[0, 0.2]]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ftp://me:pass@host/x", "ftp://me:*masked*@host/x"),
        ("s3://AKIAX:a/b+c=@bucket/x", "s3://AKIAX:*masked*@bucket/x"),  # a raw slash, as AWS keys have
        ("https://me:p@ss@host/x", "https://me:*masked*@host/x"),
        ("https://a1b2c3@github.com/x", "https://*masked*@github.com/x"),
        ("https://host:8265/x", "https://host:8265/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("hf://datasets/a/b@main", "hf://datasets/a/b@main"),
        (
            "https://h/o?X-Amz-Credential=AK%2Fs3&X-Amz-Signature=ab12&part=3",
            "https://h/o?X-Amz-Credential=*masked*&X-Amz-Signature=*masked*&part=3",
        ),
        ("https://h/o?sv=2024&sig=a%2Bb%3D", "https://h/o?sv=2024&sig=*masked*"),
        ("openai/gsm8k:main@refs/pr/1#train[:100]", "openai/gsm8k:main@refs/pr/1#train[:100]"),
        ("/data/key=abc12345/x.parquet", "/data/key=abc12345/x.parquet"),
        ("hf_abcdefghijklmnopqrst", "*masked*"),
        ("a AKIAABCDEFGHIJKLMNOP b", "a *masked* b"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic *masked*"),
        ("{question}\nReply in <answer> tags", "{question}\nReply in <answer> tags"),
    ],
)
def test_the_secret_part_of_a_value_is_masked_and_the_rest_stays(text, expected):
    assert masked({"url": text}) == {"url": expected}
    assert masked({"url": [text]}) == {"url": [expected]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("reward.kwargs = {'api_key': 'abc', 'n': 3} without", "reward.kwargs = {'api_key': '*masked*', 'n': 3} without"),
        ('{"hub_token": "x y"}', '{"hub_token": "*masked*"}'),
        ("python jobs/grpo.py r.toml reward.kwargs.api_key=a1b2c3d4e5", "python jobs/grpo.py r.toml reward.kwargs.api_key=*masked*"),
        ("generator.max_tokens = 2048 does not fit: max_tokens=64", "generator.max_tokens = 2048 does not fit: max_tokens=64"),
        ("unknown key grpo.steps: the nearest is grpo.num_steps", "unknown key grpo.steps: the nearest is grpo.num_steps"),
        ("key = value", "key = value"),
        ("login failed: password: xyz, again", "login failed: password: *masked*, again"),
        ("db_password = hunter, user = me", "db_password = *masked*, user = me"),
        ("PASSWD:1234;", "PASSWD:*masked*;"),
        ("the keys that differ: generator.top_k1", "the keys that differ: generator.top_k1"),
        ("password_file: /home/me/p1", "password_file: /home/me/p1"),
        ("KeyError: 'reward'", "KeyError: 'reward'"),
        ("3 problems of data.train: token 'x' is unknown", "3 problems of data.train: token 'x' is unknown"),
    ],
)
def test_a_line_of_a_log_loses_its_secrets_and_stays_readable(line, expected):
    assert masked_text(line) == expected


secret_texts = st.text("abcDEF0123456789+/=_-", min_size=8, max_size=40).filter(lambda text: not text.isalpha() and not text.isdigit())


@given(secret_texts, st.sampled_from(SECRET_NAMES), st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_stands_nowhere_in_what_is_written(secret, name, before, after):
    secrets = known_secrets({"section": {name: secret}})
    assert secret in secrets
    assert secret not in masked_text(f"{before}{secret}{after}", secrets).replace(MASK, "")
    assert secret not in masked({"note": f"{before}{secret}{after}"}, secrets=secrets)["note"].replace(MASK, "")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda part: st.lists(part) | st.dictionaries(st.text(), part)))
def test_masking_twice_is_masking_once(value):
    once = masked({"value": value})
    assert json.dumps(masked(once)) == json.dumps(once)


@given(st.text())
def test_any_line_can_be_masked(text):
    assert isinstance(masked_text(text), str)


def test_plain_words_numbers_and_what_is_no_secret_are_not_looked_for_in_texts():
    environment = {"A_KEY": "default", "B_TOKEN": "12345678901", "HOME": "/home/me/12", "RAY_AUTH_TOKEN_PATH": "/x/y/z/1", "C_KEY": "ab1"}
    assert known_secrets(environment) == frozenset()


def test_a_recipe_of_defaults_has_nothing_to_mask():
    settings = Recipe().model_dump(mode="json")
    assert masked(settings) == settings
    assert known_secrets(settings) == frozenset()


KWARGS = {"api_key": "sesame-42-open", "url": "https://me:pw@judge/x?token=abc", "temperature": 0.5}


def test_recipe_toml_and_environment_json_hold_no_secret(tmp_path):
    recipe = recipe_for(tmp_path, reward={"function": "mine:paid", "kwargs": KWARGS}, run={"mirror": "ftp://me:hidden9@host/x"})
    recorder = Recorder.create(recipe)
    recorder.environment({"data": ["fetched https://h/x?sig=abc"], "commit": "12ab", "hub": {"HF_TOKEN": "hf-x"}})
    recorder.close()
    text = (recorder.folder / "recipe.toml").read_text()
    written = tomllib.loads(text)
    assert written["reward"]["kwargs"] == {"api_key": MASK, "url": f"https://me:{MASK}@judge/x?token={MASK}", "temperature": 0.5}
    assert written["run"]["mirror"] == f"ftp://me:{MASK}@host/x"
    facts = json.loads((recorder.folder / "environment.json").read_text())
    assert facts == {"data": [f"fetched https://h/x?sig={MASK}"], "commit": "12ab", "hub": {"HF_TOKEN": MASK}}
    assert not {"sesame", "pw@", "hidden9"} & {word for word in ("sesame", "pw@", "hidden9") if word in text}


def test_a_runs_recipe_is_not_taken_for_one_with_its_secrets(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path, reward={"function": "mine:paid", "kwargs": KWARGS}))
    recorder.close()
    with pytest.raises(RecipeError, match=r"reward\.kwargs\.api_key, reward\.kwargs\.url.*keeps no secrets"):
        load_recipe(recorder.folder / "recipe.toml")
    given_again = ["reward.kwargs.api_key=sesame-42-open", "reward.kwargs.url=https://judge"]
    assert load_recipe(recorder.folder / "recipe.toml", given_again).reward.kwargs["api_key"] == "sesame-42-open"


def test_the_console_shows_no_known_secret(capsys):
    Console(secrets={"sesame-42-open"}).say("judge refused sesame-42-open at https://me:pw@judge")
    shown = capsys.readouterr().out
    assert f"judge refused {MASK} at https://me:{MASK}@judge" in shown


def test_a_preflight_shows_no_secret_of_its_recipe_in_its_table_and_its_sentences(tmp_path, capsys):
    (tmp_path / "own.py").write_text("raise ValueError('no entry for sesame-42-open')\n")
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        "[data]\nnum_train_problems = 64\nnum_validation_problems = 8\n[eval]\nnum_problems = 8\n[study]\nstages = ['baseline']\n"
        f"[reward]\nfunction = '{tmp_path}/own.py:paid'\n[reward.kwargs]\napi_key = 'sesame-42-open'\n[run]\nroot = '{tmp_path}'\n"
    )
    assert command(["preflight", str(recipe)]) == 1
    shown = "".join(capsys.readouterr().out.split())  # a table folds long words
    assert shown.count("noentryfor") >= 1
    assert "sesame" not in shown


def test_a_refusal_on_the_command_line_shows_no_secret(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[reward.kwargs]\napi_key = "sesame"\n')
    assert main("grpo", [str(recipe), "--check"]) == 1
    error = capsys.readouterr().err
    assert "reward.kwargs" in error
    assert "sesame" not in error
