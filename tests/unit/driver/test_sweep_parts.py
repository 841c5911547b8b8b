"""A sweep's room, its judge, the line to its runs, and where these join Ray."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.experimental.internal_kv import _internal_kv_put

from mathrl_ray.actors.placement import cluster_free, cluster_total, engine_cpus, engine_threads
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.sweep import variants
from mathrl_ray.driver.sweep_child import COMMAND, MOST_CHARACTERS, MOST_LINES, NUM_LAST_LINES, Child
from mathrl_ray.driver.sweep_folder import locked
from mathrl_ray.driver.sweep_judge import Look, Rungs, Validations, hopeless, rungs_of
from mathrl_ray.driver.sweep_room import Claim, Needs, Room
from mathrl_ray.sweep_job import _look, ray_for_all
from mathrl_ray.sweep_recipe import PlannedRun

GIB = 2**30

# --- room ---


def room(total, free=None, **limits):
    return Room(lambda: total, lambda: total if free is None else free, **limits)


def test_a_run_begins_where_what_is_free_is_enough_for_it_and_for_those_on_their_way():
    # 8 CPUs, of which others hold 3; one of ours has settled and holds 2 of the rest: 3 are free
    there = room({"CPU": 8.0}, {"CPU": 3.0})
    assert there.fits(Needs(2), [Claim(Needs(2), True)])
    assert not there.fits(Needs(2), [Claim(Needs(2), True), Claim(Needs(2), False)])
    assert not there.fits(Needs(4), [])


def test_gpus_memory_and_the_recipes_limit_are_kept():
    assert not room({"CPU": 64.0, "GPU": 2.0}).fits(Needs(2, 2.0), [Claim(Needs(2, 2.0), False)])
    assert room({"CPU": 64.0, "GPU": 4.0}).fits(Needs(2, 2.0), [Claim(Needs(2, 2.0), False)])
    small = room({"CPU": 64.0}, memory_bytes=6 * GIB)
    assert small.fits(Needs(2, memory_bytes=7 * GIB), [])  # alone: its own preflight judges
    assert not small.fits(Needs(2, memory_bytes=4 * GIB), [Claim(Needs(2, memory_bytes=3 * GIB), True)])
    assert not room({"CPU": 64.0}, side_by_side=1).fits(Needs(2), [Claim(Needs(2), True)])
    assert small.most([Needs(2, memory_bytes=2 * GIB)] * 9) == 3
    assert room({"CPU": 7.0}).most([Needs(2)] * 9) == 3


def test_threads_are_counted_beside_others_and_not_for_one_that_is_alone():
    # two engines of 8 threads each, for which Ray reserves 2 CPUs
    needs = Needs(2, threads=16)
    assert room({"CPU": 4.0}).fits(needs, [])
    assert not room({"CPU": 31.0}).fits(needs, [Claim(needs, True)])
    assert room({"CPU": 32.0}, {"CPU": 2.0}).fits(needs, [Claim(needs, True)])
    assert room({"CPU": 40.0}).most([needs] * 5) == 2
    assert needs.text == "2 CPUs (for 16 threads)"
    recipe = Recipe.model_validate({"learner": {"num_threads": 8}, "generator": {"num_threads": 3, "replicas": 2}})
    assert (engine_cpus(recipe), engine_threads(recipe)) == (3, 14)


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(1, 10))
def test_never_more_run_than_there_are_cpus_however_they_are_asked_for(wanted, num_cpus):
    claims = []
    for cpus in wanted:
        if room({"CPU": float(num_cpus)}).fits(Needs(cpus), claims):
            claims.append(Claim(Needs(cpus), len(claims) % 2 == 0))
    assert sum(claim.needs.cpus for claim in claims) <= num_cpus


# --- judge ---

RUNGS = Rungs("grpo", 10, 8)


def look(setting, *, correct, until, is_running=True, is_open=True):
    return Look(setting, RUNGS, is_open, is_running, dict.fromkeys(range(10, until + 1, 10), (correct, 100)))


def test_the_validations_that_count_are_those_of_the_last_stage_that_has_two():
    recipe = Recipe.model_validate({"eval": {"validate_every": 10}, "grpo": {"num_steps": 45}, "expert_iteration": {"rounds": 5}})
    assert rungs_of(recipe, ["baseline", "sft", "grpo"]) == Rungs("grpo", 10, 4)
    assert rungs_of(recipe, ["grpo", "expert_iteration"]) == Rungs("expert_iteration", 1, 5)
    assert rungs_of(recipe, ["sft", "baseline"]) == Rungs("sft", 10, 3)  # 512 traces in batches of 16: 32 steps
    assert rungs_of(recipe, ["baseline"]) is None
    assert rungs_of(Recipe.model_validate({"grpo": {"num_steps": 45}}), ["grpo"]) is None
    assert [step for step in range(1, 90) if RUNGS.is_rung(step)] == [10, 20, 40]


def test_a_budget_leaves_no_rung_that_may_be_the_last_validation():
    study = {"study": {"generated_tokens": 240_000}, "eval": {"validate_every": 10}, "grpo": {"num_steps": 60}}
    recipe, both = Recipe.model_validate(study), ["expert_iteration", "grpo"]
    # a step samples at most 32 x 8 x 64 = 16,384 tokens, ten of them 163,840; 98 % of the budget are 235,200
    rungs = rungs_of(recipe, both)
    assert rungs == Rungs("grpo", 10, 6, 240_000, 16_384)
    assert [rungs.is_rung(step, tokens) for step, tokens in ((10, 71_000), (10, 72_000), (20, 120_000))] == [True, False, False]
    assert rungs_of(recipe, ["grpo"]).is_rung(10, 72_000)  # no budget is in force there
    # a round is cut to what is left, so that another follows until the budget is spent
    rounds = rungs_of(recipe, ["grpo", "expert_iteration"])
    assert [rounds.is_rung(step, tokens) for step, tokens in ((1, 60_000), (2, 235_000), (2, 235_300))] == [True, True, False]


def test_what_a_run_has_consumed_is_read_with_its_validations(tmp_path):
    row = {"stage": "grpo", "step": 10, "validation_accuracy": 0.5, "validation_num_problems": 10, "consumed_tokens_total": 72_000}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    seen, rungs = Validations("grpo"), Rungs("grpo", 10, 6, 240_000, 16_384)
    seen.read(tmp_path)
    assert Look("a", rungs, True, True, seen.by_step, seen.consumed).reached == 0
    assert Look("a", rungs, True, True, seen.by_step, {10: 71_000}).reached == 10


def test_the_share_that_goes_on_is_one_of_all_settings_also_of_those_that_have_not_begun():
    there = [look("a", correct=90, until=10), look("b", correct=10, until=10)]
    waiting = [Look(name, RUNGS, True, False, {}) for name in "cd"]
    assert list(hopeless(there, 0.5)) == ["b"]
    assert hopeless([*there, *waiting], 0.5) == {}


def test_a_setting_is_judged_at_its_own_latest_rung_not_at_one_that_it_has_left_behind():
    # the slow one comes to step 10 with 60 of 100, where the fast one had 10; but that one is at step 20 by now
    fast = Look("fast", RUNGS, True, True, {10: (10, 100), 20: (70, 100)})
    assert hopeless([fast, look("slow", correct=60, until=10)], 0.5) == {}
    assert list(hopeless([look("fast", correct=10, until=10), look("slow", correct=60, until=10)], 0.5)) == ["fast"]


def test_between_rungs_the_last_rung_counts():
    assert list(hopeless([look("a", correct=10, until=30), look("b", correct=60, until=30)], 0.5)) == ["a"]
    assert "at grpo step 20" in hopeless([look("a", correct=10, until=30), look("b", correct=60, until=30)], 0.5)["a"]


def test_seeds_at_work_are_waited_for_and_seeds_that_have_not_begun_are_not():
    better = look("b", correct=60, until=80, is_running=False, is_open=False)
    first, slow = look("a", correct=10, until=10), Look("a", RUNGS, True, True, {})
    waiting = Look("a", RUNGS, True, False, {})
    assert hopeless([first, slow, better], 0.5) == {}
    assert list(hopeless([first, waiting, better], 0.5)) == ["a"]


def test_the_waiting_seeds_of_a_finished_one_that_was_clearly_worse_do_not_begin():
    finished = look("a", correct=10, until=80, is_running=False, is_open=False)
    waiting, better = Look("a", RUNGS, True, False, {}), look("b", correct=60, until=40)
    assert list(hopeless([finished, waiting, better], 0.5)) == ["a"]
    assert hopeless([finished, better], 0.5) == {}  # nothing of it is left to end


def test_validations_are_read_as_the_file_grows_and_anew_where_it_was_replaced(tmp_path):
    file, seen = tmp_path / "metrics.jsonl", Validations("grpo")
    seen.read(tmp_path)
    assert seen.by_step == {}

    def row(step, accuracy, stage="grpo"):
        return json.dumps({"stage": stage, "step": step, "validation_accuracy": accuracy, "validation_num_problems": 12,
                           "validation_num_ungraded": 2}) + "\n"  # fmt: skip

    file.write_text(row(10, 0.3) + row(10, 0.9, "sft") + '{"stage": "grpo", "step": 11}\n' + row(20, 0.5)[:-5])
    seen.read(tmp_path)
    assert seen.by_step == {10: (3, 10)}  # 12 less 2 that could not be graded; a line that is not whole yet is none
    with file.open("a") as more:
        more.write(row(20, 0.5)[-5:])
    seen.read(tmp_path)
    assert seen.by_step == {10: (3, 10), 20: (5, 10)}
    file.write_text(row(30, 0.2))  # the same file, and shorter
    seen.read(tmp_path)
    assert seen.by_step == {30: (2, 10)}
    (tmp_path / "other").write_text(row(10, 0.4))
    (tmp_path / "other").rename(file)
    seen.read(tmp_path)
    assert seen.by_step == {10: (4, 10)}


# --- the line, and Ray ---


def started(tmp_path, command, message, **environment):
    lock = locked(tmp_path / "lock")
    return Child(command, message, tmp_path / "log", lock, environment)


def ended(child, limit_s=60):
    deadline = time.monotonic() + limit_s
    while child.status is None:
        assert time.monotonic() < deadline, child.lines()
        time.sleep(0.05)  # looked at again and again, as a sweep does
    return child.status


def test_a_child_has_its_lock_for_as_long_as_it_lives(tmp_path):
    child = started(tmp_path, [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdin.readline()"], {})
    assert locked(tmp_path / "lock") is None
    child.stop()
    assert ended(child) == 0
    again = locked(tmp_path / "lock")
    assert again is not None
    again.close()
    child.close()


def test_its_output_comes_in_whole_lines_and_the_rest_at_its_end(tmp_path):
    (tmp_path / "log").write_text("of an earlier start\n")
    child = started(
        tmp_path, [sys.executable, "-c", "import sys; print('one'); print('two', end=''); sys.stdout.flush(); input(); input()"], {}
    )
    seen, deadline = [], time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        seen = child.lines()
    assert seen == ["one"]
    child.stop()
    ended(child)
    assert child.lines() == ["two"]
    child.close()


LOUD = """
import sys
sys.stdout.write("x" * 10_000_000 + "\\n" + "".join(f"line {number} of many\\n" for number in range(100_000)) + "the reason")
sys.stdout.flush()
input()
"""


def test_what_a_loud_run_prints_is_cut_to_what_can_be_shown_at_once_with_its_end(tmp_path):
    child = started(tmp_path, [sys.executable, "-c", LOUD], {})
    ended(child)
    lines = child.lines()
    assert len(lines) <= MOST_LINES + 1
    assert re.fullmatch(r"\.\.\. [\d,]+ bytes more in the log", lines[0])
    assert re.fullmatch(r"\.\.\. [\d,]+ lines more in the log", lines[-NUM_LAST_LINES - 1])
    assert lines[-2:] == ["line 99999 of many", "the reason"]
    assert child.lines() == []
    child.close()


def test_one_endless_line_is_cut_and_kept_short_meanwhile(tmp_path):
    child = started(
        tmp_path, [sys.executable, "-c", "import sys; input(); sys.stdout.write('x' * 100_000); sys.stdout.flush(); input()"], {}
    )
    deadline = time.monotonic() + 20
    while (tmp_path / "log").stat().st_size < 100_000 and time.monotonic() < deadline:
        assert child.lines() == []
    assert child.lines() == []
    assert len(child._rest) == 4 * MOST_CHARACTERS
    child.stop()
    ended(child)
    assert child.lines() == ["x" * MOST_CHARACTERS + " ... (the rest is in the log)"]
    child.close()


def test_what_paints_a_terminal_is_left_out_and_each_state_of_a_progress_bar_is_a_line(tmp_path):
    text = r"'\x1b[31mred\x1b[0m \x1b]0;title\x07:smile: [b]\x07\r 50 %\r100 %\n\n'"
    child = started(tmp_path, [sys.executable, "-c", f"print({text}, end='')"], {})
    ended(child)
    assert child.lines() == ["red :smile: [b]", " 50 %", "100 %"]
    child.close()


@pytest.mark.timeout(120)
def test_the_real_command_runs_what_it_is_told_from_any_folder_and_ends_with_the_jobs_status(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = {"data": {"train": str(tmp_path / "none.jsonl")}, "run": {"name": "mine", "root": str(tmp_path / "runs")}}
    recipe = Recipe.model_validate(missing).model_dump(mode="json")
    child = started(tmp_path, COMMAND, {"stages": ["grpo"], "recipe": recipe, "search_path": sys.path})
    assert ended(child) == 1
    assert any("none.jsonl" in line and line.startswith("error: ") for line in child.lines())
    child.close()


@pytest.mark.timeout(120)
def test_runs_join_the_ray_that_their_sweep_has_started_under_a_submitted_jobs_settings_too(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    said = []
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(ray_for_all("sweep", said.append))
        assert cluster_total()["CPU"] == cluster_free()["CPU"] > 0
        _look_at_the_machines(tmp_path, monkeypatch)
        code = (
            "import os, ray; from mathrl_ray.actors.placement import ray_connection\n"
            "with ray_connection('variant'):\n"
            "    see = ray.remote(lambda: os.environ.get('MARK')).options(num_cpus=1).remote()\n"
            "    print(ray.get_runtime_context().gcs_address, ray.get(see, timeout=60))\n"
        )
        # what `ray job submit` leaves in the environment of a job, and so in that of its runs
        injected = json.dumps({"runtime_env": {"env_vars": {"MARK": "of the job"}}, "metadata": {"job_submission_id": "raysubmit_1"}})
        both = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                env={**os.environ, **environment, "RAY_JOB_CONFIG_JSON_ENV_VAR": injected},
            )
            for _ in range(2)
        ]  # fmt: skip
        printed = [process.communicate(timeout=100)[0].split("\n")[0] for process in both]
    assert printed == [f"{environment['RAY_ADDRESS']} of the job"] * 2
    assert said[0].startswith("dashboard http://127.0.0.1")


def _look_at_the_machines(tmp_path, monkeypatch):
    sections = {"run": {"root": str(tmp_path)}, "sweep": {"side_by_side": 3}, "learner": {"num_threads": 4}}
    recipe = Recipe.model_validate(sections)
    runs = [PlannedRun(variant, recipe) for variant in variants({}, seeds=[0, 1])]
    needs, there = _look(recipe, runs, ["grpo"])
    assert needs["seed-0"] == needs["seed-1"]
    assert (needs["seed-0"].cpus, needs["seed-0"].threads, there.side_by_side) == (2, 5, 3)
    assert min(needs["seed-0"].memory_bytes, there.memory_bytes) > GIB
    # what `ray job submit --entrypoint-num-cpus` notes of a job, and tells it by its environment
    job = {"metadata": {"job_submission_id": "raysubmit_1"}}
    _internal_kv_put(
        "_ray_internal_job_info_raysubmit_1", json.dumps({"entrypoint_num_cpus": cluster_total()["CPU"] - 1}), namespace=b"job"
    )
    with monkeypatch.context() as patch:
        patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
        with pytest.raises(RecipeError, match=r"variant seed-0: it needs 2 CPUs, .*--entrypoint-num-cpus"):
            _look(recipe, runs, ["grpo"])


COUNTING = """
import signal, time
from mathrl_ray.driver.sweep_child import follow, told_to_run
told, line = told_to_run()
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(time.monotonic()))
follow(line, lambda: time.monotonic() - heard[0] if heard else None)
print(told["word"], flush=True)
until = time.monotonic() + 5
while len(heard) < 2 and time.monotonic() < until:
    time.sleep(0.01)  # a signal is heard between two looks
    if heard and time.monotonic() > heard[0] + 0.5:
        break
print(len(heard), flush=True)
"""


@pytest.mark.parametrize("ways", [["signal", "line"], ["line", "line"], ["line", "gone"], ["gone"]])
def test_a_run_that_is_told_in_several_ways_at_once_hears_one_signal(tmp_path, ways):
    # `ray job stop` signals every descendant, while the sweep tells its runs; a second signal would end them without a save
    child = started(tmp_path, [sys.executable, "-c", COUNTING], {"word": "told"})
    seen, deadline = [], time.monotonic() + 30
    while not seen and time.monotonic() < deadline:
        seen = child.lines()
    assert seen == ["told"]
    for way in ways:
        match way:
            case "signal":
                child._process.send_signal(signal.SIGTERM)
                time.sleep(0.1)  # two words one after the other, not at once
            case "line":
                child.stop()
            case "gone":
                child._line.close()
    ended(child, 20)
    assert child.lines() == ["1"]
    child.close()
