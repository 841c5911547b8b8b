"""Expert iteration: sample, keep the best, learn from them by SFT, and again (Anthony et al. 2017; STaR, Zelikman et al. 2022).

Called by jobs/expert_iteration.py and by the study. Read top to bottom. One round, which is one step of the stage:

    questions -> responses over a ladder of temperatures, graded as they come -> the pool of the best of all rounds -> SFT on the pool
    -> weights to the generators -> validation -> checkpoint, the pool and every attempt beside it

What the pool learns from is what was sampled, token by token: no text is tokenised again. A round that brings nothing new into the pool
skips its SFT, and says so: the model has learned what is there, and nothing would change but how often.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any

from mathrl_ray.core.elite_pool import ElitePool, PoolChange, PoolLimits, elite_candidates, next_pool
from mathrl_ray.core.groups import UNGRADED_SIBLING
from mathrl_ray.core.problem_memory import ProblemMemory, attempts_of, choose_problems, easy_first
from mathrl_ray.core.quality import weights_of
from mathrl_ray.core.reward_weights import weight_at
from mathrl_ray.core.sampling import epoch_order, question_plan, round_questions, temperature_ladder
from mathrl_ray.driver.canary import begin_stage, stage_settings, sync_weights
from mathrl_ray.driver.checkpoint import save_checkpoint
from mathrl_ray.driver.elite_rows import attempts_path, pool_path, read_attempts, read_pool, write_attempts, write_pool
from mathrl_ray.driver.evaluation import accuracy_text, evaluate, validate
from mathrl_ray.driver.resume import go_on, take_checkpoint
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.step_metrics import rollout_metrics
from mathrl_ray.driver.step_warnings import step_warnings
from mathrl_ray.recipe_checks import num_round_steps
from mathrl_ray.stages.round_sampling import sample_round
from mathrl_ray.types import OWN_DISTRIBUTION, Problem, SftExample, Trajectory, TrajectoryGroup

STAGE = "expert_iteration"
MOST_ENTROPIES = 512
"""Responses of a round whose entropy is measured: enough for a mean, and little beside the training."""
AT_ONCE = 256
"""Of these, how many go into one call of the learner; a call has a limit in time."""


async def run_expert_iteration(run: Run) -> dict[str, Any]:
    """Train the start model for `expert_iteration.rounds` rounds, then evaluate."""
    settings = run.recipe.expert_iteration
    questions = f"{settings.questions} questions x {settings.group_size} responses"
    run.console.begin_stage(STAGE, f"{settings.rounds} rounds of {questions}, SFT on the best {settings.capacity}")
    checkpoint = take_checkpoint(run, STAGE)
    if checkpoint is None:
        await begin_stage(run, STAGE, learning_rate=settings.learning_rate, num_optimizer_steps=1)
        rounds = _Rounds(run)
    else:
        await go_on(run, checkpoint, learning_rate=settings.learning_rate, num_optimizer_steps=1)
        rounds = _Rounds(run)
        rounds.go_on_after(checkpoint.step, str(checkpoint.folder), checkpoint.facts["num_asked"])
    if not run.validation_problems:
        run.console.say(f"{STAGE}: no validation of its rounds, since there are no validation problems (data.num_validation_problems)")
    return await evaluate(run, STAGE, step=await rounds.train())


class _Rounds:
    """What the rounds of one stage share."""

    def __init__(self, run: Run) -> None:
        self._run, self._settings = run, run.recipe.expert_iteration
        self._pool, self._memory, self._done = ElitePool(), ProblemMemory(), 0
        self._limits = PoolLimits(self._settings.capacity, self._settings.max_per_problem, self._settings.max_similarity)
        self._weights = weights_of(self._settings)
        self._ladder = temperature_ladder(self._settings.temperatures, self._settings.group_size)
        self._num_asked = 0
        """Questions of all rounds, whose tokens are in the ledger."""
        self._model_folder = run.model_folder
        """What the next SFT begins from."""
        self._warned: set[str] = set()

    def go_on_after(self, round_number: int, folder: str, num_asked: int) -> None:
        """Take up what was kept after a round, whose checkpoint is in `folder`."""
        run_folder = self._run.recorder.folder
        self._pool = read_pool(pool_path(run_folder, STAGE, round_number))
        self._memory = ProblemMemory(read_attempts(run_folder, STAGE, round_number))
        self._done, self._num_asked = round_number, num_asked
        self._take_model(folder)

    def _take_model(self, folder: str) -> None:
        if self._settings.start == "last_round":
            self._model_folder = folder

    async def train(self) -> int:
        """All rounds that are left, as far as run.max_hours has room for them. Returns the number of the last one."""
        run, rounds = self._run, self._settings.rounds
        for number in range(self._done + 1, rounds + 1):
            if run.is_budget_spent:
                sampled = f"the {run.ledger.counts.generated_tokens:,} tokens of study.generated_tokens"
                run.console.say(f"{STAGE}: {sampled} are sampled after round {self._done} of {rounds}")
                break
            if run.time_limit.is_up():
                run.console.say(f"{STAGE}: run.max_hours = {run.recipe.run.max_hours:g} leaves room for {self._done} of {rounds} rounds")
                break
            await self._round(number)
            self._done = number
        return self._done

    async def _round(self, number: int) -> None:
        run = self._run
        questions = self._questions(number)
        groups = await sample_round(run, STAGE, number, questions)
        self._num_asked += len(questions)
        run.ledger.counts.consumed_tokens = run.ledger.counts.generated_tokens  # nothing is in flight between sampling and learning
        self._warn(number, groups)
        attempts = [attempt for group in groups for attempt in attempts_of(group, number)]
        self._memory.add(attempts)
        change = await asyncio.to_thread(self._refill, number, groups)  # seconds where texts are long; the loop must not stand still
        metrics = {**self._figures(groups, change), "response_entropy_nats": await self._entropy(groups)}
        write_attempts(attempts_path(run.recorder.folder, STAGE, number), attempts)
        write_pool(pool_path(run.recorder.folder, STAGE, number), self._pool)
        self._write_trajectories(number, groups, change)
        if change.accepted:
            metrics |= await self._learn(number)
        else:
            run.console.say(
                f"{STAGE} round {number}: none of {self._num_responses(groups)} responses was accepted at threshold "
                f"{self._pool.threshold:g}, so this round's SFT is skipped{self._advice()}"
            )
        metrics |= {**run.ledger.lap(), **run.ledger.totals()}
        run.recorder.metrics(STAGE, number, run.policy_version, {**metrics, "spans": run.ledger.take_spans()})
        await self._validate(number)
        is_trained = number == self._settings.rounds or run.is_budget_spent
        folder = await save_checkpoint(run, STAGE, number, is_trained=is_trained, facts={"num_asked": self._num_asked})
        self._take_model(str(folder))
        shown = {"accepted": len(change.accepted), "pool": len(self._pool.members), "reward": metrics["reward_mean"]}
        run.console.step(STAGE, number, self._settings.rounds, {**shown, "entropy": metrics["response_entropy_nats"]})

    def _advice(self) -> str:
        if self._pool.members:
            return ""
        return ": train the stage sft first, lower expert_iteration.threshold, or ask more in expert_iteration.questions"

    def _questions(self, number: int) -> list[Problem]:
        """The round's problems: its part of the shuffled epochs, by level where the curriculum says so, without those that are settled."""
        settings, curriculum, problems = self._settings, self._run.recipe.curriculum, self._run.train_problems
        plan = question_plan(len(problems), settings.rounds * settings.questions, self._run.recipe.run.seed)
        if curriculum.order == "level":
            plan = easy_first(plan, [problem.level for problem in problems], pass_length=len(problems))
        by_id = {problem.problem_id: problem for problem in problems}
        order = [problems[index].problem_id for index in round_questions(plan, len(problems), settings.questions, number)]
        num_wanted, skip, retry = self._num_questions(), curriculum.skip_after, curriculum.retry_after
        chosen = choose_problems(order, num_wanted, self._memory, step=number, last_groups=skip, retry_after=retry)
        return [by_id[problem_id] for problem_id in chosen]

    def _num_questions(self) -> int:
        """Of a round: fewer in one that study.generated_tokens has no room for, so that the budget is kept to a few per cent."""
        budget, sampled = self._run.recipe.study.generated_tokens, self._run.ledger.counts.generated_tokens
        if not budget or not self._num_asked:
            return self._settings.questions
        return min(self._settings.questions, ceil((budget - sampled) / (sampled / self._num_asked)))

    def _warn(self, number: int, groups: Sequence[TrajectoryGroup]) -> None:
        warnings = step_warnings(groups, self._run.recipe)
        for text in (text for kind, text in warnings.items() if kind not in self._warned):  # again only after a round without
            self._run.console.say(f"warning: {STAGE} round {number}: {text}")
        self._warned = set(warnings)

    def _refill(self, number: int, groups: Sequence[TrajectoryGroup]) -> PoolChange:
        """Give a round's responses to the pool."""
        max_tokens = self._run.recipe.generator.max_tokens
        candidates = [
            each
            for group in groups
            for each in elite_candidates(
                group, round_number=number, temperatures=self._ladder, weights=self._weights, max_tokens=max_tokens
            )
        ]
        self._pool, change = next_pool(
            self._pool,
            candidates,
            round_number=number,
            threshold=weight_at(self._settings.threshold, number),
            limits=self._limits,
            solved_shares=self._memory.solved_shares(),
        )
        return change

    def _figures(self, groups: Sequence[TrajectoryGroup], change: PoolChange) -> dict[str, float]:
        reasons = list(change.refused.values())
        members = self._pool.members
        return {
            **rollout_metrics(groups),
            "num_responses": self._num_responses(groups),
            "num_accepted": len(change.accepted),
            **{f"num_refused_{reason}": reasons.count(reason) for reason in sorted(set(reasons))},
            "num_retired": len(change.retired),
            "pool_size": len(members),
            "pool_problems": len({each.problem_id for each in members}),
            "pool_threshold": self._pool.threshold,
            "pool_quality_mean": fmean(each.quality for each in members) if members else 0.0,
            "pool_age_rounds_mean": fmean(self._pool.round - each.round for each in members) if members else 0.0,
        }

    @staticmethod
    def _num_responses(groups: Sequence[TrajectoryGroup]) -> int:
        return sum(len(group.trajectories) for group in groups)

    async def _entropy(self, groups: Sequence[TrajectoryGroup]) -> float:
        """Mean over responses of their mean token entropy, from the learner, which still holds the policy that sampled them.

        Of one response a question, from every rung of the ladder as many; the entropy itself is of the full distribution at temperature 1.
        """
        chosen = [group.trajectories[index % len(group.trajectories)] for index, group in enumerate(groups)][:MOST_ENTROPIES]
        entropies: list[float] = []
        for start in range(0, len(chosen), AT_ONCE):
            sequences = [SftExample(each.prompt_ids, each.completion.token_ids) for each in chosen[start : start + AT_ONCE]]
            with self._run.ledger.work("learner-0", "response_statistics"):
                statistics = await self._run.actors.learner.response_statistics(sequences, OWN_DISTRIBUTION)
            entropies += [each.mean_token_entropy_nats for each in statistics]
        return fmean(entropies)

    def _write_trajectories(self, number: int, groups: Sequence[TrajectoryGroup], change: PoolChange) -> None:
        accepted = set(change.accepted)

        def row(trajectory: Trajectory) -> dict[str, Any]:
            key = trajectory.group_id, trajectory.sample
            if key in accepted:
                return trajectory_row(trajectory, None, consumed_step=number, staleness=0)
            self._run.ledger.counts.dropped_tokens += len(trajectory.completion.token_ids)
            reason = change.refused.get(key, UNGRADED_SIBLING)
            return trajectory_row(trajectory.judged(None, reason), None, consumed_step=None, staleness=0)

        self._run.recorder.trajectories(STAGE, number, [row(each) for group in groups for each in group.trajectories])

    async def _learn(self, number: int) -> dict[str, float]:
        """SFT on the pool, from the model that expert_iteration.start says; afterwards the generators hold the result. Returns the sync's
        numbers."""
        run, settings = self._run, self._settings
        num_steps = num_round_steps(settings, len(self._pool.members))
        start = stage_settings(run, STAGE, learning_rate=settings.learning_rate, num_optimizer_steps=num_steps, part=f"round{number}")
        with run.ledger.work("learner-0", "start_stage"):  # a new optimizer and schedule each round, in either case
            await run.actors.learner.start_stage(replace(start, model_path=self._model_folder))
        for batch in self._batches(number):
            with run.ledger.work("learner-0", "train_sft"):
                metrics = await run.actors.learner.train_sft(batch)
            counts = run.ledger.counts
            counts.optimizer_steps += 1 - int(metrics.get("skipped_updates", 0))
            counts.trained_tokens += sum(len(example.response_ids) for example in batch)
            run.recorder.metrics(STAGE, number, run.policy_version, {**metrics, "optimizer_step": counts.optimizer_steps})
        return await sync_weights(run, policy_version=run.policy_version + 1)

    def _batches(self, number: int) -> Iterator[list[SftExample]]:
        """The pool in a seeded order, another one each epoch of each round; an epoch's last batch may be smaller."""
        examples = [SftExample(each.prompt_ids, each.response_ids) for each in self._pool.members]
        size, epochs = self._settings.batch_size, self._settings.epochs
        for epoch in range((number - 1) * epochs, number * epochs):
            order = epoch_order(len(examples), self._run.recipe.run.seed, epoch)
            for start in range(0, len(order), size):
                yield [examples[index] for index in order[start : start + size]]

    async def _validate(self, number: int) -> None:
        if self._run.validation_problems:
            figures = await validate(self._run, STAGE, number)
            self._run.console.say(f"{STAGE} round {number}: validation {accuracy_text(figures)}")
