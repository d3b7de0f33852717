"""A PostgreSQL that the tests of this folder share."""

import pytest

from support import postgres_server
from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """A server that was started before the test."""
    return postgres_server.shared()
