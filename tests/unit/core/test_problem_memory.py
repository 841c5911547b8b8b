import pytest
from elite_samples import group
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.problem_memory import Attempt, ProblemMemory, attempts_of, choose_problems, easy_first, next_in_turn


def tried(problem, step, *solved, group_id=None):
    """One group's attempts."""
    return [Attempt(problem, group_id or f"g-{step}/{problem}", step, sample, right, 5, step - 1) for sample, right in enumerate(solved)]


def memory_of(*groups):
    return ProblemMemory([attempt for each in groups for attempt in each])


ATTEMPTS = st.lists(
    st.builds(Attempt, st.sampled_from("abcde"), st.just("g"), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.just(5), st.just(0)),
    unique_by=lambda each: (each.problem_id, each.step, each.sample),
)


def test_a_graded_group_is_remembered_and_what_could_not_be_graded_is_not():
    siblings = group("correct", "grader_error", "truncated", "bad_gold", num_tokens=[3, 4, 8, 4], version=2)
    assert attempts_of(siblings, step=7) == [Attempt("p", "g-1/p", 7, 0, True, 3, 2), Attempt("p", "g-1/p", 7, 2, False, 8, 2)]


def test_the_solved_share_is_over_all_attempts():
    memory = memory_of(tried("a", 1, True, False), tried("a", 2, True, True), tried("b", 1, False))
    assert memory.solved_shares() == {"a": 0.75, "b": 0.0}


@pytest.mark.parametrize(
    ("groups", "last_groups", "settled"),
    [
        ([(True, True), (True, True)], 2, True),
        ([(False, False), (False, False)], 2, True),
        ([(True, True), (False, False)], 2, False),  # its policy learns, or forgets
        ([(True, False), (True, True)], 2, False),
        ([(True, False), (True, True)], 1, True),
        ([(True, True)], 2, False),
        ([], 1, False),
        ([(True, True)], 0, False),
    ],
)
def test_settled_is_all_right_or_all_wrong_in_the_last_groups(groups, last_groups, settled):
    memory = memory_of(*(tried("a", step, *outcomes) for step, outcomes in enumerate(groups, start=1)))
    assert memory.is_settled("a", last_groups) is settled


def test_the_order_in_which_attempts_come_does_not_matter():
    groups = [tried("a", 3, False), tried("a", 1, True), tried("a", 2, False), tried("b", 1, True, True)]
    one, other = memory_of(*groups), memory_of(*reversed(groups))
    assert one.attempts == other.attempts
    assert one.is_settled("a", 2)
    assert not one.is_settled("a", 3)
    assert [one.last_step(name) for name in ("a", "b", "never")] == [3, 1, 0]


