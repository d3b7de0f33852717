"""The environments of processes that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def importing_from(folder: Path, **more: str) -> dict[str, str]:
    """Return this process's environment, with a folder from which the new process imports, and `more` variables.

    The folder comes before those that `PYTHONPATH` has already, which a soak needs (see `soak/children`).
    """
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])]), **more}


def uv(*arguments: str | Path) -> None:
    """Run the locked uv; only from its cache where that suffices, as it does after dev.py's set-up."""
    command = [sys.executable, "-m", "uv", *(str(part) for part in arguments)]
    variables = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    if subprocess.run([*command, "--offline"], check=False, cwd=_ROOT, env=variables, capture_output=True).returncode:
        done = subprocess.run(command, check=False, cwd=_ROOT, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
