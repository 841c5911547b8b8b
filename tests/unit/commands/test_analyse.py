import json
from itertools import permutations

import pytest
from evaluation_rows import BROKEN, WRONG, row, samples, verdicts, write_evaluation

from mathrl_ray.__main__ import main
from mathrl_ray.actors.gold_judge import GoldJudge
from mathrl_ray.commands.answer_keys import grader_keys, would_be_right
from mathrl_ray.core.breakdown import whole


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


@pytest.mark.parametrize("order", list(permutations(["x=3", "3", "y=3"])))
def test_what_a_chain_of_equal_answers_joins_is_one_in_any_order(judge, order):
    # the grader takes x=3 for 3 and 3 for y=3, but not x=3 for y=3
    rows = [row("a", WRONG, sample=sample, extracted_answer=text) for sample, text in enumerate(order)]
    rows += [row("a", sample=sample) for sample in (3, 4)]
    key = grader_keys(rows, judge)
    assert len({key(each) for each in rows[:3]}) == 1
    # three wrong ones alike against two right ones: no subset of all five is won
    assert whole(rows, ks=(5,), key=key).at_k[0].maj_at_k == 0.0


class OneWay:
    """A judge that calls an answer equal to a gold for some pairs only, and not the other way about."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def judge(self, pairs, advance):
        pass

    def verdict(self, answer, gold):
        return "correct" if (answer, gold) in self.pairs else "wrong"


@pytest.mark.parametrize("order", list(permutations("abcde")))
def test_each_pair_is_asked_both_ways_and_chains_that_meet_late_are_joined(order):
    # a-c and d-b, which c-d joins; e stays alone
    rows = [row("p", WRONG, sample=sample, extracted_answer=text) for sample, text in enumerate(order)]
    key = grader_keys(rows, OneWay(("a", "c"), ("d", "b"), ("c", "d")))
    by_answer = {each["extracted_answer"]: key(each) for each in rows}
    assert len({by_answer[answer] for answer in "abcd"}) == 1
    assert by_answer["e"] == "e"


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
    assert shown.count("gold 2, answer none, no_answer problem: What is 1+1 in q") == 10
    assert shown.count(r"response: it is \boxed{2}") == 10
    assert "p3 sample 0, gold 2, answer 3, wrong problem: What is 1+1 in p3? response: 1+1 </think> <answer> 2 </answer>" in shown
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


def test_pass_at_k_says_how_many_problems_it_rests_on(tmp_path, capsys):
    write_evaluation(tmp_path / "mine", "baseline-v0", samples("++++", "---?"))
    assert main(["analyse", str(tmp_path / "mine"), "--k", "2", "4"]) == 0
    # of the two problems one has four graded samples
    assert "│ 50.0 % │ 50.0 % │ 100.0 % of 1 │ 100.0 % of 1 │" in " ".join(capsys.readouterr().out.split())


def test_every_part_is_by_the_graders_keys_and_the_ks_that_were_asked_for(tmp_path, capsys):
    """0.5 and 1/2 are one wrong answer, and outvote a right one: by spelling it would be a tie of three, 1/3."""
    rows = [row("a", WRONG, sample=sample, extracted_answer=text) for sample, text in enumerate(("0.5", "1/2"))]
    write_evaluation(tmp_path / "mine", "baseline-v0", [*rows, row("a", sample=2)])
    assert main(["analyse", str(tmp_path / "mine"), "--k", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for part in (found["whole"], found["levels"][0], found["subjects"][0]):
        assert [(each["k"], each["maj_at_k"]) for each in part["at_k"]] == [(3, 0.0)]


def test_the_seed_that_was_asked_for_draws_every_interval(tmp_path, capsys):
    texts = ["+" * (index * 5 % 9) + "-" * (8 - index * 5 % 9) for index in range(40)]
    write_evaluation(tmp_path / "mine", "baseline-v0", samples(*texts))
    ends = {}
    for seed in ("0", "1"):
        assert main(["analyse", str(tmp_path / "mine"), "--seed", seed, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        ends[seed] = [part["accuracy"]["low"] for part in (found["whole"], found["levels"][0], found["subjects"][0])]
    assert all(first != second for first, second in zip(ends["0"], ends["1"], strict=True))


def test_nothing_that_stands_in_the_rows_changes_the_terminal_or_the_table(tmp_path, capsys):
    rows = [
        row("a" * 100_000, subject="[/red] x", gold="2\x1b[31m"),
        row(
            "\x1b[31mb", WRONG, subject="[bold]lin[/bold]", response="\x1b[2J\x1b]0;name\x07 evil \x9b2J" * 40, extracted_answer="\x1b[5m3"
        ),
        row("c", BROKEN, subject=":smile:", response=None),
    ]
    path = write_evaluation(tmp_path / "mine", "baseline-v0", rows)
    assert main(["analyse", str(path)]) == 0
    out = capsys.readouterr().out
    assert not any(mark in out for mark in "\x1b\x07\x9b")
    assert max(map(len, out.splitlines())) < 400
    assert all(subject in out for subject in ("│ [/red] x ", "│ [bold]lin[/bold] ", "│ :smile: "))


def test_a_recipe_of_another_version_hides_no_figure(run, capsys):
    (run / "recipe.toml").write_text("[run]\nunheard_of = 1\n")
    assert main(["analyse", str(run)]) == 0
    assert f"python jobs/sft.py {run / 'recipe.toml'}" in capsys.readouterr().out


def test_the_advice_is_for_the_stage_that_is_analysed_and_its_recipe(run, capsys):
    (run / "recipe.toml").write_text("[grpo]\nnum_steps = 40\n")
    write_evaluation(run, "grpo-v9", verdicts("+-", policy_version=9))
    assert main(["analyse", str(run), "--stage", "grpo"]) == 0
    command = f"python jobs/grpo.py {run / 'recipe.toml'} grpo.num_steps=80"
    assert command in capsys.readouterr().out
    assert main(["analyse", str(run), "--stage", "baseline"]) == 0  # whose remedy the run holds already
    assert command in capsys.readouterr().out
    write_evaluation(run, "expert_iteration-v5", verdicts("+-", policy_version=5))
    assert main(["analyse", str(run), "--stage", "expert_iteration"]) == 0
    assert f"python jobs/expert_iteration.py {run / 'recipe.toml'} expert_iteration.rounds=10" in capsys.readouterr().out


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
