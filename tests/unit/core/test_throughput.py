import pytest

from mathrl_ray.core.throughput import peak_flops, training_flops


def test_a_token_of_the_reference_model_costs_what_was_counted_by_hand():
    # 6 x 1.544e9 + 6 x 28 layers x 1536 x 1024 tokens = 9.264e9 + 0.264e9
    assert training_flops(1_544_000_000, 28, 1536, 1, 1024) == pytest.approx(9.528e9, rel=1e-3)
    assert training_flops(100, 1, 1, 10, 0) == 6000


def test_a_device_is_known_by_its_name_and_the_slower_card_by_its_own():
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("a CPU") is None
    assert peak_flops("") is None
