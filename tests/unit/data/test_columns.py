import pytest

from mathrl_ray.data.columns import column_names, gold_and_solution, problem_of
from mathrl_ray.data.rows import DataError, Rows


def problems(*rows, columns=None):
    read = Rows("data.train", "set.jsonl", "set", list(enumerate(rows, start=1)))
    names = column_names(read, columns or {})
    return [problem_of(row, names, f"set:{line}") for line, row in read.numbered]


@pytest.mark.parametrize("name", ["problem", "question", "prompt", "query"])
@pytest.mark.parametrize("answer", ["gold", "answer", "ground_truth", "expected_answer", "final_answer", "target"])
def test_common_names_of_problem_and_gold_are_known(name, answer):
    (problem,) = problems({name: "1+1?", answer: "2"})
    assert (problem.problem, problem.gold, problem.extra) == ("1+1?", "2", {})


def test_a5s_rows_open_as_they_are():
    # CS336 assignment 5's MATH/train.jsonl and validation.jsonl
    row = {
        "problem": "1+1?",
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "t/1.json",
    }
    (problem,) = problems(row)
    assert (problem.problem_id, problem.gold, problem.level, problem.subject) == ("t/1.json", "2", 1, "Algebra")
    assert problem.solution == row["solution"]


def test_a_raw_gsm8k_answer_comes_apart_at_its_last_mark():
    (problem,) = problems({"question": "How much?", "answer": "She saves #### a lot:\n540*2 = <<540*2=1080>>1,080\n#### 1,080"})
    assert problem.gold == "1080"
    assert problem.solution == "She saves #### a lot:\n540*2 = <<540*2=1080>>1,080"


@pytest.mark.parametrize(("answer", "gold"), [("x\n#### -7", "-7"), ("x #### 1,234,567", "1234567"), ("(1,234)", "(1,234)"), ("#### ", "")])
def test_only_a_marked_gold_loses_its_commas(answer, gold):
    assert gold_and_solution(answer)[0] == gold


def test_without_an_answer_column_the_gold_is_the_solutions_last_box():
    first, second, third = problems(
        {"problem": "a", "solution": "try $\\boxed{1}$, no, $\\boxed{\\frac{1}{2}}$", "level": "Level 3", "type": "Algebra"},
        {"problem": "b", "solution": "so $\\boxed 2$."},
        {"problem": "c", "solution": "no box"},
    )
    assert (first.gold, second.gold, third.gold) == (r"\frac{1}{2}", "2", "")
    assert first.subject == "Algebra"


def test_solutions_without_any_box_are_no_golds():
    with pytest.raises(DataError, match=r"no column for gold \(looked for gold, answer, .*found: problem, solution"):
        problems({"problem": "a", "solution": "it is 2"})


def test_an_answer_column_wins_over_a_box():
    (problem,) = problems({"problem": "a", "solution": "\\boxed{1}", "answer": "2"})
    assert problem.gold == "2"


def test_source_is_an_id_only_where_it_tells_rows_apart():
    same = problems({"problem": "a", "answer": "1", "source": "olympiads"}, {"problem": "b", "answer": "1", "source": "olympiads"})
    assert [problem.problem_id for problem in same] == ["set:1", "set:2"]
    assert same[0].extra == {"source": "olympiads"}
    apart = problems({"problem": "a", "answer": "1", "source": "x/1"}, {"problem": "b", "answer": "1", "source": "x/2"})
    assert [problem.problem_id for problem in apart] == ["x/1", "x/2"]


def test_mapped_columns_win_over_common_ones_and_the_rest_is_kept():
    (problem,) = problems({"problem": "no", "text": "1+1?", "answer": "2", "hardness": 4}, columns={"problem": "text", "level": "hardness"})
    assert (problem.problem, problem.level, problem.extra) == ("1+1?", 4, {"problem": "no"})
