"""Expert iteration with made-up engines: what it asks, keeps, trains on, writes, and goes on from."""

import asyncio
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer, Stage, scene, settle, until
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import ActorError, Actors
from mathrl_ray.config import RecipeError
from mathrl_ray.core.problem_memory import ProblemMemory
from mathrl_ray.core.sampling import epoch_order, request_seed
from mathrl_ray.driver.checkpoint import whole_checkpoints
from mathrl_ray.driver.elite_rows import pool_path, read_attempts, read_pool
from mathrl_ray.driver.replicas import GivenUpError
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.time_limit import TimeLimit
from mathrl_ray.stages.expert_iteration import STAGE, run_expert_iteration
from mathrl_ray.stages.round_sampling import sample_round
from mathrl_ray.stages.study import run_study
from mathrl_ray.types import Completion, ResponseStatistics

LOADED, TRAINED, SYNCED = "start_stage", "train_sft", "publish"


@dataclass
class Learner(FakeLearner):
    """Its weights are the responses that it has learned from, in order; it can save and load them."""

    weights: list[list[int]] = field(default_factory=list)
    batches: list[list[list[int]]] = field(default_factory=list)
    looked_at: list[list[tuple[int, ...]]] = field(default_factory=list)
    """Responses of each call for statistics."""

    async def start_stage(self, settings):
        saved = Path(settings.model_path) / "trainer" / "fake.json"
        self.weights = json.loads(saved.read_text()) if saved.exists() else []
        await super().start_stage(settings)

    async def train_sft(self, batch):
        self.batches.append([list(example.response_ids) for example in batch])
        self.weights = self.weights + self.batches[-1]
        return await super().train_sft(batch)

    async def response_statistics(self, sequences, sampling):
        await super().response_statistics(sequences, sampling)
        self.looked_at.append([each.response_ids for each in sequences])
        # the more it has learned, the surer it is
        return [ResponseStatistics(tuple(-0.5 for _ in each.response_ids), 1 / (1 + len(self.weights))) for each in sequences]

    def state(self):
        return self.weights

    def take(self, state):
        self.weights = state


@dataclass
class Generator(FakeGenerator):
    """Says the gold where the request's seed and what its weights have learned say so, else "no"; broken on some problems."""

    learner: Learner | None = None
    golds: dict[str, str] = field(default_factory=dict)
    skill: int = 0
    can: bool = True
    chance: int = 30
    """Of 100 seeds, how many say the gold before anything is learned."""
    broken: frozenset[str] = frozenset()
    requests: list = field(default_factory=list)

    async def apply_weights(self, manifest):
        self.skill = len(self.learner.weights)
        return await super().apply_weights(manifest)

    async def generate(self, requests):
        self.requests += requests
        if requests[0].problem_id in self.broken and requests[0].group_id.startswith(STAGE):
            raise ValueError("this one cannot be sampled")
        return await super().generate(requests)

    def _answer(self, request, began_with):
        draw = request.seed % 100
        is_right = self.can and draw < self.chance + self.skill
        text = self.golds[request.problem_id] if is_right else "no"
        ids = (draw, 7) if is_right else (draw,)
        return Completion(text, ids, (-0.5,) * len(ids), ((self.policy_version, len(ids)),), "stop")


