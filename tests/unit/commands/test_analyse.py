import json

import pytest
from evaluation_rows import BROKEN, WRONG, row, verdicts, write_evaluation

from mathrl_ray.__main__ import main
from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.answer_keys import grader_keys, would_be_right


@pytest.fixture(scope="module")
def judge():
    with GoldJudge(1, 5.0) as judge:
        yield judge


def broken(problem_id, response, **values):
    return row(problem_id, BROKEN, response=response, **values)


# What the grader is asked


def test_an_answer_in_a_broken_format_is_judged_with_the_rule_waived(judge):
    rows = [
        broken("a", " so </think><answer> 2 </answer>"),  # no space between the tags
        broken("b", r" so it is \boxed{2}"),
        broken("c", " so </think><answer> 4/2 </answer>"),  # equal by value: the grader's process is asked
        broken("d", " so </think><answer> 3 </answer>"),
        broken("e", " I do not know"),
        row("f"),
        row("g", WRONG),
    ]
    assert would_be_right(rows, judge) == [True, True, True, False, False, True, False]


def test_the_rule_is_that_of_the_rows_prompt(judge):
    response = r" </think><answer> 2 </answer> or \boxed{3}"  # the tags are right, the box is wrong
    boxed = broken("a", response, prompt_name="question_only")
    tagged = broken("b", response, prompt_name="mine", prompt="Reply in <answer> tags.")
    assert would_be_right([boxed, tagged], judge) == [False, True]


def test_a_column_that_says_so_is_believed(judge):
    rows = [broken("a", " nothing", lenient_answer_correct=True), broken("b", r" \boxed{2}", lenient_answer_correct=False)]
    assert would_be_right(rows, judge) == [True, False]


def test_wrong_answers_that_the_grader_calls_equal_get_one_key(judge):
    written = ["0.5", "1/2", r"\frac{1}{2}", "3", "x +"]
    rows = [row("a", WRONG, sample=sample, extracted_answer=text) for sample, text in enumerate(written)]
    rows.append(row("a", BROKEN, sample=9))
    key = grader_keys(rows, judge)
    assert key(rows[0]) == key(rows[1]) == key(rows[2])
    assert len({key(rows[0]), key(rows[3]), key(rows[4])}) == 3
    assert key(rows[5]) is None


def test_answers_of_different_problems_are_never_held_against_each_other(judge):
    rows = [row("a", WRONG, extracted_answer="0.5"), row("b", WRONG, extracted_answer="1/2")]
    key = grader_keys(rows, judge)
    assert [key(each) for each in rows] == ["0.5", "1/2"]


# The command


@pytest.fixture
def run(tmp_path):
    rows = [
        *verdicts("+++--?", level=1),
        *[broken(f"q{index}", r" it is \boxed{2}", level=2, subject="word") for index in range(12)],
        broken("r", " what?", level=None, subject=None),
    ]
    path = write_evaluation(tmp_path / "mine", "baseline-v0", rows)
    (path.parent.parent / "recipe.toml").write_text("")
    return tmp_path / "mine"


def test_the_tables_and_the_four_kinds_are_shown(run, capsys):
    assert main(["analyse", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mine/baseline-v0: prompt r1_zero, temperature 1, top-p 1, at most 64 tokens, grader default" in shown
    assert all(text in shown for text in ("60.0 % (", "unknown", "word", "algebra", "grader_error"))
    assert "(1, 0) format kept, answer wrong: 2 samples, 11.1 %" in shown
    assert "(0, 1) format broken, answer would be right: 12 samples, 66.7 %" in shown
    assert f"try: python jobs/sft.py {run / 'recipe.toml'} sft.keep=correct" in shown
    assert shown.count("gold 2, no_answer: it is") == 10
    assert "1 samples could not be graded" in shown


def test_json_holds_all_of_it(run, capsys):
    assert main(["analyse", str(run), "--json", "--examples", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in found["levels"]] == ["1", "2", "unknown"]
    assert found["whole"]["accuracy"]["value"] == pytest.approx(3 / 18)
    assert [kind["num_samples"] for kind in found["failures"]["kinds"]] == [3, 2, 12, 1]
    assert [len(kind["examples"]) for kind in found["failures"]["kinds"]] == [3, 2, 3, 1]


def test_several_samples_show_pass_and_maj_at_k(tmp_path, capsys):
    rows = [row("a", {} if sample < 3 else WRONG, sample=sample) for sample in range(4)]
    write_evaluation(tmp_path / "mine", "baseline-v0", rows)
    assert main(["analyse", str(tmp_path / "mine"), "--k", "1", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    # of the 6 pairs, 3 are two right ones and 3 a tie: pass@2 = 1, maj@2 = 0.75
    assert "pass@2" in shown
    assert "100.0 %" in shown
    assert "75.0 %" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--limit-s", "0"], "--limit-s"), (["--examples", "-1"], "--examples"), (["--stage", "grpo"], "holds no evaluation of grpo")],
)
def test_what_cannot_be_analysed_is_said_in_one_message(run, capsys, words, message):
    assert main(["analyse", str(run), *words]) == 1
    assert message in capsys.readouterr().err


def test_a_k_below_1_is_a_wrong_command_line(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["analyse", str(run), "--k", "0"])
    assert ended.value.code == 1
    assert "must be at least 1" in capsys.readouterr().err
