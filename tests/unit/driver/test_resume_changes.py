"""What must be as it was where a run goes on: data, settings that are masked, its name; and what an upgrade may add."""

import asyncio
import json

import pytest
from checkpoint_scene import digests_of, made_run, resumption_for, save
from samples import recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.data.traces import SftRow
from mathrl_ray.driver.recipe_changes import check_recipe
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.stages.study import run_study

TRACE = SftRow("p", "q", "a", gold="1", problem="q")


@pytest.mark.parametrize("at_a_boundary", [False, True])
@pytest.mark.parametrize("which", ["train", "traces", "validation", "test"])
def test_other_data_are_refused_by_name_in_a_stage_and_between_two(tmp_path, which, at_a_boundary):
    run = made_run(tmp_path)
    run.traces = [TRACE, TRACE]
    run.recorder.digests(digests_of(run))
    if at_a_boundary:
        asyncio.run(run_study(run, ["baseline"]))
    else:
        save(run, "baseline", 1)
    run.recorder.close()
    found = resumption_for(tmp_path, stages=["baseline", "grpo"])
    assert (found.checkpoint is None) == at_a_boundary
    found.check_data(run.recipe, digests_of(run))
    rows = {"train": run.train_problems, "traces": run.traces, "validation": run.validation_problems, "test": run.test_problems}[which]
    changed = digests_of(run, **{which: rows[1:]})
    with pytest.raises(RecipeError, match=f"the {which} rows are not those that .* had"):
        found.check_data(run.recipe, changed)
    found.check_data(recipe_for(tmp_path, run={"resume_with_changes": True}), changed)


def test_traces_that_only_a_further_stage_reads_change_nothing(tmp_path):
    run = made_run(tmp_path)
    save(run, "baseline", 1)
    resumption_for(tmp_path, stages=["baseline", "sft"]).check_data(run.recipe, digests_of(run, traces=[TRACE]))


def test_the_order_of_rows_counts(tmp_path):
    run = made_run(tmp_path)
    save(run, "grpo", 1)
    with pytest.raises(RecipeError, match="the test rows"):
        resumption_for(tmp_path).check_data(run.recipe, digests_of(run, test=run.test_problems[::-1]))


def reward(key):
    return {"reward": {"function": "m:f", "kwargs": {"api_key": key}}}


@pytest.mark.parametrize("at_a_boundary", [False, True])
def test_another_value_that_is_masked_where_it_is_written_is_noticed_and_not_shown(tmp_path, at_a_boundary):
    run = made_run(tmp_path, sections=reward("first-7f"))
    if at_a_boundary:
        run.recorder.digests(digests_of(run))
        run.recorder.summary([{"name": "grpo"}])
    else:
        save(run, "grpo", 1)
    run.recorder.close()
    written = "".join(path.read_text() for path in tmp_path.rglob("*.json")) + (tmp_path / "test" / "recipe.toml").read_text()
    assert "first-7f" not in written
    assert resumption_for(tmp_path, **reward("first-7f")) is not None
    with pytest.raises(RecipeError, match=r"reward.kwargs: what is masked there is not what was saved") as refusal:
        resumption_for(tmp_path, **reward("second-8a"))
    assert "second-8a" not in str(refusal.value)
    assert resumption_for(tmp_path, run={"resume_with_changes": True}, **reward("second-8a")) is not None


def test_a_key_that_an_upgrade_adds_has_had_its_default(tmp_path):
    recipe = recipe_for(tmp_path)
    saved = recipe.model_dump(mode="json")
    del saved["driver"]["max_staleness"], saved["eval"]
    check_recipe(recipe, saved, {}, tmp_path)
    with pytest.raises(RecipeError, match=r"driver.max_staleness: 0 was saved, 2 is given"):
        check_recipe(recipe_for(tmp_path, driver={"max_staleness": 2}), saved, {}, tmp_path)


def test_a_run_keeps_its_name_where_a_job_of_another_name_goes_on_with_it(tmp_path):
    run = made_run(tmp_path, name="a")
    save(run, "grpo", 1)
    run.recorder.close()
    said, other = [], {"name": "b", "resume": str(tmp_path / "a")}
    resumption_for(tmp_path, run=other).open(recipe_for(tmp_path, run=other), ["grpo"], said.append).close()
    assert any('run.name = "b" is left out: the run goes on as a' in text for text in said)
    assert resumption_for(tmp_path, run={"name": "a"}).folder.name == "a"
    assert resumption_for(tmp_path, run={"name": "b"}) is None


def test_digests_of_an_earlier_start_stay_beside_the_new_ones(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path))
    for start in (1, 1, 2):
        recorder.digests({"data": {"train": str(start)}})
    assert json.loads((recorder.folder / "digests.json").read_text()) == {"data": {"train": "2"}}
    assert json.loads((recorder.folder / "digests-1.json").read_text()) == {"data": {"train": "1"}}
    assert not (recorder.folder / "digests-2.json").exists()
