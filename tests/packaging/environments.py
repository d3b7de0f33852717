"""An environment apart from the suite's own, for programs that shall find there what a user's machine has."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = "Scripts" if os.name == "nt" else "bin"
# A variable of the machine's must not choose a provider, colour the output or start coverage in the other environment.
LEFT_OUT = ("COVERAGE_", "PYTHON", "TOOLBUS_", "OPENAI_", "OLLAMA_", "ANTHROPIC_", "VIRTUAL_ENV", "FORCE_COLOR")
BYTECODE = Path(sys.pycache_prefix or ROOT / ".dev" / "bytecode")


def _bytecode_of(folder: Path) -> Path:
    return BYTECODE / folder.relative_to(folder.anchor)


@dataclass(frozen=True)
class Environment:
    """An environment with the wheel in it."""

    folder: Path

    def __post_init__(self) -> None:
        """Let its packages have their bytecode where that of the suite's own environment is.

        They are the same files, so each is compiled once, not in each of twenty environments. Python compares the time
        and the size of the source.
        """
        own = Path(sysconfig.get_path("purelib"))
        here = _bytecode_of(self.folder / own.relative_to(sys.prefix))
        if self.folder != Path(sys.prefix) and not here.is_symlink():
            here.parent.mkdir(parents=True, exist_ok=True)
            _bytecode_of(own).mkdir(parents=True, exist_ok=True)
            here.symlink_to(_bytecode_of(own))

    def run(self, *command: str | Path, seconds: float = 200) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment, away from the checkout."""
        program, *arguments = (str(part) for part in command)
        variables = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
        return subprocess.run(
            [str(self.folder / BIN / program), *arguments],
            check=False,
            cwd=self.folder,
            env={**variables, "PYTHONUTF8": "1", "PYTHONPYCACHEPREFIX": str(BYTECODE), "TOOLBUS_STORE": "none"},
            capture_output=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )

    def python(self, code: str) -> str:
        """What `code` prints here; fails the test with its traceback where it raises."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
