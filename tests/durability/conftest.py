from __future__ import annotations

import pytest

from support import postgres_server
from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """A PostgreSQL that runs; the same one for all tests of the process."""
    return postgres_server.shared()
