"""Which runs a recipe makes, and what --check and the preflight say of them."""

import time
from pathlib import Path

import pytest

from mathrl_ray.__main__ import main as command
from mathrl_ray.config import RecipeError
from mathrl_ray.entry import main
from mathrl_ray.recipe_file import load_recipe
from mathrl_ray.sweep_recipe import count_text, planned_runs, run_name

RECIPE = str(Path(__file__).parent.parent.parent / "jobs" / "recipes" / "arithmetic_cpu.toml")


def runs_of(*overrides, stages=("grpo",)):
    return planned_runs(RECIPE, overrides, stages)[0]


def test_each_run_has_its_values_and_all_others_are_those_of_the_recipe():
    runs = runs_of("study.seeds=[3, 4]", "sweep.grpo.loss=['grpo', 'dapo']", "grpo.num_steps=7")
    assert [run.name for run in runs] == ["loss-grpo-seed-3", "loss-grpo-seed-4", "loss-dapo-seed-3", "loss-dapo-seed-4"]
    alone = load_recipe(RECIPE, ["grpo.num_steps=7", "grpo.loss=dapo", "run.seed=4"])
    assert runs[3].recipe == alone  # what follows from the method (clip_high, ...) too
    assert not any(run.recipe.makes_several_runs for run in runs)
    assert count_text(runs) == "4 runs (2 settings x 2 seeds)"


def test_a_recipe_without_seeds_and_lists_is_one_run():
    assert not load_recipe(RECIPE).makes_several_runs
    assert load_recipe(RECIPE, ["study.seeds=[1]"]).makes_several_runs


def test_a_variant_that_cannot_run_is_named_before_anything_starts():
    with pytest.raises(RecipeError, match=r"variant minibatches-7: .*\n.*grpo\.minibatches = 7 does not divide"):
        runs_of("sweep.grpo.minibatches=[1, 7]")
    with pytest.raises(RecipeError, match=r"variant warmup_steps-60: learner\.warmup_steps = 60 is as long as the grpo stage"):
        runs_of("sweep.learner.warmup_steps=[0, 60]")


def test_two_values_of_one_run_are_refused():
    with pytest.raises(RecipeError, match=r"variants temperature-1 and temperature-1\.0 are the same run"):
        runs_of("sweep.generator.temperature=[1, 1.0]")


def test_a_list_of_tables_gives_each_run_its_own(tmp_path):
    (tmp_path / "mine.py").write_text("def loss(**_): return 0")
    file = tmp_path / "mine.toml"
    file.write_text("[loss]\nfunction = 'mine.py:loss'\n[sweep]\n'loss.kwargs' = [{a = 1, b = ['x']}, {a = 2.5}]")
    runs, _ = planned_runs(file, [], ["grpo"])
    assert [run.recipe.loss.kwargs for run in runs] == [{"a": 1, "b": ["x"]}, {"a": 2.5}]
    file.write_text("[sweep]\n'grpo.num_steps' = [1979-05-27]")
    with pytest.raises(RecipeError, match=r"\[sweep\] holds 1979-05-27, which no key of a recipe takes"):
        planned_runs(file, [], ["grpo"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["study.seeds=[0]", "sweep.seeds=[1]"], r"study\.seeds and sweep\.seeds both name seeds"),
        (["study.seeds=[0]", "sweep.run.seed=[1]"], r'study\.seeds and sweep\."run\.seed" both name seeds'),
        (["study.seeds=[1, 1]"], r"study\.seeds = \[1, 1\] names a seed twice"),
        (["study.seeds=[-1]"], r"study\.seeds"),
        (["sweep.run.name=['a', 'b']"], r'sweep\."run\.name" would give the variants .* another place'),
        (["sweep.run.mirror=['file:///a']"], r'sweep\."run\.mirror" would give the variants .* another place'),
        (["sweep.study.stages=[['grpo']]"], r'sweep\."study\.stages" would give the variants other stages'),
    ],
)
def test_seeds_and_lists_that_cannot_be_are_refused_with_the_key(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(RECIPE, overrides)


def test_a_name_that_is_too_long_is_cut_and_stays_the_variants_own():
    first, second = run_name("s" * 90, "learning_rate-0.001"), run_name("s" * 90, "learning_rate-0.002")
    assert first != second
    assert len(first) == len(second) == 100
    assert run_name("s" * 90, "seed-10000") == "s" * 90 + "-" + run_name("s" * 90, "seed-10000")[91:]


def test_check_says_how_many_runs_there_are_in_less_than_3_s(capsys):
    began = time.monotonic()
    assert main("grpo", [RECIPE, "--check", "study.seeds=[0, 1, 2]", "sweep.grpo.learning_rate=[1e-4, 5e-4]"]) == 0
    assert time.monotonic() - began < 3
    assert "6 runs (2 settings x 3 seeds), each checked: learning_rate-0.0001-seed-0, " in capsys.readouterr().out
    assert main("grpo", [RECIPE, "--check", "sweep.grpo.minibatches=[1, 7]"]) == 1
    assert "error: variant minibatches-7" in capsys.readouterr().err


def test_the_preflight_says_how_long_all_runs_take_together(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    small = (
        "data.num_train_problems=64",
        "eval.num_problems=16",
        "sft.num_examples=32",
        "data.num_validation_problems=8",
        "expert_iteration.questions=16",
    )
    words = ["preflight", RECIPE, f"run.root={tmp_path / 'runs'}", *small, "study.seeds=[0, 1, 2]", "sweep.side_by_side=1"]
    assert command(words) == 0
    assert "3 runs (3 seeds), of which the table shows one: about " in capsys.readouterr().out
