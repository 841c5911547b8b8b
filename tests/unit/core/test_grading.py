import asyncio
import doctest
import importlib
import json
import pkgutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify.errors import TimeoutException

from mathrl_ray.core import grading
from mathrl_ray.core.grading.extraction import Extraction, extract
from mathrl_ray.core.grading.grade import algebraic_verdict, grade, load, pay, quick_verdict
from mathrl_ray.core.grading.spelling import is_whole, normalise

REPOSITORY = Path(__file__).resolve().parents[3]
CASES = REPOSITORY.parent / "shared" / "data" / "grading_cases.jsonl"

no_tags = st.text().filter(lambda text: "<" not in text)


def tagged(answer):
    return f" 2 and 3 make 5. </think> <answer> {answer} </answer>"


@pytest.mark.parametrize("file", [module.name for module in pkgutil.iter_modules(grading.__path__)])
def test_the_examples_in_the_docstrings_hold(file):
    assert doctest.testmod(importlib.import_module(f"mathrl_ray.core.grading.{file}")).failed == 0


# The tag rule


@pytest.mark.parametrize(
    ("response", "format_ok", "answer"),
    [
        (" so </think> <answer> 5 </answer>", True, "5"),
        (" so </think> <answer>5</answer>", True, "5"),
        (" so </think> <answer>\n5\n</answer>", True, "5"),
        (" so </think> <answer> 5 </answer><|endoftext|>", True, "5"),
        (" so </think> <answer> 5 </answer> and then some", True, "5"),
        (" so </think> it is </think> <answer> 5 </answer>", True, "5"),
        (" fill the <answer> tag </think> <answer> 5 </answer>", True, "5"),
        (" so </think>\n<answer> 5 </answer>", False, "5"),
        (" so </think><answer> 5 </answer>", False, "5"),
        (" so </think>  <answer> 5 </answer>", False, "5"),
        (" so </THINK> <ANSWER> 5 </ANSWER>", False, None),
        (" so </think> <answer> 5 </ANSWER>", False, None),
        (" <answer> 5 </answer> so </think>", False, "5"),
        (" so </think> <answer> 5 ", False, None),
        (" </answer> so </think> <answer> 5 ", False, None),
        (" </answer> 5 <answer>", False, None),
        (" so it is 5", False, None),
        ("", False, None),
        # an empty pair is a pair
        (" so </think> <answer></answer>", True, ""),
        (" so </think> <answer> \n </answer> 5", True, ""),
        # the last complete pair wins; it starts at the last opening tag that is closed and ends at the first tag that closes it
        (" so </think> <answer> 5 </answer> no, <answer> 6 </answer>", True, "6"),
        (" so </think> <answer> 5 <answer> 6 </answer>", True, "6"),
        (" so </think> <answer> 5 </answer> 6 </answer>", True, "5"),
        (" so </think> <answer> 5 </answer> no, <answer> 6", True, "5"),
        # the rule looks at the last `</think> <answer>`, which nothing closes here
        (" so </think> <answer> 5 </answer> no </think> <answer> 6", False, "5"),
    ],
)
def test_the_tag_rule_and_the_last_complete_pair(response, format_ok, answer):
    extraction = extract(response)
    assert (extraction.format_ok, extraction.answer) == (format_ok, answer)


@pytest.mark.parametrize(
    ("response", "elsewhere"),
    [
        (" so </THINK> <ANSWER> 5 </ANSWER>", "5"),
        (" so </think> <answer> 5 ", "5"),
        (r" so it is \boxed{4} or rather \boxed{5}.", "5"),
        (" so the answer is 5", "5"),
        (" 2 + 3 = 5\n#### 5", "5"),
        (" so it is 5", None),
        ("", None),
    ],
)
def test_without_a_complete_pair_the_answer_is_looked_for_elsewhere_but_not_taken_for_one(response, elsewhere):
    assert extract(response) == Extraction(False, None, elsewhere)


