"""Build the site of the documentation, and serve it on this machine."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .build import ROOT, BuildError, build

FOLDER = ROOT / ".dev" / "docs"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print no line for each request."""


def serve(site: Path, port: int) -> ThreadingHTTPServer:
    """A server of the finished site, for this machine only. It runs after `serve_forever()`."""
    return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Quiet, directory=str(site)))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="dev.py docs", description=__doc__)
    parser.add_argument("--build", action="store_true", help="build the site, and do not serve it")
    parser.add_argument("--pictures", action="store_true", help="only make the pictures in docs/pictures anew")
    parser.add_argument("--port", type=int, default=8000, help="the port to serve it on (default: 8000; 0: any)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Build, serve if asked to, and return the exit status."""
    options = parse(arguments)
    if options.pictures:
        from .pictures import draw  # noqa: PLC0415 -- needs a browser, and tests/

        for path in draw():
            print(f"drawn: {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes", file=sys.stderr)
        return 0
    began = time.monotonic()
    print("building the site", file=sys.stderr)
    try:
        site = build(FOLDER)
    except BuildError as failure:
        print(f"dev.py docs: {failure}", file=sys.stderr)
        return 1
    pages = sum(1 for _ in site.rglob("*.html"))
    print(f"built {pages} pages in {time.monotonic() - began:.1f} s: {site / 'index.html'}", file=sys.stderr)
    if options.build:
        return 0
    try:
        server = serve(site, options.port)
    except OSError as error:
        print(f"dev.py docs: port {options.port} cannot be used: {error.strerror}. Choose --port 0.", file=sys.stderr)
        return 1
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"serving it on http://127.0.0.1:{server.server_port}/ until Ctrl+C", file=sys.stderr)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
