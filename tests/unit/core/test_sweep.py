import datetime
import json
import re
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.statistics import wilson_interval
from mathrl_ray.core.sweep import MOST_NAME_CHARACTERS, Standing, hopeless_settings, is_rung, variants

values = st.one_of(st.integers(-5, 5), st.floats(1e-6, 10), st.booleans(), st.text(max_size=30), st.lists(st.integers(0, 3), max_size=3))
lists = st.dictionaries(
    st.sampled_from(["grpo.learning_rate", "sft.learning_rate", "grpo.loss", "generator.temperature"]),
    st.lists(values, min_size=1, max_size=4, unique_by=lambda value: value if isinstance(value, str) else json.dumps(value)),
    min_size=1,
    max_size=3,
)


def test_a_grid_takes_every_value_with_every_other_the_last_list_fastest():
    made = variants({"grpo.loss": ["grpo", "dapo"], "grpo.group_size": [4, 8]}, seeds=[0, 1])
    assert [variant.name for variant in made] == [
        f"loss-{loss}-group_size-{size}-seed-{seed}" for loss in ("grpo", "dapo") for size in (4, 8) for seed in (0, 1)
    ]
    assert made[3].changes == {"grpo.loss": "grpo", "grpo.group_size": 8, "run.seed": 1}
    assert made[3].setting == made[2].setting == "loss-grpo-group_size-8"


def test_zip_takes_the_lists_row_by_row():
    made = variants({"grpo.num_steps": [50, 100], "grpo.group_size": [8, 4]}, combine="zip")
    assert [variant.changes for variant in made] == [
        {"grpo.num_steps": 50, "grpo.group_size": 8},
        {"grpo.num_steps": 100, "grpo.group_size": 4},
    ]
    seeded = variants({"grpo.num_steps": [50, 100], "run.seed": [3, 4]}, combine="zip")
    assert [variant.name for variant in seeded] == ["num_steps-50-seed-3", "num_steps-100-seed-4"]
    assert [variant.setting for variant in seeded] == ["num_steps-50", "num_steps-100"]


def test_seeds_alone_are_one_setting():
    made = variants({}, seeds=[0, 1, 2])
    assert [(variant.name, variant.setting) for variant in made] == [(f"seed-{seed}", "recipe") for seed in range(3)]
    assert [variant.name for variant in variants({"run.seed": [5, 6]})] == ["seed-5", "seed-6"]
    assert [variant.name for variant in variants({}, seeds=[7], combine="zip")] == ["seed-7"]


def test_keys_with_the_same_last_part_are_named_in_full():
    (made,) = variants({"grpo.learning_rate": [0.01], "sft.learning_rate": [0.5]})
    assert made.name == "grpo.learning_rate-0.01-sft.learning_rate-0.5"


@given(lists, st.lists(st.integers(0, 9), unique=True, max_size=3))
def test_names_are_fit_for_folders_and_each_variant_has_its_own(chosen, seeds):
    made = variants(chosen, seeds=seeds)
    assert len(made) == np.prod([len(each) for each in chosen.values()]) * max(1, len(seeds))
    assert len({variant.name for variant in made}) == len(made)
    assert len({variant.setting for variant in made}) == len(made) / max(1, len(seeds))
    for variant in made:
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", variant.name)
        assert len(variant.name) <= MOST_NAME_CHARACTERS + 9


def test_a_name_does_not_depend_on_what_else_the_sweep_tries():
    few, many = variants({"grpo.learning_rate": [1e-4]}), variants({"grpo.learning_rate": [5e-4, 1e-4, 2e-4]})
    assert few[0].name in {variant.name for variant in many}


@given(lists)
def test_overrides_say_the_changes_as_the_command_line_reads_them(chosen):
    for variant in variants(chosen):
        read = {}
        for override in variant.overrides():
            key, _, text = override.partition("=")
            read[key] = tomllib.loads(f"value = {text}")["value"]
        assert read == variant.changes