class Scene:
    """One stage on made-up actors, and what it left."""

    def __init__(self, folder, cue=None, *, num_problems=16, resume="", **sections):
        self.diary = Diary()
        named = {"cue": cue} if cue else {}
        self.learner = Learner(self.diary, **named)
        self.generator = Generator(self.diary, learner=self.learner, **named)
        sections["expert_iteration"] = {
            **{"rounds": 3, "questions": 6, "group_size": 4, "temperatures": [0.7, 1.3], "batch_size": 4, "max_similarity": 1.0},
            **sections.get("expert_iteration", {}),
        }
        sections |= {"eval": {"num_problems": 2, **sections.get("eval", {})}, "run": {"resume": resume, "keep_last": 100}}
        recipe = recipe_for(folder, **sections)
        self.resumption = find_resumption(recipe, [STAGE]) if resume else None
        recorder = self.resumption.open(recipe, [STAGE], lambda text: None) if self.resumption else None
        actors = Actors(self.learner, (self.generator,), (FakeScorer(self.diary, **named),), (0,))
        self.run = make_run(recipe, actors, num_train_problems=num_problems, recorder=recorder)
        self.run.token_budget = recipe.study.generated_tokens  # as in a study of both stages that have one
        if self.resumption:
            self.resumption.restore(self.run)
        everyone = (*self.run.train_problems, *self.run.validation_problems, *self.run.test_problems)
        self.generator.golds = {problem.problem_id: problem.gold for problem in everyone}

    async def train(self):
        return await run_expert_iteration(self.run)

    @property
    def folder(self):
        return self.run.recorder.folder

    def metrics(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def rounds(self):
        """The rows of metrics that stand for a round."""
        return [row for row in self.metrics() if "num_accepted" in row]

    def asked(self):
        """The problems of each round, in its order."""
        found = {}
        for request in self.generator.requests:
            if request.group_id.startswith(f"{STAGE}-") and "/" in request.group_id and "-evaluation" not in request.group_id:
                number, _, index = request.group_id.removeprefix(f"{STAGE}-").partition("/")
                if number.isdecimal():
                    found.setdefault(int(number), {})[int(index)] = request.problem_id
        return {number: [problems[index] for index in sorted(problems)] for number, problems in found.items()}

    def pool(self, number):
        return read_pool(pool_path(self.folder, STAGE, number))

    def rows(self, number):
        return pq.read_table(self.folder / "trajectories" / f"{STAGE}-{number}.parquet").to_pylist()

    def did(self, *what):
        return [(name, detail) for _, name, detail in self.diary.of(*what)]


@scene
async def test_a_round_samples_keeps_the_best_learns_and_publishes(tmp_path):
    each = Scene(tmp_path)
    figures = await each.train()
    for number in (1, 2, 3):
        pool = each.pool(number)
        assert pool.members
        assert all(member.outcome == "correct" for member in pool.members)
    learned = each.learner.batches
    sizes = [len(each.pool(number).members) for number in (1, 2, 3)]
    steps = [-(-size // 4) for size in sizes]
    assert len(learned) == sum(steps)
    first, second = learned[: steps[0]], learned[steps[0] : steps[0] + steps[1]]
    for batches, number in ((first, 1), (second, 2)):
        # one epoch: each member's own sampled ids once, in another order than the pool's
        members = [list(member.response_ids) for member in each.pool(number).members]
        assert sorted(ids for batch in batches for ids in batch) == sorted(members)
    assert [version for _, version in each.did(SYNCED)] == [0, 1, 2, 3]
    assert each.run.policy_version == 3
    assert each.run.ledger.counts.optimizer_steps == sum(steps)
    assert figures["num_problems"] == 2
    assert (each.folder / "evaluations" / f"{STAGE}-v3.parquet").is_file()


@scene
async def test_members_say_the_round_version_and_temperature_that_made_them(tmp_path):
    each = Scene(tmp_path)
    await each.train()
    members = each.pool(3).members
    assert {member.round for member in members} == {1, 2, 3}
    assert all(member.policy_version == member.round - 1 for member in members)
    assert all(member.temperature == [0.7, 1.3][member.sample % 2] for member in members)


@scene
async def test_each_sample_has_its_rung_its_seed_and_the_rounds_min_tokens(tmp_path):
    each = Scene(tmp_path, expert_iteration={"min_tokens": 2, "rounds": 1})
    await each.train()
    requests = [request for request in each.generator.requests if request.group_id == f"{STAGE}-1/0"]
    assert [request.sampling.temperature for request in requests] == [0.7, 1.3, 0.7, 1.3]
    assert {request.sampling.min_tokens for request in requests} == {2}
    assert [request.seed for request in requests] == [request_seed(0, requests[0].problem_id, 1, sample) for sample in range(4)]


@scene
async def test_every_round_asks_other_questions_until_the_epoch_ends(tmp_path):
    each = Scene(tmp_path, num_problems=12, expert_iteration={"rounds": 2})
    await each.train()
    asked = each.asked()
    assert sorted(asked[1] + asked[2]) == sorted(problem.problem_id for problem in each.run.train_problems)


@pytest.mark.parametrize(("start", "models"), [("last_round", [f"{STAGE}-1", f"{STAGE}-2"]), ("start_model", ["start", "start"])])
@scene
async def test_sft_goes_on_from_the_last_round_or_from_the_start_model_each_time(tmp_path, start, models):
    each = Scene(tmp_path, expert_iteration={"start": start})
    await each.train()
    loaded = [Path(model).name for _, model in each.did(LOADED)]
    assert loaded == ["start", "start", *models]
    sizes = [len(each.pool(number).members) for number in (1, 2, 3)]
    assert len(each.learner.weights) == (sum(sizes) if start == "last_round" else sizes[-1])


@scene
async def test_epochs_pass_over_the_pool_in_other_orders(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 1, "epochs": 2, "batch_size": 1})
    await each.train()
    size = len(each.pool(1).members)
    first, second = each.learner.batches[:size], each.learner.batches[size:]
    assert sorted(first) == sorted(second)
    assert first != second


@scene
async def test_each_round_has_orders_of_its_own(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 2, "epochs": 2, "batch_size": 1})
    await each.train()
    first, second = [[list(member.response_ids) for member in each.pool(number).members] for number in (1, 2)]
    learned = [batch[0] for batch in each.learner.batches]
    assert len(learned) == 2 * len(first) + 2 * len(second)
    # epochs count on through the stage: round 2 begins with epoch 2
    expected = [second[index] for epoch in (2, 3) for index in epoch_order(len(second), run_seed=0, epoch=epoch)]
    assert learned[2 * len(first) :] == expected


@scene
async def test_behaviour_36_a_round_without_an_accepted_sample_skips_its_sft_and_says_so(tmp_path, capsys):
    each = Scene(tmp_path)
    each.generator.can = False
    figures = await each.train()
    assert each.did(TRAINED) == []
    assert [version for _, version in each.did(SYNCED)] == [0]  # nothing new to publish
    assert [row["num_accepted"] for row in each.rounds()] == [0, 0, 0]
    assert figures["accuracy"] == 0.0
    said = capsys.readouterr().out
    for number in (1, 2, 3):
        assert f"round {number}: none of 24 responses was accepted at threshold" in said
    assert "SFT is skipped" in said
    assert "train the stage sft first" in said
    assert each.run.ledger.counts.optimizer_steps == 0
    assert [folder.name for folder in sorted((each.folder / "checkpoints").iterdir())] == [f"{STAGE}-{number}" for number in (1, 2, 3)]


@scene
async def test_behaviour_36_a_round_that_adds_nothing_to_a_full_pool_trains_on_nothing_and_the_next_goes_on(tmp_path, capsys):
    each = Scene(tmp_path)

    async def sample(requests, original=each.generator.generate):
        each.generator.can = not any(request.group_id.startswith(f"{STAGE}-2/") for request in requests)
        return await original(requests)

    each.generator.generate = sample
    await each.train()
    accepted = [row["num_accepted"] for row in each.rounds()]
    assert accepted[0] > 0
    assert accepted[1] == 0
    assert accepted[2] > 0
    assert each.pool(2).members == each.pool(1).members
    assert [row["policy_version"] for row in each.rounds()] == [1, 1, 2]
    assert capsys.readouterr().out.count("SFT is skipped") == 1


@scene
async def test_every_round_logs_its_entropy_and_validation_under_its_own_step(tmp_path):
    each = Scene(tmp_path)
    await each.train()
    rounds = each.rounds()
    assert [row["step"] for row in rounds] == [1, 2, 3]
    # 1 / (1 + what was learned before the round), the same for every token
    sizes = [len(each.pool(number).members) for number in (1, 2, 3)]
    expected = [1 / (1 + sum(sizes[:number])) for number in (0, 1, 2)]
    assert [row["response_entropy_nats"] for row in rounds] == pytest.approx(expected)
    validated = [(row["step"], row["policy_version"]) for row in each.metrics() if "validation_accuracy" in row]
    assert validated == [(1, 1), (2, 2), (3, 3)]
    assert [row["pool_size"] for row in rounds] == sizes
    assert [row["pool_problems"] for row in rounds] == [len({each.problem_id for each in each.pool(n).members}) for n in (1, 2, 3)]
    steps = [row for row in each.metrics() if "loss" in row]
    assert [row["optimizer_step"] for row in steps] == list(range(1, len(steps) + 1))
    assert [row["step"] for row in steps] == sorted(row["step"] for row in steps)


@scene
async def test_the_entropy_of_a_round_is_a_mean_over_tokens_not_over_responses(tmp_path):
    each = Scene(tmp_path)

    async def as_long_as_it_is(sequences, sampling):
        return [ResponseStatistics((-0.5,) * len(one.response_ids), float(len(one.response_ids))) for one in sequences]

    each.learner.response_statistics = as_long_as_it_is
    await each.train()
    rows = each.rows(1)  # four responses a question; of the first question the first one counts, of the second the second, ...
    lengths = [len(rows[4 * place + place % 4]["response_ids"]) for place in range(6)]
    assert set(lengths) == {1, 2}
    assert each.rounds()[0]["response_entropy_nats"] == pytest.approx(sum(length**2 for length in lengths) / sum(lengths))


@scene
async def test_all_responses_are_written_with_why_they_were_not_learned(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 1, "max_per_problem": 1})
    each.generator.chance = 80
    await each.train()
    rows = each.rows(1)
    assert len(rows) == 24
    accepted = {(row["group_id"], row["sample"]) for row in rows if row["consumed_step"] == 1}
    assert accepted == {member.key for member in each.pool(1).members}
    reasons = Counter(row["drop_reason"] for row in rows)
    num_right = sum(row["outcome"] == "correct" for row in rows)
    assert reasons["below_threshold"] == 24 - num_right
    assert reasons["problem_share"] == num_right - len(accepted) > 0
    counts = each.run.ledger.counts
    assert counts.generated_tokens == sum(len(row["response_ids"]) for row in rows) == counts.dropped_tokens + counts.trained_tokens
    (logged,) = each.rounds()
    assert logged["reward_mean"] == pytest.approx(sum(row["reward"] for row in rows) / 24)  # behaviour 34


