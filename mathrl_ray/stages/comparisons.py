"""What a study's stages say beside each other: each beside the one before, and expert iteration beside GRPO at equal generated tokens.

Called by study.py after the last stage. Reads the evaluations and the metrics that the run has written; the test problems are only paired,
not sampled again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mathrl_ray.core.comparison_text import sentence
from mathrl_ray.core.equal_cost import RIVALS, CostPoint, are_equal, at_equal_cost
from mathrl_ray.core.paired_evaluations import Comparison, Evaluation, compare_evaluations
from mathrl_ray.driver.run import Run

NOTE = "Each compares two checkpoints, not methods: that takes several seeds (study.seeds)."
LENGTH_KEYS = {"expert_iteration": "expert_iteration.rounds", "grpo": "grpo.num_steps"}
"""What ends each of the rivals where no budget does."""


def compare_stages(run: Run) -> dict[str, Any]:
    """Say and return how the stages compare; nothing where there is only one. A stage that a former version of this program finished
    is left out with a word: its summary does not say which of the evaluations is its last.

    Returns:
        {"neighbours": [...], "equal_tokens": {...} or None, "note"}: each a core Comparison as a dictionary, ids left out, with `text`.
    """
    stages = [summary for summary in run.stages if "policy_version" in summary]
    if len(stages) < len(run.stages):
        names = ", ".join(summary["name"] for summary in run.stages if "policy_version" not in summary)
        run.console.say(f"not compared: {names}, finished by a former version, whose summary.json does not name the weights")
    if len(stages) < 2:
        return {}
    neighbours = [_neighbours(run, one, other) for one, other in pairwise(stages)]
    for each in neighbours:
        run.console.say(each["text"])
    try:
        equal = _rivals(run, stages)
    except (ValueError, OSError) as error:  # as in _neighbours
        equal = {"text": f"{' and '.join(RIVALS)} are not compared at equal cost: {error}"}
    if equal:
        run.console.say(equal["text"])
    run.console.say(NOTE)
    return {"neighbours": neighbours, "equal_tokens": equal, "note": NOTE}


def _neighbours(run: Run, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    folder = run.recorder.folder
    try:
        plain = _plain(compare_evaluations(_final(folder, one), _final(folder, other), seed=run.recipe.run.seed))
    except (ValueError, OSError) as error:  # other test problems after a resume with changes, or rows that are gone: the results stand
        return {"first": one["name"], "second": other["name"], "text": f"{other['name']} and {one['name']} are not compared: {error}"}
    costs = [summary["generated_tokens"] for summary in (one, other)]
    if {one["name"], other["name"]} == set(RIVALS) and not are_equal(*costs):
        plain["text"] += f"; at unequal cost: {costs[0]:,} and {costs[1]:,} generated tokens"
    return plain


def _final(folder: Path, summary: Mapping[str, Any]) -> Evaluation:
    return _evaluation(folder / "evaluations" / f"{summary['name']}-v{summary['policy_version']}.parquet", summary["name"])


def _evaluation(path: Path, name: str) -> Evaluation:
    return Evaluation(name, pq.read_table(path).to_pylist())


def _plain(found: Comparison) -> dict[str, Any]:
    plain = asdict(found)
    return {**plain, "gained": len(found.gained), "lost": len(found.lost), "text": sentence(found)}


def _rivals(run: Run, stages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Expert iteration and GRPO at equal generated tokens: by their final evaluations where they cost the same, else by validations."""
    summaries = {summary["name"]: summary for summary in stages if summary["name"] in RIVALS}
    if len(summaries) < len(RIVALS):
        return None
    one, other = (summaries[name] for name in RIVALS)
    tokens = {name: summaries[name]["generated_tokens"] for name in RIVALS}
    folder, seed = run.recorder.folder, run.recipe.run.seed
    if are_equal(*tokens.values()):
        found = compare_evaluations(_final(folder, one), _final(folder, other), seed=seed)
        return _at(tokens, found, "held-out problems")
    curves = [list(_curve(folder / "metrics.jsonl", name)) for name in RIVALS]
    points = at_equal_cost(*curves)
    sampled = " and ".join(f"{count:,} tokens ({name})" for name, count in tokens.items())
    told = f"the results above cost {sampled}"
    if points is None:
        return {
            "text": f"{told}; they have no validations at equal cost: {_advice(run, tokens)}, or validate more often (eval.validate_every)"
        }
    evaluations = [_validation(folder, name, point.step) for name, point in zip(RIVALS, points, strict=True)]
    found = compare_evaluations(*evaluations, seed=seed)
    return _at({name: point.generated_tokens for name, point in zip(RIVALS, points, strict=True)}, found, f"validation problems ({told})")


def _advice(run: Run, tokens: Mapping[str, int]) -> str:
    """What would make the rivals cost the same."""
    budget = run.token_budget
    if not budget:
        return "set study.generated_tokens"
    short = [LENGTH_KEYS[name] for name, count in tokens.items() if count < budget and not are_equal(count, budget)]
    if not short:
        return f"one batch is much of study.generated_tokens = {budget:,}: raise that, or lower expert_iteration.questions"
    return f"raise {' and '.join(short)}, which ended before study.generated_tokens = {budget:,} were sampled"


def _at(tokens: Mapping[str, int], found: Comparison, where: str) -> dict[str, Any]:
    costs = " and ".join(f"{count:,} ({name})" for name, count in tokens.items())
    return {**_plain(found), "generated_tokens": dict(tokens), "text": f"at equal generated tokens, {costs}, on {where}: {sentence(found)}"}


def _curve(metrics: Path, stage: str) -> Iterator[CostPoint]:
    for row in _rows(metrics):
        if row["stage"] == stage and "validation_accuracy" in row and "consumed_tokens_total" in row:
            yield CostPoint(row["consumed_tokens_total"], row["step"], row["validation_accuracy"])


def _rows(metrics: Path) -> Iterator[Mapping[str, Any]]:
    with metrics.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _validation(folder: Path, stage: str, step: int) -> Evaluation:
    found: Sequence[Path] = sorted((folder / "evaluations").glob(f"validation-{stage}-step{step}-v*.parquet"))
    return _evaluation(found[-1], stage)
