"""Whether providers may speak to servers. They may, unless somebody forbids it, as the pytest plugin does for tests.

Imports nothing of toolbus, so that it can be forbidden before anything else is imported.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["check_allowed", "forbid"]

_objection: Callable[[str, str], None] | None = None


def check_allowed(vendor: str, url: str) -> None:
    """Called by each adapter before it sends anything. Raises what the objection raises; by default there is none."""
    if _objection is not None:
        _objection(vendor, url)


def forbid(objection: Callable[[str, str], None] | None) -> None:
    """From now on ask `objection(vendor, url)`, in this process, before anything is sent; None takes it back.

    It raises to forbid the request. There is one at a time. The URL is without user, password and query.
    """
    global _objection  # noqa: PLW0603 -- for the process, as sessions run in tasks of any origin
    _objection = objection
