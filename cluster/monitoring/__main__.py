"""Prometheus and Grafana for this checkout's Ray head, in one command: `python -m cluster.monitoring {up|down|status}`.

Knows their command lines and the state folder. Each runs in a session of its own on the loopback; down ends what up started, nothing else.

    up      settings written -> Prometheus (PATH, else Debian's package unpacked into the state folder) -> Grafana, where there is one
    down    SIGTERM, then SIGKILL, to the recorded processes; --forget removes the data too
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

from cluster.connection import boot_id, recorded_head
from cluster.monitoring.settings import DASHBOARD_UID, addresses, folder, follow, write_settings
from cluster.processes import Process, process, send, wait_until_gone

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past http_proxy: the loopback has none."""
START_LIMIT_S, END_LIMIT_S, FETCH_LIMIT_S = 30.0, 10.0, 120


def up() -> None:
    """Starts what is not up yet; says where it is.

    Raises:
        RuntimeError: there is no Prometheus and no way to fetch one, or it did not answer in time.
    """
    write_settings()
    head = recorded_head()
    if head:
        follow(head)
    here = addresses()
    if "prometheus" not in running():
        data = folder() / "prometheus"
        command = [str(binary("prometheus")), f"--config.file={folder() / 'prometheus.yml'}", f"--storage.tsdb.path={data}"]
        command.append(f"--web.console.templates={folder() / 'consoles'}")
        _start("prometheus", [*command, f"--web.listen-address=127.0.0.1:{here.prometheus_port}"])
    _wait_for("prometheus", f"{here.prometheus}/-/ready")
    remark = "" if head else "; no head yet: it finds one that cluster.head starts"
    print(f"monitoring: a run's numbers at {here.prometheus}/consoles/mathrl.html{remark}")
    _grafana_up()


def _grafana_up() -> None:
    here, found = addresses(), shutil.which("grafana") or shutil.which("grafana-server")
    if found is None:
        print("monitoring: no Grafana on PATH for cluster/monitoring/dashboard.json; the page above has the same panels")
        return
    if "grafana" not in running():
        command = [found, "server"] if Path(found).name == "grafana" else [found]
        home = os.environ.get("GF_PATHS_HOME", "/usr/share/grafana")
        _start("grafana", [*command, f"--config={folder() / 'grafana.ini'}", f"--homepath={home}"])
    _wait_for("grafana", f"{here.grafana}/api/health")
    print(f"monitoring: Grafana at {here.grafana}/d/{DASHBOARD_UID}")


def binary(name: str) -> Path:
    """prometheus or promtool: on PATH, else from Debian's package, unpacked into the state folder; needs no root, changes no system.

    Raises:
        RuntimeError: neither is possible.
    """
    unpacked = folder() / "package" / "usr" / "bin" / name
    if found := shutil.which(name):
        return Path(found)
    if not unpacked.exists():
        _fetch(folder() / "package")
    return unpacked


def _fetch(target: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise RuntimeError("no prometheus on PATH, and no apt-get to fetch it with: install Prometheus and put it on PATH")
    target.mkdir(parents=True, exist_ok=True)
    print("monitoring: fetching Debian's package prometheus into the state folder", flush=True)
    try:
        subprocess.run(["apt-get", "download", "prometheus"], cwd=target, check=True, capture_output=True, timeout=FETCH_LIMIT_S)
        package = next(target.glob("prometheus_*.deb"))
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=target, check=True, capture_output=True, timeout=FETCH_LIMIT_S)
        package.unlink()
    except (subprocess.SubprocessError, StopIteration) as error:
        raise RuntimeError(
            f"no prometheus on PATH, and apt-get download prometheus failed ({error}): install it and put it on PATH"
        ) from error


def _start(name: str, command: list[str]) -> None:
    with (folder() / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    own = process(started.pid)
    if own is None:
        raise RuntimeError(f"{command[0]} ended at once; see {folder() / f'{name}.log'}")
    _record({**running(), name: own})


def _record(processes: dict[str, Process]) -> None:
    record = {"boot_id": boot_id(), "processes": {name: asdict(each) for name, each in processes.items()}}
    (folder() / "processes.json").write_text(json.dumps(record) + "\n")


def running() -> dict[str, Process]:
    """What up started and what still runs, by name."""
    file = folder() / "processes.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    if record.get("boot_id") != boot_id():
        return {}
    found = {name: Process(**each) for name, each in record["processes"].items()}
    return {name: each for name, each in found.items() if process(each.pid) == each}


def _wait_for(name: str, url: str) -> None:
    deadline_s, reason = time.monotonic() + START_LIMIT_S, ""
    while time.monotonic() < deadline_s and name in running():
        try:
            with _DIRECT.open(url, timeout=2):
                return
        except OSError as error:
            reason = str(error)
        time.sleep(0.1)
    down()
    raise RuntimeError(f"{name} does not answer at {url} ({reason}); see {folder() / f'{name}.log'}")


def down(*, forget: bool = False) -> None:
    """Ends what up started; nothing running is fine."""
    own = running()
    for each in own.values():
        send(each, signal.SIGTERM)
    for each in wait_until_gone(own.values(), END_LIMIT_S):
        send(each, signal.SIGKILL)
    wait_until_gone(own.values(), END_LIMIT_S)
    (folder() / "processes.json").unlink(missing_ok=True)
    if forget:
        shutil.rmtree(folder(), ignore_errors=True)
    print(f"monitoring: {'ended ' + ' and '.join(own) if own else 'nothing is running'}")


def status() -> None:
    """
    Raises:
        RuntimeError: nothing runs.
    """
    own = running()
    if not own:
        raise RuntimeError("nothing is running")
    for name, each in own.items():
        print(f"monitoring: {name} (pid {each.pid}) at {getattr(addresses(), name)}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.monitoring", description="Prometheus and Grafana of this checkout's Ray head.")
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--forget", action="store_true", help="with down: remove what was measured, ports and fetched programs too")
    options = parser.parse_args(arguments)
    match options.command:
        case "up":
            up()
        case "down":
            down(forget=options.forget)
        case _:
            status()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, RuntimeError, subprocess.SubprocessError) as failure:
        sys.exit(f"monitoring: {failure}")
