"""What a run shows in Ray's metrics, with gauges that only note what they are set to."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import isnan, nan

import pytest

from mathrl_ray.driver.ray_metrics import RayMetrics, is_scraped, linger
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
    found = list(values_of(json.loads(json.dumps({"loss": nan, "grad_norm": None}))))
    assert [name for name, _, _ in found] == ["mathrl_loss"]
    assert isnan(found[0][2])


def test_lingering_ends_at_once_when_the_run_is_told_to_stop():
    began_s, asked = time.monotonic(), []
    linger(20.0, lambda: bool(asked) or asked.append(1) or False)
    assert time.monotonic() - began_s < 2


def test_only_where_a_prometheus_answers_somebody_scrapes():
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path.startswith("/api/v1/query") else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert is_scraped({"RAY_PROMETHEUS_HOST": address})
    server.shutdown()
    server.server_close()
    assert not is_scraped({"RAY_PROMETHEUS_HOST": address})
    assert not is_scraped({})
    assert not is_scraped({"RAY_PROMETHEUS_HOST": "nonsense"})
