"""The cases that the project wrote, through the command, as somebody would run them."""

import json
import time
from pathlib import Path

import pytest

from mathrl_ray.__main__ import main

CASES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "grading_cases.jsonl"
LIMIT_S = 40


def test_all_grading_cases_are_judged_in_time_and_no_wrong_answer_is_paid(tmp_path):
    if not CASES.exists():
        pytest.skip(f"the cases are not here: {CASES}")
    began = time.monotonic()
    assert main(["grade", "--input", str(CASES), "--output", str(tmp_path / "graded.jsonl"), "--workers", "2"]) == 0
    assert time.monotonic() - began < LIMIT_S
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    graded = [json.loads(line) for line in (tmp_path / "graded.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in graded] == [case["id"] for case in cases]
    assert [row["id"] for row in graded if row["reward"] and not row["correct"]] == []
    refused = [row["id"] for row in graded if row["correct"] and not row["reward"]]
    assert len(refused) <= 2
    assert [row["id"] for row in graded if bool(row["format_reward"]) != row["format_ok"]] == []
    assert [row["id"] for row in graded if row["kind"] in ("hang", "format") and bool(row["reward"]) != row["correct"]] == []
