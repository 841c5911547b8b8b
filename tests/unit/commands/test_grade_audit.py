"""What `grade` says about other graders: a second one, and those of other systems' dumps."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl_ray.__main__ import main
from mathrl_ray.commands.audit import DISAGREEMENTS, audit, we_pay
from mathrl_ray.commands.samples import Sample, best
from mathrl_ray.types import Grade

REPOSITORY = Path(__file__).resolve().parents[3]


def tagged(answer):
    return f"so it is </think> <answer> {answer} </answer>"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(tmp_path, rows, *options):
    """(graded rows, disagreements)"""
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", "--input", str(source), "--output", str(tmp_path / "out.jsonl"), "--workers", "2", *options]) == 0
    return lines(tmp_path / "out.jsonl"), lines(tmp_path / "out.disagreements.jsonl")


ROWS = [
    {"id": "spelled alike", "response": tagged("5"), "gold": "5"},
    {"id": "equal", "response": tagged("0.5"), "gold": r"\frac{1}{2}"},
    {"id": "wrong", "response": tagged("6"), "gold": "5"},
    {"id": "no tags", "response": r"\boxed{5}", "gold": "5"},
]


def test_exact_match_refuses_what_is_spelled_another_way(tmp_path, capsys):
    graded, found = run(tmp_path, ROWS, "--compare", "exact")
    assert [row["second_reward"] for row in graded] == [1, 0, 0, 0]
    assert [row["disagreement"] for row in graded] == [None, "exact: only_we_pay", None, None]
    [row] = found
    assert (row["id"], row["row"], row["gold"], row["answer"], row["ours"], row["theirs"], row["verdict"]) == (
        "equal", 2, r"\frac{1}{2}", "0.5", 1, 0, "only_we_pay",
    )  # fmt: skip
    table = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if " we " in line]
    assert table == [["we", "pay", "1", "1"], ["we", "refuse", "0", "2"]]


def test_a_disagreement_about_the_tags_alone_is_told_apart(tmp_path, capsys):
    (tmp_path / "lax.py").write_text("def judge(response, gold):\n    return gold in response\n")
    _, found = run(tmp_path, ROWS, "--compare", f"{tmp_path / 'lax.py'}:judge")
    assert [(row["id"], row["verdict"], row["about_format"]) for row in found] == [
        ("equal", "only_we_pay", False), ("no tags", "only_they_pay", True)
    ]  # fmt: skip
    assert "1 of the 1 that only" in capsys.readouterr().out


def test_math_verify_alone_pays_a_wrong_answer_that_we_refuse(tmp_path):
    rows = [{"id": "thirds", "response": tagged("$0.333333$"), "gold": "$1/3$"}]
    _, [found] = run(tmp_path, rows, "--compare", "math-verify")
    assert (found["id"], found["ours"], found["theirs"], found["verdict"], found["outcome"]) == ("thirds", 0, 1, "only_they_pay", "wrong")


@pytest.mark.parametrize("result", ["1.0", "True", "{'reward': 1.0}", "{'score': 1}", "Grade(1.0, 1.0, 1.0, 'correct', '5')"])
def test_a_second_grader_may_give_a_number_a_truth_value_a_dict_or_a_grade(tmp_path, result):
    parameters = "solution_str, ground_truth" if "score" in result else "response, gold"
    (tmp_path / "mine.py").write_text(f"from mathrl_ray.types import Grade\ndef judge({parameters}):\n    return {result}\n")
    graded, _ = run(tmp_path, ROWS[:1], "--compare", f"{tmp_path / 'mine.py'}:judge")
    assert graded[0]["second_reward"] == 1.0


def test_a5s_own_function_and_our_pure_grader_can_be_the_second_one(tmp_path):
    for spec in ("mathrl_ray.cs336:r1_zero_reward_fn", "mathrl_ray.core.grading.grade:grade"):
        graded, found = run(tmp_path, ROWS, "--compare", spec)
        assert [row["second_reward"] for row in graded] == [1, 1, 0, 0]
        assert found == []


HOSTILE = """
import os, sys, time
def judge(response, gold):
    if "hang" in response:
        time.sleep(60)  # beyond the limit
    if "die" in response:
        os._exit(3)
    if "leave" in response:
        sys.exit(3)
    if "raise" in response:
        raise KeyError("no such thing")
    return 1.0
