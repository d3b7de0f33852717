"""Programs of `test_forked_processes.py`."""

from __future__ import annotations

import os
import sys
import time

import anyio
import anyio.to_thread


def fail(code: int) -> None:
    sys.exit(code)


async def echo() -> None:
    sys.stdout.write((await anyio.to_thread.run_sync(sys.stdin.readline)).upper())


def hang() -> None:
    sys.stdout.write("here\n")
    sys.stdout.flush()
    time.sleep(600)


def hang_with_a_child() -> None:
    if child := os.fork():
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    time.sleep(600)
