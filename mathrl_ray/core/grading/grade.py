r"""Grading: did a response keep the rule of its style, and is its answer equal to the gold?

Called by the scorer, and by anyone with one response in hand. Pure: text in, a verdict out; knows no time, no finish_reason and no
process. math-verify's parser and sympy are loaded when the first answer needs them (0.4 s, 40 MB). What they make of a text may take long,
whatever the guards refuse, so whoever grades what a model wrote calls `algebraic_verdict` in a process that can be ended
(actors/grading_keeper.py).

    response --extract--> answer --quick_verdict--> outcome, or nothing --algebraic_verdict--> outcome --pay--> Grade
                                   same spelling      shapes.py: list, interval, equation, ...
                                                      expressions.py: math-verify's parser on writings.py's text, then
                                                      values.py at points.py instead of its comparison
"""

from mathrl_ray.core.grading.canonical import canonical
from mathrl_ray.core.grading.comparison import check_readable, same
from mathrl_ray.core.grading.expressions import same_expression
from mathrl_ray.core.grading.extraction import Extraction, Style, extract
from mathrl_ray.core.grading.reading import read
from mathrl_ray.core.grading.shapes import Listing, Shape
from mathrl_ray.core.grading.spelling import is_whole, normalise, thousands_as_list, whole_number
from mathrl_ray.types import Grade, Outcome


def quick_verdict(answer: str | None, gold: str) -> Outcome | None:
    """The verdict where none of it needs algebra, in some 10 µs; None where `algebraic_verdict` must say.

    An empty gold is bad_gold for every response, so that all siblings of that problem are left out alike. Two whole numbers are
    compared by their digits, right or wrong, since most answers of arithmetic problems are of this kind.

    >>> quick_verdict("12,345", "12345"), quick_verdict("7", "8"), quick_verdict("", "8"), quick_verdict("8", "")
    ('correct', 'wrong', 'no_answer', 'bad_gold')
    >>> quick_verdict("2/4", "1/2") is None
    True
    """
    wanted = normalise(gold)
    if not wanted:
        return "bad_gold"
    given = normalise(answer or "")
    if not given:
        return "no_answer"
    if given == wanted and is_whole(wanted):
        return "correct"
    wanted_number, given_number = whole_number(wanted), whole_number(given)
    if wanted_number is None or given_number is None:
        return None
    return "correct" if given_number == wanted_number else "wrong"


def algebraic_verdict(answer: str, gold: str) -> Outcome:
    r"""The verdict on two texts that are not spelled alike: correct, wrong, unparseable_answer or bad_gold.

    It may run long: the caller's limit is the end of the process. No alarm is set, so it works in any thread. What sympy raises becomes
    bad_gold while the gold is read, unparseable_answer while the answer is read, and wrong while they are compared: none of them pays,
    and none lets a response leave the accuracy's denominator.

    Raises:
        MemoryError: the process is out of memory, which says nothing about the answer.

    >>> algebraic_verdict("0.5", r"\frac{1}{2}"), algebraic_verdict("0.6", r"\frac{1}{2}")
    ('correct', 'wrong')
    """
    try:
        return _verdict(answer, gold)
    except BaseException as error:  # border: math-verify's TimeoutException, which a caller's alarm may raise here, is no Exception
        if not _is_time_out(error):
            raise
        return "wrong"


def _verdict(answer: str, gold: str) -> Outcome:
    try:
        wanted = canonical(gold)
        wanted_shape = read(wanted)
        check_readable(wanted_shape)
    except MemoryError:
        raise
    except Exception:  # border: UnreadableError is expected, RecursionError possible, and no text may raise anything else out of here
        return "bad_gold"
    try:
        given_shape = _read_beside(wanted_shape, answer)
        if same(wanted_shape, given_shape):
            return "correct"
        check_readable(given_shape)
    except MemoryError:
        raise
    except Exception:  # border: as above
        return "unparseable_answer"
    return "wrong"


def _read_beside(gold: Shape, answer: str) -> Shape:
    """The answer's shape. `81,256` is a number, but beside a gold that is a list it is one too."""
    as_list = thousands_as_list(answer.strip()) if isinstance(gold, Listing) else None
    return read(as_list or canonical(answer))


def _is_time_out(error: BaseException) -> bool:
    from math_verify.errors import TimeoutException

    return isinstance(error, TimeoutException)


def load() -> None:
    """Load the parser and sympy now (0.5 s), so that no item's time has to hold it."""
    same_expression(r"\sqrt{8}", r"2\sqrt{2}")


def pay(extraction: Extraction, verdict: Outcome, grading_s: float = 0.0, *, cut_off: bool = False) -> Grade:
    """The rewards that belong to the verdict on `answer_to_judge`: A5's rule, a response is paid only if format and answer are right.

    An answer in a broken format is judged all the same, but only `lenient_answer_correct` says how: its outcome is no_answer, or truncated.

    Args:
        cut_off: the response ended at the limit of tokens.

    >>> pay(Extraction(format_ok=False, answer="5"), "correct")  # doctest: +NORMALIZE_WHITESPACE
    Grade(format_reward=0.0, answer_reward=0.0, reward=0.0, outcome='no_answer', extracted_answer='5', grading_s=0.0,
          lenient_answer_correct=True)
    """
    outcome = verdict if extraction.format_ok or verdict == "bad_gold" else "no_answer"
    if outcome == "no_answer" and extraction.answer is None and cut_off:
        outcome = "truncated"
    answer_reward = float(outcome == "correct")
    return Grade(
        format_reward=float(extraction.format_ok),
        answer_reward=answer_reward,
        reward=answer_reward,
        outcome=outcome,
        extracted_answer=extraction.answer,
        grading_s=grading_s,
        lenient_answer_correct=verdict == "correct",
    )


def grade(response: str, gold: str, *, style: Style = "r1_zero") -> Grade:
    """Grade one response, in this process and without a limit: a scorer does the same with one.

    Raises nothing for any response. An answer that exhausts the memory counts as wrong here; KeyboardInterrupt and SystemExit pass.

    >>> grade("6+3=9 </think> <answer> 9 </answer>", "9").outcome, grade(r"so $6+3=\\boxed{9}$", "9", style="boxed").reward
    ('correct', 1.0)
    """
    extraction = extract(response, style)
    verdict = quick_verdict(extraction.answer_to_judge, gold)
    if verdict is None:
        try:
            verdict = algebraic_verdict(extraction.answer_to_judge or "", gold)
        except MemoryError:
            verdict = "wrong"
    return pay(extraction, verdict, cut_off=False)