@pytest.mark.parametrize("style", ["question_only", "boxed"])
@pytest.mark.parametrize(
    ("response", "format_ok", "answer"),
    [
        (r"so it is $\boxed{5}$.", True, "5"),
        (r"first \boxed{4}, and after a second look \boxed{5}", True, "5"),
        (r"\boxed{\frac{1}{2}} cm", True, r"\frac{1}{2}"),
        (r"the roots are $\boxed{3}$ and $\boxed{4}$", True, "3, 4"),
        (r"x = \boxed{3} or x = \boxed{4}", True, "3, 4"),
        (r"$\boxed{5}$ and not $\boxed{6}$", True, "5, 6"),
        (r"not \boxed{4}, but $\boxed{5}$", True, "4, 5"),
        (r"first $x = \boxed{3}$. Then $x = \boxed{4}$", True, "4"),
        (r"\boxed{3} \boxed{4}", True, "4"),
        (r"\boxed 5 it is", True, "5"),
        (r"\boxed{}", True, ""),
        (r"\boxed{4}, no: \boxed{5", True, "4"),
        (r"\boxed{5", False, None),
        (" so </think> <answer> 5 </answer>", False, None),
        ("", False, None),
    ],
)
def test_the_styles_without_tags_take_the_last_box(style, response, format_ok, answer):
    extraction = extract(response, style)
    assert (extraction.format_ok, extraction.answer) == (format_ok, answer)


def test_an_unknown_style_is_refused_by_name():
    with pytest.raises(ValueError, match="style = 'box' is not known; r1_zero, question_only and boxed are"):
        extract("5", "box")


@given(no_tags, no_tags, st.sampled_from(["5", "", r"\frac{1}{2}"]))
def test_text_around_the_tags_changes_nothing(before, after, answer):
    assert extract(f"{before}{tagged(answer)}{after}") == Extraction(True, answer)


@given(st.lists(st.sampled_from(["</think>", " ", "<answer>", "</answer>", "5", "<", "answer>"]), max_size=14).map("".join))
def test_extraction_agrees_with_the_rule_spelled_out(response):
    _, literal, tail = response.rpartition("</think> <answer>")
    pairs = [part.split("</answer>")[0] for part in response.split("<answer>")[1:] if "</answer>" in part]
    extraction = extract(response)
    assert extraction.format_ok == (bool(literal) and "</answer>" in tail)
    assert extraction.answer == (pairs[-1].strip() if pairs else None)


# What the same answer may look like


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", " 5. "),
        ("5", "$5$"),
        ("5", "$5$."),
        ("5", "$$5$$"),
        ("5", r"\(5\)"),
        ("5", r"\[ 5 \]"),
        ("5", r"\boxed{5}"),
        ("5", r"$\boxed{5}$."),
        ("5", r"\boxed{$5$}"),
        ("12345", "12,345"),
        ("12345", "12{,}345"),
        ("12345", r"12,\!345"),
        ("-1234567.5", "-1,234,567.5"),
        (r"\frac{1}{2}", r"\dfrac{1}{2}"),
        (r"\frac12", r"\tfrac12"),
        ("(1,2)", r"\left( 1, 2 \right)"),
        ("3x+4", r"3\,x\;+ 4"),
        (r"x \le 3", r"x\le3"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
)
def test_spellings_of_one_answer_become_the_same_text(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 3/4", "13/4"),
        ("1 2", "12"),
        ("(1,234)", "(1234)"),
        ("1, 234", "1234"),
        ("1,23", "123"),
        (r"\pi r", r"\pir"),
        ("$3$ and $4$", "3$ and $4"),
        (r"\boxed{3}+\boxed{4}", r"3}+\boxed{4"),
        (r"\leftarrow", "arrow"),
        ("2.5", "25"),
        ("-5", "5"),
        (r"\$5", "5$"),
    ],
)
def test_different_answers_stay_different_texts(one, other):
    assert normalise(one) != normalise(other)


@given(no_tags)
def test_every_text_with_something_in_it_equals_itself_or_is_left_to_the_parser(text):
    wanted = normalise(text)
    assert quick_verdict(text, text) == (("correct" if is_whole(wanted) else None) if wanted else "bad_gold")


