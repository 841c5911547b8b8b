import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes import Diary, FakeGenerator, FakeLearner, FakeScorer
from samples import ByteTokenizer, make_run, recipe_for

from mathrl_ray.actors.interfaces import Actors
from mathrl_ray.config import RecipeError
from mathrl_ray.core.run_estimate import StepForecast
from mathrl_ray.data.traces import SftRow
from mathrl_ray.stages.sft import run_sft
from mathrl_ray.stages.sft_sweep import SizeResult, best_size, nested_subset
from mathrl_ray.stages.study import run_study
from mathrl_ray.stages.trace_selection import best_first
from mathrl_ray.types import Completion, ResponseStatistics


class Tokenizer(ByteTokenizer):
    eos_token_id = 1


@dataclass
class Learner(FakeLearner):
    """Keeps what it was trained on; its weights are the number of traces it has seen, and it can save and load them."""

    seen: list[tuple[int, ...]] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    weights: int = 0

    async def start_stage(self, settings):
        self.weights = self.saved.get(Path(settings.model_path).name, 0)
        self.diary.note("learner-0", "stage", settings.stage)
        await super().start_stage(settings)

    async def train_sft(self, batch):
        self.seen += [example.response_ids for example in batch]
        self.weights += len(batch)
        return await super().train_sft(batch)

    async def publish(self, policy_version):
        self.diary.note("learner-0", "weights", (policy_version, self.weights))
        return await super().publish(policy_version)

    async def save(self, folder):
        self.saved[Path(folder).name] = self.weights
        await super().save(folder)

    async def save_checkpoint(self, folder):
        self.saved[Path(folder).name.removeprefix(".").removesuffix(".writing")] = self.weights
        return await super().save_checkpoint(folder)

    async def response_statistics(self, sequences, sampling):
        # a response of n bytes (and EOS) has the mean log-probability -n / 100
        self.diary.note("learner-0", "response_statistics", len(sequences))
        return [ResponseStatistics(tuple(-(len(s.response_ids) - 1) / 100 for _ in s.response_ids), 0.1) for s in sequences]


@dataclass
class Generator(FakeGenerator):
    """Right on a validation problem as often as `skill` says of the weights that it holds."""

    learner: Learner | None = None
    golds: dict[str, str] = field(default_factory=dict)
    skill: dict[int, int] = field(default_factory=dict)
    weights: int = 0

    async def apply_weights(self, manifest):
        self.weights = self.learner.weights
        return await super().apply_weights(manifest)

    async def generate(self, requests):
        completions = await super().generate(requests)
        self.diary.note(self.name, "sampled", ([request.group_id for request in requests], self.weights))
        num_right = self.skill.get(self.weights, 0)
        return [
            Completion(self.golds.get(request.problem_id, "?") if index < num_right else "?", *_rest(completion))
            for index, (request, completion) in enumerate(zip(requests, completions, strict=True))
        ]


def _rest(completion):
    # log-probabilities as this file's learner gives them for one id, so that the canary is content
    return completion.token_ids, (0.0,), completion.version_runs, completion.finish_reason


@pytest.fixture
def diary():
    return Diary()


@pytest.fixture
def run_with(tmp_path, diary):
    def make(traces, skill=None, tokenizer=None, **sections):
        learner = Learner(diary)
        generator = Generator(diary, learner=learner, skill=skill or {})
        actors = Actors(learner, (generator,), (FakeScorer(diary),), (0,))
        sections = {"eval": {"num_problems": 4}, **sections, "sft": {"batch_size": 4, **sections.get("sft", {})}}
        run = make_run(recipe_for(tmp_path, **sections), actors, tokenizer=tokenizer or Tokenizer())
        generator.golds = {problem.problem_id: problem.gold for problem in (*run.validation_problems, *run.test_problems)}
        run.traces = traces
        return run

    return make


