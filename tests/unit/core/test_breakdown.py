import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from evaluation_rows import BROKEN, RIGHT, UNGRADED, WRONG, row, samples, verdicts

from mathrl_ray.core.breakdown import UNKNOWN, answer_key, by_level, by_outcome, by_subject, whole
from mathrl_ray.core.statistics import wilson_interval

GENERATIONS = Path(__file__).parents[3].parent / "shared" / "data" / "math_generations.jsonl"


# The 800 real generations


@pytest.fixture(scope="module")
def generations():
    if not GENERATIONS.is_file():
        pytest.skip(f"{GENERATIONS.name} is not beside the checkout (../shared/data): its figures cannot be recomputed")
    return [json.loads(line) for line in GENERATIONS.read_text(encoding="utf-8").splitlines()]


def evaluation_of(generations):
    return [
        row(
            each["source"],
            RIGHT if each["correct"] else WRONG,
            level=int(each["level"].removeprefix("Level ")),
            sample=each["sample"],
            response=each["response"],
            extracted_answer=each["pred"],
        )
        for each in generations
    ]


def independently(generations, k):
    """pass@k and maj@k of every subset of k samples, counted one by one; all right answers are one candidate, ties are shared."""
    passed, won = [], []
    for source in {each["source"]: None for each in generations}:
        answers = ["right" if each["correct"] else each["pred"].replace(" ", "") for each in generations if each["source"] == source]
        for drawn in combinations(answers, k):
            most = max(Counter(drawn).values())
            leaders = [answer for answer, count in Counter(drawn).items() if count == most]
            passed.append("right" in drawn)
            won.append(("right" in leaders) / len(leaders))
    return fmean(passed), fmean(won)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_by_level_pass_and_maj_at_1_4_8_of_the_real_generations_are_those_of_all_subsets(generations, level):
    part = next(each for each in by_level(evaluation_of(generations)) if each.name == str(level))
    of_level = [each for each in generations if each["level"] == f"Level {level}"]
    assert part.num_samples == len(of_level) == 8 * part.num_problems
    assert part.accuracy.value == pytest.approx(fmean(each["correct"] for each in of_level))
    assert [each.k for each in part.at_k] == [1, 4, 8]
    for each in part.at_k:
        assert (each.pass_at_k, each.maj_at_k) == pytest.approx(independently(of_level, each.k)), each.k


def test_the_real_generations_as_a_whole(generations):
    # SOURCES.md: 728 of 800 right by their grader
    part = whole(evaluation_of(generations))
    assert (part.num_problems, part.num_samples, part.accuracy.value) == (100, 800, 0.91)
    assert part.accuracy.method == "cluster_bootstrap"
    assert part.accuracy.low < 0.91 < part.accuracy.high
    assert [each.num_problems for each in part.at_k] == [100, 100, 100]


# Synthetic rows


def test_by_subject_each_part_has_its_own_figures():
    rows = [
        *verdicts("++-", subject="word"),
        *[{**each, "problem_id": f"q{index}"} for index, each in enumerate(verdicts("+---", subject="algebra"))],
        row("r", WRONG, subject=None),
    ]
    parts = by_subject(rows)
    assert [(part.name, part.num_problems, part.accuracy.value) for part in parts] == [
        ("algebra", 4, 0.25),
        ("word", 3, pytest.approx(2 / 3)),
        (UNKNOWN, 1, 0.0),
    ]
    assert (parts[0].accuracy.low, parts[0].accuracy.high) == wilson_interval(1, 4)


def test_a_subject_called_unknown_is_unknown():
    rows = [row("a", subject="unknown"), row("b", WRONG, subject=None), row("c", subject=""), row("d", subject="word")]
    assert [(part.name, part.num_problems, part.accuracy.value) for part in by_subject(rows)] == [
        ("word", 1, 1.0),
        (UNKNOWN, 3, pytest.approx(2 / 3)),
    ]


def test_levels_rise_as_numbers_and_the_unknown_one_is_last():
    rows = [row(f"p{level}", level=level) for level in (10, None, 2)]
    assert [part.name for part in by_level(rows)] == ["2", "10", UNKNOWN]


