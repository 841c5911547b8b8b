import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No cluster and no GPU of this machine's."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