@pytest.mark.parametrize(
    ("chosen", "options", "message"),
    [
        ({}, {}, r"\[sweep\] names nothing to try"),
        ({"grpo.loss": []}, {}, r'sweep\."grpo\.loss" is an empty list'),
        ({"grpo.loss": ["grpo", "grpo"]}, {}, "names a value twice"),
        ({"run.seed": [1]}, {"seeds": [2]}, "both name seeds"),
        ({"grpo.num_steps": [datetime.date(1979, 5, 27)]}, {}, r"\[sweep\] holds 1979-05-27"),
        ({"x.y": ["1-z-2", "1"], "x.z": ["3", "2-z-3"]}, {}, "would both be named y-1-z-2-z-3"),
        ({"a.b": [1, 2], "a.c": [1]}, {"combine": "zip"}, r"\{'a\.b': 2, 'a\.c': 1\} values: make them equal"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_with_the_key(chosen, options, message):
    with pytest.raises(ValueError, match=message):
        variants(chosen, **options)


def test_the_rule_is_asked_at_powers_of_two_but_not_at_the_end():
    assert [each for each in range(1, 9) if is_rung(each, 8)] == [1, 2, 4]
    assert not is_rung(1, 1)


def test_a_setting_ends_where_it_is_in_the_worse_half_and_clearly_worse():
    # intervals of 40, 30, 28 and 10 of 100: the better half is 40 and 30; 30's begins at .219
    # 28's ends at .375 and overlaps it; 10's ends at .174 and does not
    standings = [Standing(f"s{correct}", correct, 100) for correct in (10, 40, 28, 30)]
    assert hopeless_settings(standings, seed_sd=0.0) == ["s10"]
    assert wilson_interval(10, 100)[1] < wilson_interval(30, 100)[0] < wilson_interval(28, 100)[1]


def test_few_problems_end_nothing():
    assert hopeless_settings([Standing("a", 5, 8), Standing("b", 3, 8)]) == []


def test_the_seeds_of_a_setting_are_judged_together():
    # alone the second seed of a (20 of 100) would end beside b (45 of 100 each); together a has 80 of 200, and stays
    standings = [Standing("a", 60, 100), Standing("a", 20, 100), Standing("b", 45, 100), Standing("b", 45, 100)]
    assert hopeless_settings(standings) == []


def test_the_worst_ends_first_and_a_lone_setting_never():
    standings = [Standing(f"s{correct}", correct, 1000) for correct in (900, 800, 300, 200)]
    assert hopeless_settings(standings) == ["s200", "s300"]
    assert hopeless_settings([Standing("a", 0, 1000)]) == []
    assert hopeless_settings(standings, keep=1.0) == []
    assert hopeless_settings([Standing("a", 9, 10), Standing("nothing graded", 0, 0)]) == []


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), min_size=1, max_size=12), st.floats(0.1, 1), st.floats(0, 0.2))
def test_a_setting_ends_only_where_that_share_of_all_is_better(found, keep, seed_sd):
    standings = [Standing(setting, correct, 50) for setting, correct in found]
    settings = {setting for setting, _ in found}
    rates = {s: np.mean([correct for each, correct in found if each == s]) for s in settings}
    for ended in hopeless_settings(standings, num_settings=6, keep=keep, seed_sd=seed_sd):
        assert sum(rates[other] > rates[ended] for other in settings) >= keep * 6


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9), st.floats(0.1, 1))
def test_one_after_the_other_that_share_goes_on_in_any_case_too(found, keep):
    # 8 that come one after the other, each beside those before it: the best half goes on, and not the first that came alone
    ended = set()
    for number in range(1, len(found) + 1):
        there = [Standing(str(place), correct, 50) for place, correct in enumerate(found[:number])]
        ended |= set(hopeless_settings(there, num_settings=len(found), keep=keep, seed_sd=0.0))
    assert len(found) - len(ended) >= keep * len(found)


