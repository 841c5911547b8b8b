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
from mathrl_ray.driver.superseded import Position, supersede

RECIPE = {
    "run": {"name": "made_up", "root": "/runs", "seed": 0, "commit": "abc"},
    "model": {"path": "builtin:arithmetic"},
    "data": {"train": "builtin:arithmetic", "test": "builtin:arithmetic"},
    "eval": {"prompts": ["r1_zero"], "temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "num_samples": 1},
    "grpo": {"num_steps": 20, "learning_rate": 1e-3},
    "study": {"stages": ["baseline", "sft", "expert_iteration", "grpo"], "seeds": []},
}
STAGES = ("baseline", "sft", "expert_iteration", "grpo")
BUSY_S = {"generator": 0.9, "learner": 0.55, "scorer": 0.34}
"""In each row with spans."""


def recipe_with(**changes):
    """section__key=value"""
    made = {section: dict(values) for section, values in RECIPE.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        made.setdefault(section, {})[key] = value
    return made


def spans_before(time_s):
    """20 pieces of work in the last second, as many as a step of a real run has."""
    made = [("generator-0", "generate", -0.9, 0), ("learner-0", "train_policy", -0.6, -0.1), ("learner-0", "publish", -0.1, -0.05)]
    made += [("scorer-0", "score", 0.05 * place - 0.9, 0.05 * place - 0.88) for place in range(17)]
    return [[actor, what, round(time_s + start, 4), round(time_s + end, 4)] for actor, what, start, end in made]


def training_row(stage, step, time_s, draw, tokens):
    reward = 1 - math.exp(-step / 8) + draw.uniform(-0.02, 0.02)
    made = {
        "time_s": round(time_s, 3), "stage": stage, "step": step, "policy_version": step, "loss": draw.gauss(0.1, 0.05),
        "grad_norm": draw.lognormvariate(-1, 0.5), "learning_rate": 1e-3, "entropy_nats": 0.3 / step + draw.uniform(0, 0.01),
        "step_s": 1.0, "spans": spans_before(time_s),
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


def write_run(
    folder: Path, *, seed=0, num_steps=20, stages=STAGES, recipe=None, num_problems=40, num_samples=1, ungraded=0, validate=5, rollbacks=()
):
    """A finished run. Returns its folder; a stage's rows of its evaluation are read back from its file.

    rollbacks: (step, to_step) of grpo, in order; what lies between is moved aside as the program does it, and done again. Tokens and
    seconds go on.
    """
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    made = recipe or recipe_with(run__seed=seed, run__name=folder.name, study__stages=list(stages), eval__num_samples=num_samples)
    (folder / "recipe.toml").write_text(tomli_w.dumps(made))
    (folder / "environment.json").write_text(json.dumps({"versions": {"python": "3.11"}}))
    rows, summaries, time_s = [], [], 10.0
    for stage in stages:
        rows.append(start_row(stage, time_s))
        left = list(rollbacks) if stage == "grpo" else []
        last = {"baseline": 0, "expert_iteration": min(5, num_steps)}.get(stage, num_steps)
        step, tokens, num_worked = 0, 0, 0
        while step < last:
            step, tokens, num_worked = step + 1, tokens + (0 if stage == "sft" else 1000), num_worked + 1
            added, time_s = rows_of_step(stage, step, time_s, draw, tokens, has_validation=validate and step % validate == 0)
            rows += added
            if left and left[0][0] == step:
                _, to_step = left.pop(0)
                rows = rolled_back(folder, rows, [each["name"] for each in summaries], stage, to_step, time_s)
                step, time_s = to_step, time_s + 2
        evaluation = evaluation_rows(draw, stage, num_problems=num_problems, num_samples=num_samples, ungraded=ungraded)
        write_evaluation(folder, f"{stage}-v3", evaluation)
        figures = figures_of(evaluation, seed=seed)
        rows.append({"time_s": time_s + 0.5, "stage": stage, "step": last, "policy_version": 3, **flat_metrics(figures)})
        spent = {"generated_tokens": tokens, "consumed_tokens": tokens, "optimizer_steps": num_steps, "wall_s": 9.5, "graded": 40}
        device_s = {role: busy_s * num_worked for role, busy_s in BUSY_S.items()}
        summaries.append({"name": stage, "policy_version": 3, **figures, **spent, "device_s": device_s})
        time_s += 5
    write_metrics(folder, rows)
    (folder / "summary.json").write_text(json.dumps({"stages": summaries}))
    return folder


def start_row(stage, time_s):
    return {"time_s": time_s, "stage": stage, "step": 0, "policy_version": 0, "sync_s": 0.1}


def rows_of_step(stage, step, time_s, draw, tokens, *, has_validation):
    """The rows of a step, of a round with its updates before it; and the time after it."""
    rows = []
    for update in range(1, 4 if stage == "expert_iteration" else 1):
        time_s += 0.5
        inner = training_row(stage, step, time_s, draw, 0)
        inner = {key: value for key, value in inner.items() if key not in ("step_s", "spans")}
        rows.append({**inner, "optimizer_step": 3 * (step - 1) + update})
    time_s += 1
    made = training_row(stage, step, time_s, draw, tokens)
    if stage == "expert_iteration":
        made = {key: value for key, value in made.items() if key not in ("loss", "grad_norm", "learning_rate", "entropy_nats")}
        made |= {"reward_mean": 0.1 * step, "response_entropy_nats": 1 / step, "consumed_tokens_total": tokens}
    rows.append(made)
    if has_validation:
        rows.append(validation_row(stage, step, time_s + 0.2, draw, tokens))
    return rows, time_s


def rolled_back(folder, rows, finished, stage, to_step, time_s):
    """Take the stage back, and tell it in guards.jsonl. Returns the rows that are left."""
    write_metrics(folder, rows)
    supersede(folder, Position(finished, stage, to_step) if to_step else Position(finished))
    event = {"stage": stage, "step": rows[-1]["step"]}
    events = [
        {"kind": "fired", "time_s": time_s + 0.3, **event, "guard": "entropy", "metric": "entropy_nats", "value": 0.1, "limit": 0.2},
        {"kind": "rollback", "time_s": time_s + 1, **event, "to_step": to_step, "remedy": "lower_rate", "changes": {}, "text": "back"},
    ]
    with (folder / "guards.jsonl").open("a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in events))
    return [*metrics_of(folder), *([] if to_step else [start_row(stage, time_s + 1)])]


def write_metrics(folder, rows):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


def metrics_of(folder: Path):
    """The rows of a run, read without the program."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
