from __future__ import annotations

import pytest

from support import mongo_server, postgres_server
from support.mongo_server import MongoServer
from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The running PostgreSQL that all tests of the process share."""
    return postgres_server.shared()


@pytest.fixture(scope="session")
def mongo() -> MongoServer:
    """The running server with MongoDB's protocol that all tests of the process share."""
    return mongo_server.shared()
