"""What a run shows in Ray's metrics, with gauges that only note what they are set to."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import isnan, nan

import pytest

from mathrl_ray.driver import ray_metrics
from mathrl_ray.driver.ray_metrics import STARTING, RayMetrics, is_scraped, linger, shown_in_ray
from mathrl_ray.driver.recorder import Recorder
from mathrl_ray.driver.shown_metrics import LAST_ROW, SHOWN, STALENESS_BOUND, values_of

ROW = {"time_s": 3.5, "stage": "grpo", "step": 2, "policy_version": 1, "reward_mean": 0.25, "learner_wait_s": 1.5, "spans": []}


class NotingGauge:
    """Like Ray's: keeps the last value by its labels."""

    def __init__(self):
        self.values, self.num_set = {}, 0

    def set(self, value, tags):
        self.values[tuple(sorted(tags.items()))] = value
        self.num_set += 1


class BrokenGauge(NotingGauge):
    def set(self, value, tags):
        raise ConnectionError("no agent")


@pytest.fixture
def gauges():
    return {metric.name: NotingGauge() for metric in SHOWN}


@pytest.fixture
def said():
    return []


@pytest.fixture
def metrics(gauges, said):
    shown = RayMetrics(gauges, "mine", staleness_bound=2, interval_s=0.1, say=said.append)
    yield shown
    shown.close()


def test_each_number_of_a_row_is_shown_with_its_run_stage_and_role(metrics, gauges):
    metrics.row(ROW)
    where = (("run", "mine"), ("stage", "grpo"))
    assert gauges["mathrl_reward_mean"].values == {where: 0.25}
    assert gauges["mathrl_step"].values == {where: 2.0}
    assert gauges["mathrl_wait_seconds"].values == {(("role", "learner"), *where): 1.5}
    assert gauges[STALENESS_BOUND].values == {where: 2.0}
    assert abs(gauges[LAST_ROW].values[where] - time.time()) < 5
    assert gauges["mathrl_loss"].values == {}


def test_a_value_is_set_again_while_no_row_comes_since_ray_would_forget_it(metrics, gauges):
    metrics.row(ROW)
    deadline_s = time.monotonic() + 5
    while gauges["mathrl_reward_mean"].num_set < 4 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert gauges["mathrl_reward_mean"].num_set >= 4


def test_a_stage_that_another_followed_is_shown_for_two_intervals_only(metrics, gauges):
    metrics.row(ROW)
    metrics.row({**ROW, "stage": "sft"})
    time.sleep(0.4)
    before = gauges["mathrl_reward_mean"]
    before.values.clear()
    time.sleep(0.2)
    assert {dict(labels)["stage"] for labels in before.values} == {"sft"}


def test_what_was_taken_back_is_not_shown_again(metrics, gauges):
    metrics.row(ROW)
    metrics.rewound(0)
    time.sleep(0.06)  # one that is under way
    gauges["mathrl_reward_mean"].values.clear()
    time.sleep(0.2)
    assert gauges["mathrl_reward_mean"].values == {}


def set_soon(gauge, labels):
    """The value that a gauge is set to within 5 s; None for none."""
    deadline_s = time.monotonic() + 5
    while labels not in gauge.values and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return gauge.values.get(labels)


def test_a_run_that_has_written_no_row_tells_when_it_began_and_when_it_went_back(metrics, gauges):
    shown, began = gauges[LAST_ROW], (("run", "mine"), ("stage", STARTING))
    assert abs(set_soon(shown, began) - time.time()) < 6
    metrics.row(ROW)
    time.sleep(0.4)  # more than two intervals
    shown.values.clear()
    assert set_soon(shown, (("run", "mine"), ("stage", "grpo"))) is not None
    assert began not in shown.values
    shown.values.clear()
    metrics.rewound(0)
    assert abs(set_soon(shown, began) - time.time()) < 6


def test_numbers_of_an_earlier_row_of_the_stage_stay_beside_those_of_a_later_one(metrics, gauges):
    metrics.row(ROW)
    metrics.row({"time_s": 9.0, "stage": "grpo", "step": 2, "policy_version": 1, "accuracy": 0.5})
    where = (("run", "mine"), ("stage", "grpo"))
    assert gauges["mathrl_reward_mean"].values == {where: 0.25}
    assert gauges["mathrl_accuracy"].values == {(("run", "mine"), ("split", "test"), ("stage", "grpo")): 0.5}