def test_what_could_not_be_graded_is_in_no_denominator():
    part = whole(verdicts("+-??"))
    assert (part.accuracy.value, part.num_problems, part.accuracy.num_problems, part.num_ungraded) == (0.5, 4, 2, 2)
    assert whole(samples("++", "?+", "?-")).accuracy.value == pytest.approx(2 / 3)


def test_a_timeout_counts_against_the_accuracy():
    rows = [row("p0"), row("p1", WRONG, outcome="grader_timeout")]
    assert whole(rows).accuracy.value == 0.5


def test_lengths_of_right_and_wrong_answers():
    rows = [row("a", num_response_tokens=10), row("b", num_response_tokens=20), row("c", WRONG, num_response_tokens=60)]
    assert (whole(rows).mean_right_tokens, whole(rows).mean_wrong_tokens) == (15, 60)
    assert whole(rows[:2]).mean_wrong_tokens is None


def test_the_format_rate_is_of_all_samples():
    assert whole([row("a"), row("b", BROKEN), row("c", UNGRADED), row("d", BROKEN)]).format_rate == 0.5


def test_k_counts_only_problems_with_enough_samples():
    # p0: 1 of 2 right; p1 has one graded sample. pass@2 of p0 is 1, maj@2 a tie: 1/2
    part = whole(samples("+-", "-?"), ks=(1, 2, 4))
    assert [(each.k, each.pass_at_k, each.maj_at_k, each.num_problems) for each in part.at_k] == [(1, 0.25, 0.25, 2), (2, 1.0, 0.5, 1)]


def test_a_broken_format_and_a_timeout_vote_for_nothing():
    assert answer_key(row("p", WRONG, extracted_answer=" 3 ")) == answer_key(row("p", WRONG, extracted_answer="$3$.")) == "3"
    assert answer_key(row("p", BROKEN, extracted_answer="3")) is None
    assert answer_key(row("p", WRONG, outcome="grader_timeout")) is None
    assert answer_key(row("p", WRONG, extracted_answer="")) is None


def test_a_given_key_says_which_wrong_answers_are_one():
    # 0.5, 1/2 and a right one: by spelling a tie of three at k = 3, by value the wrong ones win
    rows = [row("p", WRONG, sample=0, extracted_answer="0.5"), row("p", WRONG, sample=1, extracted_answer="1/2"), row("p", sample=2)]
    assert whole(rows, ks=(3,)).at_k[0].maj_at_k == pytest.approx(1 / 3)
    assert whole(rows, ks=(3,), key=lambda _: "half").at_k[0].maj_at_k == 0.0


def test_outcomes_are_counted_in_their_order():
    rows = [row("a", BROKEN, num_response_tokens=30), row("b"), row("c", BROKEN, num_response_tokens=50), row("d", UNGRADED)]
    assert [(each.outcome, each.num_samples, each.share, each.mean_response_tokens) for each in by_outcome(rows)] == [
        ("correct", 1, 0.25, 10),
        ("no_answer", 2, 0.5, 40),
        ("grader_error", 1, 0.25, 10),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "without rows"),
        ([row("a"), row("a")], "sample 0 of the problem a comes 2 times"),
        ([row("a"), row("b", prompt_name="chat")], "several values of prompt_name: chat, r1_zero"),
        ([row("a"), row("b", policy_version=3)], "several values of policy_version: 0, 3"),
        ([row("a"), row("b", temperature=0.5)], "several values of temperature: 0.5, 1.0"),
        ([row("a"), row("b", max_tokens=9)], "several values of max_tokens: 64, 9"),
        ([row("a"), row("b", grader="mine")], "several values of grader: default, mine"),
    ],
)
@pytest.mark.parametrize("figures", [whole, by_level, by_subject, by_outcome])
def test_rows_of_no_single_evaluation_are_refused(figures, rows, message):
    with pytest.raises(ValueError, match=message):
        figures(rows)
