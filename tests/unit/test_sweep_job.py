"""Several seeds and sweeps from beginning to end, on made-up runs that are processes of their own."""

import json
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import sweep_scene
from sweep_scene import SweepScene, count

from mathrl_ray.config import RecipeError
from mathrl_ray.driver import recorder, sweep_folder, sweep_runs
from mathrl_ray.driver.resume import find_resumption
from mathrl_ray.driver.stopping import StoppedError, Stopping
from mathrl_ray.driver.sweep_summary import VariantsFailedError
from mathrl_ray.entry import main
from mathrl_ray.recipe_file import load_recipe

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
    assert {entry["folder"] for entry in scene.entries()} == {f"mine-seed-{seed}" for seed in range(3)}
    told = capsys.readouterr().out
    assert "seed-1 | 0:00  seed 1 of mine-seed-1 begins" in told
    assert "0: 40.0, 1: 50.0, 2: 60.0" in told
    assert "grpo and sft are equal to 0.1 points; their intervals overlap" in told
    assert "seed 1 of mine-seed-1 begins" in (scene.root / "mine" / "logs" / "seed-1.log").read_text()
    assert "seeds = [\n    0,\n    1,\n    2,\n]" in (scene.root / "mine" / "recipe.toml").read_text()


def test_a_sweep_leaves_a_block_for_each_setting_in_order(tmp_path, capsys):
    plan = {
        f"learning_rate-{rate}-seed-{seed}": {"accuracy": accuracy + 0.02 * seed}
        for rate, accuracy in (("0.0001", 0.3), ("0.0005", 0.7))
        for seed in (0, 1)
    }
    scene = SweepScene(tmp_path, RATES, plan=plan)
    scene.run("run.report=true")
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
    page = (scene.root / "mine" / "report.html").read_text()
    assert all(f"mine-learning_rate-{rate}-seed-{seed}" in page for rate in (0.0001, 0.0005) for seed in (0, 1)), told


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
    assert scene.entries("mine-2")[0]["folder"] == "mine-2-seed-0"
    assert count(scene.diary("begin")) == {"seed-0": 1, "2-seed-0": 1}


def test_a_run_that_happens_to_have_a_variants_name_is_not_taken_for_it(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    (scene.root / "mine").rename(scene.root / "elsewhere")
    scene.run()
    assert scene.entries()[0]["folder"] == "mine-seed-0-2"


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
    assert {entry["folder"] for entry in scene.entries()} == {f"mine-seed-{seed}" for seed in range(4)}
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


# --- gone on with in another way ---


def test_stages_that_follow_are_run_and_others_are_refused(tmp_path, monkeypatch):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1]")
    scene.run()
    for stages in (["grpo"], ["sft"], ["grpo", "sft"]):
        monkeypatch.setattr(sweep_scene, "STAGES", stages)
        with pytest.raises(RecipeError, match=r"has run the stages sft, grpo, this job is for .*: these must begin with those"):
            scene.run("run.resume=auto")
    monkeypatch.setattr(sweep_scene, "STAGES", ["sft", "grpo", "expert_iteration"])
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {"seed-0": 2, "seed-1": 2}
    assert {entry["folder"] for entry in scene.entries()} == {"mine-seed-0", "mine-seed-1"}
    assert [stage["name"] for stage in scene.summary()["stages"]] == ["sft", "grpo", "expert_iteration"]


def test_runs_of_two_recipes_are_never_averaged(tmp_path):
    scene = SweepScene(
        tmp_path, "[study]\nseeds = [0, 1]", plan={"seed": {"fails": True}, "seed-0": {"fails": True}, "seed-1": {"fails": True}}
    )
    with pytest.raises(VariantsFailedError):
        scene.run()
    scene.does({})
    changed = ("run.resume=auto", "grpo.num_steps=60", "run.resume_with_changes=true")
    scene.run(*changed)  # no run had a result
    assert count(scene.diary("finish")) == {"seed-0": 1, "seed-1": 1}
    with pytest.raises(
        RecipeError, match=r"60 was saved, 70 is given(.*\n)*.*seed-0, seed-1 had the recipe that was saved, and a mean over"
    ):
        scene.run(changed[0], "grpo.num_steps=70", changed[2])
    scene.run(*changed)
    assert len(scene.diary("begin")) == 4


