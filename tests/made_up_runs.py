"""Run directories for tests of the report, written as a run writes them: recipe, rows of metrics, evaluations, summary.

Numbers are drawn from a seed and are no model's. `write_run` takes what a test wants to be awkward.
"""

import json
import math
import random
from pathlib import Path

import tomli_w
from evaluation_rows import BROKEN, RIGHT, UNGRADED, WRONG, row, write_evaluation

from mathrl_ray.driver.evaluation_figures import figures_of, flat_metrics

RECIPE = {
    "run": {"name": "made_up", "root": "/runs", "seed": 0, "commit": "abc"},
    "model": {"path": "builtin:arithmetic"},
    "data": {"train": "builtin:arithmetic", "test": "builtin:arithmetic"},
    "eval": {"prompts": ["r1_zero"], "temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "num_samples": 1},
    "grpo": {"num_steps": 20, "learning_rate": 1e-3},
    "study": {"stages": ["baseline", "sft", "expert_iteration", "grpo"], "seeds": []},
}
STAGES = ("baseline", "sft", "expert_iteration", "grpo")


def recipe_with(**changes):
    """section__key=value"""
    made = {section: dict(values) for section, values in RECIPE.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        made.setdefault(section, {})[key] = value
    return made


def training_row(stage, step, time_s, draw, tokens):
    reward = 1 - math.exp(-step / 8) + draw.uniform(-0.02, 0.02)
    made = {
        "time_s": round(time_s, 3), "stage": stage, "step": step, "policy_version": step, "loss": draw.gauss(0.1, 0.05),
        "grad_norm": draw.lognormvariate(-1, 0.5), "learning_rate": 1e-3, "entropy_nats": 0.3 / step + draw.uniform(0, 0.01),
        "step_s": 1.0, "spans": [["learner-0", "train", time_s - 0.6, time_s - 0.1], ["generator-0", "generate", time_s - 0.9, time_s]],
    }  # fmt: skip
    if stage == "grpo":
        made |= {
            "reward_mean": reward, "format_reward_mean": min(1.0, reward + 0.1), "answer_reward_mean": reward,
            "response_tokens_mean": 24 + draw.random(), "truncated_fraction": draw.uniform(0, 0.1), "clip_fraction": draw.uniform(0, 0.1),
            "importance_ratio_mean": draw.gauss(1, 0.01), "mismatch_kl": draw.uniform(0, 1e-3), "staleness_mean": draw.random(),
            "staleness_max": draw.randint(0, 2), "zero_variance_fraction": draw.random(), "consumed_tokens_total": tokens,
        }  # fmt: skip
    return made


def validation_row(stage, step, time_s, draw, tokens):
    accuracy = draw.uniform(0.3, 0.9)
    return {
        "time_s": time_s, "stage": stage, "step": step, "policy_version": step, "consumed_tokens_total": tokens,
        "validation_accuracy": accuracy, "validation_ci95_low": accuracy - 0.05, "validation_ci95_high": accuracy + 0.05,
        "validation_num_problems": 500, "validation_num_ungraded": 2, "validation_format_rate": 0.9,
    }  # fmt: skip


def evaluation_rows(draw, stage, *, num_problems=40, num_samples=1, ungraded=0, prompt_name="r1_zero"):
    """Awkward on purpose: levels and subjects that are missing, ungraded rows, lengths that differ."""
    share = {"baseline": 0.3, "sft": 0.5}.get(stage, 0.8)
    made = []
    for index in range(num_problems):
        for sample in range(num_samples):
            outcome = UNGRADED if index < ungraded else RIGHT if draw.random() < share else draw.choice([WRONG, BROKEN])
            made.append(
                row(
                    f"p{index}", outcome, sample=sample, problem="Sum?", prompt="Sum?", level=None if index % 7 == 0 else index % 5 + 1,
                    subject=["algebra", "word", None][index % 3], num_response_tokens=draw.randint(3, 64), prompt_name=prompt_name,
                    mean_token_entropy_nats=draw.random(), policy_version=3,
                )
            )  # fmt: skip
    return made


def write_run(folder: Path, *, seed=0, num_steps=20, stages=STAGES, recipe=None, num_problems=40, num_samples=1, ungraded=0, validate=5):
    """A finished run. Returns its folder; a stage's rows of its evaluation are read back from its file."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    made = recipe or recipe_with(run__seed=seed, run__name=folder.name, study__stages=list(stages), eval__num_samples=num_samples)
    (folder / "recipe.toml").write_text(tomli_w.dumps(made))
    (folder / "environment.json").write_text(json.dumps({"versions": {"python": "3.11"}}))
    rows, summaries, time_s = [], [], 10.0
    for stage in stages:
        rows.append({"time_s": time_s, "stage": stage, "step": 0, "policy_version": 0, "sync_s": 0.1})
        tokens = 0
        for step in range(1, 0 if stage == "baseline" else num_steps + 1):
            if stage == "expert_iteration":
                if step > 5:
                    break
                for update in range(1, 4):
                    time_s += 0.5
                    inner = training_row(stage, step, time_s, draw, 0)
                    inner = {key: value for key, value in inner.items() if key not in ("step_s", "spans")}
                    rows.append({**inner, "optimizer_step": 3 * (step - 1) + update})
            time_s, tokens = time_s + 1, tokens + (0 if stage == "sft" else 1000)
            made_row = training_row(stage, step, time_s, draw, tokens)
            if stage == "expert_iteration":
                dropped = ("loss", "grad_norm", "learning_rate", "entropy_nats")
                made_row = {key: value for key, value in made_row.items() if key not in dropped}
                made_row |= {"reward_mean": 0.1 * step, "response_entropy_nats": 1 / step, "consumed_tokens_total": tokens}
            rows.append(made_row)
            if validate and step % validate == 0:
                rows.append(validation_row(stage, step, time_s + 0.2, draw, tokens))
        evaluation = evaluation_rows(draw, stage, num_problems=num_problems, num_samples=num_samples, ungraded=ungraded)
        write_evaluation(folder, f"{stage}-v3", evaluation)
        figures = figures_of(evaluation, seed=seed)
        rows.append({"time_s": time_s + 0.5, "stage": stage, "step": num_steps, "policy_version": 3, **flat_metrics(figures)})
        spent = {"generated_tokens": tokens, "consumed_tokens": tokens, "optimizer_steps": num_steps, "wall_s": 9.5, "graded": 40}
        summaries.append({"name": stage, "policy_version": 3, **figures, **spent, "device_s": {"generator": 4.0, "learner": 3.0}})
        time_s += 5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "summary.json").write_text(json.dumps({"stages": summaries}))
    return folder


def metrics_of(folder: Path):
    """The rows of a run, read without the program."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