def made(num, right=lambda index: True):
    """Traces whose response is their gold where they are right: "r0", "r1", ... as FakeScorer grades."""
    return [SftRow(f"t{index:02}", "Q", f"r{index}", gold=f"r{index}" if right(index) else "other") for index in range(num)]


def trained_on(run):
    return [bytes(ids[:-1]).decode() for ids in run.actors.learner.seen]


def metrics_of(run):
    return [json.loads(line) for line in (run.recorder.folder / "metrics.jsonl").read_text().splitlines()]


def test_all_traces_are_learned_once_an_epoch_in_another_order_each_time(run_with):
    run = run_with(made(10), sft={"epochs": 2})
    asyncio.run(run_sft(run))
    first, second = trained_on(run)[:10], trained_on(run)[10:]
    assert sorted(first) == sorted(second) == sorted(f"r{index}" for index in range(10))
    assert first != second
    assert run.ledger.counts.optimizer_steps == 6  # batches of 4, 4 and 2, twice


def test_every_step_logs_how_long_it_waited_for_data(run_with):
    run = run_with(made(8))
    asyncio.run(run_sft(run))
    steps = [row for row in metrics_of(run) if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(0 <= row["data_wait_s"] < 5 for row in steps)


def test_three_measured_steps_correct_the_forecast_of_the_stage(run_with):
    run, said = run_with(made(20)), []
    run.console.say = said.append
    run.forecasts = {"sft": StepForecast(num_steps=99, estimated_step_s=900.0)}
    asyncio.run(run_sft(run))
    (line,) = [text for text in said if "measured" in text]
    assert line.startswith("sft: 3 steps measured: ")
    assert "(estimated 900 s)" in line
    assert "all 5: " in line  # 20 traces by 4


def test_traces_are_tokenised_while_the_learner_trains(run_with):
    tokenised = []

    class Counting(Tokenizer):
        def encode(self, text, *, add_special_tokens):
            tokenised.append(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

        def __deepcopy__(self, memo):
            return self

    run = run_with(made(40), tokenizer=Counting())
    ahead = []
    train = run.actors.learner.train_sft

    async def slow_train(batch):
        await asyncio.sleep(0.02)  # what a real step takes; the thread works meanwhile
        ahead.append(sum(text.startswith("r") for text in tokenised) - len(run.actors.learner.seen) - len(batch))
        return await train(batch)

    run.actors.learner.train_sft = slow_train
    asyncio.run(run_sft(run))
    assert sum(text.startswith("r") for text in tokenised) == 40
    assert max(ahead) >= 4  # a batch beyond the present one was tokenised before anyone asked for it
    assert max(ahead) <= 4 * 5  # and never more than four that wait and one in the making


def test_a_trace_that_cannot_be_tokenised_ends_the_stage_with_its_error(run_with):
    class Failing(Tokenizer):
        def encode(self, text, *, add_special_tokens):
            if text == "r7":
                raise RuntimeError("cannot tokenise r7")
            return super().encode(text, add_special_tokens=add_special_tokens)

    with pytest.raises(RuntimeError, match="cannot tokenise r7"):
        asyncio.run(run_sft(run_with(made(12), tokenizer=Failing())))


def test_only_right_traces_are_kept_and_the_share_is_logged(run_with):
    run = run_with(made(12, right=lambda index: index % 3 != 0), sft={"keep": "correct"})
    asyncio.run(run_sft(run))
    assert sorted(trained_on(run)) == sorted(f"r{index}" for index in range(12) if index % 3)
    (row,) = [row for row in metrics_of(run) if "num_kept" in row]
    assert (row["num_traces"], row["num_right"], row["num_kept"]) == (12, 8, 8)
    assert row["kept_fraction"] == pytest.approx(8 / 12)


def test_sft_filtered_is_sft_on_the_right_ones_under_its_own_name(run_with, diary):
    run = run_with(made(12, right=lambda index: index < 6), sft={"sizes": [4, 8]})
    asyncio.run(run_study(run, ["sft_filtered"]))
    assert sorted(trained_on(run)) == [f"r{index}" for index in range(6)]
    assert [stage["name"] for stage in run.stages] == ["sft_filtered"]
    assert list(run.actors.learner.saved) == ["sft_filtered-2"]
    assert (run.recorder.folder / "evaluations" / "sft_filtered-v1.parquet").is_file()


def test_the_best_share_is_right_ones_that_the_model_finds_likely(run_with):
    # of ten, 60 % are six: the five right ones, and of the wrong ones the likeliest, which is the shortest here
    traces = [SftRow(f"t{index}", "Q", "x" * (20 - index), gold="x" * (20 - index) if index % 2 else "other") for index in range(10)]
    run = run_with(traces, sft={"keep": "best", "batch_size": 2})
    asyncio.run(run_sft(run))
    assert sorted(map(len, trained_on(run)), reverse=True) == sorted([19, 17, 15, 13, 11, 12], reverse=True)


def test_the_best_come_first_by_grade_then_likelihood_then_length_then_id():
    def statistics(*logprobs):
        return ResponseStatistics(logprobs, 0.0)

    traces = [SftRow(name, "", "") for name in ("f", "e", "d", "c", "b", "a", "g")]
    right = [False, True, True, True, True, True, True]
    likelihoods = [(-0.1,), (-3.0,), (-1.0, -2.0, -1.5), (-1.5, -1.5), (-1.0,), (-1.0,), (float("nan"),)]
    order = best_first(traces, right, [statistics(*values) for values in likelihoods])
    # a and b: -1.0 each, by id; c and d: -1.5 each, the shorter first; e: -3; g: no number; f: wrong
    assert [traces[index].problem_id for index in order] == ["a", "b", "c", "d", "e", "g", "f"]


@pytest.mark.parametrize(("num_right", "batch_size"), [(0, 1), (3, 4)])
def test_fewer_kept_traces_than_a_batch_are_refused_with_both_numbers(run_with, num_right, batch_size):
    run = run_with(made(8, right=lambda index: index < num_right), sft={"keep": "correct", "batch_size": batch_size})
    with pytest.raises(RecipeError, match=rf'keep = "correct" leaves {num_right} of 8 traces, fewer than sft\.batch_size = {batch_size}'):
        asyncio.run(run_sft(run))


def test_a_size_beyond_what_is_kept_is_refused_with_what_would_work(run_with):
    run = run_with(made(12, right=lambda index: index < 6), sft={"keep": "correct", "sizes": [4, 8]})
    with pytest.raises(RecipeError, match=r'sft\.sizes holds 8, more than the 6 traces that sft\.keep = "correct" leaves: use at most 6'):
        asyncio.run(run_sft(run))


def test_validations_on_the_way_see_the_weights_of_their_step(run_with, diary):
    run = run_with(made(12), eval={"num_problems": 4, "validate_every": 2})
    asyncio.run(run_sft(run))
    validated = [(row["step"], row["policy_version"]) for row in metrics_of(run) if "validation_accuracy" in row]
    assert validated == [(2, 1)]
    sampled = [weights for _, _, (groups, weights) in diary.of("sampled") if groups[0].startswith("sft-validation")]
    assert sampled == [8]  # two batches of four
    assert [version for _, _, version in diary.of("publish")] == [0, 1, 2]


def test_a_validation_at_the_last_step_needs_no_second_publication(run_with, diary):
    run = run_with(made(8), eval={"num_problems": 4, "validate_every": 2})
    asyncio.run(run_sft(run))
    assert [version for _, _, version in diary.of("publish")] == [0, 1]
    assert (run.recorder.folder / "evaluations" / "sft-v1.parquet").is_file()


def test_a_sweep_starts_each_size_anew_and_evaluates_and_saves_the_best_on_validation(run_with, diary, capsys):
    # right on 2, 5 and 3 of the 8 validation problems after 4, 8 and 12 traces
    run = run_with(made(12), skill={4: 2, 8: 5, 12: 3}, sft={"sizes": [4, "all", 8]})
    figures = asyncio.run(run_sft(run))
    rows = [row for row in metrics_of(run) if "validation_accuracy" in row]
    assert [(row["sft_size"], row["step"], row["validation_accuracy"]) for row in rows] == [(4, 1, 2 / 8), (8, 2, 5 / 8), (12, 3, 3 / 8)]
    assert [weights for _, _, (_, weights) in diary.of("weights")] == [0, 4, 0, 8, 0, 12, 8]  # each from 0; the best is brought back
    tested = [weights for _, _, (groups, weights) in diary.of("sampled") if groups[0].startswith("sft-evaluation")]
    assert tested == [8]  # the test problems are looked at once, with the best
    assert figures["accuracy"] == 1.0  # of 4 test problems, the skill of 5 is enough for all
    assert run.actors.learner.saved["sft-2"] == 8
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("8 validation problems", "62.5 %", "evaluated on test"))


def test_every_row_of_a_sweep_says_which_size_it_is_of(run_with):
    run = run_with(made(12), skill={4: 2, 8: 5, 12: 3}, sft={"sizes": [4, 8, 12]}, eval={"num_problems": 4, "validate_every": 1})
    asyncio.run(run_sft(run))
    rows = metrics_of(run)
    assert [(row["sft_size"], row["step"]) for row in rows if "loss" in row] == [(4, 1), (8, 1), (8, 2), (12, 1), (12, 2), (12, 3)]
    validated = [(row["sft_size"], row["step"]) for row in rows if "validation_accuracy" in row]
    assert validated == [(4, 1), (8, 1), (8, 2), (12, 1), (12, 2), (12, 3)]
    assert [row["sft_size"] for row in rows if "sync_s" in row] == [4, 4, 8, 8, 8, 12, 12, 12, 12, 8]  # the best is brought back
    assert ["accuracy" in row for row in rows if "sft_size" not in row and "checkpoint_s" not in row] == [True]  # the stage's figures


def test_the_dumps_of_a_sweep_have_names_of_their_own(run_with, diary):
    asyncio.run(run_sft(run_with(made(8), skill={4: 2, 8: 5}, sft={"sizes": [4, 8]})))
    assert [stage for _, _, stage in diary.of("stage")] == ["sft-size4", "sft-size8"]


def test_an_sft_of_one_size_has_the_stages_name_and_no_size(run_with, diary):
    run = run_with(made(8))
    asyncio.run(run_sft(run))
    assert [stage for _, _, stage in diary.of("stage")] == ["sft"]
    assert not [row for row in metrics_of(run) if "sft_size" in row]


def test_the_best_is_not_brought_back_where_it_was_trained_last(run_with, diary):
    run = run_with(made(12), skill={4: 2, 12: 6}, sft={"sizes": [4, "all"]})
    asyncio.run(run_sft(run))
    assert [weights for _, _, (_, weights) in diary.of("weights")] == [0, 4, 0, 12]
    assert run.actors.learner.saved["sft-3"] == 12


def test_sizes_are_nested_and_all_is_all_in_the_files_order():
    traces = made(40)
    subsets = [nested_subset(traces, number, seed=3) for number in (5, 17, 40)]
    assert [len(subset) for subset in subsets] == [5, 17, 40]
    assert set(subsets[0]) < set(subsets[1]) < set(subsets[2])
    assert subsets[2] == traces
    assert subsets[1] == [trace for trace in traces if trace in subsets[1]]
    assert subsets[0] != traces[:5]  # a file sorted by subject is not cut at its front


def test_of_equal_accuracies_the_smaller_size_is_the_best():
    results = [SizeResult(number, 1, 1, {"accuracy": accuracy}) for number, accuracy in ((64, 0.2), (128, 0.5), (256, 0.5), (512, 0.4))]
    assert best_size(results).num_traces == 128
