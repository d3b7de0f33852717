"""The servers that the stores' tests share, one of each kind for a test process, started by the first test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import mongo_server, postgres_server
from support.mongo_server import MongoServer
from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """PostgreSQL itself. Tests may kill and halt it: `postgres_url` brings it back behind them."""
    return postgres_server.shared()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def mongo() -> MongoServer:
    """What pymongo talks to. Tests may kill and halt it: `mongo_database` brings it back behind them."""
    return mongo_server.shared()


@pytest.fixture
def mongo_database(mongo: MongoServer) -> Iterator[tuple[str, str]]:
    """The server's URL, and the name of a database that nobody has used."""
    with mongo.database() as database:
        yield database
