"""What a kind of failure suggests: a likely cause, a remedy, and the command that tries it.

Called by failure_analysis.py. Pure. A command changes the recipe of the run that was analysed, begins a new run, and never does again what
that run has done: where its stages hold the remedy already, that stage gets more of it, or another setting.
"""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mathrl_ray.config import Recipe
from mathrl_ray.core.reward_weights import weight_at
from mathrl_ray.sections import BUILTIN, StageName

Row = Mapping[str, Any]
KindName = Literal["solved", "mathematics", "format", "both"]
TRACES = "YOUR_TRACES.jsonl"
PROMPTS = ("r1_zero", "question_only")
"""Those that every model can be asked with; chat needs a template."""
_AT_THE_END = 10**9
"""A step after the last point of any schedule."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a count of failures suggests; a guess to be tried, not a finding."""

    cause: str
    remedy: str
    command: str
    """For a shell; "" where there is nothing to run."""


@dataclass(frozen=True, slots=True)
class AnalysedRun:
    """Where the rows come from."""

    stage: StageName = "baseline"
    stages: Collection[StageName] = ()
    """Those that the run has evaluated."""
    recipe: Recipe = field(default_factory=Recipe)
    recipe_file: str = "RECIPE.toml"

    def command(self, job: StageName, **changes: Any) -> str:
        """The job with this recipe and changed keys, `section__key`; a new run, also where the recipe goes on from what is there.

        >>> AnalysedRun().command("grpo", grpo__num_steps=100)
        'python jobs/grpo.py RECIPE.toml grpo.num_steps=100'
        """
        if self.recipe.run.resume:
            changes["run__resume"] = ""
        words = [f"{key.replace('__', '.')}={_as_override(value)}" for key, value in changes.items()]
        if job != "sft_filtered":
            return shlex.join(["python", f"jobs/{job}.py", self.recipe_file, *words])
        return shlex.join(["python", "jobs/study.py", self.recipe_file, 'study.stages=["sft_filtered"]', *words])


def _as_override(value: Any) -> str:
    """
    >>> _as_override("correct"), _as_override(""), _as_override([0.5, 1.0]), _as_override(["r1_zero"])
    ('correct', '""', '[0.5, 1.0]', '["r1_zero"]')
    """
    return value if isinstance(value, str) and value else json.dumps(value)


def advice_for(name: KindName, rows: Sequence[Row], outcomes: Mapping[str, int], run: AnalysedRun) -> Advice:
    """The likely cause. Where most of a kind were cut off, not judged in time or left empty, that comes before anything about the model.

    Args:
        name: the kind.
        rows: all of it.
        outcomes: how many came to each outcome.
        run: what they are from.
    """

    def most(*of: str) -> bool:
        return sum(outcomes.get(outcome, 0) for outcome in of) * 2 > len(rows)

    match name:
        case "solved":
            return _pass_over(run)
        case _ if rows and most("truncated"):
            return _longer(rows[0]["max_tokens"], run)
        case _ if most("grader_timeout"):
            return Advice(
                "the grader did not come to an end with most of these answers in time, so they count as wrong",
                "look at the examples; if they are honest answers, give the grader more time",
                run.command(run.stage, scorer__limit_s=4 * run.recipe.scorer.limit_s),
            )
        case "mathematics" if most("no_answer", "unparseable_answer"):
            return Advice("the tags are there, and in most of them nothing that can be read as an answer", *_teach_form(run, empty=True))
        case "mathematics":
            cause = "the form is learned, the reasoning is wrong: slips on the way, or problems beyond the model"
            return Advice(cause, *_reinforce(run))
        case "format":
            return Advice("the answer is known, and not put where the prompt asks for it", *_teach_form(run))
        case "both":
            return _other_prompts(run)


def _pass_over(run: AnalysedRun) -> Advice:
    cause, job = "the model can do these", run.stage if run.stage == "expert_iteration" else "grpo"
    if run.recipe.curriculum.skip_after:
        return Advice(cause, "more samples of them teach nothing; curriculum.skip_after passes them over already", "")
    if job == "grpo" and run.recipe.grpo.num_epochs:
        return Advice(cause, "more samples of them teach nothing; grpo.num_steps in place of num_epochs could pass over them", "")
    remedy = "more samples of them teach nothing: let training pass over what was solved twice in a row"
    return Advice(cause, remedy, run.command(job, curriculum__skip_after=2))


