"""The site, built once for all processes of a test run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from docs_site.build import BuildError, build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finished site. One process builds it, and the others wait; a failure fails in each of them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, report = shared / "docs", shared / "docs.report"
    with (shared / "docs.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            try:
                build(folder)
            except BuildError as failure:
                report.write_text(str(failure), encoding="utf-8")
            else:
                report.write_text("", encoding="utf-8")
    assert not report.read_text(encoding="utf-8"), report.read_text(encoding="utf-8")
    return folder / "site"
