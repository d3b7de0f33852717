"""The servers that the demonstration starts itself: the tracker in a thread, and a server for MongoDB's driver.

An application has its own servers, and does not need this module.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator

import uvicorn

from .tracker import create_tracker

__all__ = ["mongo_server", "serve_tracker", "tracker_in_a_thread"]

_HOST = "127.0.0.1"
_PATIENCE_SECONDS = 30.0
# nx-27017 is a server that speaks MongoDB's wire protocol. It ends, and deletes its data, when this process ends in any
# way and so closes its end of the pipe.
_NX = """\
import os, shutil, sys, threading
from nx_27017.nx_27017 import main

def end_with_the_pipe():
    sys.stdin.read()
    shutil.rmtree(os.getcwd(), ignore_errors=True)
    os._exit(0)

threading.Thread(target=end_with_the_pipe, daemon=True).start()
main()
"""


def serve_tracker(port: int) -> None:
    """Serve the tracker until Ctrl-C. Raises `OSError` for a port that is in use."""
    with socket.create_server((_HOST, port)) as listener:
        print(f"The issue tracker is at http://{_HOST}:{listener.getsockname()[1]}; Ctrl-C ends it.", flush=True)
        uvicorn.Server(uvicorn.Config(create_tracker(), log_config=None)).run(sockets=[listener])


@contextlib.contextmanager
def tracker_in_a_thread() -> Generator[str]:
    """Start the tracker on a free port, and return its URL. It runs in a thread, because uvicorn needs asyncio."""
    with socket.create_server((_HOST, 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_tracker(), log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://{_HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def mongo_server() -> Generator[str]:
    """Start an empty server on a free port, and return its URL. Its data is deleted when it ends. Raises `OSError`."""
    with tempfile.TemporaryDirectory(prefix="ticket-assistant-") as folder, socket.create_server((_HOST, 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        place = [f"--port={port}", f"--data-dir={folder}/data", f"--log-file={folder}/log", f"--pid-file={folder}/pid"]
        command = [sys.executable, "-I", "-c", _NX, *place]
        nowhere = subprocess.DEVNULL
        # The server gets its own session, because only this process handles Ctrl-C on the terminal.
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, cwd=folder, start_new_session=True
        )
        try:
            _wait_for(server, port)
            yield f"mongodb://{_HOST}:{port}/?directConnection=true"
        finally:
            server.communicate()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise OSError("the server for MongoDB's driver (nx-27017) did not start; pass --mongo URL")
        time.sleep(0.02)
