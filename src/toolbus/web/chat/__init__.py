"""A plain chat page in front of a runtime, for one person on this machine: what `toolbus serve` serves.

    app = create_chat(runtime, token=secrets.token_urlsafe(), user="ann")

It is the application of `create_app` with its page, and with a guard in front of it: only programs on this machine
reach it, and only with the token, which the page finds after `#token=` in its address. The page, in `static`, is plain
JavaScript: it needs no build and asks no other host. Texts of models and tools are shown as text, never as HTML.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from .._app import create_app
from .._guard import Guard
from .._incoming import MAX_BODY_BYTES
from .._middleware import RuntimeMiddleware
from .._page_files import CHAT_PAGE
from .._starlette import Middleware, Mount, Starlette

if TYPE_CHECKING:
    from ...runtime import Runtime

__all__ = ["create_chat"]


def create_chat(
    runtime: Runtime[Any],
    *,
    token: str,
    user: str,
    lifetime: AbstractAsyncContextManager[object] | None = None,
) -> Guard:
    """Return an ASGI application: that of `create_app` with its page, for one user, with a guard in front of it.

    All conversations are those of `user`, who is also named in decisions. `lifetime` is entered instead of the runtime,
    and has to enter it. Raises `ConfigurationError` for a token that is too short.

    Example:
        from toolbus import Runtime
        from toolbus.testing import ScriptedProvider
        from toolbus.web.chat import create_chat

        runtime = Runtime(ScriptedProvider([]))
        app = create_chat(runtime, token="a-long-secret-that-nobody-guesses", user="ann")  # what `toolbus serve` serves
    """
    app = Starlette(
        routes=[Mount("/", create_app(runtime, authorize=lambda _: user, page=True))],
        middleware=[Middleware(RuntimeMiddleware, runtime=runtime if lifetime is None else lifetime)],
    )
    return Guard(app, token=token, open_paths=CHAT_PAGE, max_body_bytes=MAX_BODY_BYTES)
