"""examples.py and failures.py: what a report shows of responses."""

from pathlib import Path

from evaluation_rows import BROKEN, RIGHT, UNGRADED, WRONG, row, samples, verdicts, write_evaluation

from mathrl_ray.config import Recipe
from mathrl_ray.report.examples import NUM_GAINED, NUM_LOST, examples_of
from mathrl_ray.report.failures import failures_of
from mathrl_ray.report.run_data import RunData, StageData
from mathrl_ray.report.shown_text import TextBudget


def run_of(folder, **stages):
    """A run with an evaluation a stage."""
    held = []
    for version, (name, rows) in enumerate(stages.items()):
        rows = [{**each, "policy_version": version} for each in rows]
        held.append(StageData(name, None, [], [], [write_evaluation(folder, f"{name}-v{version}", rows)] if rows else []))
    return RunData(folder, "run", Recipe().model_dump(mode="json"), {}, 0, "finished", held, {}, [], [])


def shown(group):
    return [(example.problem_id, *(response.outcome for response in example.responses)) for example in group.examples]


def test_the_first_and_last_evaluation_show_one_response_of_each_kind(tmp_path):
    before = [row("a", WRONG), row("b", WRONG), row("c", RIGHT), row("d", BROKEN)]
    after = [row("a", RIGHT), row("b", RIGHT), row("c", RIGHT), row("d", WRONG)]
    first, last, _ = examples_of(run_of(tmp_path, baseline=before, sft=verdicts("++--"), grpo=after), TextBudget())
    assert (first.title, shown(first)) == ("First: baseline", [("c", "correct"), ("a", "wrong"), ("d", "no_answer")])
    assert (last.title, shown(last)) == ("Last: grpo", [("a", "correct"), ("d", "wrong")])


def test_the_most_changed_problems_are_those_whose_share_of_right_responses_moved_most(tmp_path):
    # shares before and after: p0 0/2 to 2/2 (+1), p1 0/2 to 1/2 (+0.5), p2 stays, p3 2/2 to 0/2 (-1), p4 1/1 to 1/2 (-0.5)
    before = samples("--", "--", "+-", "++", "+?")
    after = samples("++", "+-", "+-", "--", "+-")
    changed = examples_of(run_of(tmp_path, baseline=before, grpo=after), TextBudget())[-1]
    assert shown(changed) == [
        ("p0", "wrong", "correct"), ("p1", "wrong", "correct"), ("p3", "correct", "wrong"), ("p4", "correct", "wrong"),
    ]  # fmt: skip
    assert [example.change for example in changed.examples] == [
        "wrong before, right after",
        "share of right responses up by 50 points",
        "right before, wrong after",
        "share of right responses down by 50 points",
    ]
    assert changed.note == "2 problems rose, 2 fell, of 5 that both evaluations graded."


def test_the_hardest_of_equal_changes_come_first_and_there_are_not_too_many(tmp_path):
    before = [row(f"p{level}", WRONG if level < 6 else RIGHT, level=level % 6) for level in range(12)]
    after = [row(f"p{level}", RIGHT if level < 6 else WRONG, level=level % 6) for level in range(12)]
    changed = examples_of(run_of(tmp_path, baseline=before, grpo=after), TextBudget())[-1]
    assert [example.problem_id for example in changed.examples] == ["p5", "p4", "p3", "p11", "p10"]
    assert len(changed.examples) == NUM_GAINED + NUM_LOST


def test_problems_that_could_not_be_graded_are_not_called_changed(tmp_path):
    changed = examples_of(run_of(tmp_path, baseline=[row("a", UNGRADED)], grpo=[row("a", RIGHT)]), TextBudget())
    assert [group.title for group in changed] == ["First: baseline", "Last: grpo"]


def test_a_run_without_final_evaluations_shows_its_validations(tmp_path):
    files = [
        write_evaluation(tmp_path, f"validation-grpo-step{step}-v{step}", verdicts(text)) for step, text in ((5, "-"), (9, "+"), (12, "+"))
    ]
    run = RunData(tmp_path, "run", {}, {}, 0, "running", [StageData("grpo", None, [], [], [], files)], {}, [], [])
    assert [group.title for group in examples_of(run, TextBudget())] == [
        "First: grpo, validation at step 5",
        "Last: grpo, validation at step 12",
        "Most changed: grpo, validation at step 5 to grpo, validation at step 12",
    ]


def test_a_single_evaluation_is_shown_alone_and_a_torn_file_not_at_all(tmp_path):
    run = run_of(tmp_path, baseline=verdicts("+-"))
    assert [group.title for group in examples_of(run, TextBudget())] == ["First: baseline"]
    run.stages[0].evaluations[0].write_bytes(b"PAR1 torn")
    assert examples_of(run, TextBudget()) == []
    assert failures_of(run) == []


def test_a_response_is_shown_with_its_rewards_and_version(tmp_path):
    first, *_ = examples_of(run_of(tmp_path, baseline=verdicts("+")), TextBudget())
    response = first.examples[0].responses[0]
    assert response.rewards == (("format", 1.0), ("answer", 1.0), ("reward", 1.0))
    assert (response.answer, response.policy_version, response.finish_reason, response.num_tokens) == ("2", 0, "stop", 10)
    assert first.examples[0].gold == "2"
    assert first.examples[0].prompt.start == "User: p0\nAssistant: <think>"


def test_failures_are_counted_by_format_and_answer_for_the_first_and_last_stage(tmp_path):
    known = {"lenient_answer_correct": True}
    before = [
        row("a", RIGHT, known),
        row("b", WRONG),
        row("c", BROKEN, known),
        row("d", BROKEN, lenient_answer_correct=False),
        row("e", UNGRADED),
    ]
    found = failures_of(run_of(tmp_path, baseline=before, sft=verdicts("+-"), grpo=verdicts("++")))
    assert [each.stage for each in found] == ["baseline", "grpo"]
    assert {kind.name: kind.num_samples for kind in found[0].found.kinds} == {"solved": 1, "mathematics": 1, "format": 1, "both": 1}
    assert (found[0].found.num_graded, found[0].found.num_ungraded, found[0].num_not_asked) == (4, 1, 0)


def test_rows_of_an_older_run_are_said_not_to_know(tmp_path):
    found = failures_of(run_of(tmp_path, baseline=[row("a", BROKEN), row("b", RIGHT)]))
    assert found[0].num_not_asked == 1


def test_a_recipe_of_another_version_does_not_stop_the_analysis(tmp_path):
    run = run_of(tmp_path, baseline=verdicts("+-"))
    run = RunData(Path(tmp_path), "run", {"no_such_section": {"x": 1}}, {}, 0, "finished", run.stages, {}, [], [])
    assert len(failures_of(run)) == 1
