"""Which problem comes when: without a filter to the bit as batch_indices and the epochs have it, with one from what is known then."""

import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from hypothesis import given
from hypothesis import strategies as st
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.problem_memory import Attempt
from mathrl_ray.core.sampling import batch_indices, epoch_order
from mathrl_ray.driver.elite_rows import attempts_path, write_attempts
from mathrl_ray.driver.prompt_stream import Choice, PromptState, PromptStream, prompt_state
from mathrl_ray.recipe_checks import check_stage_settings
from mathrl_ray.types import Problem


def run_for(folder, num_problems, size, *, levels=None, seed=0, **sections):
    sections = {"grpo": {"prompts_per_step": size, "group_size": 2, **sections.pop("grpo", {})}, "run": {"seed": seed}, **sections}
    actors = Actors(FakeLearner(Diary()), (FakeGenerator(Diary()),), (FakeScorer(Diary()),), (0,))
    run = make_run(recipe_for(folder, eval={"num_problems": 1}, **sections), actors)
    levels = levels or [None] * num_problems
    run.train_problems = [Problem(f"p/{index}", "?", "1", level=levels[index]) for index in range(num_problems)]
    return run


def indices(stream, numbers):
    return [int(stream.at(number).problem.problem_id.removeprefix("p/")) for number in numbers]


def tried(problem, step, *solved):
    return [Attempt(f"p/{problem}", f"grpo-{step}/{problem}", step, sample, right, 5, 0) for sample, right in enumerate(solved)]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99), st.integers(0, 2), st.integers(1, 5))
