import json

import pytest
from samples import recipe_for

from mathrl_ray.commands.replay_origin import Origin, changes_at, given_weights, learning_rates, origin_before, recipe_at, start_model
from mathrl_ray.driver.digests import file_digests
from mathrl_ray.driver.recorder import Recorder


@pytest.fixture
def run(tmp_path):
    recorder = Recorder.create(recipe_for(tmp_path, learner={"learning_rate": 0.5}))
    recorder.close()
    return recorder.folder


def rollback(step, to_step, **changes):
    changes = {key.replace("__", "."): pair for key, pair in changes.items()}
    return {"kind": "rollback", "time_s": 1.0, "stage": "grpo", "step": step, "to_step": to_step, "changes": changes}


def test_a_step_has_the_settings_of_the_rollbacks_before_it():
    rows = [
        rollback(9, 5, grpo__learning_rate=[0.4, 0.1]),
        rollback(12, 8, grpo__learning_rate=[0.1, 0.025], loss__clip_low=[0.2, 0.1]),
    ]
    assert changes_at(rows, 5) == {"grpo.learning_rate": 0.4, "loss.clip_low": 0.2}
    assert changes_at(rows, 6) == {"grpo.learning_rate": 0.1, "loss.clip_low": 0.2}  # done anew after the first, kept by the second
    assert changes_at(rows, 9) == {"grpo.learning_rate": 0.025, "loss.clip_low": 0.1}
    assert changes_at([], 9) == {}


def test_a_rollback_further_back_takes_the_remedies_before_it_along():
    rows = [rollback(12, 5, grpo__learning_rate=[0.4, 0.1]), rollback(13, 0), rollback(20, 8, grpo__learning_rate=[0.1, 0.025])]
    assert [changes_at(rows, step)["grpo.learning_rate"] for step in (1, 5, 8, 9)] == [0.1, 0.1, 0.1, 0.025]


def test_recipe_at_reads_them_from_the_run_whatever_recipe_toml_says(run):
    other_stage = {**rollback(3, 0, learner__weight_decay=[0.01, 0.2]), "stage": "sft"}
    fired = {"kind": "fired", "time_s": 1.0, "stage": "grpo", "step": 9, "guard": "entropy"}
    rows = [fired, rollback(9, 5, learner__max_grad_norm=[1.0, 0.3]), other_stage]
    (run / "guards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [recipe_at(run, "grpo", step).learner.max_grad_norm for step in (5, 6)] == [1.0, 0.3]
    assert recipe_at(run, "grpo", 6).learner.weight_decay == 0.01


def test_changes_that_are_no_keys_of_a_recipe_are_refused_with_the_file(run):
    (run / "guards.jsonl").write_text(json.dumps(rollback(9, 5, learner__no_such_key=[1, 2])) + "\n")
    with pytest.raises(ValueError, match=r"guards.jsonl: its changes do not fit recipe.toml"):
        recipe_at(run, "grpo", 6)


def test_with_one_update_a_step_the_rate_is_the_logged_one(tmp_path):
    assert learning_rates(recipe_for(tmp_path), 0.123, 7, optimizer_step=6) == [0.123]


def test_several_updates_follow_the_schedule_and_mean_what_was_logged(tmp_path):
    keys = {"num_steps": 5, "minibatches": 2, "epochs": 2, "learning_rate": 0.8}
    recipe = recipe_for(tmp_path, grpo=keys, learner={"schedule": "linear"})
    # 20 updates: after the first 8 the rates are 0.8 (1 - u / 20) at u = 8 ... 11
    planned = [0.48, 0.44, 0.40, 0.36]
    assert learning_rates(recipe, 0.42, 3, optimizer_step=8) == pytest.approx(planned)
    assert learning_rates(recipe, 0.105, 3, optimizer_step=8) == pytest.approx([rate / 4 for rate in planned])  # a guard's lower peak


def test_rates_that_the_files_do_not_tell_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no learning_rate of step 3"):
        learning_rates(recipe_for(tmp_path), None, 3, 0)
    recipe = recipe_for(tmp_path, grpo={"num_epochs": 1, "minibatches": 2}, learner={"schedule": "cosine"})
    with pytest.raises(ValueError, match=r"grpo.num_epochs"):
        learning_rates(recipe, 0.1, 3, 0)


def test_without_a_checkpoint_the_weights_are_the_start_models_and_nothing_is_made_anew(run, tmp_path):
    with pytest.raises(ValueError, match="built-in start model of this run is not in"):
        origin_before(run, "grpo", 3, recipe_for(tmp_path))
    assert not (tmp_path / "cache").exists()
    model = tmp_path / "model"
    model.mkdir()
    recipe = recipe_for(tmp_path, model={"path": str(model)})
    assert origin_before(run, "grpo", 3, recipe) == Origin(model, 0)
    model.rmdir()
    with pytest.raises(ValueError, match="not there any more"):
        start_model(run, recipe)


@pytest.mark.parametrize(
    ("later", "step", "origin", "is_refused"),
    [
        ([], 7, 5, False),  # done before the mean was taken
        ([], 9, 8, False),  # a checkpoint of after it, or of the mean itself
        ([], 9, 7, False),
        ([], 9, 5, True),
        ([rollback(12, 7)], 9, 5, True),  # back to the mean
        ([rollback(12, 5)], 9, 5, False),  # behind it: nothing of it is left
    ],
)
def test_steps_are_not_done_again_across_a_mean_of_checkpoints(run, tmp_path, later, step, origin, is_refused):
    rows = [{**rollback(10, 7), "remedy": "average_checkpoints"}, *later]
    (run / "guards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = run / "checkpoints" / f"grpo-{origin}" / "trainer"
    trainer.mkdir(parents=True)
    (trainer / "run.json").write_text(json.dumps({"format": 1, "stage": "grpo", "step": origin, "finished": []}))
    (trainer / "files.json").write_text(json.dumps({"files": file_digests(trainer.parent)}))
    if is_refused:
        with pytest.raises(
            ValueError, match=r"after step 7 the run went on from a mean of checkpoints \(average_checkpoints in guards.jsonl\)"
        ):
            origin_before(run, "grpo", step, recipe_for(tmp_path))
    else:
        assert origin_before(run, "grpo", step, recipe_for(tmp_path)).step == origin


def test_an_origin_says_what_has_to_be_done_again(tmp_path):
    checkpoint = tmp_path / "grpo-4"
    assert Origin(checkpoint, 4, checkpoint).text(5) == "those before step 5: checkpoint grpo-4"
    assert "checkpoint grpo-4, and step 5 done again" in Origin(checkpoint, 4, checkpoint).text(6)
    assert "the 3 steps 5 to 7 done again" in Origin(checkpoint, 4, checkpoint).text(8)
    assert Origin(tmp_path, 0).text(1) == "those before step 1: the stage's start model"


def test_weights_that_are_no_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no model folder"):
        given_weights(tmp_path)
