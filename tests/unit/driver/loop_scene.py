"""A stage's loops with fakes that tell the truth: log-probs that follow from the weights, and rewards that a test plans."""

import json
import random
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from fakes import Cue, Diary, FakeGenerator, FakeLearner, FakeScorer, at_once
from samples import make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.driver.canary import sync_weights
from mathrl_ray.driver.loops import PolicyLoops
from mathrl_ray.driver.resume import find_resumption, go_on, take_checkpoint
from mathrl_ray.recipe_checks import num_grpo_steps
from mathrl_ray.types import UNGRADED, Completion, GenerationRequest, Grade, PolicyUpdate, ResponseStatistics, ScoreRequest

NATS_A_VERSION = 0.1
"""What one update changes in the log-prob of every token: far more than a canary allows."""


@dataclass
class TrueGenerator(FakeGenerator):
    def _answer(self, request: GenerationRequest, began_with: int) -> Completion:
        completion = super()._answer(request, began_with)
        logprobs = tuple(-NATS_A_VERSION * version for version, _ in completion.version_runs)
        return Completion(completion.text, completion.token_ids, logprobs, completion.version_runs, completion.finish_reason)


@dataclass
class TrueLearner(FakeLearner):
    num_updates: int = 0

    async def train_policy(self, batch: Any, sampling: Any) -> PolicyUpdate:
        update = await super().train_policy(batch, sampling)
        self.num_updates += update.num_optimizer_steps
        return update

    def state(self) -> Any:
        return {"num_updates": self.num_updates}

    def take(self, state: Any) -> None:
        self.num_updates = state["num_updates"]

    async def response_statistics(self, sequences: Any, sampling: Any) -> list[ResponseStatistics]:
        before = self.num_updates
        await super().response_statistics(sequences, sampling)
        assert self.num_updates == before, "the learner trained while it was asked"
        return [ResponseStatistics(tuple(-NATS_A_VERSION * before for _ in each.response_ids), 0.1) for each in sequences]

    async def publish(self, policy_version: int) -> Any:
        assert policy_version == self.num_updates, "a version's number is not that of its weights"
        manifest = await super().publish(policy_version)
        assert policy_version == self.num_updates, "the learner trained while it published"
        return manifest


@dataclass
class PlannedScorer(FakeScorer):
    """Pays every other sibling of a group, all of them where the gold is in `dull`, none where it is in `hopeless`; cannot grade the second
    where it is in `broken`."""

    dull: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()

    async def score(self, requests: list[ScoreRequest]) -> list[Grade]:
        await super().score(requests)
        return [self._planned(index, request) for index, request in enumerate(requests)]

    def _planned(self, index: int, request: ScoreRequest) -> Grade:
        if request.gold in self.broken and index == 1:
            return Grade(1.0, float("nan"), float("nan"), "correct", "x")
        reward = 1.0 if request.gold in self.dull else float(index % 2 and request.gold not in self.hopeless)
        return Grade(1.0, reward, reward, "correct" if reward else "wrong", request.response)


