"""Expert iteration: sample, keep the best, learn from them by SFT, and again (Anthony et al. 2017; STaR, Zelikman et al. 2022).

Called by jobs/expert_iteration.py and by the study. Read top to bottom. One round, which is one step of the stage:

    questions -> responses over a ladder of temperatures, graded as they come -> the pool of the best of all rounds -> SFT on the pool
    -> weights to the generators -> validation -> checkpoint, the pool and every attempt beside it

What the pool learns from is what was sampled, token by token: no text is tokenised again. A round that brings nothing new into the pool
skips its SFT, and says so: the model has learned what is there, and nothing would change but how often.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any, Final

from mathrl_ray.actors.interfaces import ActorError
from mathrl_ray.config import RecipeError
from mathrl_ray.core.elite_pool import ElitePool, PoolChange, PoolLimits, elite_candidates, next_pool
from mathrl_ray.core.groups import UNGRADED_SIBLING
from mathrl_ray.core.problem_memory import ProblemMemory, attempts_of, choose_problems, easy_first
from mathrl_ray.core.quality import weights_of
from mathrl_ray.core.reward_weights import weight_at
from mathrl_ray.core.sampling import epoch_order, question_plan, round_questions, temperature_ladder
from mathrl_ray.driver.canary import begin_stage, stage_settings, sync_weights
from mathrl_ray.driver.checkpoint import Checkpoint, save_checkpoint, try_to_save
from mathrl_ray.driver.elite_rows import attempts_path, missing_attempts, pool_path, read_attempts, read_pool, write_attempts, write_pool
from mathrl_ray.driver.engine_numbers import engine_numbers
from mathrl_ray.driver.evaluation import accuracy_text, evaluate, validate
from mathrl_ray.driver.resume import go_on, take_checkpoint
from mathrl_ray.driver.rollback import go_back
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.driver.run import Run
from mathrl_ray.driver.stage_end import StageEnd, early_stopping, use_best
from mathrl_ray.driver.step_metrics import rollout_metrics
from mathrl_ray.driver.step_warnings import step_warnings
from mathrl_ray.recipe_checks import LEAST_LEFT, num_round_steps
from mathrl_ray.stages.round_sampling import sample_round
from mathrl_ray.types import OWN_DISTRIBUTION, UNGRADED, Problem, SftExample, Trajectory, TrajectoryGroup

STAGE: Final = "expert_iteration"
MOST_ENTROPIES = 512
"""Responses of a round whose entropy is measured: enough for a mean, and little beside the training."""
AT_ONCE = 256
"""Of these, how many go into one call of the learner; a call has a limit in time."""


async def run_expert_iteration(run: Run) -> dict[str, Any]:
    """Train the start model for `expert_iteration.rounds` rounds, then evaluate."""
    settings = run.recipe.expert_iteration
    questions = f"{settings.questions} questions x {settings.group_size} responses"
    run.console.begin_stage(STAGE, f"{settings.rounds} rounds of {questions}, SFT on the best {settings.capacity}{run.budget_text}")
    checkpoint, rounds = take_checkpoint(run, STAGE), _Rounds(run)
    if checkpoint is None:
        await begin_stage(run, STAGE, learning_rate=settings.learning_rate, num_optimizer_steps=1)
    else:
        rounds.go_on_after(checkpoint)
        await go_on(run, checkpoint, learning_rate=settings.learning_rate, num_optimizer_steps=1, with_optimizer=False)
    if not run.validation_problems:
        run.console.say(f"{STAGE}: no validation of its rounds, since there are no validation problems (data.num_validation_problems)")
    end = await rounds.train()
    while run.guards.setback is not None:
        checkpoint = await go_back(run, STAGE, _stand, num_optimizer_steps=1)
        rounds = _Rounds(run)
        rounds.go_on_after(checkpoint)
        end = await rounds.train()
    return {**await evaluate(run, STAGE, step=end.step), **end.facts}


def _stand(at: Checkpoint | None) -> tuple[None, Mapping[str, Any]]:
    """Where the rounds go back to, for a rollback."""
    return None, at.facts if at else {"question_tokens": 0.0}


class _Rounds:
    """What the rounds of one stage share."""

    def __init__(self, run: Run) -> None:
        self._run, self._settings = run, run.recipe.expert_iteration
        self._pool, self._memory, self._done = ElitePool(), ProblemMemory(), 0
        self._limits = PoolLimits(self._settings.capacity, self._settings.max_per_problem, self._settings.max_similarity)
        self._weights = weights_of(self._settings)
        self._ladder = temperature_ladder(self._settings.temperatures, self._settings.group_size)
        self._saved = 0
        """The last round that is in a checkpoint."""
        self._question_tokens = 0.0
        """What a question of the last round took, its responses together; 0 before the first."""
        self._model_folder = run.model_folder
        """What the next SFT begins from."""
        self._early = early_stopping(run, STAGE)
        self._warned: set[str] = set()
        self._num_skipped = 0
        """Train problems that the filter passed over when the present round was asked."""

    def go_on_after(self, checkpoint: Checkpoint) -> None:
        """Take up what was kept after a round.

        Raises:
            RecipeError: its pool is not there or damaged.
        """
        run, number = self._run, checkpoint.step
        if number == 0:  # a guard has taken the stage back to its start
            return
        path = pool_path(run.recorder.folder, STAGE, number)
        try:
            self._pool = read_pool(path)
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"run.resume: {checkpoint.folder.name} goes on with the pool in {path}, which cannot be read ({error}). Bring it back, for "
                'example from run.mirror, name the checkpoint of another round in run.resume, or set run.resume = "" to begin anew'
            ) from error
        if missing := missing_attempts(run.recorder.folder, STAGE, number):
            run.console.say(
                f"warning: problem_memory holds nothing of {len(missing)} of {number} rounds of {STAGE}, the first {missing[0]}: the "
                "pool's order (rarely solved problems first) and curriculum.skip_after take up what is there"
            )
        self._memory = ProblemMemory(read_attempts(run.recorder.folder, STAGE, number))
        self._done = self._saved = number
        self._question_tokens = checkpoint.facts["question_tokens"]
        self._take_model(str(checkpoint.folder))

    def _take_model(self, folder: str) -> None:
        if self._settings.start == "last_round":
            self._model_folder = folder

    async def train(self) -> StageEnd:
        """All rounds that are left, as far as budget and run.max_hours have room for them, or until early stopping ends them. Returns the
        round whose model is the stage's."""
        run, rounds = self._run, self._settings.rounds
        run.save_now = self._say_what_is_lost
        for number in range(self._done + 1, rounds + 1):
            if self._is_budget_spent or self._early.has_stopped or run.time_limit.is_up():
                break
            await self._round(number)
            if run.guards.setback is not None:
                return StageEnd(self._done)
            self._done = number
        run.save_now = self._save_again
        if self._early.has_stopped:
            return await use_best(run, STAGE, self._early, step=self._done, is_saved=self._saved == self._done)
        if self._is_budget_spent:
            run.console.say(f"{STAGE}: {run.sampled_text} are sampled after round {self._done} of {rounds}")
        elif self._done < rounds:
            run.console.say(f"{STAGE}: run.max_hours = {run.recipe.run.max_hours:g} leaves room for {self._done} of {rounds} rounds")
        elif run.token_budget:
            run.console.say(f"{STAGE}: expert_iteration.rounds = {rounds} ended it after {run.sampled_text}: raise it to spend all of them")
        return StageEnd(self._done)

    @property
    def _is_last(self) -> bool:
        """Whether no round follows the present one, which is sampled, learned from and validated."""
        return self._is_budget_spent or self._early.has_stopped

    @property
    def _is_budget_spent(self) -> bool:
        """Whether the tokens that are left are too few for a round."""
        budget = self._run.token_budget
        return budget > 0 and budget - self._run.ledger.counts.generated_tokens < LEAST_LEFT * budget

    async def _round(self, number: int) -> None:
        run = self._run
        groups = await self._sample(number)
        run.ledger.counts.consumed_tokens = run.ledger.counts.generated_tokens  # nothing is in flight between sampling and learning
        self._warn(number, groups)
        run.show_sample(groups)
        attempts = [attempt for group in groups for attempt in attempts_of(group, number)]
        self._memory.add(attempts)
        change = await asyncio.to_thread(self._refill, number, groups)  # seconds where texts are long; the loop must not stand still
        metrics = {**self._figures(groups, change), "response_entropy_nats": await self._entropy(groups)}
        write_attempts(attempts_path(run.recorder.folder, STAGE, number), attempts)
        write_pool(pool_path(run.recorder.folder, STAGE, number), self._pool)
        self._write_trajectories(number, groups, change)
        if change.accepted:
            metrics |= await self._learn(number)
            if run.guards.setback is not None:
                return
        else:
            run.console.say(
                f"{STAGE} round {number}: none of {self._num_responses(groups)} responses was accepted at threshold "
                f"{self._pool.threshold:g}, so this round's SFT is skipped{self._advice()}"
            )
        metrics |= {**run.ledger.lap(), **run.ledger.totals(), **await engine_numbers(run.generators)}
        run.recorder.metrics(STAGE, number, run.policy_version, {**metrics, "spans": run.ledger.take_spans()})
        run.guards.look(number, metrics)
        if run.guards.setback is None:
            await self._validate(number)
        if run.guards.setback is not None:
            return
        if number == self._settings.rounds or self._is_last:
            run.guards.stage_ended(number)
        await self._save_round(number)
        shown = {"accepted": len(change.accepted), "pool": len(self._pool.members), "reward": metrics["reward_mean"]}
        num_rounds = number + run.steps_left(number, self._settings.rounds, metrics["consumed_tokens_total"])
        run.console.step(STAGE, number, num_rounds, {**shown, "entropy": metrics["response_entropy_nats"]})

    async def _sample(self, number: int) -> list[TrajectoryGroup]:
        run, counts = self._run, self._run.ledger.counts
        questions, before = self._questions(number), counts.generated_tokens
        groups = await sample_round(run, STAGE, number, questions)
        self._question_tokens = (counts.generated_tokens - before) / len(questions)
        if number == 1 and 0 < run.token_budget < counts.generated_tokens:
            run.console.say(
                f"warning: {STAGE}: the first round alone took {run.sampled_text}: lower expert_iteration.questions or "
                "expert_iteration.group_size, or raise study.generated_tokens"
            )
        return groups

    async def _save(self, number: int) -> None:
        is_trained = number == self._settings.rounds or self._is_last
        facts = {"question_tokens": self._question_tokens}
        folder = await save_checkpoint(self._run, STAGE, number, is_trained=is_trained, facts=facts)
        self._saved = number
        self._take_model(str(folder))

    async def _save_round(self, number: int) -> None:
        """Save after a round. Where the next one begins from what is saved, nothing goes on without it.

        Raises:
            RuntimeError: such a round's checkpoint could not be written.
        """
        is_last = number == self._settings.rounds or self._is_last
        if is_last or self._settings.start == "start_model":
            await try_to_save(self._run, self._save(number))
            return
        try:
            await self._save(number)
        except (OSError, ActorError) as error:
            raise RuntimeError(
                f"{STAGE} round {number} could not be saved, and the next one begins from its checkpoint: {error}. Free space in run.root "
                'and set run.resume = "auto", which does this round again; or set expert_iteration.start = "start_model", which needs none'
            ) from error

    async def _save_again(self) -> None:
        """Of the last round, whose first try may have failed."""
        if self._saved < self._done:
            await self._save(self._done)

    async def _say_what_is_lost(self) -> None:
        """When the job is told to stop in the middle of a round."""
        self._run.console.say(f"{STAGE}: a run that goes on does round {self._saved + 1} again: there are checkpoints of whole rounds only")

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
        self._num_skipped = len(self._memory.passed_over(by_id, step=number, last_groups=skip, retry_after=retry))
        chosen = choose_problems(order, num_wanted, self._memory, step=number, last_groups=skip, retry_after=retry)
        return [by_id[problem_id] for problem_id in chosen]

    def _num_questions(self) -> int:
        """Of a round: fewer in one that the budget has no room for at what a question of the last round took, so that it is kept to a few
        per cent."""
        budget, sampled = self._run.token_budget, self._run.ledger.counts.generated_tokens
        if not budget or not self._question_tokens:
            return self._settings.questions
        return min(self._settings.questions, ceil((budget - sampled) / self._question_tokens))

    def _warn(self, number: int, groups: Sequence[TrajectoryGroup]) -> None:
        warnings = step_warnings(groups, self._run.recipe, learns_from_rewards=False)
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
        same = [group for group in groups if _earned_the_same(group)]
        self._run.ledger.counts.zero_variance_tokens += sum(len(each.completion.token_ids) for group in same for each in group.trajectories)
        return {
            **rollout_metrics(groups),
            "zero_variance_fraction": len(same) / len(groups),
            **({"num_skipped_problems": self._num_skipped} if self._run.recipe.curriculum.skip_after else {}),
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
        """Mean over the tokens of the responses of their entropy, from the learner, which still holds the policy that sampled them.

        Of one response a question, the samples in turn, so that the rungs of the ladder have the shares that they have among all responses
        (of 8 samples and 3 rungs 3/8, 3/8 and 2/8). Each token's entropy is of the full distribution at temperature 1, but the tokens were
        sampled at the ladder's temperatures, and colder ones lead to surer places: it is not the entropy of responses sampled at 1, which
        an evaluation's mean_entropy_nats is.
        """
        chosen = [group.trajectories[index % len(group.trajectories)] for index, group in enumerate(groups)][:MOST_ENTROPIES]
        entropies: list[float] = []
        for start in range(0, len(chosen), AT_ONCE):
            sequences = [SftExample(each.prompt_ids, each.completion.token_ids) for each in chosen[start : start + AT_ONCE]]
            with self._run.ledger.work("learner-0", "response_statistics"):
                statistics = await self._run.actors.learner.response_statistics(sequences, OWN_DISTRIBUTION)
            entropies += [each.mean_token_entropy_nats for each in statistics]
        return fmean(entropies, weights=[len(each.completion.token_ids) for each in chosen])

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
        numbers; none where a guard has set the stage back in the middle."""
        run, settings = self._run, self._settings
        num_steps = num_round_steps(settings, len(self._pool.members))
        start = stage_settings(run, STAGE, learning_rate=settings.learning_rate, num_optimizer_steps=num_steps, part=f"round{number}")
        with run.ledger.work("learner-0", "start_stage"):  # a new optimizer and schedule each round, in either case
            await run.actors.learner.start_stage(replace(start, model_path=self._model_folder))
        with run.console.doing(f"{STAGE} round {number}", num_steps, "updates") as tell:
            for num_done, batch in enumerate(self._batches(number), start=1):
                await self._update(number, batch)
                tell(num_done)
                if run.guards.setback is not None:
                    return {}
        with run.ledger.work("learner-0", "use_average"):  # of the round's updates, where learner.average says so
            average = await run.actors.learner.use_average()
        return {**average, **await sync_weights(run, policy_version=run.policy_version + 1)}

    async def _update(self, number: int, batch: list[SftExample]) -> None:
        run, counts = self._run, self._run.ledger.counts
        with run.ledger.work("learner-0", "train_sft"):
            metrics = await run.actors.learner.train_sft(batch)
        counts.optimizer_steps += 1 - int(metrics.get("skipped_updates", 0))
        counts.trained_tokens += sum(len(example.response_ids) for example in batch)
        run.recorder.metrics(STAGE, number, run.policy_version, {**metrics, "optimizer_step": counts.optimizer_steps})
        run.guards.look(number, metrics)

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
            self._early.seen(number, figures["accuracy"])
            self._run.console.say(f"{STAGE} round {number}: validation {accuracy_text(figures)}")


def _earned_the_same(group: TrajectoryGroup) -> bool:
    """Whether all siblings that could be graded have one reward."""
    return len({each.grade.reward for each in group.trajectories if each.grade.outcome not in UNGRADED}) == 1
