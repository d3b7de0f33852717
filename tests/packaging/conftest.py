"""The built wheel, and environments that contain it and only what was asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from environments import BIN, ROOT, Environment, uv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as it would be published."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """Make, or find, the environment with the wheel and these extras ("" for no extra), in the locked releases."""
    made: dict[str, Environment] = {}
    locked = tmp_path_factory.mktemp("locked") / "constraints.txt"
    uv("export", "-q", "--frozen", "--all-extras", "--no-default-groups", "--no-emit-project", "-o", locked)

    def environment(extras: str) -> Environment:
        if extras not in made:
            folder = tmp_path_factory.mktemp(f"environment-{extras or 'bare'}")
            uv("venv", "-q", "--clear", "--no-project", "--python", sys.executable, folder)
            wanted = f"toolbus[{extras}] @ {wheel.as_uri()}"
            uv("pip", "install", "-q", "--python", folder / BIN / "python", "--constraints", locked, wanted)
            made[extras] = Environment(folder)
        return made[extras]

    return environment


@pytest.fixture(scope="session")
def bare(install: Callable[[str], Environment]) -> Environment:
    """The wheel without any extra."""
    return install("")