class LoopScene:
    """One stage on made-up actors, and what it left."""

    learner_type: type[TrueLearner] = TrueLearner
    scorer_type: type[PlannedScorer] = PlannedScorer

    def __init__(
        self,
        folder: Any,
        cue: Cue = at_once,
        *,
        num_generators: int = 1,
        num_scorers: int = 1,
        num_problems: int = 16,
        num_dull: int = 0,
        num_hopeless: int = 0,
        num_broken: int = 0,
        transport: Any = "shared_memory",
        **sections: dict[str, Any],
    ) -> None:
        self.diary = Diary()
        self.learner = self.learner_type(self.diary, transport=transport, cue=cue)
        self.generators = [TrueGenerator(self.diary, f"generator-{index}", cue=cue) for index in range(num_generators)]
        self.scorers = [self.scorer_type(self.diary, f"scorer-{index}", cue) for index in range(num_scorers)]
        sections["grpo"] = {"num_steps": 6, "prompts_per_step": 2, "group_size": 2, **sections.get("grpo", {})}
        sections["eval"] = {"num_problems": 2, **sections.get("eval", {})}
        recipe = recipe_for(folder, **sections)
        self.said: list[str] = []
        self.resumption = find_resumption(recipe, ["grpo"])
        recorder = self.resumption.open(recipe, ["grpo"], self.said.append) if self.resumption else None
        self.run = make_run(recipe, Actors(self.learner, tuple(self.generators), tuple(self.scorers), (0,)), recorder=recorder)
        self.run.token_budget = recipe.study.generated_tokens  # as in a study of both stages that have one
        self.run.train_problems = [
            type(each)(each.problem_id, each.problem, f"gold {index}") for index, each in enumerate(self.run.train_problems[:num_problems])
        ]
        for scorer in self.scorers:
            scorer.dull = frozenset(f"gold {index}" for index in range(num_dull))
            scorer.hopeless = frozenset(f"gold {index}" for index in range(num_dull, num_dull + num_hopeless))
            scorer.broken = frozenset(f"gold {num_problems - 1 - index}" for index in range(num_broken))
        self.steps: list[int] = []
        self.num_groups: list[int] = []
        self.run.console.say = self.said.append
        if self.resumption:
            self.resumption.restore(self.run)

    def after_step(self, step: int, groups: Any, metrics: Any) -> None:
        self.steps.append(step)
        self.num_groups.append(len(groups))

    async def train(self) -> int:
        """Give the start model to the generators, with nothing held, and run the loops."""
        grpo, held = self.run.recipe.grpo, getattr(self.learner.cue, "held", set())
        if held:
            self.learner.cue.held = set()
        checkpoint = take_checkpoint(self.run, "grpo")
        if checkpoint is None:
            await sync_weights(self.run, policy_version=0)
        else:
            await go_on(self.run, checkpoint, learning_rate=1.0, num_optimizer_steps=1)
        if held:
            self.learner.cue.held = held
        num_steps = num_grpo_steps(grpo, len(self.run.train_problems))
        return await PolicyLoops(self.run, "grpo", num_steps, self.after_step, checkpoint.loops() if checkpoint else None).train()

    def rows(self) -> list[dict[str, Any]]:
        """All trajectories' rows, in the order of the steps that wrote them."""
        files = sorted((self.run.recorder.folder / "trajectories").iterdir(), key=lambda path: int(path.stem.rpartition("-")[2]))
        return [row for path in files for row in pq.read_table(path).to_pylist()]

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of training steps."""
        lines = (self.run.recorder.folder / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if "reward_mean" in row]

    def validations(self) -> dict[str, list[dict[str, Any]]]:
        files = (self.run.recorder.folder / "evaluations").iterdir()
        return {path.stem: pq.read_table(path).to_pylist() for path in files if path.stem.startswith("validation")}

    def batches(self) -> list[list[str]]:
        """The groups that each call of the learner trained on, in its order."""
        return [list(dict.fromkeys(group for group, _, _ in batch)) for _, _, batch in self.diary.of("train_policy")]

    def generated(self) -> list[str]:
        """Groups whose responses were asked for, in that order, repeats included."""
        asked = [batch[0][0] for _, _, batch in self.diary.of("generate")]
        return [group for group in asked if group.startswith("grpo-") and not group.startswith("grpo-validation")]


def all_metrics(scene: LoopScene) -> list[dict[str, Any]]:
    """The rows of a run that say what was learned; not those of checkpoints."""
    lines = (scene.run.recorder.folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "checkpoint_s" not in row]


def sections(resume: str = "", **more: Any) -> dict[str, Any]:
    """Of a recipe that keeps a checkpoint of every step."""
    return {"run": {"checkpoint_every": 1, "keep_last": 100, "resume": resume}, **more}


def place(group_id: str) -> tuple[int, int]:
    """A group's place in the order of admission."""
    step, index = group_id.removeprefix("grpo-").split("/")
    return int(step), int(index)


