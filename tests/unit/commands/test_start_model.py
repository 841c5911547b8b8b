"""Model folders as the preflight reads them: what is broken is refused by file and key, and no traceback is shown."""

import fnmatch
import json
import shutil
from functools import partial

import pytest
from preflight_samples import model_folder, run, write_weights
from samples import recipe_for
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mathrl_ray.commands.model_checks import check_tokenizer
from mathrl_ray.commands.start_model import position_limit, read_model
from mathrl_ray.config import RecipeError
from mathrl_ray.stages.inputs import load_inputs


def change(name, folder, **values):
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def of_another_version(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "BPE9", "vocab": {}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


config = partial(partial, change, "config.json")
BROKEN = {
    "no attention heads": (config(num_attention_heads=0), "num_attention_heads = 0"),
    "no layers": (config(num_hidden_layers=0), "num_hidden_layers = 0"),
    "less than nothing": (config(hidden_size=-64), "hidden_size = -64"),
    "a vocabulary in words": (config(vocab_size="many"), "vocab_size = 'many'"),
    "a factor that is null": (config(rope_scaling={"type": "linear", "factor": None}), "rope_scaling.factor = None"),
    "an embedding's list": (config(rope_scaling=[1]), "rope_scaling = [1]"),
    "positions in words": (config(max_position_embeddings="x"), "max_position_embeddings = 'x'"),
    "an empty tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "config or tokenizer cannot be used"),
    "a newer tokenizer": (of_another_version, "config or tokenizer cannot be used"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
    "an end in words": (lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": "a"}'), "eos_token_id ['a']"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_folder_is_refused_with_file_or_key(kind, capsys, tmp_path):
    folder = model_folder(tmp_path / "model")
    breaking, expected = BROKEN[kind]
    breaking(folder)
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert status == 1
    (failure,) = [line for line in printed.splitlines() if line.startswith("failed: ")]
    assert expected in failure
    assert "model.path" in failure


def test_the_parameters_are_those_of_the_files_that_the_engines_open(tmp_path):
    folder = model_folder(tmp_path / "model")  # 2 x 12 x 64 x 64 numbers in model.safetensors
    recipe = recipe_for(tmp_path, model={"path": str(folder)})
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert read_model(recipe, with_tokenizer=False).num_parameters == 2 * 12 * 64 * 64
    for name, shape in (("one.safetensors", (3, 5)), ("two.safetensors", (7,))):
        write_weights(folder / name, shape)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(recipe, with_tokenizer=False).num_parameters == 3 * 5 + 7
    (folder / "two.safetensors").unlink()
    with pytest.raises(RecipeError, match=r"two\.safetensors is not there, though model\.safetensors\.index\.json names it"):
        read_model(recipe, with_tokenizer=False)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_of_a_hubs_model_small_files_are_fetched_and_code_where_it_is_trusted(is_trusted, tmp_path, monkeypatch):
    hub = model_folder(tmp_path / "hub")
    (hub / "own.py").write_text("")

    def fetch(name, *, allow_patterns):
        here = tmp_path / "here"
        here.mkdir()
        for file in hub.iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, here)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    recipe = recipe_for(tmp_path, model={"path": "someone/model", "trust_remote_code": is_trusted})
    model = read_model(recipe)
    fetched = {file.name for file in (tmp_path / "here").iterdir()}
    assert ("own.py" in fetched, "model.safetensors" in fetched) == (is_trusted, False)
    assert model.num_parameters == model.shape.num_parameters  # from the config, since no weights are here


RESPONSE = "so it is 5. </think> <answer> 5 </answer>"


def metaspace_tokenizer(scheme, texts):
    """As SentencePiece's, which writes a space before the first word, and whose decoder takes it away again."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=99, special_tokens=["<unk>", "</s>"], max_token_length=4))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


@pytest.mark.parametrize(
    ("scheme", "texts", "verdict"),
    [("first", [RESPONSE], "ok"), ("always", [RESPONSE], "ok"), ("never", [RESPONSE], "ok"), ("first", ["so it is 5"], "failed")],
)
def test_a_tokenizer_is_refused_only_where_it_cannot_write_the_answers_tags(scheme, texts, verdict, tmp_path):
    folder = model_folder(tmp_path / "model", vocab_size=500)
    metaspace_tokenizer(scheme, texts).save_pretrained(folder)
    recipe = recipe_for(tmp_path, model={"path": str(folder)}, data={"num_train_problems": 64}, expert_iteration={"questions": 16})
    prompts = load_inputs(recipe, ["baseline"]).prompts
    findings = list(check_tokenizer(recipe, read_model(recipe), prompts, "1 + 1?"))
    assert [finding.verdict for finding in findings if finding.name == "tokenizer"] == [verdict]


def test_weights_that_were_cut_short_are_named(capsys, tmp_path):
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert status == 1
    assert "model.safetensors cannot be opened" in printed.replace("\n", " ")


@pytest.mark.parametrize(
    ("changes", "generation", "expected"),
    [
        ({"vocab_size": 200}, {}, "277 tokens, the model's embedding 200 rows"),
        ({}, {"eos_token_id": [0, 5000]}, "eos_token_id [5000] is outside of the model's 277 tokens"),
    ],
)
def test_model_and_tokenizer_that_do_not_fit_each_other_are_refused(changes, generation, expected, capsys, tmp_path):
    folder = model_folder(tmp_path / "model", **changes)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    status, printed = run(capsys, tmp_path, f"model.path={folder}")
    assert status == 1
    assert expected in printed


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({}, 1000),
        ({"rope_type": "llama3", "factor": 8.0}, 1000),
        ({"rope_type": "linear", "factor": 4.0}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}, 2000),
    ],
)
def test_a_stretched_embedding_knows_more_positions(rope, limit):
    assert position_limit({"max_position_embeddings": 1000, "rope_parameters": rope}) == limit