def test_a_finished_run_whose_folder_is_gone_is_said_and_run_again(tmp_path, capsys):
    scene = SweepScene(tmp_path, SEEDS)
    scene.run()
    shutil.rmtree(scene.root / "mine-seed-1")
    scene.run("run.resume=auto")
    assert "warning: seed-1 was finished, but its summary.json" in capsys.readouterr().out
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 2, "seed-2": 1}
    assert [run["seed"] for run in scene.summary()["stages"][0]["per_seed"]] == [0, 1, 2]


def test_a_root_may_be_moved_with_all_that_is_in_it(tmp_path):
    scene = SweepScene(tmp_path, SEEDS, plan={"seed-2": {"fails": True}})
    with pytest.raises(VariantsFailedError):
        scene.run()
    scene.root = scene.root.rename(tmp_path / "elsewhere")
    scene.does({})
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 1, "seed-2": 2}
    assert len(scene.summary()["stages"][0]["per_seed"]) == 3


def test_what_is_no_longer_named_is_kept_for_when_it_is_named_again(tmp_path):
    scene = SweepScene(tmp_path, SEEDS)
    scene.run()
    scene.run("run.resume=auto", "study.seeds=[0]")
    assert list(scene.statuses()) == ["seed-0"]
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 1, "seed-2": 1}
    assert len(scene.summary()["stages"][0]["per_seed"]) == 3


def test_seeds_that_are_added_to_a_sweep_without_do_not_run_its_own_seed_again(tmp_path):
    scene = SweepScene(tmp_path, "[sweep]\n'grpo.learning_rate' = [1e-4]")
    scene.run()
    scene.run("run.resume=auto", "sweep.seeds=[0, 1]")
    assert scene.diary("begin") == ["learning_rate-0.0001", "learning_rate-0.0001-seed-1"]
    assert scene.summary()["settings"][0]["seeds"] == [0, 1]
    assert len(scene.summary()["settings"][0]["stages"][0]["per_seed"]) == 2


def test_a_run_that_max_hours_cut_short_is_not_finished_and_goes_on(tmp_path, capsys):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1]", plan={"seed-1": {"ended_by": "max_hours"}})
    scene.run()
    assert scene.statuses() == {"seed-0": "finished", "seed-1": "stopped"}
    assert (scene.summary()["seeds"], scene.summary()["missing_seeds"]) == ([0, 1], [1])
    assert "seed-1 stopped: run.max_hours ended grpo before its last step" in capsys.readouterr().out
    scene.does({})
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 2}
    assert scene.entries()[1] | {"changes": {}} == {
        "name": "seed-1", "setting": "recipe", "seed": 1, "changes": {}, "folder": "mine-seed-1", "status": "finished", "reason": "",
        "num_starts": 2,
    }  # fmt: skip


def test_a_run_whose_sweep_is_killed_before_it_has_a_folder_is_found_again(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"folder_s": 2.0, "until": "go"}})
    parent = scene.start()
    scene.until(lambda: (scene.root / "mine").is_dir() and scene.statuses() == {"seed-0": "running"})
    parent.kill()
    parent.communicate()
    scene.until(lambda: scene.diary("stop") == ["seed-0"])
    (scene.root / "go").touch()
    scene.run("run.resume=auto")
    assert {path.name for path in scene.root.iterdir() if path.is_dir()} == {"mine", "mine-seed-0"}


def test_a_disk_that_is_full_in_the_middle_lets_the_runs_save_before_ray_ends(tmp_path, monkeypatch):
    both = {"seed-0": {"until": "mine-seed-1/environment.json"}, "seed-1": {"until": "go"}}
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1]", plan=both)

    def write(path, text):
        if path.name == "sweep.json" and scene.diary("finish"):
            raise OSError(28, "No space left on device")
        recorder.write_whole(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_folder, "write_whole", write)
        with pytest.raises(OSError, match="No space left"):
            scene.run()
    assert scene.diary("stop") == ["seed-1"]
    (scene.root / "go").touch()
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {"seed-0": 1, "seed-1": 2}
    assert set(scene.statuses().values()) == {"finished"}


