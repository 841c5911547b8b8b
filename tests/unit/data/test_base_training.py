import math

import pytest
import torch

from mathrl_ray.data.arithmetic import TraceMix
from mathrl_ray.data.base_training import IGNORED, pack, train_base_model
from mathrl_ray.data.tiny_model import BaseModelSettings, TrainingPhase, build_model, build_tokenizer

PAD = 1


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(512)


def example(num_prompt, num_response, first):
    ids = list(range(first, first + num_prompt + num_response))
    return ids[:-1], [IGNORED] * (num_prompt - 1) + ids[num_prompt:]


def test_short_examples_share_a_row_that_is_as_wide_as_the_longest():
    # lengths 5, 3, 2: the two short ones fill a second row of five
    batch = pack([example(2, 2, 10), example(3, 3, 20), example(1, 2, 30)], PAD)
    assert batch.input_ids.tolist() == [[20, 21, 22, 23, 24], [10, 11, 12, 30, 31]]
    assert batch.labels.tolist() == [[IGNORED, IGNORED, 23, 24, 25], [IGNORED, 12, 13, 31, 32]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]


def test_a_token_sees_the_earlier_ones_of_its_own_example_only():
    batch = pack([example(2, 2, 10), example(3, 3, 20), example(1, 2, 30)], PAD)
    assert batch.attention_mask[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_packing_changes_no_logit(tokenizer):
    examples = [example(2, 2, 10), example(3, 3, 20), example(1, 2, 30)]
    model = build_model(tokenizer, 0, BaseModelSettings()).eval()
    batch = pack(examples, PAD)
    with torch.no_grad():
        packed = model(input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.attention_mask).logits
        alone = [model(input_ids=torch.tensor([ids])).logits[0] for ids, _ in examples]
    for row, span, logits in ((1, slice(0, 3), alone[0]), (0, slice(0, 5), alone[1]), (1, slice(3, 5), alone[2])):
        torch.testing.assert_close(packed[row, span], logits, atol=1e-5, rtol=1e-5)


def test_forty_steps_take_the_loss_far_below_that_of_a_uniform_guess(tokenizer):
    mix = TraceMix(good=1.0, slip=0.0, guess=0.0, no_format=0.0)
    model = build_model(tokenizer, 0, BaseModelSettings())
    assert good_trace_loss(model, tokenizer) == pytest.approx(math.log(277), abs=0.5)
    train_base_model(model, tokenizer, seed=0, batch_size=16, phases=[TrainingPhase(40, 3e-3, mix, num_warmup_steps=5)])
    assert good_trace_loss(model, tokenizer) < 1.5
    assert not model.training


def good_trace_loss(model, tokenizer):
    prompt = tokenizer("Compute 6+3-7.\nAssistant: <think>")["input_ids"]
    response = [*tokenizer(" 6+3=9, 9-7=2 </think> <answer> 2 </answer>")["input_ids"], tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(response)).item()
