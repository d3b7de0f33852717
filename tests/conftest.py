"""What every test shares: real immutability of events, and both event loops."""

from __future__ import annotations

import os
import sys

import pytest

# Events are frozen to Python itself only if this is set before toolbus is imported.
if "toolbus" in sys.modules:
    raise RuntimeError("toolbus was imported before tests/conftest.py could set TOOLBUS_DEBUG; do not load it by -p")
os.environ["TOOLBUS_DEBUG"] = "1"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs on both. Named here, so that a missing trio fails instead of halving the suite."""
    return request.param
