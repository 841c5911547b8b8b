"""What the end-to-end tests share: a small start model, trained for seconds, so that its distribution is not flat."""

import pytest

from mathrl_ray.data.arithmetic import TraceMix
from mathrl_ray.data.tiny_model import BaseModelSettings, TrainingPhase, ensure_base_model

BRIEFLY = (TrainingPhase(num_steps=60, learning_rate=3e-3, mix=TraceMix(good=0.65, slip=0.10, guess=0.05, no_format=0.20)),)


@pytest.fixture(scope="session")
def start_model(tmp_path_factory):
    return ensure_base_model(tmp_path_factory.mktemp("models"), seed=0, settings=BaseModelSettings(phases=BRIEFLY))
