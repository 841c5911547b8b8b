"""Does asynchronous training learn as well? GRPO on the arithmetic task, real engines: five paired seeds, staleness 1, 2, 4 against 0.

`python tests/benchmarks/learning_parity.py [RESULTS.jsonl]` takes about 40 minutes on two cores: 25 runs of the main recipe's 50 steps,
each evaluated on 1,500 held-out problems. Each run is appended to the file as it ends, and a run that stands there already is not done
again. Differences are paired by seed; their 90 % interval is Student's t over the five. With correction means loss.correction =
"truncated" at 2, the default above staleness 0; without, "none".

The learning rate is 3e-4. The main recipe's 5e-4 is near the largest that the task bears at staleness 0 (1e-3 destroys the sums), and what
a delayed gradient bears is less: RESULTS.md has what happens there.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import ray
from rich.console import Console
from rich.table import Table
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from samples import make_run
from transformers import AutoTokenizer

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.actors.placement import placement, plan_device
from mathrl_ray.config import Recipe
from mathrl_ray.data.tiny_model import ensure_base_model
from mathrl_ray.driver.canary import begin_stage
from mathrl_ray.driver.evaluation import evaluate
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.recipe_file import load_recipe

WHOLE = {"driver.canary_every": 10, "grpo.num_steps": 50, "study.generated_tokens": 0, "eval.validate_every": 0}
RECIPE = Path(__file__).resolve().parents[2] / "jobs" / "recipes" / "arithmetic_cpu.toml"
SEEDS = (101, 102, 103, 104, 105)
SETTINGS = ((0, "none"), (1, "truncated"), (2, "truncated"), (4, "truncated"), (4, "none"))
LEARNING_RATE = 3e-4
LARGEST_POINTS = 5.0
MODELS = Path(tempfile.gettempdir()) / "mathrl-benchmark-models"


def recipe(folder: Path, seed: int, max_staleness: int, correction: str) -> Recipe:
    name = f"seed-{seed}-staleness-{max_staleness}-{correction}"
    keys = {
        "run.root": folder,
        "run.name": name,
        "run.seed": seed,
        "learner.learning_rate": LEARNING_RATE,
        "driver.max_staleness": max_staleness,
        "loss.correction": f'"{correction}"',
    }
    return load_recipe(RECIPE, [f"{key}={value}" for key, value in {**keys, **WHOLE}.items()])


async def one_run(asked: Recipe, actors: Actors, model: Path) -> dict[str, float]:
    """Train and evaluate; accuracy in percent, and how stale the rollouts were."""
    run = make_run(asked, actors, tokenizer=AutoTokenizer.from_pretrained(model), model_folder=str(model), num_train_problems=4096)
    grpo = asked.grpo
    await begin_stage(run, "grpo", learning_rate=grpo.learning_rate, num_optimizer_steps=grpo.num_steps)
    steps: list[dict[str, float]] = []
    await PolicyLoops(run, "grpo", grpo.num_steps, lambda step, groups, metrics: steps.append(metrics)).train()
    figures = await evaluate(run, "grpo", step=grpo.num_steps)
    touched = [step["correction_limit_fraction"] for step in steps if "correction_limit_fraction" in step]
    return {
        "accuracy": 100 * figures["accuracy"],
        "staleness_mean": fmean(step["staleness_mean"] for step in steps),
        "staleness_max": max(step["staleness_max"] for step in steps),
        "mixed_version_fraction": fmean(step["mixed_version_fraction"] for step in steps),
        "correction_limit_fraction": fmean(touched) if touched else 0.0,
        "generated_tokens": float(run.ledger.counts.generated_tokens),
    }


async def all_runs(folder: Path, results: Path, model: Path) -> None:
    done = {(row["seed"], row["max_staleness"], row["correction"]) for row in read(results)}
    wanted = [(seed, *setting) for seed in SEEDS for setting in SETTINGS if (seed, *setting) not in done]
    for correction in sorted({correction for _, _, correction in wanted}, reverse=True):
        # The learner's loss follows from its recipe, so each correction has engines of its own.
        engines = recipe(folder, SEEDS[0], 0, correction)
        async with placement(engines, plan_device(engines)) as placed:
            actors, _ = await placed.start(str(model))
            for seed, max_staleness, _ in (each for each in wanted if each[2] == correction):
                found = await one_run(recipe(folder, seed, max_staleness, correction), actors, model)
                row = {"seed": seed, "max_staleness": max_staleness, "correction": correction, **found}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 90 % interval."""
    mean, error = fmean(differences), stats.sem(differences)
    half = float(stats.t.ppf(0.95, len(differences) - 1) * error)
    return mean, mean - half, mean + half


def summaries(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[tuple[int, str], list[dict[str, Any]], tuple[float, float, float]]]:
    plain = {row["seed"]: row["accuracy"] for row in rows if (row["max_staleness"], row["correction"]) == SETTINGS[0]}
    for setting in SETTINGS[1:]:
        found = [row for row in rows if (row["max_staleness"], row["correction"]) == setting]
        yield setting, found, interval([row["accuracy"] - plain[row["seed"]] for row in found])


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "results.jsonl"
        model = ensure_base_model(MODELS, seed=0)
        ray.init(address="local", num_cpus=2, namespace="parity", log_to_driver=False, include_dashboard=False)
        asyncio.run(all_runs(Path(folder), results, model))
        ray.shutdown()
        rows = read(results)
    plain = [row["accuracy"] for row in rows if row["max_staleness"] == 0]
    table = Table(title=f"Accuracy on 1,500 problems, {len(SEEDS)} paired seeds; staleness 0: {fmean(plain):.1f} %", title_justify="left")
    for name in ("max_staleness", "correction", "accuracy", "difference (90 %)", "staleness", "mixed", "capped tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    figure, ok = {"0": round(fmean(plain), 2)}, True
    for (max_staleness, correction), found, (mean, low, high) in summaries(rows):
        means = {name: fmean(row[name] for row in found) for name in found[0] if name not in ("seed", "correction")}
        shown = (f"{means['accuracy']:.1f} %", f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", f"{means['staleness_mean']:.2f}")
        mixed, capped = means["mixed_version_fraction"], means["correction_limit_fraction"]
        table.add_row(str(max_staleness), correction, *shown, f"{100 * mixed:.0f} %", f"{100 * capped:.2f} %")
        figure[f"{max_staleness} {correction}"] = [round(value, 2) for value in (mean, low, high)]
        if max_staleness <= 2 and correction == "truncated":
            ok = ok and low >= -LARGEST_POINTS and high <= LARGEST_POINTS
    Console().print(table)
    print(json.dumps({"name": "learning_parity", "figure": figure, "target": {"points": LARGEST_POINTS}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
