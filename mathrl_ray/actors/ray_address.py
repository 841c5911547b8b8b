"""Whether anything answers where RAY_ADDRESS points: Ray itself tries for a quarter of an hour, and hears no signal meanwhile.

Called by placement.py before it joins a cluster, for jobs and for the preflight. Knows the forms of an address; does not know Ray.
"""

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from mathrl_ray.config import RecipeError

ANSWER_LIMIT_S = 5.0


def check_address(address: str, find_head: Callable[[str], str | None]) -> None:
    """Connect once, and close again.

    Args:
        address: of RAY_ADDRESS: host:port, ray://host:port, or auto. Whatever else Ray takes is left to it.
        find_head: where auto leads; ConnectionError where there is no head.

    Raises:
        RecipeError: nothing answers within ANSWER_LIMIT_S.
    """
    try:
        host, port = _host_and_port((find_head(address) or "") if address == "auto" else address)
        if host and port:
            socket.create_connection((host, port), ANSWER_LIMIT_S).close()
    except OSError as error:
        raise RecipeError(f"RAY_ADDRESS = {address}: nothing answers there ({error}): unset it, or start the head") from error


def _host_and_port(address: str) -> tuple[str | None, int | None]:
    """
    >>> _host_and_port("10.0.0.1:6379"), _host_and_port("ray://[::1]:10001"), _host_and_port("local")
    (('10.0.0.1', 6379), ('::1', 10001), ('local', None))
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        return parts.hostname, parts.port
    except ValueError:  # no number: Ray says what it thinks of that
        return None, None
