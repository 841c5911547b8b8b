"""Numbers of the engines: as vLLM tells them, and several in one."""

import sys
from types import SimpleNamespace

import pytest
import ray

from mathrl_ray.actors.engine_statistics import EngineNotes, stat_loggers
from mathrl_ray.driver.engine_numbers import combined
from mathrl_ray.types import EngineStatistics


def told(usage, running, waiting, queries, hits):
    prefix = SimpleNamespace(queries=queries, hits=hits)
    return SimpleNamespace(kv_cache_usage=usage, num_running_reqs=running, num_waiting_reqs=waiting, prefix_cache_stats=prefix)


def test_notes_keep_the_highest_and_add_up_until_they_are_taken():
    notes = EngineNotes()
    notes.record(told(0.25, 8, 1, 100, 20), SimpleNamespace(num_preempted_reqs=2))
    notes.record(told(0.125, 4, 3, 50, 10), None)
    notes.record(None, SimpleNamespace(num_preempted_reqs=1))
    assert notes.take() == EngineStatistics(0.25, 3, 150, 30, 8, 3)
    assert notes.take() == EngineStatistics(0.0, 0, 0, 0, 0, 0)


def test_a_field_that_vllm_does_not_have_any_more_counts_as_nothing():
    notes = EngineNotes()
    notes.record(SimpleNamespace(), SimpleNamespace())
    assert notes.take() == EngineStatistics(0.0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("in_ray", [True, False])
def test_an_engine_inside_ray_gets_vllms_own_logger_beside_the_notes(in_ray, monkeypatch):
    wrappers = SimpleNamespace(RayPrometheusStatLogger=object(), ray_metrics=None)  # vLLM itself takes 10 s to import
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics", SimpleNamespace(ray_wrappers=wrappers))
    monkeypatch.setattr(ray, "is_initialized", lambda: in_ray)
    notes = EngineNotes()
    make_notes, *others = stat_loggers(notes)
    assert make_notes(None, 0) is notes
    assert others == ([wrappers.RayPrometheusStatLogger] if in_ray else [])
    assert (wrappers.ray_metrics is ray.util.metrics) == in_ray


def test_two_engines_become_one_by_means_of_shares_and_sums_of_counts():
    # hits: (20 + 30) of (100 + 100) looked up; usage: (0.2 + 0.4) / 2
    found = combined([EngineStatistics(0.2, 1, 100, 20, 8, 1), EngineStatistics(0.4, 2, 100, 30, 4, 0)])
    assert found["prefix_cache_hit_rate"] == 0.25
    assert found["kv_cache_usage_max"] == pytest.approx(0.3)
    assert (found["num_preemptions"], found["engine_running_max"], found["engine_waiting_max"]) == (3, 12, 1)


def test_nothing_looked_up_has_no_hit_rate_and_no_engine_has_no_numbers():
    assert "prefix_cache_hit_rate" not in combined([EngineStatistics(0.2, 0, 0, 0, 1, 0)])
    assert combined([]) == {}