def check_nothing_is_lost_or_doubled(scene: LoopScene, num_steps: int) -> None:
    """What holds of every run that ended well, whoever was fast, slow or dead."""
    recipe, rows, metrics = scene.run.recipe, scene.rows(), scene.metrics()
    size, driver = recipe.grpo.group_size, recipe.driver
    assert scene.steps == [row["step"] for row in metrics] == list(range(1, num_steps + 1))

    keys = [(row["group_id"], row["sample"]) for row in rows]
    assert len(keys) == len(set(keys)), "a trajectory was written twice"
    groups = {group for group, _ in keys}
    assert set(keys) == {(group, sample) for group in groups for sample in range(size)}, "a sibling was lost"

    trained = [(group, sample) for _, _, batch in scene.diary.of("train_policy") for group, sample, _ in batch]
    assert len(trained) == len(set(trained)), "a trajectory was trained on twice"
    assert set(trained) == {(row["group_id"], row["sample"]) for row in rows if row["drop_reason"] is None}
    assert all((row["learner_logprobs"] is None) == (row["drop_reason"] is not None) for row in rows)
    for _, _, batch in scene.diary.of("train_policy"):
        order = [(*place(group), sample) for group, sample, _ in batch]
        assert order == sorted(order), "a batch is not in the order of admission"
    if driver.on_stale == "wait":
        order = [place(group) for batch in scene.batches() for group in batch]
        assert order == sorted(order), "batches are not in the order of admission"

    versions = {0: 0, **{row["step"]: row["policy_version"] for row in metrics}}
    for row in rows:
        step = row["consumed_step"]
        if step is None:
            assert row["drop_reason"] is not None
            continue
        assert row["staleness"] == versions[step - 1] - min(version for version, _ in row["version_runs"])
        assert row["staleness"] >= 0
        assert driver.on_stale == "train" or row["staleness"] <= driver.max_staleness
        assert row["generator_logprobs"] == [-NATS_A_VERSION * version for version, _ in row["version_runs"]]
    consumed = {step: {row["group_id"] for row in rows if row["consumed_step"] == step} for step in scene.steps}
    assert [len(consumed[step]) for step in scene.steps] == scene.num_groups
    assert all(number == recipe.grpo.prompts_per_step for number in scene.num_groups[:-1])

    check_memory_is_of_the_rows(scene)

    counts = scene.run.ledger.counts
    assert counts.generated_tokens == sum(len(row["response_ids"]) for row in rows)
    assert counts.trained_tokens == sum(len(row["response_ids"]) for row in rows if row["drop_reason"] is None)
    assert counts.generated_tokens == counts.trained_tokens + counts.dropped_tokens
    lost = {(row["group_id"], row["drop_reason"]) for row in rows if row["consumed_step"] is None}
    all_rows = [json.loads(line) for line in (scene.run.recorder.folder / "metrics.jsonl").read_text().splitlines()]
    for reason in ("stale", "zero_variance"):
        assert sum(row.get(f"num_dropped_{reason}", 0) for row in all_rows) == sum(why == reason for _, why in lost)

    published = [version for _, _, version in scene.diary.of("publish")]
    assert published == list(range(len(published)))
    assert scene.run.policy_version == published[-1]
    for replicas in (scene.run.generators, scene.run.scorers):
        assert not any(replica.load or replica.taken or replica.pinned for replica in replicas)
    for row in metrics:
        for role in ("generator", "learner", "scorer"):
            assert abs(row[f"{role}_work_s"] + row[f"{role}_wait_s"] - row["step_s"]) < 1e-6


def check_memory_is_of_the_rows(scene: LoopScene) -> None:
    """Every step's attempts are its graded trajectories, trained on or not."""
    folder = scene.run.recorder.folder
    assert [path.name for path in memory_files(scene)] == sorted(path.name for path in (folder / "trajectories").iterdir())
    for path in memory_files(scene):
        step = int(path.stem.rpartition("-")[2])
        graded = [row for row in pq.read_table(folder / "trajectories" / path.name).to_pylist() if row["outcome"] not in UNGRADED]
        assert [(*row.values(),) for row in pq.read_table(path).to_pylist()] == [
            (
                row["problem_id"],
                row["group_id"],
                step,
                row["sample"],
                row["outcome"] == "correct",
                len(row["response_ids"]),
                max(version for version, _ in row["version_runs"]),
            )
            for row in graded
        ]


def memory_files(scene: LoopScene) -> list[Any]:
    return sorted((scene.run.recorder.folder / "problem_memory").glob("[!.]*"))


TIMES = ("_s", "_s_mean", "_s_max")
OF_THE_CLOCK = {"spans", "overlap_efficiency", "checkpoint_bytes"}


def numbers_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics without what a clock says."""
    return {name: value for name, value in row.items() if not name.endswith(TIMES) and name not in OF_THE_CLOCK}


FILTERS: list[dict[str, Any]] = [{}, {"skip_after": 1}, {"skip_after": 2, "retry_after": 3, "order": "level"}]


def random_scene(folder: Any, seed: int, cue: Cue) -> LoopScene:
    """Settings by chance."""
    draw = random.Random(seed)
    grpo: dict[str, Any] = {"prompts_per_step": draw.choice([1, 2, 3]), "group_size": draw.choice([2, 3]), "num_steps": draw.randint(1, 8)}
    grpo |= {"dynamic_sampling": draw.random() < 0.5, "max_replaced": draw.choice([1, 3]), "num_epochs": draw.choice([0, 0, 1, 2])}
    driver = {
        "max_staleness": draw.choice([0, 1, 2, 4]),
        "on_stale": draw.choice(["wait", "wait", "drop", "train"]),
        "in_flight_updates": draw.random() < 0.7,
        "canary_every": draw.choice([1, 2, 5]),
        "max_restarts": 10_000,
        "max_tries": 50,
    }
    return LoopScene(
        folder,
        cue,
        num_generators=draw.choice([1, 2, 3]),
        num_scorers=draw.choice([1, 2]),
        num_problems=draw.randint(grpo["prompts_per_step"], 16),
        num_dull=draw.choice([0, 0, 3]),
        num_broken=draw.choice([0, 2]),
        transport=draw.choice(["shared_memory", "shared_memory", "nccl"]),
        grpo=grpo,
        driver=driver,
        eval={"validate_every": draw.choice([0, 1, 3])},
        generator={"max_sequences": draw.choice([4, 8, 64])},
        curriculum={} if grpo["num_epochs"] else draw.choice(FILTERS),
    )