def test_auto_is_the_newest_sweep_of_the_name_whatever_other_folders_hold(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"fails": True}})
    for _ in range(2):
        with pytest.raises(VariantsFailedError):
            scene.run()
    (scene.root / "mine-3").mkdir()
    (scene.root / "mine-3" / "recipe.toml").write_text("damaged = [")
    scene.does({})
    scene.run("run.resume=auto")
    assert [scene.entries(folder)[0]["status"] for folder in ("mine", "mine-2")] == ["failed", "finished"]


def test_a_single_run_does_not_take_a_sweeps_folder_for_its_own(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    alone = [f"run.root={scene.root}", "study.seeds=[]"]
    assert find_resumption(load_recipe(scene.recipe_file, [*alone, "run.resume=auto"]), ["sft", "grpo"]) is None
    with pytest.raises(RecipeError, match=r"give .*a run directory with"):
        find_resumption(load_recipe(scene.recipe_file, [*alone, f"run.resume={scene.root / 'mine'}"]), ["sft", "grpo"])


@pytest.mark.parametrize("damage", ["{", "{}", '{"variants": 3}', '{"variants": [{"name": "seed-0"}]}', "num_starts", "status"])
def test_a_damaged_sweep_json_is_named(tmp_path, damage):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run()
    text = json.dumps({"variants": [scene.entries()[0] | {damage: "x"}]}) if damage.isidentifier() else damage
    (scene.root / "mine" / "sweep.json").write_text(text)
    with pytest.raises(RecipeError, match=r"cannot go on: .*sweep\.json is damaged"):
        scene.run("run.resume=auto")
    assert scene.diary("begin") == ["seed-0"]


@pytest.mark.timeout(60)
def test_a_process_of_an_earlier_start_that_does_not_end_fails_its_variant(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_runs, "ORPHAN_LIMIT_S", 0.3)
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1]", plan={"seed-0": {"fails": True}, "seed-1": {"fails": True}})
    with pytest.raises(VariantsFailedError):
        scene.run()
    scene.does({})
    lock = sweep_folder.locked(scene.root / "mine" / ".locks" / "seed-0")
    with pytest.raises(VariantsFailedError, match=r"seed-0 its process of an earlier start has not ended in 0\.3 s"):
        scene.run("run.resume=auto")
    lock.close()
    assert scene.statuses() == {"seed-0": "failed", "seed-1": "finished"}


def test_a_run_that_has_not_taken_its_share_yet_still_counts(tmp_path):
    # 3 CPUs, of which others hold 2: what is free is enough for one, until it has its share (and then another is free here)
    scene = SweepScene(tmp_path, "[study]\nseeds = [0, 1]", room=3, free=1, plan={"seed-0": {"settle_s": 1.5, "step_s": 1.5}})
    scene.run()
    first, second = scene.times_s("begin")
    assert second - first > 1.0
    assert second < scene.times_s("finish")[0]


# --- what is shown, and what is not ---


