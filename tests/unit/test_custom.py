import functools
import sys

import pytest

from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.custom import load_file, load_function, own_functions, public_functions

SOURCE = """
from math import exp
from dataclasses import dataclass

LIMIT = 2.0

@dataclass
class Helper:
    pass

def _hidden():
    pass

def clipped(value, limit=LIMIT):
    return min(value, limit)

def scaled(value, *, by):
    return value * by
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_function_of_a_file_is_loaded_with_its_keyword_arguments(source):
    assert load_function(f"{source}:clipped", key="loss.function")(3.0) == 2.0
    assert load_function(f"{source}:scaled", key="loss.function", kwargs={"by": 3})(2.0) == 6.0


def test_a_function_of_a_module_is_loaded():
    assert load_function("functools:reduce", key="loss.function") is functools.reduce


def test_a_file_found_from_the_working_folder_is_loaded(source, monkeypatch):
    monkeypatch.chdir(source.parent)
    assert load_function("mine.py:clipped", key="loss.function")(1.0) == 1.0


def test_public_functions_are_those_that_the_file_defines_itself_in_their_order(source):
    assert public_functions(load_file(source)) == ["clipped", "scaled"]


@pytest.mark.parametrize("spec", ["mine.py", "mine", ":clipped", "mine:", "mine:a b", ""])
def test_a_name_of_another_form_shows_the_two_forms(spec):
    with pytest.raises(RecipeError, match=r"advantage\.function = .*module:function or path/file\.py:function"):
        load_function(spec, key="advantage.function")


def test_a_missing_file_is_named_with_the_key(tmp_path):
    with pytest.raises(RecipeError, match=r"loss\.function = .*absent\.py: no such file \(every node"):
        load_function(f"{tmp_path}/absent.py:clipped", key="loss.function")


def test_a_missing_module_is_named_with_the_key():
    with pytest.raises(RecipeError, match=r"loss\.function = .*no_such_module cannot be imported: ModuleNotFoundError"):
        load_function("no_such_module:clipped", key="loss.function")


def test_a_missing_function_lists_those_that_are_there(source):
    with pytest.raises(RecipeError, match="has no function cliped; it has clipped, scaled"):
        load_function(f"{source}:cliped", key="loss.function")
    with pytest.raises(RecipeError, match="has no function LIMIT"):
        load_function(f"{source}:LIMIT", key="loss.function")


def test_a_file_without_functions_says_none(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(RecipeError, match="it has none"):
        load_function(f"{tmp_path}/empty.py:clipped", key="loss.function")


@pytest.mark.parametrize(
    ("text", "error"), [("def (", "SyntaxError"), ("1 / 0", "ZeroDivisionError"), ("import no_such_module", "ModuleNotFound")]
)
def test_an_error_while_importing_names_the_file_and_leaves_no_half_of_it(tmp_path, text, error):
    (tmp_path / "broken.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=rf"broken\.py cannot be imported: {error}"):
        load_function(f"{tmp_path}/broken.py:clipped", key="loss.function")
    assert not {name for name in set(sys.modules) - before if "broken" in name}


def test_a_file_that_misses_another_one_is_not_called_missing_itself(tmp_path):
    (tmp_path / "reads.py").write_text("open('absent.txt')")
    with pytest.raises(RecipeError, match=r"reads\.py cannot be imported: FileNotFoundError: .*absent\.txt"):
        load_function(f"{tmp_path}/reads.py:clipped", key="loss.function")


def test_a_recipes_own_functions_are_loaded_by_section_with_their_arguments(source):
    recipe = Recipe.model_validate({"loss": {"function": f"{source}:scaled", "kwargs": {"by": 3}}})
    functions = own_functions(recipe)
    assert list(functions) == ["loss"]
    assert functions["loss"](2.0) == 6.0
    assert own_functions(Recipe()) == {}


def test_a_function_that_a_recipe_names_in_vain_is_told_with_its_key(source):
    with pytest.raises(RecipeError, match=r"advantage\.function = .*has no function absent"):
        own_functions(Recipe.model_validate({"advantage": {"function": f"{source}:absent"}}))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("clipped", {"limits": 1}, r"loss\.kwargs = \{'limits': 1\} does not fit clipped\(value, limit=2\.0\): .*unexpected .*'limits'"),
        ("clipped", {"value": 1}, r"multiple values for argument 'value'"),
        ("scaled", {}, r"loss\.kwargs = \{\} does not fit scaled\(value, \*, by\): missing a required .*'by'"),
    ],
)
def test_keyword_arguments_that_do_not_fit_are_refused_with_the_parameters(source, name, kwargs, message):
    with pytest.raises(RecipeError, match=message):
        load_function(f"{source}:{name}", key="loss.function", kwargs=kwargs)


def test_a_builtin_that_does_not_tell_its_parameters_is_loaded_with_any_arguments():
    assert load_function("builtins:max", key="loss.function", kwargs={"default": 3})([]) == 3
