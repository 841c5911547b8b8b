"""One learner's memory, without Ray: `python learner_memory.py MODEL_FOLDER RUN_ROOT DTYPE MAX_LENGTH`. Started by test_preflight_nodes.py.

Two optimizer steps of two micro-batches, each one sequence of the longest length. Prints {"after_imports": bytes, "peak": bytes}.
"""

import json
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from samples import recipe_for

from mathrl_ray.actors.learner import Learner
from mathrl_ray.device import choose_device, peak_memory_gib
from mathrl_ray.types import SftExample, StageSettings

CPU = choose_device("cpu", num_gpus=0, num_engines=2)


def main(model_folder: str, root: str, dtype: str, max_length: int) -> None:
    recipe = recipe_for(
        Path(root),
        model={"dtype": dtype, "max_length": max_length},
        learner={"micro_batch_tokens": max_length},
        eval={"max_tokens": max_length // 2},
        generator={"max_tokens": max_length // 2},
    )
    learner = Learner()
    learner.preload(recipe, CPU)
    import mathrl_ray.actors.deepspeed_engine
    import mathrl_ray.actors.learner_steps  # noqa: F401  # what a stage would import

    learner.setup(recipe, CPU)
    after_imports = psutil.Process().memory_info().rss
    learner.start_stage(StageSettings(model_folder, 1e-5, 10, "sft", root))
    example = SftExample(prompt_ids=tuple(range(100, 116)), response_ids=tuple(1000 + number for number in range(max_length - 16)))
    for _ in range(2):
        learner.train_sft([example, example])
    print(json.dumps({"after_imports": after_imports, "peak": int(peak_memory_gib("cpu") * 2**30)}))
    learner.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
