"""cluster/monitoring with a real Prometheus: from PATH, else Debian's package; skipped where there is neither."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from cluster.monitoring import __main__ as monitoring
from cluster.monitoring import make_dashboard
from cluster.monitoring.settings import DATASOURCE, HERE, addresses, folder, head_environment
from cluster.processes import process
from mathrl_ray.driver.shown_metrics import LAST_ROW, PREFIX, SHOWN, STALENESS_BOUND

REPOSITORY = Path(__file__).parents[2]
SCRAPED_WITHIN_S = 40.0


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder that holds Prometheus's package, fetched once, or nothing where the programs are on PATH."""
    state = tmp_path_factory.mktemp("monitoring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATHRL_STATE_DIR", str(state))
        try:
            monitoring.binary("prometheus")
            yield monitoring.binary("promtool")
        except RuntimeError as error:
            pytest.skip(str(error))
        finally:
            monitoring.down(forget=True)


def ask(question):
    query = urllib.parse.urlencode({"query": question})
    with urllib.request.urlopen(f"{addresses().prometheus}/api/v1/query?{query}", timeout=5) as answer:
        return json.load(answer)["data"]["result"]


def until(holds):
    deadline_s = time.monotonic() + SCRAPED_WITHIN_S
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.5)
    assert holds()


def test_alert_rules_are_valid_and_fire_when_they_should(programs):
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        answer = subprocess.run([programs, *arguments], cwd=HERE, capture_output=True, text=True, timeout=30)
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.slow
def test_prometheus_has_every_metric_with_the_last_rows_values_and_down_leaves_nothing(programs, tmp_path):
    run = tmp_path / "shown"
    run.mkdir()
    monitoring.up()
    begun = monitoring.running()
    targets = folder() / "targets" / "ray.json"
    environment = {**os.environ, "RAY_metrics_report_interval_ms": "1000", "PYTHONPATH": str(REPOSITORY)}
    environment.pop("RAY_ADDRESS", None)
    writer = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("metrics_writer.py"), run, targets],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert writer.stdout.readline().strip() == "written"
        until(lambda: bool(ask(f"{PREFIX}mathrl_loss")))
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        for metric in SHOWN:
            found = {
                frozenset((name, each["metric"][name]) for name in metric.labels): float(each["value"][1])
                for each in ask(f"{PREFIX}{metric.name}")
            }
            shared = (("run", "shown"), ("stage", "grpo"))
            wanted = {frozenset((*shared, *labels.items())): last[key] for key, labels in metric.keys.items()}
            wanted |= {frozenset(shared): 2.0} if metric.name == STALENESS_BOUND else {}
            if metric.name == LAST_ROW:
                assert abs(found[frozenset(shared)] - time.time()) < 120
            else:
                assert found == pytest.approx(wanted), metric.name
        for panel in make_dashboard.dashboard()["panels"]:
            for target in panel["targets"]:
                assert ask(target["expr"].replace("$run", ".*").replace("$stage", ".*")), target["expr"]
        with urllib.request.urlopen(f"{addresses().prometheus}/consoles/mathrl.html", timeout=5) as page:
            assert '["Reward", "reward_mean"]' in page.read().decode()
        assert ask('up{job="ray"}')[0]["value"][1] == "1"
    finally:
        writer.stdin.close()
        assert writer.wait(60) == 0
        monitoring.down()
    assert begun
    assert monitoring.running() == {}
    assert not any(process(each.pid) for each in begun.values())


def test_what_answers_on_the_loopback_is_not_asked_through_a_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("MATHRL_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(monitoring, "START_LIMIT_S", 2.0)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody is
    folder().mkdir(parents=True)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            monitoring._start("prometheus", ["sleep", "60"])
            monitoring._wait_for("prometheus", f"http://127.0.0.1:{server.server_port}/")
            assert "prometheus" in monitoring.running()
        finally:
            monitoring.down()
            server.shutdown()


def test_the_dashboard_is_what_its_maker_gives_and_its_panels_do_not_overlap():
    assert (HERE / "dashboard.json").read_text() == make_dashboard.text()
    panels = make_dashboard.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24, "Grafana's grid is 24 wide"


def test_panels_and_alerts_ask_for_names_that_a_run_shows():
    asked = (HERE / "alerts.yml").read_text() + (HERE / "dashboard.json").read_text()
    names = set(re.findall(r"ray_(mathrl_\w+)", asked))
    assert names
    assert names <= {metric.name for metric in SHOWN}


def test_panels_use_the_data_source_that_is_provisioned_and_the_head_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("MATHRL_STATE_DIR", str(tmp_path))
    source = yaml.safe_load((HERE / "datasource.yml").read_text())["datasources"][0]
    assert source["uid"] == source["name"] == DATASOURCE
    assert {panel["datasource"]["uid"] for panel in make_dashboard.dashboard()["panels"]} == {DATASOURCE}
    monkeypatch.delenv("RAY_PROMETHEUS_HOST", raising=False)
    first = head_environment()
    assert first == head_environment(), "ports are kept, so that head and monitoring may start in either order"
    monkeypatch.setenv("RAY_PROMETHEUS_HOST", "http://elsewhere:9090")
    assert head_environment()["RAY_PROMETHEUS_HOST"] == "http://elsewhere:9090"