@scene
async def test_what_could_not_be_graded_is_neither_learned_nor_remembered(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 1})
    each.generator.golds = dict.fromkeys(each.generator.golds, "9")  # an answer that FakeScorer cannot grade
    await each.train()
    rows = each.rows(1)
    outcomes = Counter((row["outcome"], row["drop_reason"]) for row in rows)
    assert set(outcomes) == {("grader_error", "ungraded"), ("wrong", "below_threshold")}
    attempts = list(read_attempts(each.folder, STAGE, 1))
    assert len(attempts) == outcomes["wrong", "below_threshold"]


@scene
async def test_scoring_and_sampling_of_a_round_overlap(tmp_path):
    cue = Stage("generate")
    each = Scene(tmp_path, cue, generator={"max_sequences": 64})
    task = asyncio.create_task(sample_round(each.run, STAGE, 1, each.run.train_problems[:3]))
    await cue.go_on("generate")  # the first question's responses are there, the others' are not
    await settle()
    assert len(cue.waiting("generate")) == 2
    assert each.did("score") == [("score", 4)]
    cue.let_all_go_on()
    groups = await task
    assert [group.problem_id for group in groups] == [problem.problem_id for problem in each.run.train_problems[:3]]


@scene
async def test_a_question_that_always_fails_is_left_out_by_name_and_all_of_them_end_the_stage(tmp_path, capsys):
    each = Scene(tmp_path, num_problems=6, expert_iteration={"rounds": 1})
    failing = each.run.train_problems[2].problem_id
    each.generator.broken = frozenset([failing])
    await each.train()
    assert len(each.rows(1)) == 20
    assert f"{failing} is left out of round 1" in capsys.readouterr().out
    each.generator.broken = frozenset(problem.problem_id for problem in each.run.train_problems)
    with pytest.raises(GivenUpError, match="all 6 questions of round 2 failed"):
        await sample_round(each.run, STAGE, 2, each.run.train_problems)


