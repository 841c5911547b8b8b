"""The grader on whole collections: our own samples, the project's cases, MATH's golds, 800 real responses, and random text."""

import json
import random
import time
from pathlib import Path

import pytest
from grading_samples import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl_ray.core.grading.canonical import canonical
from mathrl_ray.core.grading.comparison import check_readable, same
from mathrl_ray.core.grading.expressions import UnreadableError
from mathrl_ray.core.grading.extraction import extract
from mathrl_ray.core.grading.grade import algebraic_verdict, grade, quick_verdict
from mathrl_ray.core.grading.reading import read

REPOSITORY = Path(__file__).resolve().parents[3]
DATA = REPOSITORY.parent / "shared" / "data"
NUM_GOLDS_IN_THE_NORMAL_SUITE = 300
EMPTY_GOLDS = {"MATH/train/number_theory/7115.json", "MATH/train/number_theory/7117.json"}


def rows(name):
    if not (DATA / name).exists():
        pytest.skip(f"the data set is not here: {DATA / name}")
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def tagged(answer):
    return f" 2 and 3 make 5. </think> <answer> {answer} </answer>"


def verdict(answer, gold):
    return quick_verdict(answer, gold) or algebraic_verdict(answer, gold)


# Our own samples


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_sample_of_a_kind_is_judged_right(kind):
    judged = {(answer, gold): grade(tagged(answer), gold).reward == 1.0 for answer, gold, _ in SAMPLES[kind]}
    assert judged == {(answer, gold): right for answer, gold, right in SAMPLES[kind]}


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_gold_of_a_kind_can_be_read_and_equals_itself(kind):
    unreadable = "huge"  # those are only equal as texts
    for _, gold, _ in SAMPLES[kind]:
        assert verdict(gold, gold) == "correct"
        assert kind == unreadable or algebraic_verdict(gold, gold) == "correct", gold


def test_the_samples_are_many_and_go_both_ways():
    samples = [(answer, gold, right) for kind in SAMPLES.values() for answer, gold, right in kind]
    assert len(samples) == len({(answer, gold) for answer, gold, _ in samples}) >= 400
    assert 150 <= sum(right for _, _, right in samples) <= len(samples) - 150


# The project's collection of cases


def test_no_wrong_answer_of_the_cases_is_paid_and_no_right_one_refused():
    cases = rows("grading_cases.jsonl")
    grades = {case["id"]: grade(case["response"], case["gold"]) for case in cases}
    assert {case["id"]: grades[case["id"]].reward == 1.0 for case in cases} == {case["id"]: case["correct"] for case in cases}
    assert {case["id"]: grades[case["id"]].format_reward == 1.0 for case in cases} == {case["id"]: case["format_ok"] for case in cases}


# MATH's golds


def math_golds():
    return [row for name in ("math_train.jsonl", "math_test.jsonl") for row in rows(name) if row["source"] not in EMPTY_GOLDS]


def unequal_to_themselves(golds):
    """(source, gold, how it was wrapped) of each gold that some wrapping changes, and of each that cannot be read."""
    faults = []
    for row in golds:
        gold = row["answer"]
        wrappings = (gold, rf"\boxed{{{gold}}}", f"${gold}$")
        faults += [(row["source"], gold, wrapped) for wrapped in wrappings if grade(tagged(wrapped), gold).reward != 1.0]
        if grade(rf"so it is $\boxed{{{gold}}}$.", gold, style="boxed").reward != 1.0:
            faults.append((row["source"], gold, "style boxed"))
        if algebraic_verdict(rf"The answer is $\boxed{{{gold}}}$, as said.", gold) != "correct":
            faults.append((row["source"], gold, "in a sentence, without the quick look"))
    return faults


def test_a_sample_of_maths_golds_equal_themselves_in_a_box_in_dollar_signs_and_in_tags():
    golds = [row for row in math_golds() if not row["answer"].isdecimal()]
    assert unequal_to_themselves(random.Random(0).sample(golds, NUM_GOLDS_IN_THE_NORMAL_SUITE)) == []


@pytest.mark.slow
def test_all_of_maths_golds_equal_themselves_in_a_box_in_dollar_signs_and_in_tags():
    golds = math_golds()
    assert len(golds) == 12_498
    started = time.monotonic()
    assert unequal_to_themselves(golds) == []
    print(f"12,498 golds, four spellings each: {time.monotonic() - started:.0f} s")


def test_the_two_empty_golds_are_bad_golds():
    empty = [row for row in rows("math_train.jsonl") if row["source"] in EMPTY_GOLDS]
    assert [grade(tagged("0"), row["answer"]).outcome for row in empty] == ["bad_gold"] * 2


@pytest.mark.slow
def test_a_digit_more_in_a_gold_of_math_makes_it_another():
    for row in math_golds():
        gold = row["answer"]
        if gold[-1:] in "123456789":  # a last digit that belongs to a number, an index or a base
            assert verdict(gold[:-1] + str(int(gold[-1]) % 9 + 1), gold) != "correct", gold


# Real responses

JUDGED_RIGHT_AGAINST_THEIR_FILE = {**{("MATH/test/prealgebra/1462.json", sample): "4:30 p.m." for sample in range(8)}}
JUDGED_RIGHT_AGAINST_THEIR_FILE["MATH/test/prealgebra/1130.json", 7] = "10000 for 10{,}000"


def test_on_800_real_responses_only_the_known_false_negatives_of_their_own_grader_are_judged_otherwise():
    responses = rows("math_generations.jsonl")
    differing = {
        (row["source"], row["sample"]): grade(row["response"], row["math_answer"], style="boxed").outcome
        for row in responses
        if (grade(row["response"], row["math_answer"], style="boxed").reward == 1.0) != row["correct"]
    }
    assert len(responses) == 800
    assert differing == dict.fromkeys(JUDGED_RIGHT_AGAINST_THEIR_FILE, "correct")


