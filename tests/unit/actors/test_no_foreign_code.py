"""Model folders and data sets run no code of theirs: neither pickles nor Python files."""

import json
import pickle
import shutil

import pytest
from samples import recipe_for

from mathrl_ray.actors.generator import checkpoint_names, engine_arguments
from mathrl_ray.actors.model_folder import load_model, load_tokenizer
from mathrl_ray.config import RecipeError
from mathrl_ray.data.rows import DataError, read_rows
from mathrl_ray.device import choose_device
from mathrl_ray.policy import LanguageModelAsPolicy
from mathrl_ray.recipe_file import check_local_paths, load_recipe


class Evil:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    """A model of a few thousand weights, with a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "plain"
    Qwen2ForCausalLM(
        Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    ).save_pretrained(folder)
    words = Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(plain_folder, tmp_path):
    return shutil.copytree(plain_folder, tmp_path / "model")


@pytest.fixture
def trace(tmp_path):
    """The file that foreign code makes when it runs."""
    return tmp_path / "it-ran"


def test_the_evil_pickle_would_run_where_it_is_loaded(trace):
    pickle.loads(pickle.dumps(Evil(trace))).close()
    assert trace.exists()


def test_pickled_weights_are_opened_by_no_engine(folder, trace):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(OSError, match="safetensors"):
        load_model(str(folder), dtype="float32", attention="sdpa")
    with pytest.raises(OSError, match="safetensors"):
        LanguageModelAsPolicy(str(folder))
    with pytest.raises(RecipeError, match="safetensors"):
        checkpoint_names(folder)
    recipe = folder.parent / "r.toml"
    recipe.write_text(f'model.path = "{folder}"\n')
    with pytest.raises(RecipeError, match=r"no \.safetensors files"):
        check_local_paths(load_recipe(recipe), ["grpo"])
    assert not trace.exists()


def test_pickled_weights_beside_safetensors_are_left_alone(folder, trace):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(trace)))
    model, tokenizer = load_model(str(folder), dtype="float32", attention="sdpa")
    assert model.num_parameters() > 0
    assert tokenizer.vocab_size == 2
    assert not trace.exists()


def with_own_code(folder, trace, *, of="config"):
    """A model type that only the folder's own Python file knows."""
    config_class = "class C(PretrainedConfig):\n    model_type = 'evil'\n"
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nfrom transformers import PretrainedConfig\n{config_class}")
    config = json.loads((folder / "config.json").read_text())
    if of == "config":
        config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}
    (folder / "config.json").write_text(json.dumps(config))
    if of == "tokenizer":
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": [None, "evil.EvilTokenizer"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_models_own_code_is_refused_with_the_key_and_does_not_run(folder, trace, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("it asked on the terminal"))
    with_own_code(folder, trace)
    with pytest.raises(RecipeError, match=r"model\.trust_remote_code = false"):
        load_tokenizer(str(folder))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_model(str(folder), dtype="float32", attention="sdpa")
    with pytest.raises(ValueError, match="trust_remote_code"):
        LanguageModelAsPolicy(str(folder))
    assert not trace.exists()


def test_a_tokenizers_own_code_does_not_run(folder, trace, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("it asked on the terminal"))
    with_own_code(folder, trace, of="tokenizer")
    try:
        load_tokenizer(str(folder))
    except RecipeError as error:
        assert "trust_remote_code" in str(error)  # noqa: PT017  # both ends are right: refused, or opened by its plain file
    assert not trace.exists()


def test_a_models_own_code_runs_where_it_is_trusted(folder, trace, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    load_tokenizer(str(with_own_code(folder, trace)), trust_remote_code=True)
    assert trace.exists()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_the_generators_engine_gets_the_recipes_word_and_safetensors_only(folder, tmp_path, is_trusted):
    pytest.importorskip("vllm", reason="the engine is not installed")
    recipe = recipe_for(tmp_path, model={"path": str(folder), **({"trust_remote_code": True} if is_trusted else {})})
    device = choose_device("cpu", num_gpus=0, num_engines=2, weight_transport="auto")
    arguments = engine_arguments(recipe, device, str(folder))
    assert arguments.trust_remote_code is is_trusted
    assert arguments.load_format == "safetensors"


@pytest.mark.parametrize("suffix", ["pkl", "pickle", "pt"])
def test_a_folder_of_pickles_is_no_data_set(tmp_path, trace, suffix):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"train.{suffix}").write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(str(tmp_path / "data"), key="data.train", default_split="train")
    assert not trace.exists()


def test_a_folder_with_a_loading_script_is_not_run(tmp_path, trace):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(str(folder), key="data.train", default_split="train")
    assert not trace.exists()