@given(st.integers(), st.integers(), st.sampled_from(["{}", "{:,}", "${}$", "00{}", r"\boxed{{{}}}"]))
def test_whole_numbers_are_settled_without_algebra(gold, answer, spelling):
    spelt = spelling.format(answer) if answer >= 0 else str(answer)
    assert quick_verdict(spelt, str(gold)) == ("correct" if answer == gold else "wrong")


def test_a_number_too_long_for_int_is_still_compared():
    assert quick_verdict("1" * 50_000, "0" + "1" * 50_000) == "correct"
    assert quick_verdict("1" * 50_000, "1" * 49_999 + "2") == "wrong"


# Verdicts and rewards


@pytest.mark.parametrize(
    ("answer", "gold", "outcome"),
    [
        (r"\frac{2}{4}", r"\frac{1}{2}", "correct"),
        ("0.5", r"\frac{1}{2}", "correct"),
        ("7/12", r"\frac{7}{12}", "correct"),
        (r"\frac{7}{21}", r"\frac{7}{12}", "wrong"),
        (r"2\sqrt{3}", r"\sqrt{12}", "correct"),
        ("(x-2)(x+5)", "x^2+3x-10", "correct"),
        ("x^2+3x+10", "x^2+3x-10", "wrong"),
        ("1, 4, 9", "9, 4, 1", "correct"),
        ("5", "x=5", "correct"),
        (r"\boxed{\frac{2}{4}}", r"$\frac{1}{2}$", "correct"),
        (r"\$18.50", "18.5", "correct"),
        (r"\emptyset", r"\{\}\{", "bad_gold"),
        (r"}{ \frac", "5", "unparseable_answer"),
        (r"\boxed{}", "5", "no_answer"),
        ("", "5", "no_answer"),
        ("5", " ", "bad_gold"),
        ("", "", "bad_gold"),
    ],
)
def test_the_outcome_of_an_answer(answer, gold, outcome):
    result = grade(tagged(answer), gold)
    assert result.outcome == outcome
    assert result.format_reward == 1.0
    assert result.reward == result.answer_reward == (1.0 if outcome == "correct" else 0.0)


def test_the_gold_is_the_first_argument_of_the_comparison():
    # math-verify turns an inequality into a set only on its gold side: the other way round these two are unequal
    assert grade(tagged(r"(-\infty, 4)"), "x < 4").reward == 1.0


def test_a_right_answer_that_breaks_the_tag_rule_earns_no_reward():
    result = grade(" 2 and 3 make 5. </think><answer> 5 </answer>", "5")
    assert (result.outcome, result.format_reward, result.answer_reward, result.reward) == ("no_answer", 0.0, 0.0, 0.0)
    assert result.extracted_answer == "5"
    assert result.lenient_answer_correct


@pytest.mark.parametrize(
    ("response", "lenient"),
    [(tagged("5"), True), (tagged("6"), False), ("</think><answer> 6 </answer>", False), (r"it is \boxed{5}", True), (tagged(""), False)],
)
def test_the_lenient_verdict_waives_the_format_and_nothing_else(response, lenient):
    assert grade(response, "5").lenient_answer_correct is lenient


def test_a_bad_gold_is_nobody_s_error_whatever_the_format():
    assert {grade(response, "").outcome for response in (tagged("5"), "</think><answer> 5 </answer>", "it is 5")} == {"bad_gold"}


def test_a_response_without_tags_earns_nothing():
    result = grade("so it is 5", "5")
    assert (result.outcome, result.extracted_answer, result.format_reward, result.reward) == ("no_answer", None, 0.0, 0.0)


@pytest.mark.parametrize("gold", [r"\{\}\{", r"\frac{1", "(1,2", "3+", r"\sqrt{"])
def test_behaviour_5_a_gold_that_does_not_parse_never_pays_not_even_the_same_text(gold):
    result = grade(tagged(gold), gold)
    assert (result.reward, result.outcome) == (0.0, "bad_gold")


