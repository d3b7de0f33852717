"""A plain chat page in front of a runtime, for one person on this machine: what `toolbus serve` serves.

    app = create_chat(runtime, token=secrets.token_urlsafe(), user="ann")

The page and the application of `create_app` behind a guard: only programs on this machine reach it, and only with the
token, which the page finds behind `#token=` in its address. The page is plain JavaScript: it needs no build and asks no
other host, and what models and tools say is text on it, never HTML.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtra
from .._app import create_app
from .._guard import Guard
from .._incoming import MAX_BODY_BYTES
from .._middleware import RuntimeMiddleware

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles
except ImportError as exc:
    raise MissingExtra("web", "starlette") from exc

if TYPE_CHECKING:
    from ...runtime import Runtime

__all__ = ["create_chat"]

_STATIC = Path(__file__).parent / "static"


def create_chat(
    runtime: Runtime[Any],
    *,
    token: str,
    user: str,
    lifetime: AbstractAsyncContextManager[object] | None = None,
) -> Guard:
    """Return an ASGI application with the chat page at `/`, and that of `create_app` at `/api`.

    All conversations are those of `user`, who is also named in decisions. `lifetime` is entered instead of the runtime,
    and has to enter it. Raises `ConfigurationError` for a token that can be guessed.
    """
    app = Starlette(
        routes=[
            Mount("/api", create_app(runtime, authorize=lambda _: user)),
            Mount("/", StaticFiles(directory=_STATIC, html=True)),
        ],
        middleware=[Middleware(RuntimeMiddleware, runtime=runtime if lifetime is None else lifetime)],
    )
    return Guard(app, token=token, protected="/api", max_body_bytes=MAX_BODY_BYTES)
