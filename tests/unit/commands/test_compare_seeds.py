"""compare over sets of seeds, and between stages of one run."""

import json

import pytest
from command_words import record, refused, said
from evaluation_rows import verdicts, write_evaluation

from mathrl_ray.core.seed_figures import over_seeds
from mathrl_ray.core.statistics import wilson_interval

SFT = {0: "++------", 1: "+-------", 2: "++------"}
GRPO = {0: "++++----", 1: "+++-----", 2: "+++++---"}


def write_set(root, name, stages, *, setting="recipe", statuses=None):
    """A study over seeds as sweep_job.py leaves it: its folder, and a run a seed beside it. Returns the variants."""
    variants = []
    for seed in sorted({seed for texts in stages.values() for seed in texts}):
        run = root / f"{name}-{setting}-seed-{seed}"
        run.mkdir(parents=True)
        (run / "recipe.toml").write_text(f"[run]\nseed = {seed}\n")
        for number, (stage, texts) in enumerate(stages.items(), start=1):
            if seed in texts:
                write_evaluation(run, f"{stage}-v{number}", verdicts(texts[seed]))
        status = (statuses or {}).get(seed, "finished")
        variants.append({"name": f"seed-{seed}", "setting": setting, "seed": seed, "folder": run.name, "status": status})
    return variants


def write_sweep(root, name, variants):
    (root / name).mkdir()
    (root / name / "sweep.json").write_text(json.dumps({"variants": variants}))
    return root / name


@pytest.fixture
def studies(tmp_path):
    write_sweep(tmp_path, "old", write_set(tmp_path, "old", {"sft": SFT}))
    write_sweep(tmp_path, "new", write_set(tmp_path, "new", {"sft": SFT, "grpo": GRPO}))
    return tmp_path


# Two stages of one run


def test_two_stages_of_one_run_are_compared_by_name_whatever_else_it_has(tmp_path, capsys):
    for number, (stage, text) in enumerate({"baseline": "--------", "expert_iteration": SFT[0], "grpo": GRPO[0]}.items()):
        write_evaluation(tmp_path / "run", f"{stage}-v{number}", verdicts(text))
    (pair,) = record(capsys, "compare", tmp_path / "run", "--stage", "expert_iteration", "grpo", "--json")["comparisons"]
    assert (pair["first"], pair["second"], pair["difference"], pair["gained"]) == ("expert_iteration-v1", "grpo-v2", 0.25, ["p2", "p3"])
    assert "compares checkpoints, not methods" in said(capsys, "compare", tmp_path / "run", "--stage", "grpo", "expert_iteration")
    assert len(record(capsys, "compare", tmp_path / "run", "--json")["comparisons"]) == 3


def test_runs_may_be_named_behind_the_stages(tmp_path, capsys):
    for name in "ab":
        write_evaluation(tmp_path / name, "sft-v1", verdicts(SFT[0]))
    assert "b/sft-v1 beside a/sft-v1" in said(capsys, "compare", "--stage", "sft", tmp_path / "a", tmp_path / "b")
    assert "b/sft-v1 beside a/sft-v1" in said(capsys, "compare", "--json", tmp_path / "a", tmp_path / "b").replace(
        '"first": "a/sft-v1", "second": "b/sft-v1"', "b/sft-v1 beside a/sft-v1"
    )


def test_a_stage_that_the_run_has_not_is_named_with_those_that_it_has(tmp_path, capsys):
    write_evaluation(tmp_path / "run", "sft-v1", verdicts("+-"))
    assert "holds no evaluation of grpo; it holds sft-v1.parquet" in refused(capsys, "compare", tmp_path / "run", "--stage", "sft", "grpo")


def test_no_run_at_all_is_a_wrong_command_line(capsys):
    assert "name a run directory" in refused(capsys, "compare", "--stage", "sft")


# Sets of seeds