@pytest.mark.parametrize("gold", ["(0,1]", r"\{1,2\}", r"\frac{1}{2}", r"\text{Evelyn}", "50\\%", "x>-1", "C"])
def test_a_gold_that_is_whole_pays_the_same_text_at_once(gold):
    assert quick_verdict(gold, gold) == "correct"


@given(st.booleans(), st.sampled_from(["correct", "wrong", "no_answer", "grader_timeout", "grader_error", "bad_gold"]))
def test_rewards_are_floats_and_only_a_correct_answer_in_its_tags_is_paid(format_ok, verdict):
    result = pay(Extraction(format_ok, "5"), verdict)
    assert [type(reward) for reward in (result.format_reward, result.answer_reward, result.reward)] == [float] * 3
    assert result.format_reward == format_ok
    assert result.reward == result.answer_reward == (format_ok and verdict == "correct")
    assert result.lenient_answer_correct == (verdict == "correct")
    assert result.outcome == (verdict if format_ok or verdict == "bad_gold" else "no_answer")


@pytest.mark.parametrize(("answer", "outcome"), [(None, "truncated"), ("5", "no_answer")])
def test_a_response_that_was_cut_off_before_its_answer_is_truncated(answer, outcome):
    assert pay(Extraction(False, answer), "no_answer", cut_off=True).outcome == outcome


JUNK = [
    "\x00",
    "\ud800",
    "🙂" * 40,
    r"\frac",
    "{" * 60,
    r"\begin{pmatrix} 1",
    r"\left( \right",
    "$" * 9,
    "%",
    "nan",
    r"\infty-\infty",
    "1/0",
    "I don't know",
]


@pytest.mark.parametrize("junk", JUNK)
def test_junk_is_graded_without_an_exception_and_unpaid(junk):
    assert grade(tagged(junk), "5").reward == 0.0
    assert grade(tagged("5"), junk).reward == 0.0


@given(st.text(alphabet="abxyz+-=,.;:(){}[]$\\ <>_|&%'\"\n", max_size=25))
@settings(max_examples=60, deadline=None)
def test_no_short_text_makes_the_grader_raise(text):
    assert grade(tagged(text), r"\frac{1}{2}").format_reward in (0.0, 1.0)
    assert grade(text, r"\frac{1}{2}").reward == 0.0


def test_nesting_deeper_than_the_parser_can_follow_is_unparseable():
    # the parser needs more than 10 frames a level, and Python allows 1,000: the RecursionError becomes an outcome
    assert grade(tagged("(" * 100 + "x" + ")" * 100), "y").outcome == "unparseable_answer"


def test_fifty_kilobytes_of_reasoning_do_not_change_the_verdict():
    long = "and so on, " * 5_000
    assert grade(long + tagged("2/4") + long, r"\frac{1}{2}") == grade(tagged("2/4"), r"\frac{1}{2}")


@pytest.mark.parametrize(
    "answer", ["0" * 50_000 + "x", r" \, " * 12_000 + "x", r"\boxed{" * 7_000 + "}" * 7_000, "1{,}" * 10_000, "$" * 50_000]
)
def test_the_quick_look_is_quick_for_any_fifty_kilobytes(answer):
    # 10 to 20 ms each; a cost that grows with the square of the length would be minutes, far over pytest's limit
    assert quick_verdict(answer, "5") is None


PAIRS = [("2/4", r"\frac{1}{2}"), ("3/4", r"\frac{1}{2}"), (r"}{ \frac", "5"), (r"(-\infty, 4)", "x < 4"), (r"2\sqrt{3}", r"\sqrt{12}")]


def test_the_verdicts_are_the_same_in_the_main_thread_in_a_thread_and_in_an_event_loop():
    def verdicts():
        return [algebraic_verdict(*pair) for pair in PAIRS]

    async def in_an_event_loop():
        return verdicts()

    expected = ["correct", "wrong", "unparseable_answer", "correct", "correct"]
    with ThreadPoolExecutor(1) as threads:
        assert verdicts() == threads.submit(verdicts).result() == asyncio.run(in_an_event_loop()) == expected


# What may interrupt a grading. The signal is raised by a timer, so each input is one that is still being worked on then.

