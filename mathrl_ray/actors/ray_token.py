"""The secret that all who speak to a Ray of this user must show, readable by this user alone.

Called by placement.py before it starts a Ray of its own. Knows where Ray keeps the token; does not know Ray: it would make one itself,
which every user of the machine could read. (cluster/head.py does the same for its head, without this package.)
"""

import os
import secrets
import stat
from collections.abc import MutableMapping
from pathlib import Path

from mathrl_ray.config import RecipeError


def is_authentication_on(environment: MutableMapping[str, str] = os.environ) -> bool:
    """What RAY_AUTH_MODE says; an empty one is taken away, since Ray takes whatever is not "token" for "disabled".

    Raises:
        RecipeError: it is neither.
    """
    mode = environment.get("RAY_AUTH_MODE")
    if not mode:
        environment.pop("RAY_AUTH_MODE", None)
        return True
    if mode.lower() not in ("token", "disabled"):
        raise RecipeError(f"RAY_AUTH_MODE = {mode!r} turns Ray's authentication off: write token, which is the default, or disabled")
    return mode.lower() == "token"


def ensure_token(environment: MutableMapping[str, str] = os.environ, home: Path | None = None) -> None:
    """Make the token where there is none, and shut out the others where they could read it.

    Does nothing where the user brings one, or has turned authentication off (RAY_AUTH_MODE=disabled).

    Raises:
        RecipeError: RAY_AUTH_MODE is neither token nor disabled.
        OSError: the home folder cannot be written.
    """
    if not is_authentication_on(environment) or environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH"):
        return
    token = (home or Path.home()) / ".ray" / "auth_token"
    if token.exists() and not token.read_bytes().strip():
        token.unlink()  # a disk was full when it was written
    if not token.exists():
        _make(token)
    elif token.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        token.chmod(0o600)


def _make(token: Path) -> None:
    token.parent.mkdir(parents=True, exist_ok=True)
    aside = token.with_name(f".{token.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(aside, token)  # another job that starts now may have been first: its token stays
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            aside.replace(token)
    finally:
        aside.unlink(missing_ok=True)