def test_two_studies_are_paired_seed_by_seed_and_say_how_many_checkpoints_they_compare(studies, capsys):
    found = record(capsys, "compare", studies / "old", studies / "new", "--json")
    (pair,) = found["comparisons"]
    assert (pair["first"], pair["second"], pair["seeds"]) == ("old/sft", "new/grpo", [0, 1, 2])
    assert [each["difference"] for each in pair["per_seed"]] == [0.25, 0.25, 0.375]
    assert pair["difference"]["value"] == pytest.approx((0.25 + 0.25 + 0.375) / 3)
    assert pair["difference"]["low"] < pair["difference"]["value"] < pair["difference"]["high"]
    assert pair["p_value_holm"] == pair["difference"]["p_value"]
    assert found["note"].startswith("This compares 3 checkpoints of each")
    assert [each["seed"] for each in found["evaluations"]] == [0, 1, 2, 0, 1, 2]
    shown = said(capsys, "compare", studies / "old", studies / "new")
    assert "new/grpo beside old/sft, seed by seed" in shown
    assert "│ mean of 3 │" in shown
    assert "over 3 seeds and 8 problems (the same problems with each seed)" in shown
    assert "not methods" not in shown


def test_two_stages_of_one_study_over_seeds(studies, capsys):
    (pair,) = record(capsys, "compare", studies / "new", "--stage", "sft", "grpo", "--json")["comparisons"]
    assert (pair["first"], pair["second"], pair["seeds"]) == ("new/sft", "new/grpo", [0, 1, 2])
    assert "new/grpo beside new/sft" in said(capsys, "compare", studies / "new")  # its stages, without naming them


def test_a_single_run_stands_beside_the_same_seed_of_a_study_and_that_is_a_checkpoint(studies, capsys):
    run = studies / "old-recipe-seed-1"
    found = record(capsys, "compare", run, studies / "new", "--json")
    (pair,) = found["comparisons"]
    assert (pair["seeds"], pair["lone_seeds"]) == ([1], [0, 2])
    assert pair["difference"]["value"] == 0.25
    assert "not methods" in found["note"]
    (run / "recipe.toml").write_text("[run]\nseed = 7\n")
    assert "none is in both" in refused(capsys, "compare", run, studies / "new")
    (run / "recipe.toml").unlink()
    assert "no recipe.toml says its run.seed" in refused(capsys, "compare", run, studies / "new")


def write_equal_seeds(tmp_path):
    """Three stages, of which each seed has the same number right."""
    right = {0: "++++----", 1: "----++++", 2: "+-+-+-+-"}
    stages = {"baseline": dict.fromkeys(right, "-" * 8), "sft": right, "grpo": dict.fromkeys(right, "+" * 8)}
    return write_sweep(tmp_path, "equal", write_set(tmp_path, "equal", stages))


def test_accuracies_that_no_seed_changes_still_have_a_width_and_say_what_they_are_over(tmp_path, capsys):
    shown = said(capsys, "compare", write_equal_seeds(tmp_path), "--stage", "baseline", "sft")
    low, high = (100 * end for end in wilson_interval(4, 8))
    assert f"│ mean of 3 │ 0.0 % (0.0 to 32.4) │ 50.0 % ({low:.1f} to {high:.1f}) │" in shown
    assert (
        "the difference's interval is over 3 seeds and 8 problems (the same problems with each seed), the accuracies' are over seeds only"
        in shown
    )


def test_the_p_value_that_is_adjusted_is_the_one_of_all_seeds(tmp_path, capsys):
    equal = write_equal_seeds(tmp_path)
    pairs = record(capsys, "compare", equal, "--json")["comparisons"]
    assert "p: two-sided, adjusted for 3 tests at once (Holm), but for those of single seeds beside a mean" in said(
        capsys, "compare", equal
    )
    assert [each["p_value_holm"] >= each["difference"]["p_value"] for each in pairs] == [True] * 3


def test_of_a_lone_seed_the_adjusted_p_value_is_shown(tmp_path, capsys):
    stages = {"baseline": {0: "-" * 20}, "sft": {0: "+" * 6 + "-" * 14}, "grpo": {0: "+" * 7 + "-" * 13}}
    one = write_sweep(tmp_path, "one", write_set(tmp_path, "one", stages))
    shown = said(capsys, "compare", one)
    # 6, 7 and 1 gained, none lost: 2 / 2^6 x 2, 2 / 2^7 x 3, 1
    assert [f"│ {text} │" in shown for text in ("0.062", "0.047", "1.000")] == [True] * 3
    assert "adjusted for 3 tests at once (Holm) " in shown


