"""shown_text.py, settings_diff.py, headline.py, guard_story.py: the words of the report page."""

from pathlib import Path

import pytest

from mathrl_ray.config import Recipe
from mathrl_ray.report.guard_story import guard_story
from mathrl_ray.report.headline import head_of, result_of, results_together
from mathrl_ray.report.run_data import RunData, StageData
from mathrl_ray.report.settings_diff import ABSENT, default_settings, differences, flat, settings_of
from mathrl_ray.report.shown_text import LONGEST_WHOLE, TextBudget, brief, end_of


def summary(name, accuracy, **values):
    made = {"name": name, "accuracy": accuracy, "ci95": [accuracy - 0.02, accuracy + 0.02], "num_problems": 1500, "num_ungraded": 0}
    return {**made, "num_graded_problems": 1500, **values}


def run_of(*accuracies, name="a", state="finished", last_row=None, **recipe):
    names = ("baseline", "sft", "grpo")
    stages = [StageData(each, summary(each, value), [], []) for each, value in zip(names, accuracies, strict=False)]
    metrics = [last_row or {"stage": "grpo", "step": 7, "time_s": 90.0}]
    return RunData(Path(name), name, recipe, {}, 3, state, stages, {}, [], [], metrics)


def test_a_long_text_is_cut_in_its_middle_and_says_how_long_it_is():
    shown = TextBudget().shown("a" * 50 + "b" * 50, most=20)
    assert (shown.start, shown.end, shown.num_left_out, shown.num_characters) == ("a" * 10, "b" * 10, 80, 100)
    assert shown.whole == "a" * 50 + "b" * 50


def test_a_text_beyond_the_limit_is_not_kept_whole():
    assert TextBudget().shown("a" * (LONGEST_WHOLE + 1)).whole == ""


def test_whole_texts_are_kept_until_the_budget_is_spent_counted_as_escaped_bytes():
    budget = TextBudget(whole_texts_bytes=90)
    # 10 times "<" is 10 times "&lt;": 40 bytes; two fit into 90, a third does not, and a shorter one still does
    kept = [budget.shown("<" * 10, most=4).whole != "" for _ in range(3)]
    assert kept == [True, True, False]
    assert budget.shown("ab" * 4, most=4).whole == "ab" * 4


def test_brief_texts_say_how_much_they_leave_out():
    assert brief(None) == ""
    assert brief("x" * 5, 3) == "xxx... (5 characters)"
    assert end_of("abcde", 2) == "(5 characters) ...de"


def test_the_default_recipe_has_no_changed_setting():
    assert [each.key for each in settings_of(Recipe().model_dump(mode="json")) if each.is_changed] == []


def test_changed_settings_come_first_with_their_defaults():
    recipe = Recipe().model_dump(mode="json")
    recipe["grpo"]["group_size"] = 99
    recipe["later"] = {"key": True}
    changed = [(each.key, each.value, each.default) for each in settings_of(recipe) if each.is_changed]
    assert changed == [("grpo.group_size", "99", str(Recipe().grpo.group_size)), ("later.key", "true", ABSENT)]
    assert [each.key for each in settings_of(recipe)][:2] == ["grpo.group_size", "later.key"]


def test_differences_between_runs_name_absent_keys_and_leave_names_out():
    runs = [{"run": {"name": "a", "seed": 0}, "x": {"y": 1}}, {"run": {"name": "b", "seed": 0}, "x": {"y": 1, "z": "w"}}]
    assert [(each.key, each.values) for each in differences(runs)] == [("x.z", (ABSENT, "w"))]
    assert differences(runs[:1]) == []


def test_a_key_that_an_older_run_does_not_know_has_its_default():
    default = str(Recipe().grpo.group_size)
    runs = [{"run": {"seed": 0}, "grpo": {"group_size": Recipe().grpo.group_size}}, {"run": {"seed": 0}}]
    assert differences(runs, default_settings()) == []
    runs[0]["grpo"]["group_size"] = 99
    assert [each.values for each in differences(runs, default_settings())] == [("99", default)]