# Speed


def test_exact_matches_take_a_fast_path_far_ahead_of_parsing_both():
    """The rate itself is in tests/benchmarks/grading_pool.py; a ratio of two medians taken by turns holds on a busy machine too."""
    golds = [rf"\frac{{1}}{{{number}}}" for number in range(10, 50)]

    def seconds(answers):
        started = time.perf_counter()
        assert all(grade(tagged(answer), gold).reward == 1.0 for answer, gold in zip(answers, golds, strict=True))
        return time.perf_counter() - started

    parsed = [rf"\frac{{\sqrt{{4}}}}{{{2 * number}}}" for number in range(10, 50)]  # equal by value only
    ratios = [seconds(parsed) / seconds(golds) for _ in range(5)]
    assert sorted(ratios)[2] > 20, ratios


# Random text

COMMANDS = ("frac", "sqrt", "pm", "cup", "in", "le", "infty", "pi", "text", "boxed", "left(", "right)", "ldots", "{", "}", "\\")
FRAGMENTS = [
    *"0123456789xyabni+-*/=<>^_(){}[]|,.;:!%$& \\'",
    *(rf"\{name}" for name in COMMANDS),
    *(r"\frac{1}{2}", r"\sqrt{2}", r"\text{ cm}", r"\begin{pmatrix}", r"\end{pmatrix}", r"^\circ", r"\binom{5}{2}", r"\mathbb{R}"),
    *(" and ", " or ", " is ", "not", "the answer", "cm", "May", "a.m.", "1,000", "0.5", "e5", "2/3", r"\emptyset", "±", "∞", "√7"),
    *("\uff12", "平方", "é", "\n", "\x00", "\ud800"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.text(max_size=20)
SOME_GOLDS = [gold for kind in SAMPLES.values() for _, gold, _ in kind]


@st.composite
def mutated(draw):
    """A gold with a piece cut out, doubled or replaced."""
    gold = draw(st.sampled_from(SOME_GOLDS))
    start = draw(st.integers(0, len(gold)))
    end = draw(st.integers(start, len(gold)))
    return gold[:start] + draw(st.sampled_from(["", gold[start:end] * 2, draw(texts)])) + gold[end:]


def nothing_comes_out_of_the_grader_but_a_grade(text, gold):
    result = grade(tagged(text), gold)
    assert result.reward in (0.0, 1.0)
    assert result.reward == float(result.outcome == "correct") == float(result.lenient_answer_correct)
    assert grade(text, gold, style="boxed").answer_reward in (0.0, 1.0)
    assert grade(tagged("5"), text).reward in (0.0, 1.0)


def the_readers_refuse_what_they_cannot_read_and_raise_nothing_else(text, gold):
    """The border in algebraic_verdict would hide a fault of ours; this looks behind it."""
    try:
        shape, wanted = read(canonical(text)), read(canonical(gold))
        assert same(shape, shape)
        same(wanted, shape)
        check_readable(shape)
    except (UnreadableError, RecursionError):
        pass


@given(texts | mutated(), st.sampled_from(SOME_GOLDS) | texts)
@settings(max_examples=150, deadline=None)
def test_no_text_makes_the_grader_raise(text, gold):
    nothing_comes_out_of_the_grader_but_a_grade(text, gold)


@given(texts | mutated(), st.sampled_from(SOME_GOLDS))
@settings(max_examples=150, deadline=None)
def test_no_text_makes_a_reader_raise_anything_but_that_it_is_unreadable(text, gold):
    the_readers_refuse_what_they_cannot_read_and_raise_nothing_else(text, gold)


@pytest.mark.slow
@given(texts | mutated(), st.sampled_from(SOME_GOLDS) | texts)
@settings(max_examples=2_000, deadline=None)
def test_2_000_texts_do_not_make_the_grader_raise(text, gold):
    nothing_comes_out_of_the_grader_but_a_grade(text, gold)
    the_readers_refuse_what_they_cannot_read_and_raise_nothing_else(text, gold)


@given(st.fractions(min_value=-99, max_value=99, max_denominator=99), st.fractions(min_value=-99, max_value=99, max_denominator=99))
@settings(deadline=None)
def test_fractions_are_equal_exactly_when_python_says_so(gold, answer):
    spelt = rf"\frac{{{answer.numerator * 3}}}{{{answer.denominator * 3}}}"
    assert (verdict(spelt, str(gold)) == "correct") == (gold == answer)
    assert verdict(spelt, str(answer)) == "correct"


@given(st.permutations(["1", "-2", r"\sqrt{3}", r"\frac{1}{2}"]), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_roots_have_no_order_tuples_have_one_and_none_may_be_missing(items, missing):
    gold = ["1", "-2", r"\sqrt{3}", r"\frac{1}{2}"]
    assert verdict(", ".join(items), ", ".join(gold)) == "correct"
    assert (verdict(f"({', '.join(items)})", f"({', '.join(gold)})") == "correct") == (items == gold)
    assert verdict(", ".join(items[:missing] + items[missing + 1 :]), ", ".join(gold)) == "wrong"


@given(st.text(alphabet="0123456789,.+-/ xe^{}\\fracsqt()", max_size=30), st.sampled_from(["r1_zero", "boxed", "question_only"]))
def test_whatever_the_style_the_answer_to_judge_is_a_part_of_the_response_or_nothing(text, style):
    extraction = extract(f"a {text} b", style)
    assert extraction.format_ok is False or extraction.answer is not None