def test_analyse_of_a_study_over_seeds_names_its_runs(studies, capsys):
    told = refused(capsys, "analyse", studies / "new")
    assert "is a study over seeds or a sweep" in told
    assert all(str(studies / f"new-recipe-seed-{seed}") in told for seed in (0, 1, 2))
    assert "is a study over seeds or a sweep" in refused(capsys, "summary", studies / "new")
    write_sweep(studies, "waiting", [{"name": "seed-0", "setting": "s", "folder": "", "status": "waiting"}])
    assert "none has begun" in refused(capsys, "analyse", studies / "waiting")


@pytest.mark.parametrize("is_swept", [False, True])
def test_the_summary_of_a_study_over_seeds_shows_its_means_and_seeds(studies, capsys, is_swept):
    runs = [{"seed": seed, "accuracy": accuracy, "ci95": [0.1, 0.9]} for seed, accuracy in enumerate((0.4, 0.5, 0.6))]
    stages = [over_seeds("sft", runs)]
    summary = (
        {"settings": [{"setting": "lr-[b]", "stages": stages}, {"setting": "other", "stages": stages}]} if is_swept else {"stages": stages}
    )
    (studies / "new" / "summary.json").write_text(json.dumps(summary))
    shown = said(capsys, "summary", studies / "new")
    assert "50.0 % (25.2 to 74.8) │ 0: 40.0, 1: 50.0, 2: 60.0 │" in shown
    assert ("lr-[b]" in shown) == is_swept
    assert "with Student's interval over seeds" in shown


def test_a_sweep_compares_its_settings_seed_by_seed(tmp_path, capsys):
    slow = write_set(tmp_path, "sweep", {"grpo": SFT}, setting="learning_rate-0.0001")
    fast = write_set(tmp_path, "sweep", {"grpo": GRPO}, setting="learning_rate-0.0005")
    sweep = write_sweep(tmp_path, "sweep", [*slow, *fast])
    (pair,) = record(capsys, "compare", sweep, "--json")["comparisons"]
    assert (pair["first"], pair["second"]) == ("sweep/learning_rate-0.0001/grpo", "sweep/learning_rate-0.0005/grpo")
    assert "compared at one stage" in refused(capsys, "compare", sweep, "--stage", "sft", "grpo")


def test_variants_that_have_not_got_so_far_are_left_out_and_named(tmp_path, capsys):
    variants = write_set(tmp_path, "part", {"sft": SFT, "grpo": {0: GRPO[0], 2: GRPO[2]}}, statuses={1: "running"})
    part = write_sweep(tmp_path, "part", [*variants, {"name": "seed-3", "setting": "recipe", "folder": "", "status": "waiting"}])
    shown = said(capsys, "compare", part, "--stage", "sft", "grpo")
    assert "part/grpo: left out, without such an evaluation: seed-1 (running), seed-3 (waiting)" in shown
    assert "left out, on one side only: seed 1" in shown
    assert "compares 2 checkpoints of each" in shown


def test_a_study_that_was_moved_with_its_runs_is_found_beside_itself(tmp_path, capsys):
    (tmp_path / "here").mkdir()
    write_sweep(tmp_path / "here", "moved", write_set(tmp_path / "here", "moved", {"sft": SFT, "grpo": GRPO}))
    moved = (tmp_path / "here").rename(tmp_path / "there") / "moved"
    assert record(capsys, "compare", moved, "--json")["comparisons"][0]["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "sweep.json: does not list the variants of a sweep"),
        ('{"runs": []}', "sweep.json: does not list the variants of a sweep"),
        ('{"variants": []}', "sweep.json: lists no variant"),
        (
            '{"variants": [{"name": "a", "setting": "s", "folder": null, "status": "waiting"}]}',
            "no variant has an evaluation yet: a (waiting)",
        ),
    ],
)
def test_a_study_that_cannot_be_compared_says_why(tmp_path, capsys, text, message):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sweep.json").write_text(text)
    assert message in refused(capsys, "compare", tmp_path / "bad")


def test_several_runs_with_several_stages_are_refused(studies, capsys):
    assert "name one stage, or one run" in refused(capsys, "compare", studies / "old", studies / "new", "--stage", "sft", "grpo")


def test_one_study_and_one_stage_is_one_set(studies, capsys):
    assert "sft alone has nothing beside it" in refused(capsys, "compare", studies / "new", "--stage", "sft")
    assert "is named twice" in refused(capsys, "compare", studies / "new", studies / "new")
