from dataclasses import replace

import pytest

from mathrl_ray.core.memory_estimate import LearnerSettings, ModelShape, learner_memory

TINY = ModelShape(vocab_size=50, hidden_size=8, intermediate_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_size=4, tied=True)
SETTINGS = LearnerSettings("bfloat16", max_length=10, micro_batch_tokens=25, logits_chunk_tokens=5)


@pytest.mark.parametrize(("num_sets", "expected"), [(0, 0), (1, 2 * 4 * 1592), (5, 6 * 4 * 1592)])
def test_an_average_takes_float32_sets_on_the_host_and_one_more_while_it_is_used(num_sets, expected):
    plain, averaged = (learner_memory(TINY, replace(SETTINGS, num_averaged_sets=sets)) for sets in (0, num_sets))
    assert TINY.num_parameters == 1592
    assert averaged.host == expected
    assert averaged == replace(plain, host=expected)  # nothing on the device


def test_ranks_divide_it_adapters_are_few_and_what_is_offloaded_comes_on_top():
    averaged = replace(SETTINGS, num_averaged_sets=1)
    assert learner_memory(TINY, replace(averaged, num_ranks=2)).host == 4 * 1592
    assert learner_memory(TINY, replace(averaged, lora_rank=3)).host == 2 * 4 * 768
    offloaded = learner_memory(TINY, replace(SETTINGS, offload="optimizer"))
    assert learner_memory(TINY, replace(averaged, offload="optimizer")).host == offloaded.host + 2 * 4 * 1592
