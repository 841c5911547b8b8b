"""What a GPU test needs to be run at all; each is skipped with the reason where it cannot be.

CUDA_VISIBLE_DEVICES=0 .venv/bin/python -m pytest tests/gpu -m gpu          # one GPU: what needs two is skipped
.venv/bin/python -m pytest tests/gpu -m gpu                                 # two
.venv/bin/python tests/gpu/pytorch_only.py                                  # needs only PyTorch and transformers
"""

import pytest


def num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pytest_collection_modifyitems(items):
    for item in items:
        if (mark := item.get_closest_marker("gpu")) and (wanted := mark.kwargs.get("num", 1)) > (found := num_gpus()):
            item.add_marker(pytest.mark.skip(reason=f"needs {wanted} GPUs, PyTorch sees {found}"))