@given(ATTEMPTS, st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_memory_of_the_last_groups_only_judges_as_one_of_all_groups_in_whatever_order_they_come(attempts, last_groups, draw):
    groups = {}
    for each in attempts:
        groups.setdefault((each.problem_id, each.step), []).append(each)
    small, whole = ProblemMemory(kept_groups=last_groups), ProblemMemory(attempts)
    for siblings in draw.sample(list(groups.values()), len(groups)):
        small.add(siblings)
    for problem in "abcde":
        assert small.is_settled(problem, last_groups) == whole.is_settled(problem, last_groups)
        assert small.last_step(problem) == whole.last_step(problem)
        assert len({each.step for each in small.attempts if each.problem_id == problem}) <= last_groups


def test_passed_over_is_what_is_settled_and_has_not_rested():
    memory = memory_of(tried("a", 2, True, True), tried("b", 3, False), tried("c", 3, True, False))
    passed = [memory.passed_over("cba", step=step, last_groups=1, retry_after=3) for step in (4, 5, 6)]
    assert passed == [{"b": 3, "a": 2}, {"b": 3}, {}]
    assert memory.passed_over("cba", step=99, last_groups=1) == {"b": 3, "a": 2}
    assert memory.passed_over("cba", step=4, last_groups=0) == {}


def test_settled_problems_are_passed_over_for_later_ones():
    memory = memory_of(tried("a", 1, True, True), tried("b", 1, True, False), tried("c", 1, False, False))
    assert choose_problems(["a", "b", "c", "d", "e"], 3, memory, step=2, last_groups=1) == ["b", "d", "e"]
    assert choose_problems(["a", "b", "c", "d", "e"], 3, memory, step=2, last_groups=0) == ["a", "b", "c"]


def test_where_too_few_are_left_those_tried_longest_ago_come_again():
    memory = memory_of(tried("a", 3, True), tried("b", 1, True), tried("c", 2, False), tried("d", 1, False))
    assert choose_problems(["a", "b", "c", "d", "e"], 3, memory, step=4, last_groups=1) == ["e", "b", "d"]


def test_a_settled_problem_comes_back_after_its_rest():
    memory = memory_of(tried("a", 2, False, False))
    chosen = [choose_problems(["a", "b"], 1, memory, step=step, last_groups=1, retry_after=3) for step in (3, 4, 5)]
    assert chosen == [["b"], ["b"], ["a"]]


@given(st.permutations("abcdefg"), st.integers(0, 7), ATTEMPTS, st.integers(0, 3), st.integers(0, 3))
def test_as_many_problems_come_as_are_wanted_and_none_twice(order, num_wanted, attempts, last_groups, retry_after):
    memory = ProblemMemory(attempts)
    chosen = choose_problems(order, num_wanted, memory, step=5, last_groups=last_groups, retry_after=retry_after)
    assert len(chosen) == len(set(chosen)) == num_wanted
    if last_groups and not retry_after:  # one that teaches is never left out for one that does not
        left_out = set(order) - set(chosen)
        assert not any(memory.is_settled(each, last_groups) for each in chosen) or all(
            memory.is_settled(each, last_groups) for each in left_out
        )


def test_a_turn_is_lost_by_what_is_skipped_and_by_what_came_just_before():
    # b is skipped; c, at the end of the pass, has been chosen already when it comes first in the next one
    assert next_in_turn("bcca", 2, skipped={"b": 1}) == (["c", "a"], 4)
    assert next_in_turn("cabca", 2, skipped={"b": 1}) == (["c", "a"], 2)


def test_what_fills_up_was_tried_longest_ago_and_uses_no_turn():
    assert next_in_turn("abcd", 3, skipped={"a": 4, "c": 3, "d": 3}) == (["b", "c", "d"], 2)
    assert next_in_turn("abcd", 2, skipped=dict.fromkeys("abcd", 1)) == (["a", "b"], 0)


@given(st.permutations("abcdef"), st.permutations("abcdef"), st.integers(0, 5), st.integers(1, 6), st.sets(st.sampled_from("abcdef")))
def test_the_next_in_turn_are_those_of_choose_problems_and_go_on_after_the_last_turn(first, second, offset, num_wanted, skipped):
    turns, memory = [*first[offset:], *second], memory_of(*(tried(each, 1, False) for each in sorted(skipped)))
    chosen, num_used = next_in_turn(turns, num_wanted, dict.fromkeys(skipped, 1))
    assert chosen == choose_problems(list(dict.fromkeys(turns)), num_wanted, memory, step=2, last_groups=1)
    teaching = [each for each in chosen if each not in skipped]
    assert list(dict.fromkeys(each for each in turns[:num_used] if each not in skipped)) == teaching
    assert num_used == 0 or turns[num_used - 1] == teaching[-1]


@pytest.mark.parametrize(("order", "num_wanted"), [(["a"], 2), (["a", "a"], 1)])
def test_an_order_that_cannot_serve_is_refused(order, num_wanted):
    with pytest.raises(ValueError, match=r"expert_iteration\.questions"):
        choose_problems(order, num_wanted, ProblemMemory(), step=1, last_groups=0)


def test_easy_problems_come_first_in_each_pass_and_levels_that_nobody_says_last():
    # levels: 0 hard, 1 none, 2 easy, 3 easy; two passes of four, the second cut short
    assert easy_first([0, 1, 2, 3, 3, 0], [5, None, 1, 1], pass_length=4) == [2, 3, 0, 1, 3, 0]


@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.none() | st.integers(1, 5), min_size=6, max_size=6), st.integers(1, 8))
def test_a_curriculum_asks_the_same_problems_in_each_pass(plan, levels, pass_length):
    ordered = easy_first(plan, levels, pass_length)
    for start in range(0, len(plan), pass_length):
        part = ordered[start : start + pass_length]
        assert sorted(part) == sorted(plan[start : start + pass_length])
        known = [levels[index] for index in part if levels[index] is not None]
        assert known == sorted(known)
