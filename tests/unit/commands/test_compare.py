import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_words import record, refused, said
from evaluation_rows import row, samples, verdicts, write_evaluation

from mathrl_ray.__main__ import main
from mathrl_ray.core.paired_tests import mcnemar_exact

BEFORE, AFTER = "+----------+", "+++++++----+"
"""Seven problems apart: 6 gained, none lost."""


@pytest.fixture
def runs(tmp_path):
    """Two runs: `old` has baseline and sft, `new` has grpo, with two prompts, and a validation."""
    write_evaluation(tmp_path / "old", "baseline-v0", verdicts("-" * 12))
    write_evaluation(tmp_path / "old", "sft-v3", verdicts(BEFORE))
    write_evaluation(tmp_path / "new", "grpo-v9", verdicts("-" * 12))
    write_evaluation(tmp_path / "new", "grpo-v50", verdicts(AFTER, policy_version=50))
    write_evaluation(tmp_path / "new", "grpo-chat-v50", verdicts(BEFORE, prompt_name="chat", policy_version=50))
    write_evaluation(tmp_path / "new", "validation-grpo-step10-v10", [row("other")])
    return tmp_path


def test_two_runs_are_compared_by_the_newest_evaluation_of_their_last_stages(runs, capsys):
    shown = said(capsys, "compare", runs / "old", runs / "new")
    assert "new/grpo-v50 beside old/sft-v3: McNemar's exact test over 12 problems" in shown
    assert "gained: p1, p2, p3, p4, p5, p6" in shown
    assert "lost:" not in shown
    assert f"{mcnemar_exact(0, 6):.3f}" in shown
    assert "compares checkpoints, not methods" in shown


def test_json_holds_everything(runs, capsys):
    found = record(capsys, "compare", runs / "old", runs / "new", "--json")
    (pair,) = found["comparisons"]
    assert (pair["first"], pair["second"], pair["test"]) == ("old/sft-v3", "new/grpo-v50", "mcnemar_exact")
    assert pair["gained"] == ["p1", "p2", "p3", "p4", "p5", "p6"]
    assert (pair["difference"], pair["p_value"], pair["p_value_holm"]) == (0.5, mcnemar_exact(0, 6), mcnemar_exact(0, 6))
    assert pair["first_accuracy"]["value"] == pytest.approx(2 / 12)
    assert found["evaluations"][1] == {"name": "new/grpo-v50", "file": str(runs / "new" / "evaluations" / "grpo-v50.parquet")}
    assert "not methods" in found["note"]


def test_several_runs_are_compared_pair_by_pair_with_adjusted_p_values(runs, capsys):
    write_evaluation(runs / "third", "grpo-v1", verdicts("+" * 12))
    found = record(capsys, "compare", runs / "old", runs / "new", runs / "third", "--json")["comparisons"]
    # p: 6 against 0 = 0.03125, 10 against 0 = 0.00195, 4 against 0 = 0.125; times 2, 3 and 1
    assert [each["p_value_holm"] for each in found] == pytest.approx([2 * 0.03125, 3 / 512, 0.125])
    assert "adjusted for 3 tests" in said(capsys, "compare", runs / "old", runs / "new", runs / "third")


def test_one_run_is_compared_within_its_stages(runs, capsys):
    assert "sft-v3 beside baseline-v0" in said(capsys, "compare", runs / "old")


def test_one_run_and_a_stage_compares_its_prompts_with_a_warning(runs, capsys):
    shown = said(capsys, "compare", runs / "new", "--stage", "grpo")
    assert "grpo-chat-v50 beside grpo-v50" in shown
    assert "warning: prompt_name differs (r1_zero and chat)" in shown


def test_a_stage_a_prompt_and_files_can_be_named(runs, capsys):
    file = runs / "new" / "evaluations" / "grpo-v9.parquet"
    assert "new/grpo-v9 beside old/baseline-v0" in said(capsys, "compare", runs / "old", file, "--stage", "baseline")
    pair = record(capsys, "compare", runs / "old", runs / "new", "--prompt", "r1_zero", "--json")["comparisons"][0]
    assert pair["second"] == "new/grpo-v50"  # the first prompt's file does not name it


def test_several_samples_a_problem(runs, capsys):
    write_evaluation(runs / "few", "sft-v1", samples("+-", "--", "--"))
    write_evaluation(runs / "many", "sft-v1", samples("++", "+-", "-+"))
    assert "sign-flip test, all flips over 3 problems" in said(capsys, "compare", runs / "few", runs / "many")


