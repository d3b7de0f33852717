"""The environments of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path


def importing_from(folder: Path, **more: str) -> dict[str, str]:
    """Return this process's environment, with a folder from which the new process imports, and `more` variables.

    The folder comes before those that `PYTHONPATH` has already, which a soak needs (see `soak/children`).
    """
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])]), **more}