@scene
async def test_a_dead_learner_ends_the_stage_with_its_error(tmp_path):
    cue = Stage("train_sft")
    each = Scene(tmp_path, cue)
    task = asyncio.create_task(each.train())
    await cue.fail("train_sft")
    with pytest.raises(ActorError, match="learner-0 died in train_sft"):
        await task


SETTINGS = {
    "going on": {},
    "fresh": {"expert_iteration": {"start": "start_model", "capacity": 8}},
    "curriculum": {"curriculum": {"order": "level", "skip_after": 1, "retry_after": 2}, "num_problems": 8},
}


def numbers_of(row):
    """A row of metrics without what a clock says."""
    return {name: value for name, value in row.items() if not name.endswith("_s") and name not in ("spans", "overlap_efficiency")}


@pytest.mark.parametrize("which", SETTINGS)
@scene
async def test_behaviour_26_resumed_after_any_round_a_run_equals_the_one_that_never_stopped(tmp_path, which):
    whole = Scene(tmp_path / "whole", **SETTINGS[which])
    await whole.train()
    whole.run.recorder.close()
    for number in (1, 2, 3):
        root = tmp_path / f"from-{number}"
        shutil.copytree(tmp_path / "whole", root)
        resumed = Scene(root, resume=str(root / "test" / "checkpoints" / f"{STAGE}-{number}"), **SETTINGS[which])
        await resumed.train()
        assert resumed.learner.weights == whole.learner.weights
        assert [resumed.pool(each) for each in (1, 2, 3)] == [whole.pool(each) for each in (1, 2, 3)]
        assert resumed.asked() == {each: problems for each, problems in whole.asked().items() if each > number}
        memories = [ProblemMemory(read_attempts(each.folder, STAGE, 3)).attempts for each in (resumed, whole)]
        assert memories[0] == memories[1]
        rows = [[numbers_of(row) for row in each.metrics() if "checkpoint_s" not in row] for each in (resumed, whole)]
        assert rows[0] == rows[1]
        assert resumed.run.ledger.counts == whole.run.ledger.counts
        resumed.run.recorder.close()


