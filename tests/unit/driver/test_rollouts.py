import asyncio
from collections import Counter

import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer, Stage, scene, settle
from hypothesis import given
from hypothesis import strategies as st
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.driver.prompt_stream import PromptStream
from mathrl_ray.driver.replicas import GivenUpError
from mathrl_ray.driver.rollouts import PART, generate, make_request, rollout, score, siblings


def run_with(folder, *, num_generators=1, cue=None, **driver):
    diary = Diary()
    generators = tuple(FakeGenerator(diary, f"generator-{index}", cue=cue or Stage()) for index in range(num_generators))
    sections = {"eval": {"num_problems": 1}, "grpo": {"prompts_per_step": 3, "group_size": 4}, "driver": driver}
    return make_run(recipe_for(folder, **sections), Actors(FakeLearner(diary), generators, (FakeScorer(diary),), (0,)))


def requests_for(run, num):
    problem = run.train_problems[0]
    return [make_request(run, problem, f"g/{index}", 0, index, run.training_sampling) for index in range(num)]


@pytest.mark.parametrize("num_generators", [1, 2, 3])
def test_behaviour_11_responses_come_back_to_their_requests_from_any_number_of_generators(tmp_path, num_generators):
    run = run_with(tmp_path, num_generators=num_generators)
    sampling = run.training_sampling
    requests = [make_request(run, problem, f"g/{index}", 0, 0, sampling) for index, problem in enumerate(run.train_problems[:7])]
    completions = asyncio.run(generate(run, requests))
    assert [completion.token_ids[0] for completion in completions] == [request.seed % 10 for request in requests]
    assert run.ledger.counts.generated_tokens == 7


@given(num_items=st.integers(0, 20), num_scorers=st.integers(1, 4))
def test_behaviour_4_grade_i_belongs_to_response_i(tmp_path_factory, num_items, num_scorers):
    diary = Diary()
    actors = Actors(FakeLearner(diary), (FakeGenerator(diary),), tuple(FakeScorer(diary) for _ in range(num_scorers)), (0,))
    run = make_run(recipe_for(tmp_path_factory.mktemp("runs"), eval={"num_problems": 1}), actors)
    requests = [make_request(run, run.train_problems[0], "g", 0, sample, run.training_sampling) for sample in range(num_items)]
    completions = asyncio.run(generate(run, requests))
    grades = asyncio.run(score(run, completions, ["3"] * num_items))
    assert [grade.extracted_answer for grade in grades] == [completion.text for completion in completions]


def test_behaviour_11_each_prompt_keeps_its_own_siblings(tmp_path):
    run = run_with(tmp_path, num_generators=2)
    problems = [run.train_problems[0], run.train_problems[1], run.train_problems[0]]  # the same problem twice
    groups = asyncio.run(rollout(run, "grpo", 3, problems))
    assert [group.group_id for group in groups] == ["grpo-3/0", "grpo-3/1", "grpo-3/2"]
    assert [[t.sample for t in group.trajectories] for group in groups] == [[0, 1, 2, 3]] * 3
    assert all(
        t.problem_id == group.problem_id == problem.problem_id
        for group, problem in zip(groups, problems, strict=True)
        for t in group.trajectories
    )


def test_a_request_depends_on_its_problem_step_and_sample_only(tmp_path):
    run = run_with(tmp_path)
    alone = asyncio.run(rollout(run, "grpo", 1, run.train_problems[:1]))
    beside = asyncio.run(rollout(run, "grpo", 1, run.train_problems[:3]))
    assert [t.completion for t in alone[0].trajectories] == [t.completion for t in beside[0].trajectories]


@scene
async def test_many_requests_go_in_parts_to_all_generators_and_come_back_in_order(tmp_path):
    cue = Stage("generate")
    run = run_with(tmp_path, num_generators=2, cue=cue)
    requests = requests_for(run, 3 * PART + 1)
    asked = asyncio.create_task(generate(run, requests, for_learning=False))
    await settle()
    assert [(call[0], len(call[2])) for call in cue.calls] == [
        ("generator-0", PART),
        ("generator-1", PART),
        ("generator-0", PART),
        ("generator-1", 1),
    ]
    for call in reversed(cue.calls):
        call[3].set_result(None)
        await settle()
    assert [completion.token_ids[0] for completion in await asked] == [request.seed % 10 for request in requests]
    assert run.ledger.counts.generated_tokens == 0


@scene
async def test_a_part_that_is_given_up_ends_the_others_at_once(tmp_path):
    cue = Stage("generate")
    run = run_with(tmp_path, num_generators=1, cue=cue, max_tries=1)
    asked = asyncio.create_task(generate(run, requests_for(run, 2 * PART)))
    await settle()
    assert len(cue.calls) == 2
    await cue.fail("generate", error=ValueError("the prompt is too long"))
    with pytest.raises(GivenUpError, match="the prompt is too long"):
        await asked
    assert cue.calls == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [replica.load for replica in run.generators] == [0]


def test_behaviour_11_a_problem_that_stands_twice_in_a_step_gets_other_responses_the_second_time(tmp_path):
    actors = Actors(FakeLearner(Diary()), (FakeGenerator(Diary()),), (FakeScorer(Diary()),), (0,))
    run = make_run(recipe_for(tmp_path, grpo={"prompts_per_step": 4, "group_size": 2, "num_epochs": 2}), actors)
    run.train_problems = run.train_problems[:3]
    stream = PromptStream(run, "grpo")
    prompts = [stream.at(number) for number in range(stream.num_prompts)]
    assert [(prompt.step, prompt.index) for prompt in prompts] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    by_problem = Counter(prompt.problem.problem_id for prompt in prompts)
    assert set(by_problem.values()) == {2}
    first_step = [prompt for prompt in prompts if prompt.step == 1]
    assert sorted(prompt.repeat for prompt in first_step) == [0, 0, 0, 1]
    seeds = [
        request.seed
        for prompt in first_step
        for request in siblings(run, make_request(run, prompt.problem, "g", 1, 0, run.training_sampling), prompt)
    ]
    assert len(set(seeds)) == len(seeds) == 8
