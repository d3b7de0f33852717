"""The outcome of a visit to the page in a browser, once for all processes of a test run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def driven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of each part of `drive.py`. One process drives the browser, and the others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    saved = shared / "inspector.json"
    with (shared / "inspector.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not saved.exists():
            command = [sys.executable, str(Path(__file__).with_name("drive.py"))]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=270)
            saved.write_text(done.stdout if done.returncode == 0 else json.dumps(done.stderr), encoding="utf-8")
    found = json.loads(saved.read_text(encoding="utf-8"))
    assert not isinstance(found, str), found
    return found