@scene
async def test_a_killed_round_is_done_again_from_the_round_before(tmp_path):
    cue = Stage()
    killed = Scene(tmp_path, cue)
    task = asyncio.create_task(killed.train())
    while len(killed.did(SYNCED)) < 2:
        await asyncio.sleep(0)
    cue.held.add("train_sft")
    await cue.next("train_sft")  # in its second round, whose responses are written already
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    killed.run.recorder.close()
    assert killed.pool(2).round == 2
    resumed = Scene(tmp_path, resume="auto")
    await resumed.train()
    assert sorted(resumed.asked()) == [2, 3]
    assert [row["step"] for row in resumed.rounds()] == [1, 2, 3]
    assert [row["step"] for row in resumed.metrics() if "validation_accuracy" in row] == [1, 2, 3]


@scene
async def test_problems_that_are_settled_are_passed_over_but_never_all(tmp_path):
    # 6 of 8 problems a round: 2 are left, so at least 4 come again, settled or not
    each = Scene(tmp_path, num_problems=8, curriculum={"skip_after": 1})
    each.generator.can = False  # every group fails, so every problem that was tried is settled
    await each.train()
    asked = each.asked()
    untried = {problem.problem_id for problem in each.run.train_problems} - set(asked[1])
    assert untried <= set(asked[2])
    assert set(asked[2][:2]) == untried  # those that teach come first
    assert all(len(set(problems)) == 6 for problems in asked.values())


@scene
async def test_a_curriculum_asks_easy_problems_first(tmp_path):
    each = Scene(tmp_path, num_problems=18, curriculum={"order": "level"})
    await each.train()
    levels = {problem.problem_id: problem.level for problem in each.run.train_problems}
    asked = [levels[problem] for number in (1, 2, 3) for problem in each.asked()[number]]
    assert asked == sorted(levels.values())


@scene
async def test_the_job_ends_between_rounds_where_max_hours_leaves_no_room(tmp_path, capsys):
    each = Scene(tmp_path)
    now_s = [0.0]
    each.run.time_limit = TimeLimit(1.0, num_evaluated=2, clock=lambda: now_s[0])
    each.run.recipe = each.run.recipe.model_copy(update={"run": each.run.recipe.run.model_copy(update={"max_hours": 1.0})})

    async def train(batch, original=each.learner.train_sft):
        now_s[0] += 700.0
        return await original(batch)

    each.learner.train_sft = train
    await each.train()
    assert len(each.rounds()) < 3
    assert "run.max_hours = 1 leaves room for" in capsys.readouterr().out