def test_nested_values_get_dotted_names():
    assert flat({"a": {"b": {"c": [1, 2]}, "d": ""}, "e": None}) == {"a.b.c": "[1, 2]", "a.d": '""', "e": "null"}


def test_the_result_is_the_last_stage_times_the_first():
    # 0.60 / 0.15 = 4.0
    assert result_of(run_of(0.15, 0.4, 0.6)) == (
        "grpo answers 60.0 % (58.0 to 62.0) of 1,500 held-out problems correctly, 4.0 times the baseline's 15.0 %."
    )


def test_a_result_says_whose_weights_it_is_of():
    run = run_of(0.15, 0.4, 0.6)
    run.stages[-1].summary.update(ended_by="early stopping", last_step=40, best_step=20)
    assert result_of(run).startswith("grpo (stopped early after step 40, model of step 20) answers 60.0 %")


def test_a_run_that_lost_accuracy_says_so():
    assert result_of(run_of(0.5, 0.1)).endswith("correctly, less than the baseline's 50.0 %.")


@pytest.mark.parametrize(("accuracies", "ending"), [((0.2,), "problems correctly."), ((0.0, 0.3), "problems correctly.")])
def test_nothing_is_divided_by_a_baseline_that_is_missing_or_zero(accuracies, ending):
    assert result_of(run_of(*accuracies)).endswith(ending)


def test_a_running_run_says_where_it_is():
    run = run_of(0.2, state="running", grpo={"num_steps": 60}, data={"train": "builtin:arithmetic"}, model={"path": "m"})
    head = head_of(run)
    assert (head.state, head.progress) == ("running", "stage grpo, step 7 of at most 60, after 1.5 min")
    assert (head.task, head.model, head.seed) == ("builtin:arithmetic", "m", 3)


def test_a_run_without_anything_has_a_head_too():
    run = RunData(Path("x"), "x", {}, {}, 0, "running", [], {}, [], ["recipe.toml is damaged"])
    head = head_of(run)
    assert head.progress == "nothing written yet"
    assert head.result.startswith("No stage has ended yet")
    assert head.warnings


def test_several_runs_are_told_by_their_range():
    told = results_together([run_of(0.15, 0.5), run_of(0.16, 0.6), run_of(0.14, 0.55, 0.9)])
    assert told == "Accuracy, lowest to highest of 3 runs: baseline 14.0 to 16.0 %; sft 50.0 to 60.0 %."


def event(kind, step, stage="grpo", **values):
    return {"kind": kind, "stage": stage, "step": step, "text": f"{kind} at {step}", **values}


def test_what_was_tried_and_whether_it_helped_stand_with_what_fired():
    story = guard_story(
        [
            event("fired", 9),
            event("fired", 9),
            event("rollback", 9, to_step=5, changes={"learner.learning_rate": [0.002, 0.0005]}, tokens_lost=1200),
            event("outcome", 20, helped=True),
            event("fired", 30),
            event("rollback", 30, to_step=25),
            event("fired", 31),
            event("outcome", 31, helped=False),
            event("rollback", 31, to_step=25),
        ]
    )
    assert [[told.head for told in chapter] for chapter in story] == [
        ["Fired", "Fired", "Went back", "Helped"],
        ["Fired", "Went back", "Did not help"],
        ["Fired", "Went back"],
    ]
    back = story[0][2]
    assert back.where == "grpo, step 9 to step 5"
    assert back.changes == (("learner.learning_rate", "0.002", "0.0005"),)
    assert back.text == "rollback at 9 (1,200 generated tokens lost)"


def test_an_event_of_another_stage_or_kind_is_told_as_it_is():
    story = guard_story([event("fired", 3), event("fired", 1, stage="sft"), {"kind": "new", "changes": {"a": [1, 2]}}])
    assert [[told.head for told in chapter] for chapter in story] == [["Fired"], ["Fired"], ["new"]]
