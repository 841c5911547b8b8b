"""Behaviour 25, by the benchmark that measures it: `python -m pytest -m slow tests/e2e_cpu/test_memory.py` takes about 4 minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "memory_slope.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_behaviour_25_no_process_and_no_object_store_grows_over_200_steps():
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
