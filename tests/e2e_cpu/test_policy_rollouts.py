"""The policy on the built-in model as a person would use it: a rollout graded by A5's reward, beside the learner and `generate`."""

import pytest
import torch

from mathrl_ray.actors.policy_module import PolicyModule
from mathrl_ray.core.prompts import render
from mathrl_ray.core.tokenization import pad_batch, unpad
from mathrl_ray.cs336 import r1_zero_reward_fn
from mathrl_ray.data.arithmetic import make_problems
from mathrl_ray.policy import LanguageModelAsPolicy, RolloutWorker
from mathrl_ray.types import SamplingSettings, SftExample

PROBLEMS = make_problems("test", 8, seed=0)


@pytest.fixture(scope="module")
def policy(start_model):
    return LanguageModelAsPolicy(str(start_model), device="cpu")


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.problem_id)
def test_a_rollout_is_what_the_learner_and_generate_say(policy, problem):
    prompt = render("r1_zero", problem.problem)
    worker = RolloutWorker(policy, lambda prompt, state: r1_zero_reward_fn(state.removeprefix(prompt), problem.gold), max_steps=48)
    trajectory = worker.generate_rollout(prompt, greedy=True)
    actions = [step["action"] for step in trajectory]
    prompt_ids = policy.tokenizer.encode(prompt, add_special_tokens=False)

    ids = torch.tensor([prompt_ids])
    generated = policy.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(actions))
    assert generated[0, len(prompt_ids) :].tolist() == actions

    batch = pad_batch([SftExample(tuple(prompt_ids), tuple(actions))], pad_id=0)
    with torch.no_grad():
        log_probs, _ = PolicyModule(policy.model, chunk_tokens=16)(batch, SamplingSettings(temperature=1.0, max_tokens=1))
    for step, expected in zip(trajectory, unpad(log_probs, batch)[0], strict=True):
        assert policy.log_prob(step["state"], step["action"]) == pytest.approx(expected, abs=1e-4)

    response = trajectory[-1]["new_state"].removeprefix(prompt)
    assert response == policy.tokenizer.decode(actions, skip_special_tokens=True)
    assert trajectory[-1]["reward"] == r1_zero_reward_fn(response, problem.gold)["reward"]
    assert all(step["reward"] == 0 for step in trajectory[:-1])