"""


def test_a_second_grader_that_hangs_dies_or_raises_costs_its_own_verdicts_only(tmp_path, capsys):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    rows = [{"id": word, "response": tagged(f"{word} 5"), "gold": "5"} for word in ("hang", "fine", "die", "leave", "raise", "fine too")]
    began = time.monotonic()
    graded, found = run(tmp_path, rows, "--compare", f"{tmp_path / 'hostile.py'}:judge", "--limit-s", "1")
    assert time.monotonic() - began < 30  # one limit and the starts of processes; not the minute that the function sleeps
    assert [row["id"] for row in graded] == [row["id"] for row in rows]
    assert {row["id"] for row in found if row["verdict"] == "only_they_pay"} == {"fine", "fine too"}
    remarks = {row["id"]: row["remark"] for row in found if row["verdict"] == "no_verdict"}
    assert set(remarks) == {"hang", "die", "leave", "raise"}
    assert remarks["hang"] == "grader_timeout"
    assert "no such thing" in remarks["raise"]
    assert "4 samples have no verdict" in capsys.readouterr().out


def test_a_second_grader_that_always_hangs_is_said_while_most_is_still_to_come(tmp_path, capsys):
    (tmp_path / "slow.py").write_text("import time\ndef judge(response, gold):\n    time.sleep(60)\n")
    rows = [{"response": tagged(number), "gold": "5"} for number in range(6)]
    run(tmp_path, rows, "--compare", f"{tmp_path / 'slow.py'}:judge", "--limit-s", "0.5")
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "slow.py:judge ran into the limit of 0.5 s for 3 answers in a row" in warnings[0]
    assert "all of the 3 left" in warnings[0]  # so it was said at once


INTERRUPTS = """
import os, pathlib, signal, time
def judge(response, gold):
    while not (file := pathlib.Path({pid_file!r})).exists():
        time.sleep(0.01)
    os.kill(int(file.read_text()), signal.SIGINT)
    time.sleep(60)
"""


def test_what_ours_found_is_written_when_somebody_interrupts_the_second_grader(tmp_path):
    pid_file = tmp_path / "pid"
    (tmp_path / "mine.py").write_text(INTERRUPTS.format(pid_file=str(pid_file)))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    command = [sys.executable, "-m", "mathrl_ray", "grade", "--input", "rows.jsonl", "--output", "out.jsonl", "--workers", "1"]
    options = ["--compare", f"{tmp_path / 'mine.py'}:judge", "--limit-s", "1"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([*command, *options], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
        (tmp_path / "pid.part").write_text(str(running.pid))
        (tmp_path / "pid.part").rename(pid_file)
        error = running.communicate(timeout=60)[1]
    assert running.returncode == 1
    assert "did not come to its end; what our grader found is written" in error
    assert error.rstrip().endswith("interrupted")
    assert "Traceback" not in error
    assert [row["reward"] for row in lines(tmp_path / "out.jsonl")] == [1, 1, 0, 0]
    assert "second_reward" not in lines(tmp_path / "out.jsonl")[0]


VERL = [
    {"input": "1+1?", "output": r"so $\boxed{2}$", "gts": "2", "score": 1.0, "step": 1},
    {"input": "1/2?", "output": r"so $\boxed{0.5}$", "gts": r"\frac{1}{2}", "score": -1.0, "step": 1},
    {"input": "1+2?", "output": r"so $\boxed{4}$", "gts": "3", "score": 1.0, "step": 1},
    {"input": "1+3?", "output": "no idea", "gts": "4", "score": 0.1, "step": 1},
]


@pytest.mark.parametrize("style", ["boxed", "r1_zero"])
def test_a_rollout_dump_of_verl_shows_what_its_grader_paid_and_refused_wrongly(tmp_path, capsys, style):
    """By the answers alone, so the style that we grade by changes nothing: verl's rules know no tags."""
    graded, found = run(tmp_path, VERL, "--style", style)
    assert [{name: row[name] for name in VERL[0]} for row in graded] == VERL
    assert [row["lenient_answer_correct"] for row in graded] == [True, True, False, False]
    assert [row["disagreement"] for row in graded] == [None, "verl's score: only_we_pay", "verl's score: only_they_pay", None]
    assert [(row["id"], row["ours"], row["theirs"]) for row in found] == [("rows:2", 1, -1), ("rows:3", 0, 1)]
    table = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "answer right" in line and "│" in line]
    assert table == [["answer", "right", "1", "1"]]


