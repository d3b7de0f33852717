"""The parts that commands with a page share: the port that they listen on, and whose decisions they record."""

from __future__ import annotations

import errno
import getpass
import os
import socket

import pytest

from toolbus.cli._loopback import LOOPBACK, listening_on, user_name
from toolbus.errors import ConfigurationError


def test_decisions_are_recorded_under_the_name_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert user_name() == "ada"


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_a_user_without_a_name_is_the_user(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def getuser() -> str:
        raise error("no such user")

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert user_name() == "user"


def test_a_free_port_is_found_and_one_that_is_taken_is_refused() -> None:
    with listening_on(0) as listening:
        host, port = listening.getsockname()
        assert host == LOOPBACK
        socket.create_connection((host, port)).close()
        taken = rf"^--port {port}: {os.strerror(errno.EADDRINUSE)}; pass another one, or 0 for a free one$"
        with pytest.raises(ConfigurationError, match=taken), listening_on(port):
            pass


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--port 70000: .*[^.]; pass another one, or 0"), listening_on(70_000):
        pass


def test_a_port_whose_connections_have_just_ended_can_be_listened_on_again() -> None:
    with listening_on(0) as listening:
        address = listening.getsockname()
        client = socket.create_connection(address)
        served, _ = listening.accept()
        served.close()  # The end that closes first keeps the address for a minute.
        client.close()
    with listening_on(address[1]) as listening:
        assert listening.getsockname() == address