def test_names_and_ids_are_shown_as_they_are_but_on_one_short_line(runs, capsys):
    ids = ["x" * 100_000, "\x1b[31mred\n[/b]"]
    for name, change in (("x[red]", "-"), ("[b]\x1b[2Jrun", "+")):
        write_evaluation(
            runs / name,
            "sft-v1",
            [{**made, "problem_id": key, "problem": "?"} for key, made in zip(ids, verdicts(2 * change), strict=True)],
        )
    assert main(["compare", str(runs / "x[red]"), str(runs / "[b]\x1b[2Jrun")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 400
    assert "[b][2Jrun/sft-v1 beside x[red]/sft-v1" in out
    assert "│ [b][2Jrun/sft-v1 beside x[red]/sft-v1" in out  # the table's rows are no markup
    assert "[31mred [/b]" in out


def test_no_interval_of_a_table_is_broken(runs, capsys):
    for name in ("a" * 70, "b" * 70):
        write_evaluation(runs / name, "sft-v1", verdicts("+" * 12 if name[0] == "b" else "-" * 12))
    assert main(["compare", str(runs / ("a" * 70)), str(runs / ("b" * 70))]) == 0
    out = capsys.readouterr().out
    assert "difference in points (95 %)" in out
    assert "+100.0 (+65.7 to +100.0)" in out
    assert "100.0 % (75.8 to 100.0)" in out
    assert "points" not in out.split("┡")[1].split("└")[0]


def test_long_lists_of_ids_are_shortened_on_the_screen_only(runs, capsys):
    assert "gained: p1, p2 and 4 more" in said(capsys, "compare", runs / "old", runs / "new", "--ids", "2")


def test_runs_of_one_name_are_told_apart_by_their_paths(runs, capsys):
    write_evaluation(runs / "elsewhere" / "old", "sft-v3", verdicts(AFTER))
    pair = record(capsys, "compare", runs / "old", runs / "elsewhere" / "old", "--json")["comparisons"][0]
    assert "elsewhere" in pair["second"]
    assert pair["first"] != pair["second"]


def test_problems_of_one_side_are_refused_unless_only_the_shared_ones_are_asked_for(runs, capsys):
    write_evaluation(runs / "short", "sft-v1", verdicts("++-"))
    assert "--shared compares the 3 that both have" in refused(capsys, "compare", runs / "old", runs / "short", "--stage", "sft")
    assert "over 3 problems; 9 left out" in said(capsys, "compare", runs / "old", runs / "short", "--stage", "sft", "--shared")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent", "old"], "absent: no such run directory"),
        (["empty", "old"], "empty: holds no folder evaluations"),
        (["started", "old"], "started: it holds no evaluation; a stage writes one at its end"),
        (["old", "new", "--stage", "grpo"], "old: holds no evaluation of grpo; it holds baseline-v0.parquet, sft-v3.parquet"),
        (
            ["new", "old", "--stage", "grop"],
            "new: holds no evaluation of grop; it holds grpo-chat-v50.parquet, grpo-v50.parquet, grpo-v9.parquet\n",
        ),
        (["old", "new", "--prompt", "mine"], "old: holds no evaluation of sft with the prompt mine"),
        (["old", "old"], "is named twice"),
        (["new"], "only grpo has an evaluation"),
        (["old", "--stage", "sft"], "sft was evaluated with one prompt only"),
        (["new", "--stage", "grpo", "--prompt", "chat"], "are one evaluation"),
        (["new/evaluations/grpo-v9.parquet"], "alone has nothing beside it"),
        (["old", "text.parquet"], "text.parquet: cannot be read as Parquet"),
        (["old", "columns.parquet"], "columns.parquet: is no evaluation of a run: the columns answer_reward, extracted_answer"),
        (["old", "rowless.parquet"], "rowless.parquet: holds no row"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_message(runs, capsys, monkeypatch, words, message):
    monkeypatch.chdir(runs)
    (runs / "empty").mkdir()
    (runs / "started" / "evaluations").mkdir(parents=True)
    (runs / "text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"problem_id": ["a"]}), runs / "columns.parquet")
    write_evaluation(runs, "rowless", []).rename(runs / "rowless.parquet")
    assert message in refused(capsys, "compare", *words)


def test_other_graders_are_refused(runs, capsys):
    write_evaluation(runs / "strict", "sft-v3", verdicts(BEFORE, grader="exact"))
    assert "verdicts of one grader are wanted" in refused(capsys, "compare", runs / "old", runs / "strict")


def test_it_loads_no_engine_and_no_torch(runs):
    run = f"from mathrl_ray.__main__ import main; main(['compare', {str(runs / 'old')!r}, {str(runs / 'new')!r}])"
    code = f"import sys; {run}; print(sorted({{'ray', 'vllm', 'deepspeed', 'torch', 'transformers'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
