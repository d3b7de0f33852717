"""The parts that commands with a page share: a port of this machine, and the name of its user."""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Generator

from ..errors import ConfigurationError

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def listening_on(port: int) -> Generator[socket.socket]:
    """Listen on a port of this machine, or on a free one for 0. Raises `ConfigurationError` for one that is taken."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        try:
            listening.bind((LOOPBACK, port))
        except (OSError, OverflowError) as exc:
            reason = str(getattr(exc, "strerror", None) or exc).rstrip(".")
            raise ConfigurationError(f"--port {port}: {reason}; pass another one, or 0 for a free one") from exc
        listening.listen()
        yield listening


def user_name() -> str:
    """Return the name under which a page's decisions are recorded."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "user"
