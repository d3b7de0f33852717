"""The parts that the stores' tests share: a clock, and one server of each kind for a test process, started at its first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support import mongo_server, postgres_server
from support.deadline_clock import DeadlineClock
from support.mongo_server import MongoServer
from support.postgres_server import PostgresServer
from toolbus.stores.mongo import MongoStore
from toolbus.stores.postgres import PostgresStore
from toolbus.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store wait for a minute unless a test says otherwise: a machine that stands still may use up the usual 4 s."""
    for kind in (MongoStore, PostgresStore, SqliteStore):
        defaults: Any = kind.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "timeout_seconds", 60.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DeadlineClock:
    """The clock of the test's stores and database threads."""
    return DeadlineClock(monkeypatch)


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """PostgreSQL itself. Tests may kill and halt it: `postgres_url` makes it run again after each test."""
    return postgres_server.shared()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def mongo() -> MongoServer:
    """The server for pymongo. Tests may kill and halt it: `mongo_database` makes it run again after each test."""
    return mongo_server.shared()


@pytest.fixture
def mongo_database(mongo: MongoServer) -> Iterator[tuple[str, str]]:
    """The server's URL, and the name of an unused database."""
    with mongo.database() as database:
        yield database
