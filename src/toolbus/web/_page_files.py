"""The files of a page, as routes. A page asks the routes of its application, relative to its own address."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from ._guard import PAGE_HEADERS, content_policy
from ._starlette import Request, Response, Route

_KINDS = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "txt": "text/plain",
}
_CHAT_FILES = ("chat.css", "chat.js", "markdown.js", "vendor/marked.mjs", "vendor/LICENSES.txt")
CHAT_PAGE = {"/": "index.html", **{f"/{each}": each for each in _CHAT_FILES}}
"""The files of the chat page by their paths. They contain no user's data."""


def chat_routes() -> list[Route]:
    """Return the routes of the chat page, with headers of its own, since `create_app` has no guard."""
    return file_routes("chat", CHAT_PAGE, {**PAGE_HEADERS, "Content-Security-Policy": content_policy()})


def file_routes(page: str, names: Mapping[str, str], headers: Mapping[str, str] | None = None) -> list[Route]:
    """Return a route for each path in `names`, which has the name of its file in the folder `static` of the page."""
    folder = files(__name__.rpartition(".")[0]) / page / "static"

    def route(path: str, name: str) -> Route:
        content, kind = (folder / name).read_bytes(), _KINDS[name.rpartition(".")[2]]

        async def send(_request: Request) -> Response:
            return Response(content, media_type=kind, headers=headers)

        return Route(path, send)

    return [route(path, name) for path, name in names.items()]