def test_an_error_of_ray_is_told_once_and_ends_nothing(said):
    shown = RayMetrics({metric.name: BrokenGauge() for metric in SHOWN}, "mine", staleness_bound=0, interval_s=0.05, say=said.append)
    shown.row(ROW)
    shown.row(ROW)
    time.sleep(0.1)
    shown.close()
    assert len(said) == 1
    assert "ConnectionError: no agent" in said[0]


def test_names_and_labels_are_unique_and_as_prometheus_takes_them():
    names = [metric.name for metric in SHOWN]
    assert len(set(names)) == len(names)
    for metric in SHOWN:
        assert metric.name.startswith("mathrl_")
        assert metric.help
        assert not metric.name.endswith("_total"), "a gauge's name promises no counter"
        assert all(tuple(labels) == metric.labels[2:] for labels in metric.keys.values())
    keys = [key for metric in SHOWN for key in metric.keys]
    assert len(set(keys)) == len(keys)


def test_a_number_that_is_none_is_shown_as_such():
    found = list(values_of(json.loads(json.dumps({"loss": nan, "grad_norm": None, "spans": None}))))
    assert [name for name, _, _ in found] == ["mathrl_loss", "mathrl_grad_norm"]
    assert all(isnan(value) for _, _, value in found)


def test_a_null_does_not_leave_the_number_of_the_row_before(metrics, gauges):
    metrics.row(ROW)
    metrics.row({**ROW, "reward_mean": None})
    assert isnan(gauges["mathrl_reward_mean"].values[(("run", "mine"), ("stage", "grpo"))])


def test_lingering_ends_at_once_when_the_run_is_told_to_stop():
    began_s, asked = time.monotonic(), []
    linger(20.0, lambda: bool(asked) or asked.append(1) or False)
    assert time.monotonic() - began_s < 2


@pytest.fixture
def prometheus():
    """The address of a server that answers as one does, and as a proxy before one; nothing answers there after the test."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if "/api/v1/query" in self.path else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


NOBODY = "http://127.0.0.1:9"


def test_only_where_a_prometheus_answers_somebody_scrapes(prometheus):
    assert is_scraped({"RAY_PROMETHEUS_HOST": prometheus})
    assert not is_scraped({"RAY_PROMETHEUS_HOST": NOBODY})
    assert not is_scraped({})
    assert not is_scraped({"RAY_PROMETHEUS_HOST": "nonsense"})


def test_a_proxy_does_not_stand_before_this_machines_own_prometheus_but_before_others(prometheus, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", NOBODY)
    assert is_scraped({"RAY_PROMETHEUS_HOST": prometheus})
    monkeypatch.setenv("http_proxy", prometheus)  # now that of a proxy, which answers for whatever it is asked
    assert not is_scraped({"RAY_PROMETHEUS_HOST": NOBODY})
    assert is_scraped({"RAY_PROMETHEUS_HOST": "http://prometheus.invalid:9090"})


@pytest.mark.parametrize("scraped", [True, False])
def test_a_run_lingers_for_two_intervals_at_its_end_where_somebody_scrapes_and_ends_at_once_elsewhere(
    scraped, prometheus, gauges, said, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_PROMETHEUS_HOST", prometheus if scraped else NOBODY)
    monkeypatch.setattr(ray_metrics, "_gauges", lambda: gauges)  # Ray's own need a Ray around them
    monkeypatch.setattr(ray_metrics, "_export_interval_s", lambda: 0.5)
    recorder = Recorder(tmp_path)
    with shown_in_ray(recorder, 2, said.append):
        recorder.metrics("grpo", 2, 1, {"reward_mean": 0.25})
        ended_s = time.monotonic()
    assert (time.monotonic() - ended_s >= 1.0) == scraped
    recorder.metrics("grpo", 3, 2, {"reward_mean": 0.75})  # nobody watches any more
    assert list(gauges["mathrl_reward_mean"].values.values()) == [0.25]
    assert said == []
