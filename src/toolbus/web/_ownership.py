"""The owners of conversations and requests: the users that the application's `authorize` names. Pure, except for it.

In the store, a conversation's id begins with its owner's. So one user cannot name another one's conversation, whatever
the page sends, and a request belongs to the owner of its conversation, in every process.
"""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from ..errors import ConfigurationError
from ..events import new_id
from ._starlette import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request

AuthorizeRequest: TypeAlias = "Callable[[Request], str | Awaitable[str | None] | None]"
"""A function, sync or async, that returns the id of the user who sent an HTTP request; None for an unknown user.

It may raise Starlette's `HTTPException` to refuse the request with its own status.
"""
_MAX_CHARS = 200  # of a conversation's id


class Owner:
    """One user, and the names of the user's conversations in the store. `name` is what `authorize` has returned."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A quoted name has no slash, so no name is the beginning of another one.
        self.prefix = f"{quote(name, safe='', errors='surrogatepass')}/"

    def owns(self, stored_id: str) -> bool:
        """Return whether a conversation, by its id in the store, is the user's."""
        return stored_id.startswith(self.prefix)

    def stored(self, conversation_id: str) -> str:
        """Return the id in the store of a conversation of the user; a new one without an id.

        Events name conversations as the store does; such an id is taken as it is. Raises `HTTPException` (400).
        """
        if not conversation_id:
            return f"{self.prefix}{new_id()}"
        shown = conversation_id.removeprefix(self.prefix)
        if not shown or len(shown) > _MAX_CHARS:
            raise HTTPException(400, f"the conversation's id has to have 1 to {_MAX_CHARS} characters")
        if any(unicodedata.category(each) in {"Cc", "Cs"} for each in shown):
            raise HTTPException(400, "the conversation's id has a control character")
        return f"{self.prefix}{shown}"

    def shown(self, stored_id: str) -> str:
        """Return the id of a conversation for the user's page."""
        return stored_id.removeprefix(self.prefix)


async def owner_of(request: Request, authorize: AuthorizeRequest) -> Owner:
    """Return the user who sent a request. Raises `HTTPException` (401) for nobody, and what `authorize` raises."""
    found = authorize(request)
    name = await found if inspect.isawaitable(found) else found
    if name is None:
        raise HTTPException(401, "log in first")
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"authorize has returned {name!r}; return the user's id as a text, or None")
    return Owner(name)