def test_a_secret_is_in_no_name_no_file_and_no_line(tmp_path, capsys):
    secret = "S3cr3tS3cr3tValue99"
    (tmp_path / "mine.py").write_text("def paid(**_): return 1.0")
    text = f"[reward]\nfunction = 'mine.py:paid'\n[sweep]\n'reward.kwargs' = [{{api_key = '{secret}'}}, {{api_key = 'other12345678'}}]"
    scene = SweepScene(tmp_path, text, plan={})
    name = next(iter(run.name for run in sweep_scene.planned_runs(scene.recipe_file, [], sweep_scene.STAGES)[0]))
    scene.does({name: {"prints": [f"called with {secret}"]}})
    scene.run()
    scene.run("run.resume=auto")
    assert len(scene.diary("begin")) == 2
    assert main("grpo", [str(scene.recipe_file), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "called with *masked*" in shown
    assert secret not in shown
    assert secret not in "".join(str(path) for path in scene.root.rglob("*"))
    for file in ("sweep.json", "summary.json", "recipe.toml", "digests.json"):
        assert secret not in (scene.root / "mine" / file).read_text()
    assert [setting["changes"] for setting in scene.summary()["settings"]] == [{"reward.kwargs": {"api_key": "*masked*"}}] * 2


def test_step_lines_are_shown_now_and_then_and_the_log_has_all(tmp_path, capsys):
    lines = [f"0:0{step}  grpo step {step}/9  reward 0.5" for step in range(1, 4)]
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]", plan={"seed-0": {"prints": [*lines, "and this"]}})
    scene.run()
    shown = capsys.readouterr().out
    assert [f"| {line}" in shown for line in [*lines, "and this"]] == [True, False, False, True]
    assert all(line in (scene.root / "mine" / "logs" / "seed-0.log").read_text() for line in lines)


def test_the_mirror_has_the_sweeps_own_folder(tmp_path):
    scene = SweepScene(tmp_path, "[study]\nseeds = [0]")
    scene.run(f"run.mirror=file://{tmp_path / 'mirror'}")
    copies = {path.name: path.read_text() for path in (tmp_path / "mirror" / "mine").iterdir()}
    assert set(copies) == {"sweep.json", "summary.json", "recipe.toml", "digests.json"}
    assert json.loads(copies["sweep.json"])["variants"] == scene.entries()
    assert json.loads(copies["summary.json"]) == scene.summary()
    with pytest.raises(RecipeError, match=r"lies in run\.root"):
        scene.run(f"run.mirror=file://{scene.root / 'inside'}")


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
    # Wilson: 60 of 100: 50.2 to 69.1; 10 of 100: 5.5 to 17.4. With 1.96 x 5 points in quadrature: 46.1 to 73.3; 0 to 22.3
    assert "at grpo step" in reason
    assert "learning_rate-0.0001 60.0 % (46.1 to 73.3) of 100" in reason
    assert "learning_rate-0.0009 10.0 % (0.0 to 22.3) of 100" in reason
    assert scene.diary("stop") == ["learning_rate-0.0009"]
    assert "learning_rate-0.0009 ends early, being clearly behind" in capsys.readouterr().out
    assert scene.summary()["settings"][2]["stages"] == []
    scene.run("run.resume=auto")
    assert count(scene.diary("begin")) == {f"learning_rate-{rate}": 1 for rate in ("0.0001", "0.0005", "0.0009")}
    scene.run("run.resume=auto", "sweep.end_early=never")  # what ended goes on then
    assert scene.diary("finish")[-1] == "learning_rate-0.0009"
    assert set(scene.statuses().values()) == {"finished"}


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


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ("'grpo.num_steps' = [10, 40]", "needs at least two validations of one stage"),  # the first has them in sft, the second in grpo
        ("'grpo.group_size' = [4, 8]", "grpo.group_size: settings differ in what a step costs"),
        ("'eval.temperature' = [0.5, 1.0]", "eval.temperature: settings differ"),
    ],
)
def test_nothing_ends_early_where_settings_cannot_be_compared(tmp_path, capsys, lists, why):
    text = f"[sweep]\n{lists}\n[eval]\nvalidate_every = 10\n[grpo]\nnum_steps = 40"
    if "num_steps" in lists:
        text = text.replace("\n[grpo]\nnum_steps = 40", "")
    plan = {"-10": LOW, "-4": LOW, "-0.5": LOW, "-40": HIGH, "-8": HIGH, "-1.0": HIGH}
    scene = SweepScene(tmp_path, text, plan={name: {**each, "step_s": 0.05} for name, each in plan.items()})
    scene.run()
    assert set(scene.statuses().values()) == {"finished"}
    assert why in capsys.readouterr().out


def test_seeds_alone_never_end_early(tmp_path):
    text = "[study]\nseeds = [0, 1]\n[eval]\nvalidate_every = 10\n[grpo]\nnum_steps = 40"
    scene = SweepScene(tmp_path, text, plan={"seed-0": {**HIGH, "step_s": 0.05}, "seed-1": {**LOW, "step_s": 0.05}})
    scene.run()
    assert scene.statuses() == {"seed-0": "finished", "seed-1": "finished"}
    assert json.loads((scene.root / "mine" / "sweep.json").read_text())["variants"][1]["seed"] == 1
