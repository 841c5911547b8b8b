"""Where this checkout's Prometheus and Grafana are, and the files that they and Ray's head share.

Read by __main__.py, and by cluster/head.py for the head's environment. Ports are chosen once and kept, so that the head may start before
the monitoring or after it. Knows files only.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.connection import Head, state_dir

HERE = Path(__file__).parent
DATASOURCE = "mathrl-prometheus"
"""Name and uid of Grafana's data source; the dashboard's panels name it."""
DASHBOARD_UID = "mathrl"


def folder() -> Path:
    """Their data, logs and generated settings."""
    return state_dir() / "monitoring"


@dataclass(frozen=True, slots=True)
class Addresses:
    """On the loopback. Example: Addresses(prometheus_port=40117, grafana_port=40118)"""

    prometheus_port: int
    grafana_port: int

    @property
    def prometheus(self) -> str:
        return f"http://127.0.0.1:{self.prometheus_port}"

    @property
    def grafana(self) -> str:
        return f"http://127.0.0.1:{self.grafana_port}"


def addresses() -> Addresses:
    """Those chosen before, else free ones, which are kept."""
    file = folder() / "ports.json"
    with suppress(FileNotFoundError):
        return Addresses(**json.loads(file.read_text()))
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = {"prometheus_port": first.getsockname()[1], "grafana_port": second.getsockname()[1]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports) + "\n")
    return Addresses(**ports)


def head_environment() -> dict[str, str]:
    """What the head needs so that its dashboard asks this Prometheus and shows this Grafana; what the user has set stays."""
    here = addresses()
    wanted = {
        "RAY_PROMETHEUS_HOST": here.prometheus,
        "RAY_PROMETHEUS_NAME": DATASOURCE,
        "RAY_GRAFANA_HOST": here.grafana,
        "RAY_GRAFANA_IFRAME_HOST": here.grafana,
        "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": str(folder() / "dashboards" / "ray"),
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def follow(head: Head) -> None:
    """Let Prometheus find the head's nodes: its settings name a link, which points to the list that this head writes."""
    link = folder() / "targets" / "ray.json"
    link.parent.mkdir(parents=True, exist_ok=True)
    aside = link.with_name(f".{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(Path(head.temp_dir) / "prom_metrics_service_discovery.json")
    aside.replace(link)


def _panels() -> list[tuple[str, str]]:
    """(title, name after ray_mathrl_) of the dashboard's panels."""
    panels = json.loads((HERE / "dashboard.json").read_text())["panels"]
    return [(each["title"], each["targets"][0]["expr"].partition("{")[0].removeprefix("ray_mathrl_")) for each in panels]


def write_settings() -> None:
    """prometheus.yml and Grafana's settings, for these folders and ports."""
    base, here = folder(), addresses()
    for part in ("targets", "dashboards/ray", "dashboards/mathrl", "provisioning/datasources", "provisioning/dashboards", "consoles"):
        (base / part).mkdir(parents=True, exist_ok=True)
    values = {
        "TARGETS": str(base / "targets" / "ray.json"),
        "ALERTS": str(HERE / "alerts.yml"),
        "DASHBOARDS": str(base / "dashboards"),
        "PROVISIONING": str(base / "provisioning"),
        "DATA": str(base / "grafana"),
        "PANELS": json.dumps(_panels()),
        "PROMETHEUS_URL": here.prometheus,
        "GRAFANA_PORT": str(here.grafana_port),
    }
    for template, target in (
        ("prometheus.yml", "prometheus.yml"),
        ("grafana.ini", "grafana.ini"),
        ("datasource.yml", "provisioning/datasources/mathrl.yml"),
        ("dashboards.yml", "provisioning/dashboards/mathrl.yml"),
        ("dashboard.json", "dashboards/mathrl/mathrl.json"),
        ("console.html", "consoles/mathrl.html"),
    ):
        text = (HERE / template).read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        (base / target).write_text(text)
