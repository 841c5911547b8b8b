"""Two machines on one: two network namespaces with a cable between them, each with a Ray node, and with shared memory of its own.

Used by test_two_nodes.py. Needs to be root, with `ip` and `unshare`; addresses are of the namespaces that this makes, and are gone with
them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType

HEAD_ADDRESS, WORKER_ADDRESS = "10.213.7.1", "10.213.7.2"
PORT = 6399
RAY = str(Path(sys.executable).with_name("ray"))
SHARED_MEMORY_OF_ITS_OWN = 'mount -t tmpfs -o size=2g mathrl-test /dev/shm && exec "$@"'
UP_LIMIT_S = 90


def why_not() -> str:
    """Why this machine cannot stand for two; "" where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "network namespaces need ip (iproute2) and unshare (util-linux)"
    tried = subprocess.run(["unshare", "-n", "-m", "mount", "-t", "tmpfs", "probe", "/dev/shm"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


class TwoMachines:
    """`head` and `worker`: Ray nodes of one CPU each, so that the learner is on one and the generator on the other."""

    def __init__(self) -> None:
        word = uuid.uuid4().hex[:6]
        self.head, self.worker = f"mrh{word}", f"mrw{word}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="m2-", dir="/tmp"))  # short: of sockets
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,  # else each process would look for a file of the user's
        }

    def __enter__(self) -> "TwoMachines":
        try:
            self._lay_cable()
            self._start(
                self.head,
                "--head",
                f"--node-ip-address={HEAD_ADDRESS}",
                f"--port={PORT}",
                "--include-dashboard=false",
                f"--temp-dir={self._folder}",
            )
            self._wait_for(1)
            self._start(self.worker, f"--address={HEAD_ADDRESS}:{PORT}", f"--node-ip-address={WORKER_ADDRESS}")
            self._wait_for(2)
        except BaseException:
            self.close()
            raise
        return self

    def _lay_cable(self) -> None:
        ends = {self.head: HEAD_ADDRESS, self.worker: WORKER_ADDRESS}
        for name in ends:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", self.head, "netns", self.head, "type", "veth", "peer", "name", self.worker, "netns", self.worker)
        for name, address in ends.items():
            _run("ip", "-n", name, "address", "add", f"{address}/30", "dev", name)
            for device in ("lo", name):
                _run("ip", "-n", name, "link", "set", device, "up")

    def _start(self, machine: str, *options: str) -> None:
        words = ["ip", "netns", "exec", machine, "unshare", "-m", "sh", "-c", SHARED_MEMORY_OF_ITS_OWN, "sh"]
        words += [RAY, "start", "--block", "--num-cpus=1", "--object-store-memory=200000000", "--disable-usage-stats", *options]
        with (self._folder / f"{machine}.log").open("wb") as log:
            started = subprocess.Popen(
                words, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._nodes.append(started)

    def _wait_for(self, num_nodes: int) -> None:
        count = "import ray, sys; ray.init(address='auto', log_to_driver=False); print('alive', sum(n['Alive'] for n in ray.nodes()))"
        until = time.monotonic() + UP_LIMIT_S
        said = ""
        while time.monotonic() < until:
            asked = self.run(sys.executable, "-c", count, limit_s=60)
            said = asked.stdout + asked.stderr
            if f"alive {num_nodes}" in asked.stdout:
                return
            time.sleep(1)
        raise RuntimeError(f"{num_nodes} Ray nodes were not up within {UP_LIMIT_S} s: {said[-1500:]}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(re.sub(r"\n+", "\n", log.read_text(errors="replace"))[-1500:] for log in sorted(self._folder.glob("*.log")))

    def run(self, *words: str, limit_s: float, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command on the head's machine, that joins the cluster."""
        told = self._environment | {"RAY_ADDRESS": f"{HEAD_ADDRESS}:{PORT}"} | (environment or {})
        where = ["nsenter", f"--mount=/proc/{self._inside(0)}/ns/mnt", f"--net=/proc/{self._inside(0)}/ns/net", f"--wd={Path.cwd()}"]
        return subprocess.run([*where, *words], env=told, capture_output=True, text=True, timeout=limit_s)

    def shared_memory(self, index: int) -> list[str]:
        """Names of published weights in the shared memory of the head's machine (0) or the worker's (1)."""
        folder = Path(f"/proc/{self._inside(index)}/root/dev/shm")
        return sorted(file.name for file in folder.iterdir() if file.name.startswith("mathrl-"))

    def _inside(self, index: int) -> int:
        """A process in there: `ip netns exec` and `unshare` become `ray start` by exec, so it is the one that was started."""
        return self._nodes[index].pid

    def close(self) -> None:
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
        for machine in (self.head, self.worker):
            in_there = subprocess.run(["ip", "netns", "pids", machine], capture_output=True, text=True).stdout.split()
            for pid in in_there:  # what is in a namespace that this has made, this has started
                subprocess.run(["kill", "-KILL", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", machine], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
