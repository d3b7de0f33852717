"""The files of the chat page, as routes. The page asks the routes of `create_app`, relative to its own address."""

from __future__ import annotations

from importlib.resources import files

from ._guard import PAGE_HEADERS, content_policy
from ._starlette import Request, Response, Route

_FILES = {
    "/": ("index.html", "text/html"),
    "/chat.css": ("chat.css", "text/css"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/markdown.js": ("markdown.js", "text/javascript"),
    "/vendor/marked.mjs": ("vendor/marked.mjs", "text/javascript"),
    "/vendor/LICENSES.txt": ("vendor/LICENSES.txt", "text/plain"),
}
PAGE_PATHS = frozenset(_FILES)
"""The paths of the page and its files, which contain no user's data."""


def page_routes() -> list[Route]:
    """Return the routes of the page and its files."""
    folder = files(__name__.rpartition(".")[0]) / "chat" / "static"
    headers = {**PAGE_HEADERS, "Content-Security-Policy": content_policy()}

    def route(path: str, name: str, kind: str) -> Route:
        content = (folder / name).read_bytes()

        async def send(_request: Request) -> Response:
            return Response(content, media_type=kind, headers=headers)

        return Route(path, send)

    return [route(path, name, kind) for path, (name, kind) in _FILES.items()]
