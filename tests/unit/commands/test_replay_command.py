"""`replay` on a made-up run of a model that learned nothing, against loops over single responses; the real engines' runs are in
tests/e2e_cpu/test_replay.py."""

import json
import math
import shutil
from dataclasses import replace
from math import exp

import pytest
import small_policy
import torch
from command_words import record, refused, said
from samples import made_up_trajectories, recipe_for
from small_policy import write_model
from transformers import AutoModelForCausalLM

from mathrl_ray.commands import replay
from mathrl_ray.commands.replay_report import Replay, difference, differs, report
from mathrl_ray.core.groups import with_advantages
from mathrl_ray.data.tiny_model import build_tokenizer
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.rows import trajectory_row
from mathrl_ray.types import Grade, TrajectoryGroup

MAX_TOKENS, TEMPERATURE, KL = 40, 0.8, 0.5
KEYS = {
    "grpo": {"loss": "grpo", "prompts_per_step": 3, "group_size": 4, "num_steps": 2},
    "generator": {"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE, "min_tokens": 0},
    "loss": {"kl_coefficient": KL},
    "learner": {"micro_batch_tokens": 512},
}
REWARDS = [[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 0.25, 1.0, 0.0]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def logprobs(model, each):
    return small_policy.logprobs(model, each, TEMPERATURE)


def groups_of(recipe):
    for number, rewards in enumerate(REWARDS):
        made = made_up_trajectories(4, seed=number)
        siblings = [
            replace(
                each, group_id=f"grpo-1/{number}", sample=sample, problem_id=f"p{number}", grade=Grade(1.0, reward, reward, "wrong", None)
            )
            for sample, (each, reward) in enumerate(zip(made, rewards, strict=True))
        ]
        yield with_advantages(TrajectoryGroup(f"grpo-1/{number}", f"p{number}", tuple(siblings)), recipe.advantage, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A run whose step 1 is saved, with the log-probs that the start model gives."""
    recipe = recipe_for(tmp_path_factory.mktemp("runs"), model={"path": str(model)}, **KEYS)
    recorder, policy = Recorder.create(recipe), AutoModelForCausalLM.from_pretrained(model)
    rows = []
    for each in (each for group in groups_of(recipe) for each in group.trajectories):
        own = None if each.drop_reason else tuple(logprobs(policy, each).tolist())
        rows.append(trajectory_row(each, own, consumed_step=1, staleness=0))
    recorder.trajectories("grpo", 1, rows)
    recorder.metrics("grpo", 1, 1, {"reward_mean": 0.4, "loss": 1.0, "grad_norm": 2.0, "learning_rate": 1e-3, "clip_fraction": 0.0})
    recorder.close()
    return recorder.folder


def by_hand(model, settings, batch):
    """(loss, gradient as one vector) of a batch, response by response, in float64."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    num_tokens, total = sum(len(each.completion.token_ids) for each in batch), torch.zeros((), dtype=torch.float64)
    for each in batch:
        values = logprobs(policy, each)
        ratio = (values - values.detach()).exp()
        per_token = -ratio * each.advantage if settings.surrogate in ("ratio", "clip") else -values * each.advantage
        distance = values - values.detach()  # the start model's are the same, so that this KL has neither a value nor a gradient (k3)
        per_token = per_token + settings.kl_coefficient * ((-distance).exp() - 1 + distance)
        match settings.aggregation:
            case "sequence":
                total = total + per_token.mean() / len(batch)
            case "token":
                total = total + per_token.sum() / num_tokens
            case "constant":
                total = total + per_token.sum() / (len(batch) * MAX_TOKENS)
    total.backward()
    return total.item(), torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def test_each_losss_figures_and_the_cosines_are_those_of_a_loop_over_single_responses(run, model, capsys, tmp_path):
    from mathrl_ray.commands.named_losses import named_losses

    names = ["dr_grpo", "reinforce", "dapo"]
    found = record(capsys, "replay", run, "--step", "1", "--loss", *names, "--json")
    recipe = recipe_for(tmp_path, model={"path": str(model)}, **KEYS)
    groups, gradients = list(groups_of(recipe)), []
    for told, loss in zip(found["losses"], named_losses(names, recipe), strict=True):
        judged = [with_advantages(group, loss.advantage or recipe.advantage, max_tokens=MAX_TOKENS) for group in groups]
        batch = [each for group in judged for each in group.trajectories if each.drop_reason is None]
        value, gradient = by_hand(model, loss.loss, batch)
        gradients.append(gradient)
        assert told["name"] == loss.name
        assert told["figures"]["num_responses"] == len(batch)
        assert told["figures"]["loss"] == pytest.approx(value, abs=1e-5)
        assert told["figures"]["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-5)
        assert told["figures"]["kl_nats"] == pytest.approx(0, abs=1e-6)
    expected = [[torch.cosine_similarity(one, other, dim=0).item() for other in gradients] for one in gradients]
    assert found["cosines"] == [pytest.approx(row, abs=1e-5) for row in expected]
    assert found["logprob_gap_nats"] < 1e-4
    assert [each["figures"]["num_responses"] for each in found["losses"]] == [8, 8, 12, 8]  # without a baseline the solved problem counts
    assert abs(found["losses"][2]["figures"]["loss"]) > 0.1


def test_ratio_and_mismatch_are_of_the_weights_against_the_generator(run, model, capsys, tmp_path):
    found = record(capsys, "replay", run, "--step", "1", "--json")
    policy = AutoModelForCausalLM.from_pretrained(model)
    batch = [each for group in groups_of(recipe_for(tmp_path, **KEYS)) for each in group.trajectories if each.drop_reason is None]
    gaps = [now - then for each in batch for now, then in zip(logprobs(policy, each).tolist(), each.completion.logprobs, strict=True)]
    assert found["replayed"]["importance_ratio_mean"] == pytest.approx(sum(exp(gap) for gap in gaps) / len(gaps), rel=1e-4)
    assert found["replayed"]["mismatch_kl"] == pytest.approx(sum(exp(gap) - 1 - gap for gap in gaps) / len(gaps), rel=1e-4)


def test_figures_that_are_not_the_logged_ones_are_named(run, capsys):
    text = said(capsys, "replay", run, "--step", "1")
    assert "warning: loss, grad_norm: more than 1e-05 from the log" in text  # the log of this run was made up
    assert "the batch's log-probs differ from those that the run saved by up to" in text
    assert "nats (limit 0.001)" in text


def test_other_weights_are_said_not_to_be_the_runs_and_nothing_is_compared(run, model, tmp_path, capsys):
    other = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    build_tokenizer(128).save_pretrained(tmp_path / "other")
    text = said(capsys, "replay", run, "--step", "1", "--loss", "reinforce", "--weights", tmp_path / "other")
    assert "they are not those of the step" in text
    assert "in metrics.jsonl" not in text
    assert "cosines of the gradients" in text


def test_weights_that_do_not_give_the_saved_log_probs_are_refused(run, model, tmp_path, capsys):
    other = tmp_path / "elsewhere"
    recorder = Recorder.create(recipe_for(tmp_path, run={"name": "elsewhere"}, model={"path": str(model)}, **{**KEYS, "generator": {}}))
    recorder.close()
    (other / "trajectories" / "grpo-1.parquet").write_bytes((run / "trajectories" / "grpo-1.parquet").read_bytes())
    (other / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    told = refused(capsys, "replay", other, "--step", "1")  # at temperature 1 and not at 0.8
    assert "the weights that were found are not those before step 1" in told
    assert "--weights" in told


def test_a_step_further_on_is_refused_where_the_steps_between_are_not_saved(run, tmp_path, capsys):
    assert "it has those of 1" in refused(capsys, "replay", run, "--step", "3")
    assert "grpo alone has" in refused(capsys, "replay", run, "--step", "1", "--stage", "expert_iteration")
    assert "no such run directory" in refused(capsys, "replay", tmp_path / "absent", "--step", "1")


def test_a_loss_that_is_not_there_is_told_before_any_step_is_done_again(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(replay, "_redo", lambda *_: pytest.fail("a step was done again"))
    assert "nowhere.py" in refused(capsys, "replay", run, "--step", 1, "--loss", tmp_path / "nowhere.py:mine")


def test_a_loss_of_the_users_own_stands_beside_the_runs(run, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n\n\ndef plain(batch):\n"
        "    return torch.where(batch.mask, -batch.advantages * batch.learner_logprobs, 0.0).sum() / batch.num_tokens\n"
    )
    found = record(capsys, "replay", run, "--step", "1", "--loss", f"{file}:plain", "cispo", "--json")
    assert [each["name"] for each in found["losses"]] == ["logged", f"{file}:plain", "cispo"]
    # CISPO's weights are 1 at the weights that sampled, so it is this one; the KL's gradient is 0 there
    assert found["cosines"][1][2] == pytest.approx(1, abs=1e-6)
    plain, cispo = (each["figures"]["grad_norm"] for each in found["losses"][1:])
    assert plain == pytest.approx(cispo, rel=1e-5)


def test_the_run_may_stand_behind_the_losses_or_be_the_present_folder(run, capsys, monkeypatch):
    found = record(capsys, "replay", "--step", "1", "--json", "--loss", "cispo", "logged", run)
    assert [each["name"] for each in found["losses"]] == ["logged", "cispo"]
    assert "name one run directory" in refused(capsys, "replay", "--step", "1", "--loss", "cispo")
    monkeypatch.chdir(run)
    assert record(capsys, "replay", ".", "--step", "1", "--json")["run"] == run.name


def with_row(run, folder, **changed):
    """A copy of the run, whose row of step 1 has other figures; None takes one away."""
    shutil.copytree(run, folder)
    row = json.loads((run / "metrics.jsonl").read_text()) | changed
    (folder / "metrics.jsonl").write_text(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")
    return folder


def test_one_update_needs_no_learning_rate(run, tmp_path, capsys):
    assert record(capsys, "replay", with_row(run, tmp_path / "bare", learning_rate=None), "--step", "1", "--json")["logged"]["loss"] == 1.0


def test_a_figure_that_is_no_number_is_null_in_json_and_told_as_a_difference(run, tmp_path, capsys):
    other = with_row(run, tmp_path / "nan", loss=math.nan, grad_norm=math.inf)
    logged = record(capsys, "replay", other, "--step", "1", "--json")["logged"]
    assert (logged["loss"], logged["grad_norm"]) == (None, None)
    assert "warning: loss, grad_norm: more than" in said(capsys, "replay", other, "--step", "1")


@pytest.mark.parametrize(
    ("logged", "replayed", "gap", "is_told"),
    [
        (math.nan, math.nan, 0, False),  # both skipped the update
        (math.inf, math.inf, 0, False),
        (0.5, math.nan, math.inf, True),
        (math.nan, 0.5, math.inf, True),
        (math.inf, -math.inf, math.inf, True),
        (math.inf, 0.5, math.inf, True),
        (0.5, 0.500004, 4e-6, False),
        (0.5, 0.50002, 2e-5, True),
        (1000.0, 1000.004, 4e-3, False),
    ],
)
def test_two_figures_that_are_no_number_are_equal_and_one_is_infinitely_far_from_any(logged, replayed, gap, is_told):
    assert difference(logged, replayed) == pytest.approx(gap, rel=1e-6)
    assert differs(logged, replayed) == is_told


def test_seven_losses_and_their_cosines_have_room_on_80_columns(capsys):
    names = ["logged", "reinforce_baseline", "dr_grpo", "some/folder/with/my_losses.py:tilted", "dapo", "rloo", "cispo"]
    figures = {"loss": -1.25, "grad_norm": 0.5, "clip_fraction": 0.1, "num_responses": 8, "num_response_tokens": 160}
    losses = [{"name": name, "figures": {} if name == "rloo" else figures, "settings": {}} for name in names]
    cosines = [[-0.5] * 6 for _ in range(6)]
    cosines[1][0], cosines[5][4] = None, 0.25
    report(Replay("run", "grpo", 1, "start", True, 0.0, 1e-3, {}, {}, {}, losses, cosines))
    shown = capsys.readouterr().out.split("cosines of the gradients\n")[1].splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["1", "2", "3", "4", "5", "7"]  # a loss that trains on nothing has no gradient
    assert shown[2].split() == ["2", "reinforce_baseline", "-", "-0.500"]
    assert shown[6].split() == ["7", "cispo", "-0.500", "-0.500", "-0.500", "-0.500", "0.250", "-0.500"]
