"""Job: supervised fine-tuning on traces. `python jobs/sft.py RECIPE.toml [section.key=value ...]`, also through `ray job submit`."""

from mathrl_ray.entry import main

if __name__ == "__main__":
    raise SystemExit(main("sft"))
