"""The broker that the tests of this folder share, started at its first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import nats_server
from support.nats_server import NatsServer


@pytest.fixture(scope="session")
def nats() -> NatsServer:
    """A NATS server. Tests may kill it: `broker` makes it run again after each test."""
    return nats_server.shared()


@pytest.fixture
def broker(nats: NatsServer) -> Iterator[tuple[NatsServer, str]]:
    """The server, and a prefix that no other test uses."""
    yield nats, nats_server.unused_prefix()
    nats.revive()
