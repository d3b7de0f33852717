"""A real Chromium, without a window: the one that `npm/package-lock.json` locks by hash, with the libraries it needs.

    async with browser.opened() as chromium:
        page = await chromium.new_page()

It needs no package of the system, so it runs on every fresh x86-64 Linux. The first process that needs it unpacks it, in
2 s; all others wait. If something is missing, `opened` raises, and the tests that use it fail: none of them is skipped.

playwright drives it, on asyncio only, and leaves a process and threads of its own in the process that imports it. So
tests start a program that opens the browser, such as tests/docs_site/browse.py.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import npm_servers

if TYPE_CHECKING:
    from playwright.async_api import Browser

_UNPACK = """
const {brotliDecompressSync} = require("node:zlib"), fs = require("node:fs");
const [from, to, ...names] = process.argv.slice(1);
for (const name of names) fs.writeFileSync(`${to}/${name}`, brotliDecompressSync(fs.readFileSync(`${from}/${name}.br`)));
"""
_ARCHIVES = ("al2023.tar", "fonts.tar", "swiftshader.tar")
_SECONDS = 60
"""How long a page may take to show what a test expects, on a machine that runs other tests."""
_OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")


def unpacked() -> Path:
    """Return the folder with the program `chromium` and its libraries. Waits while another process unpacks them."""
    installed = npm_servers.installed()
    folder = installed / "chromium"
    with (npm_servers.STATE / "chromium.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=installed) as temporary:
                partial = Path(temporary, "chromium")
                partial.mkdir()
                _unpack(installed / "node_modules" / "@sparticuz" / "chromium" / "bin", partial)
                partial.replace(folder)
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    command = [npm_servers.node(), "-e", _UNPACK, str(packed), str(folder), "chromium", *_ARCHIVES]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    for name in _ARCHIVES:
        with tarfile.open(folder / name) as archive:
            archive.extractall(folder, filter="data")
        (folder / name).unlink()
    (folder / "chromium").chmod(0o755)


@asynccontextmanager
async def opened() -> AsyncGenerator[Browser]:
    """Open the browser for the body of the `async with`."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=_SECONDS * 1_000)
    folder = unpacked()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder / "fonts")}
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=folder / "chromium", args=_OPTIONS, env={**environment, "HOME": str(folder)}
        )
        try:
            yield chromium
        finally:
            await chromium.close()