def test_of_eight_that_come_one_after_the_other_the_best_first_the_better_half_goes_on():
    accuracies, ended = (450, 400, 350, 300, 100, 90, 80, 70), set()
    for number in range(1, 9):
        ended |= set(hopeless_settings([Standing(str(each), each, 500) for each in accuracies[:number]], num_settings=8))
    assert ended == {"100", "90", "80", "70"}


def test_seeds_that_differ_more_than_assumed_widen_the_interval():
    # a: 30 and 50 of 100, s = 14.1 points; alike would be 40 and 40, whose interval ends at .40 + sqrt(.069^2 + (1.96 x .05)^2 / 2) = .498;
    # b's begins at .70 - sqrt(.063^2 + .0693^2) = .605
    better = [Standing("b", 70, 100), Standing("b", 70, 100)]
    assert hopeless_settings([Standing("a", 40, 100), Standing("a", 40, 100), *better]) == ["a"]
    # 1.96 x .1414 / sqrt(2) = .196: up to .40 + sqrt(.069^2 + .196^2) = .608
    assert hopeless_settings([Standing("a", 30, 100), Standing("a", 50, 100), *better]) == []


@pytest.mark.parametrize(
    ("num_settings", "num_seeds", "seed_sd", "at_most"),
    [(2, 1, 0.05, 0.01), (8, 1, 0.05, 0.01), (2, 3, 0.05, 0.01), (2, 1, 0.1, 0.19), (8, 1, 0.1, 0.22), (2, 3, 0.1, 0.05)],
)
def test_equal_settings_are_seldom_ended_where_seeds_differ_as_assumed(num_settings, num_seeds, seed_sd, at_most):
    # settings of equal skill on 500 problems, whose training seeds move a run's accuracy. Two with one seed: apart where |difference| >
    # 2 x 1.96 sd each, sqrt(2) sd being its own: |z| > 2.77, 0.56 %. With twice the assumed sd: |z| > 2 x 1.96 x .0546 / (1.414 x .1024) =
    # 1.48, 14 %: what one seed cannot tell
    draws, ended = np.random.default_rng(0), 0
    for _ in range(1000):
        counts = draws.binomial(500, draws.normal(0.4, seed_sd, (num_settings, num_seeds)).clip(0, 1))
        ended += bool(hopeless_settings([Standing(str(place), int(each), 500) for place, row in enumerate(counts) for each in row]))
    assert ended / 1000 <= at_most


def test_a_secret_is_in_no_name_and_a_name_still_tells_values_apart():
    key, other = "AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOQ"
    names = [made.name for made in variants({"data.train": [f"s3://{each}:wJalrXUtnFEMI@bucket/x" for each in (key, other)]})]
    assert len(set(names)) == 2
    assert not any(part in name for name in names for part in (key, other, "wJalr"))
    (made,) = variants({"reward.kwargs": [{"api_key": "S3cr3tS3cr3tValue99"}]})
    assert "S3cr3t" not in made.name
    assert "S3cr3t" in made.overrides()[0]


def test_tables_are_written_as_toml_has_them():
    (made,) = variants({"loss.kwargs": [{"a b": [1, 2.5], "c": {"d": True, "e": 'say "x"'}}]})
    assert tomllib.loads("value = " + made.overrides()[0].partition("=")[2])["value"] == made.changes["loss.kwargs"]


@pytest.mark.parametrize("keep", [0.0, 1.5])
def test_a_share_outside_of_the_range_is_refused(keep):
    with pytest.raises(ValueError, match=r"sweep\.keep"):
        hopeless_settings([Standing("a", 1, 2)], keep=keep)


def test_a_setting_ends_only_below_the_intervals_of_all_that_are_better():
    # a's two seeds lie 40 points apart, so that its interval reaches below that of c, which b's does not
    standings = [
        Standing("a", 950, 1000),
        Standing("a", 450, 1000),
        *[Standing(name, rate * 50, 5000) for name, rate in (("b", 66), ("c", 45), ("d", 4))],
    ]
    assert hopeless_settings(standings, seed_sd=0.01) == ["d"]
