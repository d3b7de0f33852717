from __future__ import annotations

import pytest

from support import postgres_server
from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The running PostgreSQL that all tests of the process share."""
    return postgres_server.shared()
