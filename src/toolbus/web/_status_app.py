"""The application of `create_status_app`: the health and the numbers of a runtime, for probes and operators."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .._option_checks import check
from ._bodies import json_response
from ._guard import LOOPBACK_HOSTS, Guard
from ._middleware import IS_RUNTIME
from ._starlette import Middleware, Request, Response, Route, Starlette

if TYPE_CHECKING:
    from ..runtime import Runtime


def create_status_app(runtime: Runtime[Any], *, hosts: Collection[str] | None = LOOPBACK_HOSTS) -> Starlette:
    """Return an ASGI application that reports the state of a runtime, to serve on its own port or to mount.

    | route | answer |
    | --- | --- |
    | `GET /health` | `{"ready": true, "reasons": []}`; the status is 200 if the runtime is ready, otherwise 503 |
    | `GET /status` | the same as `health`, and `statistics`: the fields of `RuntimeStatistics` |

    `toolbus status --url` prints the latter. Neither has ids, texts of people or models, or secrets, and neither waits
    or changes anything. But names of tools and models, and costs, are not public. So the application answers only
    requests from this machine to one of `hosts`, by default the names of loopback. For a probe on another machine, pass
    the host names that it uses, or None for any, and let only your own network reach the port.

    Example:
        from toolbus import Runtime
        from toolbus.testing import ScriptedProvider
        from toolbus.web import create_status_app

        app = create_status_app(Runtime(ScriptedProvider([])))  # uvicorn.run(app, port=8001): /health and /status
    """
    check("runtime", runtime, IS_RUNTIME)

    def health(_request: Request) -> Response:
        found = runtime.health()
        return json_response({"ready": found.ready, "reasons": found.reasons}, 200 if found.ready else 503)

    def status(_request: Request) -> Response:
        found = runtime.health()
        about = {"ready": found.ready, "reasons": found.reasons}
        return json_response({"health": about, "statistics": asdict(runtime.statistics())})

    # Both are sync functions, so Starlette runs them in a thread: many requests do not hold up the event loop.
    routes = [Route("/health", health), Route("/status", status)]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts)])
