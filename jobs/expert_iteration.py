"""Job: expert iteration from the start model. `python jobs/expert_iteration.py RECIPE.toml [section.key=value ...]`, also through
`ray job submit`."""

from mathrl_ray.entry import main

if __name__ == "__main__":
    raise SystemExit(main("expert_iteration"))