COMPARES_FOR_EVER = r"\prod_{k=1}^{9999} \sin k"


@pytest.fixture
def raise_in_main_thread_after():
    """A function that has an exception raised in the main thread some seconds later, as an alarm's handler does.

    Again and again while `grade` runs: an exception that is raised within a destructor is only printed by Python, and goes on.
    """
    over, threads, previous = threading.Event(), [], []

    def arm(seconds, exception):
        def handler(signum, frame):
            while frame is not None and frame.f_code is not grade.__code__:
                frame = frame.f_back
            if frame is not None:
                raise exception

        def send():
            wait_s = seconds
            while not over.wait(wait_s):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                wait_s = 0.2

        previous.append(signal.signal(signal.SIGUSR1, handler))
        threads.append(threading.Thread(target=send))
        threads[-1].start()

    yield arm
    over.set()
    for thread in threads:
        thread.join(10)
    signal.signal(signal.SIGUSR1, previous[0])


def test_the_time_out_exception_of_math_verify_ends_in_an_outcome(raise_in_main_thread_after):
    load()
    raise_in_main_thread_after(0.7, TimeoutException())
    assert grade(tagged(COMPARES_FOR_EVER), "5").outcome == "wrong"


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through(raise_in_main_thread_after, exception):
    load()
    raise_in_main_thread_after(0.7, exception())
    with pytest.raises(exception):
        grade(tagged(COMPARES_FOR_EVER), "5")


def test_importing_the_module_loads_neither_sympy_nor_math_verify():
    program = "import sys, mathrl_ray.core.grading.grade; assert not {'sympy', 'math_verify', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY, timeout=60)


# The project's collection of cases


@pytest.fixture(scope="module")
def cases():
    if not CASES.exists():
        pytest.skip(f"the collection of grading cases is not here: {CASES}")
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def test_every_case_is_judged_by_the_strict_tag_rule(cases):
    assert {case["id"]: extract(case["response"]).format_ok for case in cases} == {case["id"]: case["format_ok"] for case in cases}


def test_every_case_about_tags_gets_the_right_verdict(cases):
    about_tags = [case for case in cases if case["kind"] in ("format", "empty")]
    assert {case["id"]: grade(case["response"], case["gold"]).reward == 1.0 for case in about_tags} == {
        case["id"]: case["correct"] for case in about_tags
    }
    print("cases about tags, by verdict:", Counter(case["correct"] for case in about_tags))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "response",
    [
        "#### " + " " * 50_000 + "\n",
        r"\boxed{1}" + " " * 50_000 + r"\boxed{2}",
        r"\boxed!" * 8_000,
        "answer" + " " * 50_000,
        r"</think> <answer> \text{" + " " * 5_000 + "x} </answer>",
    ],
)
def test_fifty_kilobytes_of_one_character_hang_neither_the_extraction_nor_the_reader(response):
    for style in ("r1_zero", "boxed"):
        assert grade(response, r"\frac{1}{2}", style=style).reward == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        r"-\boxed{5}", r"2\boxed{5}", r"\boxed{5}0", r"\frac{1}{\boxed{5}}", r"x > \boxed{5}", r"It is at least \boxed{5}",
        r"6 (not \boxed{5})",
        r"\boxed{5} is wrong, it is 6", r"\boxed{4} maybe \boxed{5}", r"\boxed{4} \boxed{5}", r"\boxed{5}, 6", r"4, \boxed{5}",
    ],
)  # fmt: skip
def test_behaviour_8_what_stands_around_a_box_in_the_tag_counts(answer):
    assert grade(tagged(answer), "5").reward == 0.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\boxed{5}", "5"),
        (r"-\boxed{5}", "-5"),
        (r"x = \boxed{5}", "5"),
        (r"the answer is $\boxed{5}$.", "5"),
        (r"\boxed{3}, \boxed{4}", "3,4"),
    ],
)
def test_behaviour_8_a_box_in_the_tag_is_allowed(answer, gold):
    assert grade(tagged(answer), gold).reward == 1.0
