"""The built wheel, and environments that contain it and only what was asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from environments import BIN, ROOT, Environment

from support.environments import uv

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
def with_packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """Make, or find, the environment with the wheel and these requirements, in the locked releases.

    The requirements are separated by blanks; `toolbus[openai]` among them stands for the wheel with this extra.
    """
    made: dict[str, Environment] = {}
    locked = tmp_path_factory.mktemp("locked") / "constraints.txt"
    uv("export", "-q", "--frozen", "--all-extras", "--all-groups", "--no-emit-project", "--no-hashes", "-o", locked)

    def environment(requirements: str) -> Environment:
        if requirements not in made:
            folder = tmp_path_factory.mktemp("environment")
            uv("venv", "-q", "--clear", "--no-project", "--python", sys.executable, folder)
            extras = re.findall(r"toolbus\[(.*?)\]", requirements)
            others = [each for each in requirements.split() if not each.startswith("toolbus[")]
            wanted = [f"toolbus[{','.join(extras)}] @ {wheel.as_uri()}", *others]
            uv("pip", "install", "-q", "--python", folder / BIN / "python", "--constraints", locked, *wanted)
            made[requirements] = Environment(folder)
        return made[requirements]

    return environment


@pytest.fixture(scope="session")
def install(with_packages: Callable[[str], Environment]) -> Callable[[str], Environment]:
    """Make, or find, the environment with the wheel and these extras ("" for no extra), in the locked releases."""

    def environment(extras: str) -> Environment:
        return with_packages(f"toolbus[{extras}]" if extras else "")

    return environment


@pytest.fixture(scope="session")
def bare(install: Callable[[str], Environment]) -> Environment:
    """The wheel without any extra."""
    return install("")
