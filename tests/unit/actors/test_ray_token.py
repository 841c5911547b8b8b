import stat
import threading

import pytest

from mathrl_ray.actors.ray_token import ensure_token, is_authentication_on
from mathrl_ray.config import RecipeError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_that_only_its_user_can_read(tmp_path):
    ensure_token({}, tmp_path)
    token = tmp_path / ".ray" / "auth_token"
    assert mode(token) == 0o600
    assert len(token.read_text()) == 64
    assert [file.name for file in token.parent.iterdir()] == ["auth_token"]


def test_a_token_that_is_there_stays_and_others_lose_their_sight_of_it(tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("mine")
    token.chmod(0o644)
    ensure_token({"RAY_AUTH_MODE": "token"}, tmp_path)
    assert token.read_text() == "mine"
    assert mode(token) == 0o600


def test_nothing_is_made_where_the_user_brings_a_token_or_turned_it_off(tmp_path):
    for environment in ({"RAY_AUTH_TOKEN": "x"}, {"RAY_AUTH_TOKEN_PATH": "/x"}, {"RAY_AUTH_MODE": "disabled"}):
        ensure_token(environment, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_mode_is_taken_away_for_ray_would_take_it_for_disabled(tmp_path):
    environment = {"RAY_AUTH_MODE": "", "HOME": "/x"}
    ensure_token(environment, tmp_path)
    assert environment == {"HOME": "/x"}
    assert (tmp_path / ".ray" / "auth_token").exists()


@pytest.mark.parametrize("mode", ["tokne", " token", "on", "true"])
def test_a_mode_that_ray_would_silently_take_for_disabled_is_refused_by_name(tmp_path, mode):
    with pytest.raises(RecipeError, match=rf"RAY_AUTH_MODE = '{mode}' .*token.*disabled"):
        ensure_token({"RAY_AUTH_MODE": mode}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_modes_are_read_as_ray_reads_them():
    assert all(is_authentication_on({"RAY_AUTH_MODE": mode}) for mode in ("token", "TOKEN"))
    assert not any(is_authentication_on({"RAY_AUTH_MODE": mode}) for mode in ("disabled", "Disabled"))


def test_an_empty_token_is_replaced(tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("\n")
    ensure_token({}, tmp_path)
    assert len(token.read_text()) == 64
    assert mode(token) == 0o600


def test_jobs_that_start_together_agree_on_one_token(tmp_path):
    seen, gate = [], threading.Barrier(8)

    def start():
        gate.wait()
        ensure_token({}, tmp_path)
        seen.append((tmp_path / ".ray" / "auth_token").read_text())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert len(seen[0]) == 64
