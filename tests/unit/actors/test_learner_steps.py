"""The learner's micro-batches without an engine: what belongs together stays together."""

import random
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import made_up_trajectories

from mathrl_ray.actors.learner_steps import PolicyBatch, example_of, mean_of_steps, minibatches, rank_share, token_versions
from mathrl_ray.actors.process_group import ProcessGroup
from mathrl_ray.core.tokenization import pad_batch, unpad
from mathrl_ray.sections import GrpoSection


def marked(num, seed):
    """Trajectories whose advantage, log-probs and versions all tell which one they are of."""
    trajectories = made_up_trajectories(num, seed)
    return [
        replace(
            trajectory,
            advantage=float(index),
            completion=replace(
                trajectory.completion,
                logprobs=tuple(-index - position / 1000 for position in range(len(trajectory.completion.token_ids))),
                version_runs=((index, 1), (index + 1, len(trajectory.completion.token_ids) - 1)),
            ),
        )
        for index, trajectory in enumerate(trajectories)
    ]


@given(st.integers(1, 12), st.integers(0, 100), st.integers(1, 3), st.integers(60, 600), st.randoms(use_true_random=False))
def test_behaviour_11_reward_log_probs_and_versions_stay_with_their_row_through_shuffle_padding_and_micro_batches(
    num, seed, num_ranks, max_tokens, draw
):
    trajectories = marked(num, seed)
    draw.shuffle(trajectories)
    rows_of = [[row + 0.5 for row in trajectory.completion.logprobs] for trajectory in trajectories]
    batch = PolicyBatch(trajectories, proximal=rows_of, reference=None, learner_version=3, max_tokens=64)
    examples = [example_of(trajectory) for trajectory in trajectories]
    seen = []
    for rank in range(num_ranks):
        for micro_batch in rank_share(examples, ProcessGroup(rank, num_ranks), max_tokens=max_tokens, chunk_tokens=50):
            padded = pad_batch([examples[row] for row in micro_batch.rows], 0)
            given_rows = batch.loss_input(micro_batch.rows, padded, torch.zeros(padded.labels.shape), torch.zeros(padded.labels.shape))
            values = (given_rows.generator_logprobs, given_rows.proximal_logprobs, given_rows.policy_versions, padded.labels)
            for row, advantage, *columns in zip(
                micro_batch.rows, given_rows.advantages[:, 0].tolist(), *(unpad(value, padded) for value in values), strict=True
            ):
                trajectory = trajectories[row]
                assert advantage == trajectory.advantage
                torch.testing.assert_close(columns[0], list(trajectory.completion.logprobs))
                torch.testing.assert_close(columns[1], rows_of[row])
                assert columns[2] == list(token_versions(trajectory))
                assert columns[3] == list(trajectory.completion.token_ids)
            if micro_batch.counts:
                seen += micro_batch.rows
    assert sorted(seen) == list(range(num))


@given(st.integers(1, 12), st.integers(0, 100), st.integers(1, 4))
def test_ranks_run_the_model_and_its_head_equally_often(num, seed, num_ranks):
    examples = [example_of(trajectory) for trajectory in made_up_trajectories(num, seed)]
    shares = [rank_share(examples, ProcessGroup(rank, num_ranks), max_tokens=200, chunk_tokens=7) for rank in range(num_ranks)]
    assert len({len(share) for share in shares}) == 1
    for together in zip(*shares, strict=True):
        assert len({micro_batch.num_chunks for micro_batch in together}) == 1


def test_minibatches_that_do_not_divide_the_rows_are_as_many_and_nearly_even():
    grpo = GrpoSection(minibatches=4)
    assert [len(rows) for rows in minibatches(5, grpo, random.Random(0))] == [1, 1, 2, 1]
    assert [len(rows) for rows in minibatches(2, grpo, random.Random(0))] == [1, 1]


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 9))
def test_every_row_is_in_one_minibatch_of_each_epoch(num_rows, num_minibatches, epochs, seed):
    grpo = GrpoSection(minibatches=num_minibatches, epochs=epochs)
    parts = list(minibatches(num_rows, grpo, random.Random(seed)))
    assert len(parts) == epochs * min(num_minibatches, num_rows)
    assert sorted(row for part in parts for row in part) == sorted(list(range(num_rows)) * epochs)


def test_a_skipped_update_is_counted_and_left_out_of_the_gradient_norm_alone():
    steps = [
        {"loss": 1.0, "grad_norm": 3.0, "skipped_updates": 0.0},
        {"loss": 2.0, "grad_norm": float("inf"), "skipped_updates": 1.0},
        {"loss": 6.0, "grad_norm": 5.0, "skipped_updates": 0.0, "kl_nats": 0.5},
    ]
    assert mean_of_steps(steps) == {"loss": 3.0, "grad_norm": 4.0, "skipped_updates": 1.0, "kl_nats": 0.5}
    assert mean_of_steps(steps[1:2])["grad_norm"] == float("inf")  # there is no other
