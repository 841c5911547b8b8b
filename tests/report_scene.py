"""A made-up run directory with texts that mean harm, for the tests of the report page."""

import json
import math

from evaluation_rows import BROKEN, RIGHT, WRONG, row, write_evaluation

HOSTILE = (
    "<script>window.harmed = 1</script>",
    "</pre></section></main><h1>broken",
    "</script><script>window.harmed = 2</script>",
    "{{ 7 * 7 }} {% raw %} ${7 * 7}",
    "<img src=x onerror='window.harmed = 3'>",
    '" onmouseover="window.harmed = 4" x="',
    "<svg onload=alert(1)><style>*{display:none}</style>",
    "nul\x00 bell\x07 escape\x1b[31m",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200bwidthless \u2028line",
    "<!-- <![CDATA[ &lt; &amp; &#0; ]]>",
)
"""Each of them stands in responses, problems, ids, golds, names and settings."""
LONG_LINE = "<b>" + "x" * 100_000 + "</b>"


def hostile_rows(version):
    """Rows of an evaluation; problems 0, 1, ... are right from version 1 on."""
    rows = []
    for index, text in enumerate((LONG_LINE, *HOSTILE)):
        kind = RIGHT if version and index % 2 == 0 else (WRONG if index % 3 else BROKEN)
        rows.append(
            row(
                f"p{index}{text[:60]}",
                kind,
                response=f"{text} </think> <answer> {text[:200]} </answer>",
                problem=f"已知 {text} {HOSTILE[9]}",
                gold=text[:500],
                extracted_answer=text[:300],
                prompt=f"User: {text}",
                subject=text[:40],
                policy_version=version,
                level=index % 5,
            )
        )
    return rows


def summary_of(name, rows, **values):
    """Its entry of summary.json, by hand."""
    right = sum(each["outcome"] == "correct" for each in rows)
    levels = sorted({each["level"] for each in rows})
    part = {"accuracy": right / len(rows), "ci95": [0.1, 0.9], "num_problems": len(rows)}
    counts = {outcome: sum(each["outcome"] == outcome for each in rows) for outcome in ("correct", "wrong", "no_answer")}
    return {
        "name": name, **part, "policy_version": rows[0]["policy_version"], "num_ungraded": 0, "num_graded_problems": len(rows),
        "num_samples": 1,
        "format_rate": 0.5, "mean_entropy_nats": 0.2, "mean_response_tokens": 20.0, "mean_right_tokens": 20.0, "mean_wrong_tokens": 21.0,
        "at_k": [{"k": 1, "pass_at_k": right / len(rows), "maj_at_k": right / len(rows), "num_problems": len(rows)}],
        "by_level": [{"name": str(level), **part} for level in levels], "by_subject": [{"name": "algebra", **part}],
        "outcomes": {name: number for name, number in counts.items() if number}, "generated_tokens": 4000, "consumed_tokens": 4000,
        "graded": 10,
        "optimizer_steps": 4, "trained_tokens": 3000, "dropped_tokens": 0, "zero_variance_tokens": 0, "redone": 0, "wall_s": 60.0,
        "device_s": {"generator": 30.0, "learner": 20.0, "scorer": 1.0}, **values,
    }  # fmt: skip


def metrics_rows(num_steps, seed=0):
    """A GRPO stage's rows: ten seconds and a thousand tokens a step, spans of two actors, validations at every tenth step."""
    for step in range(1, num_steps + 1):
        wave = math.sin(step / 3 + seed)
        row = {
            "time_s": 10.0 * step + 5, "stage": "grpo", "step": step, "policy_version": step, "reward_mean": 0.5 + 0.3 * wave,
            "format_reward_mean": 0.9, "answer_reward_mean": 0.5 + 0.3 * wave, "response_tokens_mean": 20 + wave,
            "truncated_fraction": 0.01,
            "staleness_mean": 0.5, "staleness_max": 1, "zero_variance_fraction": 0.3, "entropy_nats": 0.3 - 0.1 * wave,
            "clip_fraction": 0.02,
            "loss": 0.1 * wave, "learning_rate": 0.0005, "grad_norm": 0.3 + 0.1 * wave, "importance_ratio_mean": 1 + 0.01 * wave,
            "mismatch_kl": 0.001, "consumed_tokens_total": 1000 * step, "step_s": 10.0,
            "spans": [["generator-0", "generate", 10.0 * step, 10.0 * step + 5],
                      ["learner-0", "train_policy", 10.0 * step + 5, 10.0 * step + 9]],
        }  # fmt: skip
        yield row
        if step % 10 == 0:
            yield {
                "time_s": 10.0 * step + 9, "stage": "grpo", "step": step, "policy_version": step, "validation_accuracy": 0.5,
                "num_problems": 11,
            }  # fmt: skip


GUARD_ROWS = (
    {"kind": "fired", "time_s": 90.0, "stage": "grpo", "step": 9, "guard": "entropy", "metric": "entropy_nats", "value": 2.0, "limit": 1.0,
     "action": "rollback", "text": HOSTILE[0]},
    {"kind": "rollback", "time_s": 91.0, "stage": "grpo", "step": 9, "to_step": 5, "remedy": "lower_rate",
     "changes": {"learner.learning_rate": [0.002, 0.0005], HOSTILE[4]: ["a", HOSTILE[5]]}, "try": 1, "tokens_lost": 4000,
     "text": "went back"},
    {"kind": "outcome", "time_s": 200.0, "stage": "grpo", "step": 20, "remedy": "lower_rate", "helped": True, "text": HOSTILE[2]},
)  # fmt: skip


def write_run(folder, *, num_steps=20, seed=0, rows_of=hostile_rows, is_finished=True, guards=GUARD_ROWS):
    """A run of a baseline and GRPO at `folder`; unfinished, GRPO has rows and no result yet."""
    before, after = rows_of(0), rows_of(num_steps)
    folder.mkdir(parents=True)
    recipe = f'[run]\nname = "x"\nseed = {seed}\n[model]\npath = {json.dumps(HOSTILE[4])}\n[data]\ntrain = "builtin:arithmetic"\n'
    (folder / "recipe.toml").write_text(f"{recipe}[grpo]\nnum_steps = {num_steps}\n", encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"versions": {"python": HOSTILE[5]}, "seeds": {"run": seed}}), encoding="utf-8")
    stages = [summary_of("baseline", before, optimizer_steps=0), *([summary_of("grpo", after)] if is_finished else [])]
    (folder / "summary.json").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    first = {
        "time_s": 3.0,
        "stage": "baseline",
        "step": 0,
        "policy_version": 0,
        "accuracy": 0.2,
        "spans": [["generator-0", "generate", 1.0, 3.0]],
    }
    lines = [json.dumps(each) for each in (first, *metrics_rows(num_steps, seed))]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if guards:
        (folder / "guards.jsonl").write_text("".join(json.dumps(each) + "\n" for each in guards), encoding="utf-8")
    write_evaluation(folder, "baseline-v0", before)
    if is_finished:
        write_evaluation(folder, f"grpo-v{num_steps}", after)
    return folder
