"""A Ray of its own that shows made-up rows, for test_monitoring.py: `python metrics_writer.py RUN_FOLDER TARGETS_FILE`.

Writes where Ray's agent exports, then one row with every key that is shown; goes on until its input ends.
"""

import json
import sys
from pathlib import Path

import ray

from mathrl_ray.driver.ray_metrics import shown_in_ray
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.shown_metrics import SHOWN


def made_up_numbers() -> dict[str, float]:
    """A different number for each key."""
    keys = [key for metric in SHOWN for key in metric.keys if key not in ("step", "policy_version", "time_s")]
    return {key: round(0.125 + index, 3) for index, key in enumerate(keys)}


def main(folder: str, targets: str) -> None:
    context = ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    facts = context.address_info
    Path(targets).write_text(json.dumps([{"targets": [f"{facts['node_ip_address']}:{facts['metrics_export_port']}"]}]))
    recorder = Recorder(Path(folder))
    with shown_in_ray(recorder, 2, print):
        recorder.metrics("grpo", 6, 7, {**made_up_numbers(), "loss": 99.0})
        recorder.metrics("grpo", 7, 8, made_up_numbers())
        print("written", flush=True)
        sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