def trl_table(path, **columns):
    chats = [[{"role": "assistant", "content": text}] for text in (r"\boxed{2}", r"\boxed{0.5}", r"\boxed{7}")]
    prompts = [[{"role": "user", "content": f"Solve. {question}"}] for question in ("1+1?", "What is 1/2?", "1+2?")]
    table = {"step": [3, 3, 3], "prompt": prompts, "completion": chats, "accuracy_reward": [1.0, 0.0, 1.0], "format_reward": [1.0] * 3}
    pq.write_table(pa.table({**table, "advantage": [0.5, -1.0, 0.5], **columns}), path)
    return str(path)


def test_a_completion_table_of_trl_is_read_with_its_chats_and_its_own_format_reward_is_kept(tmp_path):
    source = trl_table(tmp_path / "completions_00003.parquet", answer=["2", r"\frac{1}{2}", "3"])
    assert main(["grade", "--input", source, "--output", str(tmp_path / "out.parquet"), "--style", "boxed", "--workers", "1"]) == 0
    graded = pq.read_table(tmp_path / "out.parquet")
    assert graded["reward"].to_pylist() == [1, 1, 0]
    assert graded["previous_format_reward"].to_pylist() == [1, 1, 1]
    assert graded["completion"].type == pq.read_schema(source).field("completion").type
    found = pq.read_table(tmp_path / "out.disagreements.parquet").to_pylist()
    assert [(row["grader"], row["row"], row["verdict"]) for row in found] == [
        ("TRL's accuracy_reward", 2, "only_we_pay"), ("TRL's accuracy_reward", 3, "only_they_pay")
    ]  # fmt: skip


def test_a_table_of_trl_without_golds_takes_them_from_a_data_set_by_its_prompts(tmp_path, capsys):
    source = trl_table(tmp_path / "table.parquet")
    output = str(tmp_path / "out.jsonl")
    assert main(["grade", "--input", source, "--output", output]) == 1
    assert "--golds" in capsys.readouterr().err
    problems = [{"problem": "1+1?", "answer": "2"}, {"problem": "What is 1/2?", "answer": "1/2"}, {"problem": "1/2?", "answer": "9"}]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    assert main(["grade", "--input", source, "--output", output, "--style", "boxed", "--golds", str(tmp_path / "problems.jsonl")]) == 0
    # The longer of two problems that stand in a prompt is the one that it asks; the third has no gold.
    assert [row["outcome"] for row in lines(tmp_path / "out.jsonl")] == ["correct", "correct", "bad_gold"]


def test_samples_of_lm_eval_are_compared_filter_by_filter(tmp_path):
    base = {
        "doc_id": 7, "doc": {"question": "?"}, "target": "... \n#### 1,080", "arguments": [["?", {}]],
        "resps": [["The answer is 1080."]], "metrics": ["exact_match"],
    }  # fmt: skip
    rows = [
        {**base, "filter": "strict-match", "filtered_resps": ["[invalid]"], "exact_match": 0.0},
        {**base, "filter": "flexible-extract", "filtered_resps": ["1080"], "exact_match": 1.0},
    ]
    graded, found = run(tmp_path, rows)
    assert [row["lenient_answer_correct"] for row in graded] == [True, True]
    assert [(row["id"], row["grader"], row["verdict"]) for row in found] == [("7", "lm-eval's exact_match,strict-match", "only_we_pay")]


def test_a_column_correct_is_compared_without_being_asked_for_but_writes_no_second_file(tmp_path, capsys):
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"response": tagged("5"), "gold": "5", "correct": False}) + "\n")
    assert main(["grade", "--input", str(source), "--output", str(tmp_path / "out.jsonl")]) == 0
    assert "the column correct refuses" in capsys.readouterr().out
    assert not (tmp_path / "out.disagreements.jsonl").exists()


def test_what_we_could_not_judge_is_no_disagreement():
    grade = Grade(1.0, 0.0, 0.0, "bad_gold", "5")
    [entry] = audit("x", "reward", [Sample(0, "a", None, "5", ("",), "stop")], [grade], [(1.0, "")]).entries
    assert entry.verdict == "no_verdict"
    assert entry.verdict not in DISAGREEMENTS
    assert we_pay(Grade(1.0, 0.0, 0.0, "grader_timeout", "5"), "answer") is None


def test_of_several_golds_the_one_that_pays_counts_then_one_that_could_be_graded():
    wrong, right, bad = (Grade(1.0, float(o == "correct"), float(o == "correct"), o, "5", 0.25) for o in ("wrong", "correct", "bad_gold"))
    assert best([bad, wrong, right]).outcome == "correct"
    assert best([bad, wrong]).outcome == "wrong"
    assert best([bad, wrong, right]).grading_s == 0.75