def test_without_a_filter_the_stream_is_what_it_was_before_there_was_one(tmp_path_factory, num_problems, size, seed, epochs, num_steps):
    size = min(size, num_problems)
    run = run_for(tmp_path_factory.mktemp("run"), num_problems, size, seed=seed, grpo={"num_epochs": epochs})
    stream = PromptStream(run, "grpo")
    assert stream.num_prompts == (epochs * num_problems or None)
    if epochs:
        expected = [index for epoch in range(epochs) for index in epoch_order(num_problems, seed, epoch)]
    else:
        expected = [index for step in range(num_steps) for index in batch_indices(num_problems, size, step, seed)]
    prompts = [stream.at(number) for number in range(len(expected))]
    assert indices(stream, range(len(expected))) == expected
    assert [(each.step, each.index) for each in prompts] == [(n // size + 1, n % size) for n in range(len(expected))]
    for number, each in enumerate(prompts):
        assert each.repeat == expected[number - number % size : number].count(expected[number])
    run.recorder.close()


@given(st.integers(2, 10), st.integers(1, 10), st.integers(0, 99), st.sampled_from(["shuffled", "level"]))
def test_while_nothing_is_settled_a_filter_changes_nothing_but_that_no_problem_comes_twice_in_a_step(
    tmp_path_factory, num_problems, size, seed, order
):
    size, levels = min(size, num_problems), [1 + index % 3 for index in range(num_problems)]
    streams = [
        PromptStream(
            run_for(
                tmp_path_factory.mktemp("run"), num_problems, size, levels=levels, seed=seed, curriculum={"order": order, "skip_after": k}
            ),
            "grpo",
        )
        for k in (0, 2)
    ]
    first_pass = range(num_problems // size * size)
    assert indices(streams[0], first_pass) == indices(streams[1], first_pass)
    for step in range(6):
        numbers = range(step * size, (step + 1) * size)
        assert len(set(indices(streams[1], numbers))) == size
        assert [streams[1].at(number).repeat for number in numbers] == [0] * size


@pytest.mark.parametrize("epochs", [0, 2])
def test_with_order_level_each_pass_begins_with_its_easy_problems(tmp_path, epochs):
    levels = [5, 1, None, 3, 1, 2]
    run = run_for(tmp_path, 6, 4, levels=levels, curriculum={"order": "level"}, grpo={"num_epochs": epochs})
    came = indices(PromptStream(run, "grpo"), range(12))
    for start in (0, 6):
        assert sorted(came[start : start + 6]) == list(range(6))
        assert [levels[index] for index in came[start : start + 6]] == [1, 1, 2, 3, 5, None]
    assert came[:2] == [index for index in epoch_order(6, 0, 0) if levels[index] == 1]


def test_a_step_is_chosen_by_what_was_trained_on_a_staleness_ago_and_by_nothing_later(tmp_path):
    run = run_for(tmp_path, 6, 2, driver={"max_staleness": 1}, curriculum={"skip_after": 1})
    stream, plan = PromptStream(run, "grpo"), [*epoch_order(6, 0, 0), *epoch_order(6, 0, 1)]
    assert indices(stream, range(4)) == plan[:4]  # steps 1 and 2
    stream.remember(1, [attempt for index in plan[:2] for attempt in tried(index, 1, True, True)])
    stream.remember(2, [attempt for index in plan[2:6] for attempt in tried(index, 2, False, False)])
    # Step 3 knows step 1 only: the two of its own turn come, although step 2 has settled them.
    assert indices(stream, (4, 5)) == plan[4:6]
    assert (stream.num_skipped(0), stream.num_skipped(4)) == (0, 2)
    # Step 4 knows step 2, and all are settled: those that were tried longest ago come, in the order of the next pass.
    assert stream.num_skipped(6) == 6
    assert indices(stream, (6, 7)) == [index for index in plan[6:] if index in plan[:2]]


def test_where_groups_were_replaced_and_less_is_known_than_the_rule_says_all_that_is_known_counts(tmp_path):
    stream = PromptStream(run_for(tmp_path, 6, 2, curriculum={"skip_after": 1, "retry_after": 2}), "grpo")
    plan = epoch_order(6, 0, 0)
    assert indices(stream, (0, 1)) == plan[:2]
    assert indices(stream, (2, 3)) == plan[2:4]  # step 1 is not over: its groups were replaced by these
    stream.remember(1, [attempt for index in plan[:5] for attempt in tried(index, 1, True)])
    assert indices(stream, (4,)) == plan[5:6]
    stream.remember(2, [])
    # One step after step 1 was noted they rest; two steps after they come again, as step 3's own number would say too early.
    assert stream.num_skipped(4) == 5
    assert stream.num_skipped(6) == 0


def attempts_by_step(num_problems):
    outcomes = st.sampled_from([(True, True), (False, False), (True, False)])
    return st.lists(st.dictionaries(st.integers(0, num_problems - 1), outcomes, max_size=4), min_size=1, max_size=7)


@given(attempts_by_step(7), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.sampled_from([0, 2]), st.data())
def test_behaviour_26_a_stream_that_goes_on_after_any_step_is_the_one_that_never_stopped(
    tmp_path_factory, steps, size, max_staleness, skip_after, retry_after, data
):
    curriculum = {"skip_after": skip_after, "retry_after": retry_after, "order": data.draw(st.sampled_from(["shuffled", "level"]))}
    folder = tmp_path_factory.mktemp("run")
    run = run_for(folder, 7, size, driver={"max_staleness": max_staleness}, curriculum=curriculum, levels=[1, 2, 3, 1, 2, 3, None])
    whole, states = PromptStream(run, "grpo"), {}
    came = indices(whole, range(max_staleness * size))  # what is in flight at most before the first step is over
    for step, outcomes in enumerate(steps, start=1):
        came += indices(whole, range((step + max_staleness - 1) * size, (step + max_staleness) * size))
        attempts = [attempt for problem, solved in outcomes.items() for attempt in tried(problem, step, *solved)]
        write_attempts(attempts_path(run.recorder.folder, "grpo", step), attempts)
        whole.remember(step, attempts)
        whole.forget_before(step * size)
        states[step] = prompt_state(whole.state().plain())
    for last, state in states.items():
        again = PromptStream(run, "grpo", state, last)
        num_known = last * size
        for step, outcomes in list(enumerate(steps, start=1))[last:]:
            end = (step + max_staleness) * size
            assert indices(again, range(num_known, end)) == came[num_known:end]
            again.remember(step, [attempt for problem, solved in outcomes.items() for attempt in tried(problem, step, *solved)])
    run.recorder.close()


def test_attempts_of_another_stage_or_of_a_later_step_are_not_looked_at(tmp_path):
    run = run_for(tmp_path, 4, 2, curriculum={"skip_after": 1})
    write_attempts(attempts_path(run.recorder.folder, "expert_iteration", 1), [a for p in range(4) for a in tried(p, 1, True)])
    write_attempts(attempts_path(run.recorder.folder, "grpo", 1), tried(0, 1, True))
    write_attempts(attempts_path(run.recorder.folder, "grpo", 2), tried(1, 2, True))
    assert PromptStream(run, "grpo").num_skipped(0) == 0
    assert PromptStream(run, "grpo", PromptState(), 1).num_skipped(2) == 1


def test_a_memory_with_gaps_is_told_and_a_choice_of_problems_that_are_gone_is_made_anew(tmp_path):
    run = run_for(tmp_path, 4, 2, curriculum={"skip_after": 1})
    said = []
    run.console.say = said.append
    write_attempts(attempts_path(run.recorder.folder, "grpo", 2), tried(0, 2, True))
    state = PromptState(6, {3: Choice(("p/1", "gone"), 0), 4: Choice(("p/3", "p/1"), 2)})
    stream = PromptStream(run, "grpo", state, 3)
    assert [text for text in said if "problem_memory holds nothing of 2 of 3 steps of grpo, the first 1" in text]
    assert indices(stream, (6, 7)) == [3, 1]
    assert set(indices(stream, (4, 5))) <= {1, 2, 3}


def test_a_pass_and_a_filter_together_are_refused_where_grpo_runs_with_the_keys(tmp_path):
    recipe = Recipe.model_validate({"curriculum": {"skip_after": 2}, "grpo": {"num_epochs": 1}})
    check_stage_settings(recipe, ["expert_iteration"])
    with pytest.raises(RecipeError, match=r"curriculum\.skip_after = 2 with grpo\.num_epochs = 1.*Set grpo\.num_epochs = 0"):
        check_stage_settings(recipe, ["expert_iteration", "grpo"])