def _longer(limit: int, run: AnalysedRun) -> Advice:
    """Twice the tokens, in training too where that samples, and room for the prompt where less than half of the length would be left."""
    recipe, changes = run.recipe, {"eval__max_tokens": 2 * limit}
    where = "in evaluation"
    if run.stage in ("expert_iteration", "grpo"):
        changes["generator__max_tokens"], where = max(2 * limit, recipe.generator.max_tokens), "in evaluation and in training"
    if 4 * limit > recipe.model.max_length:
        changes["model__max_length"] = longest = recipe.model.max_length + limit
        if longest > recipe.learner.micro_batch_tokens:
            changes["learner__micro_batch_tokens"] = longest
    cause = f"most of these were cut off at {limit} tokens, before an answer"
    return Advice(cause, f"let responses be longer, {where}", run.command(run.stage, **changes))


def _reinforce(run: AnalysedRun) -> tuple[str, str]:
    """(remedy, command)."""
    stage: StageName = run.stage if run.stage == "expert_iteration" else "grpo"
    if stage in (run.stage, *run.stages):
        remedy = f"more of {stage} than the run had; for problems never solved, a stronger start model"
        return remedy, run.command(stage, **_more(stage, run))
    remedy = "reinforcement on the answer, which pays the reasoning that gets there; for problems never solved, a stronger start model"
    return remedy, run.command(stage)


def _teach_form(run: AnalysedRun, *, empty: bool = False) -> tuple[str, str]:
    """(remedy, command). empty: the tags are kept already, and paying for them would pay for nothing in them."""
    recipe, stage = run.recipe, run.stage
    if stage == "grpo":
        paid = weight_at(recipe.reward.format, _AT_THE_END)
        if recipe.reward.function or (empty and not paid):
            return "more steps, since only an answer in the form is paid", run.command("grpo", **_more("grpo", run))
        if empty:
            return "stop to pay for empty tags: no format weight", run.command("grpo", reward__format=0.0)
        return "pay for the form too: a larger format weight", run.command("grpo", reward__format=2 * paid or 0.2)
    if stage == "expert_iteration":
        lower = [round(0.75 * temperature, 3) for temperature in recipe.expert_iteration.temperatures]
        return (
            "a lower ladder of temperatures, on which more responses keep the form and come into the pool, and more rounds",
            run.command(stage, expert_iteration__temperatures=lower, **_more(stage, run)),
        )
    return _supervise(run)


def _supervise(run: AnalysedRun) -> tuple[str, str]:
    recipe, again = run.recipe, bool({"sft", "sft_filtered"} & {run.stage, *run.stages})
    changes: dict[str, Any] = {"sft__keep": "correct"}
    if recipe.sft.traces == BUILTIN != recipe.data.train:
        changes["sft__traces"] = TRACES  # the built-in ones are sums
    if again:
        changes["sft__epochs"] = 2 * recipe.sft.epochs
    more = "more epochs" if again else "a little supervised training"
    return f"{more} on right traces in this format; or a prompt that suits the model", run.command("sft", **changes)


def _other_prompts(run: AnalysedRun) -> Advice:
    asked = run.recipe.eval.prompts
    others = [name for name in PROMPTS if name not in asked]
    if run.stage != "baseline" or not others:
        return Advice("the form is not learned, nor the skill that the problems ask for", *_teach_form(run))
    return Advice(
        "the prompt's form is foreign to the model, or it lacks the skill; a prompt that it knows tells which",
        "try other prompts; if none does much better, more supervised traces or a stronger start model",
        run.command("baseline", eval__prompts=[*asked, *others]),
    )


def _more(stage: StageName, run: AnalysedRun) -> dict[str, Any]:
    """Twice the rounds or steps of a stage, without the problems that it has settled."""
    recipe = run.recipe
    if stage == "grpo" and recipe.grpo.num_epochs:  # whole passes, which pass over nothing
        return {"grpo__num_epochs": 2 * recipe.grpo.num_epochs}
    if stage == "expert_iteration":
        changes = {"expert_iteration__rounds": 2 * recipe.expert_iteration.rounds}
    else:
        changes = {"grpo__num_steps": 2 * recipe.grpo.num_steps}
    return changes if recipe.curriculum.skip_after else {**changes, "curriculum__skip_after": 2}
