import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mathrl_ray.config import Recipe
from mathrl_ray.driver.console import LOG_WIDTH, Console, protocol
from mathrl_ray.driver.result_tables import WIDTH, columns_that_fit, grid

SUBJECTS = ["Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra", "Precalculus"]


def part(name, num_right, num):
    return {"name": name, "accuracy": num_right / num, "ci95": [0.102, 0.987], "num_problems": num}


def stage(name, **more):
    """An entry as runs wrote it before there were levels in it, and `more`."""
    return {
        "name": name, "accuracy": 0.5, "ci95": [0.4, 0.6], "num_problems": 100, "num_ungraded": 3, "format_rate": 0.9,
        "mean_entropy_nats": 0.31, "mean_response_tokens": 17.2, "generated_tokens": 1234567, "optimizer_steps": 50, "wall_s": 91.6, **more,
    }  # fmt: skip


def shown(capsys, stages, **evaluation):
    Console().table(stages, protocol(Recipe.model_validate({"eval": evaluation})))
    return capsys.readouterr().out


def flat(text):
    return " ".join(text.split())


def test_an_older_summary_shows_the_table_of_stages_alone(capsys):
    out = shown(capsys, [stage("baseline")])
    assert "50.0 % (40.0 to 60.0) │       97" in out
    assert out.count("┏") == 1


def test_the_caption_says_what_the_entropy_is_and_by_which_protocol_the_accuracy_came(capsys):
    out = flat(shown(capsys, [stage("baseline")], temperature=0.6))
    assert "Prompt r1_zero, temperature 0.6, top-p 1, at most 64 tokens, one answer a problem, grader default, run.seed 0; Wilson" in out
    assert "nats/token: mean entropy over all tokens of the responses, from the learner, over the full distribution at temperature 1" in out


def test_levels_and_subjects_stand_below_with_their_numbers(capsys):
    levels = [part("1", 3, 4), part("2", 1, 8)]
    out = flat(shown(capsys, [stage("baseline", by_level=levels, by_subject=[part("algebra", 1, 2)]), stage("sft", by_level=levels[:1])]))
    assert "│ stage ┃" not in out
    assert "┃ level 1 ┃ level 2 ┃" in out
    assert "│ baseline │ 75.0 % of 4 │ 12.5 % of 8 │ │ │ 10.2 to 98.7 │ 10.2 to 98.7 │" in out
    assert "│ sft │ 75.0 % of 4 │ - │ │ │ 10.2 to 98.7 │ │" in out
    assert "│ baseline │ 50.0 % of 2 │ │ │ 10.2 to 98.7 │" in out
    assert out.index("by level, of") < out.index("by subject, of")
    assert out.count("with its 95 % interval below") == 1


def test_several_answers_a_problem_are_named_and_pass_and_maj_shown(capsys):
    at_k = [{"k": k, "pass_at_k": 0.5 + k / 100, "maj_at_k": 0.25, "num_problems": 99} for k in (1, 4)]
    out = flat(shown(capsys, [stage("grpo", num_samples=4, num_graded_problems=99, at_k=at_k)], num_samples=4))
    assert "│ 99 x 4 │" in out
    assert "4 answers a problem, grader default, run.seed 0; intervals from the bootstrap over problems" in out
    assert "┃ pass@4 ┃ maj@4 ┃" in out
    assert "│ grpo │ 54.0 % │ 25.0 % │" in out
    assert "pass@1" not in out


def test_pass_at_k_says_how_many_problems_it_rests_on_where_some_lack_k_graded_samples(capsys):
    at_k = [{"k": k, "pass_at_k": 1.0, "maj_at_k": 0.5, "num_problems": num} for k, num in ((4, 10), (8, 5))]
    out = flat(shown(capsys, [stage("grpo", num_samples=8, num_graded_problems=10, at_k=at_k)], num_samples=8))
    assert "│ grpo │ 100.0 % │ 50.0 % │ 100.0 % of 5 │ 50.0 % of 5 │" in out


def test_the_seven_subjects_of_math_go_into_two_tables_with_no_number_broken(capsys):
    subjects = [part(name, 1000, 1000) for name in SUBJECTS]
    out = shown(capsys, [stage(name, by_subject=subjects) for name in ("baseline", "expert_iteration")])
    assert all(len(line.rstrip()) <= 126 for line in out.splitlines())
    tables = out.split("┏")[2:]
    assert len(tables) == 2
    assert all(len(line.rstrip()) <= WIDTH for text in tables for line in text.splitlines())
    assert out.count("100.0 % of 1000") == 14
    assert all(name in out for name in SUBJECTS)


def test_columns_of_chinese_subjects_are_measured_in_cells(capsys):
    subjects = [part(name * 4, 1, 2) for name in ("代数与几何", "概率与统计", "数论与组合")]
    out = shown(capsys, [stage("baseline", by_subject=subjects)])
    tables = out.split("┏")[2:]
    assert len(tables) == 2  # two of 40 cells each leave no room for a third
    assert all(cell_len(line.rstrip()) <= WIDTH for text in tables for line in text.splitlines())
    assert all(subject["name"] in out for subject in subjects)


BROAD = {"accuracy": 1.0, "ci95": [0.997, 1.0], "num_problems": 100_000, "num_graded_problems": 100_000, "num_samples": 16}
"""With numbers as large as they come; beside them the log's width is not enough."""


def test_the_table_of_stages_is_as_wide_as_its_numbers(capsys):
    large = {"generated_tokens": 1_234_567_890, "format_rate": 1.0, "mean_response_tokens": 10_217.2, "optimizer_steps": 50_000}
    out = shown(capsys, [stage("expert_iteration") | BROAD | large | {"wall_s": 91_000}])
    assert len(out.splitlines()[2]) > LOG_WIDTH
    for text in ("100.0 % (99.7 to 100.0)", "100000 x 16", "1,234,567,890", "91000 s │"):
        assert text in out


def test_no_interval_is_lost_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    assert rich.console.Console().is_terminal
    out = shown(capsys, [stage("baseline", by_level=[part(str(level), 1, 2) for level in range(1, 6)])])
    assert "50.0 % (40.0 to 60.0) │       97" in out
    assert out.count("10.2 to 98.7") == 5


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(20, 120))
def test_columns_come_once_in_order_and_fit_unless_one_alone_does_not(widths, room):
    groups = columns_that_fit(widths, room)
    assert [index for group in groups for index in group] == list(range(len(widths)))
    for group, following in zip(groups, [*groups[1:], []], strict=False):
        cost = sum(widths[index] + 3 for index in group)
        assert cost <= room or len(group) == 1
        assert not following or cost + widths[following[0]] + 3 > room


@pytest.mark.parametrize("cells", [{}, {"baseline": {}}])
def test_nothing_known_is_no_table(cells):
    assert grid("Accuracy by level", cells) == []


def test_a_steps_line_shows_whole_numbers_whole_and_three_digits_of_others(capsys):
    Console().step(
        "grpo", 5, 5, {"accepted": 1013, "pool": 2000, "reward": 0.43219, "zero": 0.0, "tokens": 1234.56, "nothing": float("nan")}
    )
    assert "grpo step 5/5  accepted 1,013  pool 2,000  reward 0.432  zero 0  tokens 1,235  nothing nan  0 s left" in capsys.readouterr().out