def budget_rounds(each):
    """(questions, tokens so far) of each round."""
    return [(row["num_responses"] // 4, row["consumed_tokens_total"]) for row in each.rounds()]


@pytest.mark.parametrize("budget", [30, 40, 75, 100, 200])
@scene
async def test_a_budget_of_tokens_makes_rounds_as_small_as_what_is_left_and_ends_the_stage(tmp_path, capsys, budget):
    each = Scene(tmp_path, study={"generated_tokens": budget}, expert_iteration={"rounds": 99}, num_problems=60)
    await each.train()
    rounds = budget_rounds(each)
    assert rounds[0][0] == 6
    tokens = [after - before for (_, after), before in zip(rounds, [0, *(total for _, total in rounds)], strict=False)]
    for number in range(1, len(rounds)):  # what a question took in the round just before, not in all of them
        left, last_mean = budget - rounds[number - 1][1], tokens[number - 1] / rounds[number - 1][0]
        assert rounds[number][0] == min(6, ceil(left / last_mean))
        assert left >= 0.02 * budget  # no round for less
    assert budget - rounds[-1][1] < 0.02 * budget
    said = capsys.readouterr().out
    assert f"{rounds[-1][1]} of the {budget} tokens of study.generated_tokens are sampled after round {len(rounds)} of 99" in said
    assert f", until {budget} tokens are sampled (study.generated_tokens)" in said


@scene
async def test_less_than_a_fiftieth_of_the_budget_is_left_over(tmp_path):
    for left, num_rounds in ((19, 0), (20, 1)):
        each = Scene(tmp_path / f"left-{left}", study={"generated_tokens": 1000}, expert_iteration={"rounds": 1})
        each.run.ledger.counts.generated_tokens = 1000 - left  # as if rounds before had taken them
        await each.train()
        assert len(each.rounds()) == num_rounds


@scene
async def test_a_first_round_beyond_the_budget_warns_and_is_the_only_one(tmp_path, capsys):
    each = Scene(tmp_path, study={"generated_tokens": 5}, expert_iteration={"rounds": 9})
    await each.train()
    ((_, tokens),) = budget_rounds(each)
    said = capsys.readouterr().out
    assert f"warning: {STAGE}: the first round alone took {tokens} of the 5 tokens of study.generated_tokens" in said
    assert "lower expert_iteration.questions" in said


@scene
async def test_rounds_that_end_before_the_budget_say_which_key_ended_them(tmp_path, capsys):
    each = Scene(tmp_path, study={"generated_tokens": 1000}, expert_iteration={"rounds": 2})
    await each.train()
    assert f"expert_iteration.rounds = 2 ended it after {budget_rounds(each)[-1][1]} of the 1,000 tokens" in capsys.readouterr().out


@scene
async def test_a_round_that_a_budget_cut_short_is_asked_again_in_the_same_size_by_a_run_that_goes_on(tmp_path):
    sections = {"study": {"generated_tokens": 40}, "expert_iteration": {"rounds": 9}}
    whole = Scene(tmp_path / "whole", **sections)
    await whole.train()
    assert [num_questions for num_questions, _ in budget_rounds(whole)][:2] == [6, 2]
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    resumed = Scene(tmp_path / "again", resume=str(tmp_path / "again" / "test" / "checkpoints" / f"{STAGE}-1"), **sections)
    await resumed.train()
    assert budget_rounds(resumed) == budget_rounds(whole)


@pytest.mark.parametrize("budget", [0, 40])
@scene
async def test_the_last_rounds_checkpoint_and_no_other_says_that_the_stage_is_trained(tmp_path, budget):
    each = Scene(tmp_path, study={"generated_tokens": budget}, expert_iteration={"rounds": 9 if budget else 3})
    await each.train()
    checkpoints = whole_checkpoints(each.folder)
    assert len(checkpoints) == len(each.rounds()) < 9
    assert [checkpoint.is_trained for checkpoint in checkpoints] == [False] * (len(checkpoints) - 1) + [True]


@scene
async def test_a_study_of_both_ends_them_at_one_budget_and_a_job_of_one_stage_says_that_it_has_none(tmp_path, capsys):
    sections = {"study": {"generated_tokens": 100}, "expert_iteration": {"rounds": 9}}
    sections["grpo"] = {"num_steps": 30, "prompts_per_step": 2, "group_size": 2}
    both = Scene(tmp_path / "both", **sections)
    await run_study(both.run, [STAGE, "grpo"])
    tokens = {summary["name"]: summary["generated_tokens"] for summary in both.run.stages}
    assert 98 < tokens[STAGE] < 110
    assert 100 <= tokens["grpo"] < 100 + 2 * 2 * 2
    said = capsys.readouterr().out
    assert said.count(", until 100 tokens are sampled (study.generated_tokens)") == 2
    assert "is not used" not in said
    assert f"grpo: {tokens['grpo']} of the 100 tokens of study.generated_tokens are sampled after step" in said
    last = max(row["step"] for row in both.metrics() if "staleness_mean" in row)
    assert f"grpo step {last}/{last} " in said  # not of 30: by then it is known that there is none to come
    alone = Scene(tmp_path / "alone", **sections)
    await run_study(alone.run, ["grpo"])
    assert [row["step"] for row in alone.metrics() if "staleness_mean" in row][-1] == 30
    assert alone.run.ledger.counts.generated_tokens > 110
    said = capsys.readouterr().out
    assert said.count("study.generated_tokens = 100 is not used: it is for a study of both expert_iteration and grpo") == 1


@scene
async def test_a_stage_that_its_own_length_ends_before_the_budget_names_it(tmp_path, capsys):
    sections = {"study": {"generated_tokens": 1000}, "grpo": {"num_steps": 3, "prompts_per_step": 2, "group_size": 2}}
    each = Scene(tmp_path, **sections, expert_iteration={"rounds": 1})
    await run_study(each.run, [STAGE, "grpo"])
    said = capsys.readouterr().out
    assert "expert_iteration.rounds = 1 ended it after" in said
    assert "grpo: grpo.num_steps ended it at step 3, after" in said
    assert "raise expert_iteration.rounds and grpo.num_steps, which ended before study.generated_tokens = 1,000 were sampled" in said


@scene
async def test_rounds_without_validation_problems_say_so_once(tmp_path, capsys):
    each = Scene(tmp_path)
    each.run.validation_problems = []
    await each.train()
    assert capsys.readouterr().out.count("no validation of its rounds") == 1
    assert not [row for row in each.metrics() if "validation_accuracy" in row]


@scene
async def test_a_study_runs_it_from_the_start_model_and_counts_what_it_spent(tmp_path):
    each = Scene(tmp_path)
    await run_study(each.run, ["baseline", STAGE])
    baseline, trained = each.run.stages
    assert (baseline["name"], trained["name"]) == ("baseline", STAGE)
    assert baseline["generated_tokens"] == 0 < trained["generated_tokens"]
    assert trained["optimizer_steps"] == len(each.learner.batches)
    assert trained["graded"] == 3 * 24 + 3 * 8 + 2  # rounds, validations, evaluation


@scene
async def test_the_threshold_rises_by_its_points_and_retires_what_it_leaves_behind(tmp_path):
    # right ones of 2 of 64 tokens: (0.7 + 0.1 + 0.1 * 62/64 + 0.1 * agreement) / 1.0, with agreement 1.0 only where all four are right
    each = Scene(tmp_path, expert_iteration={"threshold": [[1, 0.5], [3, 0.99]]})
    each.generator.chance = 80
    await each.train()
    assert [each.pool(number).threshold for number in (1, 2, 3)] == [0.5, 0.745, 0.99]
    assert {member.quality for member in each.pool(1).members} > {round(0.8 + 0.1 * 62 / 64 + 0.1, 9)}
    assert {member.quality for member in each.pool(3).members} == {round(0.8 + 0.1 * 62 / 64 + 0.1, 9)}
    assert each.rounds()[-1]["num_retired"] > 0


@scene
async def test_of_equally_good_responses_those_to_rarely_solved_problems_come_first(tmp_path):
    each = Scene(tmp_path, num_problems=6, expert_iteration={"quality": "correct"})  # so that each problem is asked three times
    await each.train()
    shares = ProblemMemory(read_attempts(each.folder, STAGE, 3)).solved_shares()
    found = [shares[member.problem_id] for member in each.pool(3).members]
    assert found == sorted(found)
    assert len(set(found)) > 2


@scene
async def test_behaviour_16_groups_that_all_earned_the_same_are_counted(tmp_path):
    each = Scene(tmp_path)
    each.generator.chance = 60
    await each.train()
    tokens = 0
    for row in each.rounds():
        groups = {}
        for response in each.rows(row["step"]):
            groups.setdefault(response["group_id"], []).append(response)
        same = [group for group in groups.values() if len({response["reward"] for response in group}) == 1]
        assert row["zero_variance_fraction"] == len(same) / 6
        tokens += sum(len(response["response_ids"]) for group in same for response in group)
        assert row["zero_variance_tokens_total"] == tokens > 0


@scene
async def test_entropy_is_of_one_response_a_question_the_samples_in_turn(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 1})
    await each.train()
    by_key = {(row["group_id"], row["sample"]): tuple(row["response_ids"]) for row in each.rows(1)}
    expected = [by_key[f"{STAGE}-1/{question}", question % 4] for question in range(6)]
    assert expected != [by_key[f"{STAGE}-1/{question}", 0] for question in range(6)]
    assert expected in each.learner.looked_at


@scene
async def test_a_skipped_update_is_no_optimizer_step(tmp_path):
    each = Scene(tmp_path, expert_iteration={"rounds": 1, "batch_size": 2})

    async def train(batch, original=each.learner.train_sft):
        return {**await original(batch), "skipped_updates": float(len(each.learner.batches) == 2)}

    each.learner.train_sft = train
    await each.train()
    assert len(each.learner.batches) > 2
    assert each.run.ledger.counts.optimizer_steps == len(each.learner.batches) - 1


@scene
async def test_no_format_warns_without_the_advice_to_pay_for_it(tmp_path, capsys):
    each = Scene(tmp_path, expert_iteration={"rounds": 1})

    (scorer,) = each.run.actors.scorers

    async def score(requests, original=scorer.score):
        return [replace(grade, format_reward=0.0) for grade in await original(requests)]

    scorer.score = score
    await each.train()
    said = capsys.readouterr().out
    assert "passed the format check" in said
    assert "Train the stage sft first" in said
    assert "reward.format" not in said


@scene
async def test_a_run_that_goes_on_takes_the_rounds_model_and_no_optimizer(tmp_path):
    whole = Scene(tmp_path)
    await whole.train()
    whole.run.recorder.close()
    checkpoint = whole.folder / "checkpoints" / f"{STAGE}-2"
    resumed = Scene(tmp_path, resume=str(checkpoint))
    await resumed.train()
    assert resumed.did("load_checkpoint") == []
    assert [Path(model) for _, model in resumed.did(LOADED)] == [checkpoint, checkpoint]  # as it goes on, and for round 3


@scene
async def test_a_run_that_goes_on_says_which_rounds_its_memory_lacks(tmp_path, capsys):
    whole = Scene(tmp_path)
    await whole.train()
    whole.run.recorder.close()
    (whole.folder / "problem_memory" / f"{STAGE}-1.parquet").unlink()
    resumed = Scene(tmp_path, resume=str(whole.folder / "checkpoints" / f"{STAGE}-2"))
    await resumed.train()
    assert f"warning: problem_memory holds nothing of 1 of 2 rounds of {STAGE}, the first 1: " in capsys.readouterr().out


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1")])
@scene
async def test_a_run_that_goes_on_without_its_pool_says_what_is_missing_and_what_to_do(tmp_path, damage):
    whole = Scene(tmp_path)
    await whole.train()
    whole.run.recorder.close()
    damage(pool_path(whole.folder, STAGE, 2))
    resumed = Scene(tmp_path, resume=str(whole.folder / "checkpoints" / f"{STAGE}-2"))
    with pytest.raises(
        RecipeError, match=rf"{STAGE}-2 goes on with the pool in .*{STAGE}-2\.parquet, which cannot be read.*run\.resume = "
    ):
        await resumed.train()


@scene
async def test_a_stop_in_a_round_keeps_what_was_cut_off_and_says_that_the_round_is_done_again(tmp_path, capsys):
    cue = Stage()
    each = Scene(tmp_path, cue)
    task = asyncio.create_task(each.train())
    cue.holds = lambda actor, what, detail: what == "generate" and detail[0][0].startswith(f"{STAGE}-2/")
    await until(lambda: len(cue.waiting("generate")) == 6)
    each.generator._answer = lambda request, version: Completion("n", (7,), (-0.5,), ((version, 1),), "abort")
    cue.let_all_go_on()
    await each.run.generators.drained()
    await settle()
    await each.run.save_now()
    assert f"{STAGE}: a run that goes on does round 2 again" in capsys.readouterr().out
    assert sorted(group.group_id for group in each.run.stopped_groups) == [f"{STAGE}-2/{question}" for question in range(6)]
    assert all(len(group.trajectories) == 4 for group in each.run.stopped_groups)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def fill_disk(each, *rounds):
    """No room for the checkpoints of these rounds."""

    async def save(folder, original=each.learner.save_checkpoint):
        if any(f"{STAGE}-{number}" in folder for number in rounds):
            raise OSError(28, "No space left on device")
        return await original(folder)

    each.learner.save_checkpoint = save


@scene
async def test_a_full_disk_ends_a_stage_whose_next_round_begins_from_the_checkpoint_and_says_what_to_do(tmp_path):
    each = Scene(tmp_path)
    fill_disk(each, 2)
    with pytest.raises(RuntimeError, match=r"round 2 could not be saved.*No space left.*run\.resume = .*expert_iteration\.start"):
        await each.train()


@pytest.mark.parametrize(("start", "full"), [("start_model", 2), ("last_round", 3)])
@scene
async def test_a_full_disk_costs_the_checkpoint_where_no_round_begins_from_it(tmp_path, capsys, start, full):
    each = Scene(tmp_path, expert_iteration={"start": start})
    fill_disk(each, full)
    await each.train()
    assert "warning: no checkpoint: [Errno 28]" in capsys.readouterr().out
    assert [checkpoint.step for checkpoint in whole_checkpoints(each.folder)] == [step for step in (1, 2, 3) if step != full]
    fill_disk(each)  # somebody has made room, and the study tries again after the evaluation
    del each.learner.save_checkpoint
    await each.run.save_now()
    assert 3 in [checkpoint.step for checkpoint in whole_checkpoints(each.folder)]


@scene
async def test_a_round_tells_how_many_responses_are_graded_and_how_many_updates_are_done(tmp_path):
    each, told = Scene(tmp_path, expert_iteration={"rounds": 1, "threshold": 0.0}), []
    each.run.console.progress = lambda what, num_done, num_all, unit: told.append((what, num_done, num_all, unit))
    await each.train()
    of_round = [(num_done, num_all, unit) for what, num_done, num_all, unit in told if what == f"{STAGE} round 1"]
    sampled = [(num_done, 24, "responses") for num_done in (0, 4, 8, 12, 16, 20, 24, 24)]  # 6 questions, 4 responses each
    num_updates = len(each.learner.batches)
    assert num_updates > 1
    learned = [(num_done, num_updates, "updates") for num_done in [*range(num_updates + 1), num_updates]]
    assert of_round == [*sampled, *learned]
