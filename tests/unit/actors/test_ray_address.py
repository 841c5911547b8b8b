"""What is said of a RAY_ADDRESS before Ray tries it, with real sockets; no Ray is started."""

import os
import socket
import subprocess
import sys
import time

import pytest

from mathrl_ray.actors import ray_address
from mathrl_ray.actors.placement import ray_connection
from mathrl_ray.actors.ray_address import check_address
from mathrl_ray.config import RecipeError


@pytest.fixture
def open_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def no_head(address):
    raise ConnectionError("no head here")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_something_answers_is_left_to_ray(form, open_port):
    check_address(form.format(open_port), no_head)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_stale_address_is_refused_at_once_with_what_to_do(form, closed_port):
    began = time.monotonic()
    address = form.format(closed_port)
    with pytest.raises(RecipeError, match=rf"RAY_ADDRESS = {address}: nothing answers there .*unset it, or start the head"):
        check_address(address, no_head)
    assert time.monotonic() - began < ray_address.ANSWER_LIMIT_S + 1


@pytest.mark.parametrize("address", ["local", "kubernetes://here", "host:port"])
def test_forms_that_name_no_port_are_left_to_ray(address):
    check_address(address, no_head)


def test_auto_is_what_ray_finds(open_port, closed_port):
    check_address("auto", lambda address: f"127.0.0.1:{open_port}")
    with pytest.raises(RecipeError, match="RAY_ADDRESS = auto: nothing answers there"):
        check_address("auto", lambda address: f"127.0.0.1:{closed_port}")  # of a head that was killed
    with pytest.raises(RecipeError, match=r"RAY_ADDRESS = auto: nothing answers there \(no head here\)"):
        check_address("auto", no_head)


def test_a_job_refuses_a_stale_address_before_it_asks_ray(monkeypatch, closed_port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(RecipeError, match="RAY_ADDRESS"), ray_connection("test"):
        pass


def test_a_preflight_shows_a_stale_address_beside_what_else_it_has_found(tmp_path, closed_port):
    recipe = tmp_path / "r.toml"
    small = "[data]\nnum_train_problems = 64\nnum_validation_problems = 8\n[eval]\nnum_problems = 8\n[study]\nstages = ['baseline']\n"
    recipe.write_text(f"{small}[run]\nroot = '{tmp_path}'\nmirror = 'nowhere://x'\n")
    command = [sys.executable, "-m", "mathrl_ray", "preflight", str(recipe)]
    environment = {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{closed_port}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert any("nowhere" in line for line in failed), done.stdout
    assert any(line.startswith(f"failed: cluster: RAY_ADDRESS = 127.0.0.1:{closed_port}") for line in failed), done.stdout
