"""The broker that the tests of this folder share, started at its first use."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator

import pytest
from remote_workers import Said

from support import forked, nats_server
from support.nats_server import NatsServer
from toolbus.remote import _nats_connection


@pytest.fixture(scope="session", autouse=True)
def forking() -> None:
    """Start the process that workers are forked from, before the first test."""
    forked.start()


@pytest.fixture(scope="session")
def nats() -> NatsServer:
    """A NATS server. Tests may kill it: `broker` makes it run again after each test."""
    return nats_server.shared()


@pytest.fixture
def broker(nats: NatsServer) -> Iterator[tuple[NatsServer, str]]:
    """The server, and a prefix that no other test uses."""
    yield nats, nats_server.unused_prefix()
    nats.revive()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients try again for one second, not for five."""
    monkeypatch.setattr(_nats_connection, "_CONNECT_SECONDS", 1.0)


@pytest.fixture
async def said() -> AsyncGenerator[Said]:
    handler = Said()
    logger = logging.getLogger("toolbus.remote")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(before)
    logger.removeHandler(handler)
