"""How near training comes to what the device can do. Called by the learner; pure arithmetic."""

PEAK_BF16_TFLOPS: dict[str, float] = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "RTX 4090": 165,
    "A10": 125,
}
"""Dense bf16 rate of a device whose name holds the key, from the vendor's data sheets; the first that fits."""


def training_flops(
    num_parameters: int, num_layers: int, hidden_size: int, num_tokens: int, mean_length: float, *, frozen: bool = False
) -> float:
    """Floating-point operations of forward and backward: num_tokens * (6 N + 6 L H T).

    6 N for the weights and 12 L H T for the attention scores (Chowdhery et al. 2022, appendix B), of which causal attention needs half.
    Counts what the model needs, not what recomputation adds. Frozen weights (behind adapters) need 4 N: no gradient of their own.

    >>> round(training_flops(1_544_000_000, 28, 1536, 1, 1024) / 1e9, 2)
    9.53
    """
    return num_tokens * ((4 if frozen else 6) * num_parameters + 6 * num_layers * hidden_size * mean_length)


def peak_flops(device_name: str) -> float | None:
    """Operations a second in bf16 of a device, None where it is not known.

    >>> peak_flops("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    return next((tflops * 1e12 for name, tflops in PEAK_BF16_TFLOPS.items() if name in device_name), None)
