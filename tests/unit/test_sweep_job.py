"""Several seeds and sweeps from beginning to end, on made-up runs that are processes of their own."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from sweep_scene import SweepScene, count

from mathrl_ray.config import RecipeError
from mathrl_ray.driver import sweep_runs
from mathrl_ray.driver.stopping import StoppedError, Stopping
from mathrl_ray.driver.sweep_summary import VariantsFailedError

SEEDS = "[study]\nseeds = [0, 1, 2]"
RATES = "[sweep]\n'grpo.learning_rate' = [1e-4, 5e-4]\nseeds = [0, 1]"
# Validations at 10, 20, 30 and 40; the first two are rungs
HALVING = "[sweep]\n'grpo.learning_rate' = [1e-4, 5e-4, 9e-4]\n[eval]\nvalidate_every = 10\n[grpo]\nnum_steps = 40"
LOW = {"validations": [[10, 0.1], [20, 0.1], [30, 0.1], [40, 0.1]], "step_s": 0.3, "accuracy": 0.1}
HIGH = {"validations": [[10, 0.6], [20, 0.6], [30, 0.6], [40, 0.6]], "step_s": 0.3, "accuracy": 0.6}


@pytest.fixture(autouse=True)
def look_more_often(monkeypatch):
    monkeypatch.setattr(sweep_runs, "TICK_S", 0.05)


def test_seeds_leave_their_mean_with_an_interval_over_seeds(tmp_path, capsys):
    scene = SweepScene(tmp_path, SEEDS, plan={f"seed-{seed}": {"accuracy": 0.4 + 0.1 * seed} for seed in range(3)})
    scene.run()
    assert scene.statuses() == {"seed-0": "finished", "seed-1": "finished", "seed-2": "finished"}
    stages = scene.summary()["stages"]
    # .4, .5, .6: as in test_seed_figures; tokens 1000, 1001, 1002
    assert [(stage["name"], stage["accuracy"]) for stage in stages] == [("sft", pytest.approx(0.5)), ("grpo", pytest.approx(0.5))]
    assert stages[0]["ci95"] == pytest.approx([0.25159, 0.74841], abs=1e-5)
    assert (stages[0]["generated_tokens"], stages[0]["device_s"], stages[0]["num_problems"]) == (1001, {"learner": 2.0}, 100)
    assert [(run["seed"], run["accuracy"], run["ci95"]) for run in stages[1]["per_seed"]] == [
        (0, 0.4, pytest.approx([0.3, 0.5])), (1, 0.5, pytest.approx([0.4, 0.6])), (2, 0.6000000000000001, pytest.approx([0.5, 0.7])),
    ]  # fmt: skip
    assert {entry["folder"] for entry in scene.entries()} == {str(scene.root / f"mine-seed-{seed}") for seed in range(3)}
    told = capsys.readouterr().out
    assert "seed-1 | 0:00  seed 1 of mine-seed-1 begins" in told
    assert "0: 40.0, 1: 50.0, 2: 60.0" in told
    assert "grpo and sft are equal; their intervals overlap" in told
    assert "seed 1 of mine-seed-1 begins" in (scene.root / "mine" / "logs" / "seed-1.log").read_text()
    assert "seeds = [\n    0,\n    1,\n    2,\n]" in (scene.root / "mine" / "recipe.toml").read_text()


def test_a_sweep_leaves_a_block_for_each_setting_in_order(tmp_path, capsys):
    plan = {
        f"learning_rate-{rate}-seed-{seed}": {"accuracy": accuracy + 0.02 * seed}
        for rate, accuracy in (("0.0001", 0.3), ("0.0005", 0.7))
        for seed in (0, 1)
    }
    scene = SweepScene(tmp_path, RATES, plan=plan)
    scene.run()
    blocks = scene.summary()["settings"]
    assert [(block["setting"], block["changes"], block["seeds"], block["missing_seeds"]) for block in blocks] == [
        ("learning_rate-0.0001", {"grpo.learning_rate": 1e-4}, [0, 1], []),
        ("learning_rate-0.0005", {"grpo.learning_rate": 5e-4}, [0, 1], []),
    ]
    # t(1, .975) = 12.706; s / sqrt(2) = .01: half a width of .12706
    assert blocks[1]["stages"][1]["accuracy"] == pytest.approx(0.71)
    assert blocks[1]["stages"][1]["ci95"] == pytest.approx([0.71 - 0.12706, 0.71 + 0.12706], abs=1e-5)
    told = capsys.readouterr().out
    assert "grpo: learning_rate-0.0005 is above learning_rate-0.0001 by 40.0 points; their intervals do not overlap" in told


def test_as_many_run_side_by_side_as_there_is_room_for_the_first_seed_of_each_setting_first(tmp_path):
    plan = {"-0": {"step_s": 0.4}, "-1": {"step_s": 0.4}}
    scene = SweepScene(tmp_path, RATES, plan=plan)
    scene.run()
    assert scene.most_at_once() == 2
    begun = [name.removeprefix("learning_rate-") for name in scene.diary("begin")]
    assert set(begun[:2]) == {"0.0001-seed-0", "0.0005-seed-0"}
    assert set(begun[2:]) == {"0.0001-seed-1", "0.0005-seed-1"}


def test_a_limit_in_the_recipe_is_kept_beside_the_machines_room(tmp_path):
    scene = SweepScene(tmp_path, SEEDS, room=3)
    scene.run("sweep.side_by_side=1")
    assert scene.most_at_once() == 1
    assert scene.diary("begin") == ["seed-0", "seed-1", "seed-2"]


def test_a_second_sweep_of_the_name_has_folders_of_its_own(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    scene.run()
    assert scene.entries("mine-2")[0]["folder"] == str(scene.root / "mine-2-seed-0")
    assert count(scene.diary("begin")) == {"seed-0": 1, "2-seed-0": 1}


def test_a_run_that_happens_to_have_a_variants_name_is_not_taken_for_it(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    (scene.root / "mine").rename(scene.root / "elsewhere")
    scene.run()
    assert scene.entries()[0]["folder"] == str(scene.root / "mine-seed-0-2")


def test_a_run_that_fails_is_named_with_its_log_and_the_others_go_on(tmp_path, capsys):
    scene = SweepScene(tmp_path, SEEDS, plan={"seed-1": {"fails": True}})
    with pytest.raises(
        VariantsFailedError, match=r"seed-1 ended with status 1; all that it said: .*logs/seed-1\.log\n(.*\n)*.*generator-0 died"
    ):
        scene.run()
    assert scene.statuses() == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished"}
    assert [run["seed"] for run in scene.summary()["stages"][0]["per_seed"]] == [0, 2]
    assert "warning: seed-1 failed; the others go on" in capsys.readouterr().out
    scene.does({})
    scene.run("run.resume=auto")
    assert set(scene.statuses().values()) == {"finished"}
    assert count(scene.diary("finish")) == {"seed-0": 1, "seed-1": 1, "seed-2": 1}


# --- stopped and gone on with ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_sweep_killed_half_way_and_started_again_repeats_nothing(tmp_path, number):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1, 2, 3]", plan={"seed-1": {"until": "go"}, "seed-2": {"until": "go"}})
    parent = scene.start()
    scene.until(lambda: scene.diary("finish") == ["seed-0"] and len(scene.diary("begin")) == 3)
    scene.until(lambda: [entry["status"] for entry in scene.entries()] == ["finished", "running", "running", "waiting"])
    scene.until(lambda: all(entry["folder"] for entry in scene.entries()[:3]))
    children = psutil.Process(parent.pid).children()
    parent.send_signal(number)
    told, _ = parent.communicate(timeout=40)
    psutil.wait_procs(children, timeout=20)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert sorted(scene.diary("stop")) == ["seed-1", "seed-2"]  # saved, once each
    if number == signal.SIGKILL:
        assert parent.returncode == -9
    else:
        assert parent.returncode == 1
        assert f"error: stopped by {number.name}" in told
        assert f"to go on, start the same again with run.resume={scene.root / 'mine'}" in told
        assert scene.statuses() == {"seed-0": "finished", "seed-1": "stopped", "seed-2": "stopped", "seed-3": "waiting"}
    (scene.root / "go").touch()
    scene.run("run.resume=auto")
    assert set(scene.statuses().values()) == {"finished"}
    assert count(scene.diary("finish")) == {f"seed-{seed}": 1 for seed in range(4)}
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 2, "seed-2": 2, "seed-3": 1}
    assert {entry["folder"] for entry in scene.entries()} == {str(scene.root / f"mine-seed-{seed}") for seed in range(4)}
    assert [entry["num_starts"] for entry in scene.entries()] == [1, 2, 2, 1]


def test_a_restarted_sweep_waits_for_the_end_of_what_its_killed_parent_left(tmp_path, capsys):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"until": "go", "save_s": 3.0}})
    parent = scene.start()
    scene.until(lambda: scene.diary("begin") == ["seed-0"])
    scene.until(lambda: bool(scene.entries()[0]["folder"]))
    parent.kill()
    parent.communicate()
    (scene.root / "go").touch()
    scene.run("run.resume=auto")
    order = [line.split()[0] for line in (scene.root / "diary.txt").read_text().splitlines()]
    assert order == ["begin", "stop", "begin", "finish"]
    assert "seed-0 waits for the end of its process of an earlier start" in capsys.readouterr().out


def test_two_sweeps_never_work_in_one_folder(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"until": "go"}})
    parent = scene.start()
    scene.until(lambda: scene.diary("begin") == ["seed-0"])
    with pytest.raises(RecipeError, match="is being written to by another job"):
        scene.run("run.resume=auto")
    (scene.root / "go").touch()
    parent.communicate(timeout=40)
    assert parent.returncode == 0


def test_a_changed_recipe_is_refused_before_anything_starts_and_more_seeds_are_not(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    with pytest.raises(RecipeError, match=r"grpo\.num_steps: 50 was saved, 60 is given"):
        scene.run("run.resume=auto", "grpo.num_steps=60")
    assert scene.diary("begin") == ["seed-0"]
    scene.run("run.resume=auto", "study.seeds=[0, 1]")
    assert scene.diary("begin") == ["seed-0", "seed-1"]
    assert len(scene.summary()["stages"][0]["per_seed"]) == 2


def test_a_folder_that_is_no_sweeps_is_refused(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    with pytest.raises(RecipeError, match=r"holds no sweep\.json"):
        scene.run(f"run.resume={tmp_path}")


def test_a_run_that_does_not_end_is_ended_by_force(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_runs, "END_LIMIT_S", 0.5)
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"hangs": True, "until": "never"}})
    stopping = Stopping(end_at_once=lambda reason: None)

    def signal_soon():
        scene.until(lambda: scene.diary("begin") == ["seed-0"])
        stopping.on_signal(signal.SIGTERM)

    began_s = time.monotonic()
    with stopping.listening(), ThreadPoolExecutor(1) as other:
        signalled = other.submit(signal_soon)
        with pytest.raises(StoppedError):
            scene.run(stopping=stopping)
        signalled.result()
    assert time.monotonic() - began_s < 15
    assert scene.statuses() == {"seed-0": "stopped"}


# --- ended early ---


def test_a_setting_that_is_clearly_behind_ends_at_the_first_rung_and_stays_ended(tmp_path, capsys):
    scene = SweepScene(tmp_path, HALVING, room=3, plan={"0.0001": HIGH, "0.0005": HIGH, "0.0009": LOW})
    scene.run()
    assert scene.statuses() == {
        "learning_rate-0.0001": "finished",
        "learning_rate-0.0005": "finished",
        "learning_rate-0.0009": "ended_early",
    }
    reason = scene.entries()[2]["reason"]
    # Wilson: 60 of 100: 50.2 to 69.1; 10 of 100: 5.5 to 17.4
    assert "at grpo step" in reason
    assert "learning_rate-0.0001 60.0 % (50.2 to 69.1) of 100" in reason
    assert "learning_rate-0.0009 10.0 % (5.5 to 17.4) of 100" in reason
    assert scene.diary("stop") == ["learning_rate-0.0009"]
    assert "learning_rate-0.0009 ends early, being clearly behind" in capsys.readouterr().out
    assert scene.summary()["settings"][2]["stages"] == []
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {f"learning_rate-{rate}": 1 for rate in ("0.0001", "0.0005", "0.0009")}


def test_one_after_the_other_a_setting_is_compared_with_what_earlier_ones_had_at_the_same_rung(tmp_path):
    text = "[sweep]\n'grpo.learning_rate' = [1e-4, 5e-4]\nseeds = [0, 1]\n[eval]\nvalidate_every = 10\n[grpo]\nnum_steps = 40"
    scene = SweepScene(
        tmp_path, text, room=1, plan={"0.0001-seed-0": {**HIGH, "step_s": 0.05}, "0.0001-seed-1": HIGH, "0.0005-seed-0": LOW}
    )
    scene.run()
    assert scene.statuses() == {
        "learning_rate-0.0001-seed-0": "finished", "learning_rate-0.0001-seed-1": "finished",
        "learning_rate-0.0005-seed-0": "ended_early", "learning_rate-0.0005-seed-1": "ended_early",
    }  # fmt: skip
    assert scene.diary("begin") == ["learning_rate-0.0001-seed-0", "learning_rate-0.0005-seed-0", "learning_rate-0.0001-seed-1"]


def test_nothing_ends_early_where_that_is_not_asked_for_or_cannot_be_known(tmp_path, capsys):
    scene = SweepScene(tmp_path, HALVING, room=3, plan={"0.0001": HIGH, "0.0005": HIGH, "0.0009": {**LOW, "step_s": 0.05}})
    scene.run("sweep.end_early=never")
    assert set(scene.statuses().values()) == {"finished"}
    assert "nothing ends early" not in capsys.readouterr().out
    scene.run("eval.validate_every=0")
    assert "nothing ends early now" in capsys.readouterr().out
    assert [entry["status"] for entry in scene.entries("mine-2")] == ["finished"] * 3


def test_seeds_alone_never_end_early(tmp_path):
    text = "[study]\nseeds = [0, 1]\n[eval]\nvalidate_every = 10\n[grpo]\nnum_steps = 40"
    scene = SweepScene(tmp_path, text, plan={"seed-0": {**HIGH, "step_s": 0.05}, "seed-1": {**LOW, "step_s": 0.05}})
    scene.run()
    assert scene.statuses() == {"seed-0": "finished", "seed-1": "finished"}
    assert json.loads((scene.root / "mine" / "sweep.json").read_text())["variants"][1]["seed"] == 1
