"""The permission of providers to connect to servers. They may, unless it is forbidden, as the pytest plugin does.

Imports nothing of toolbus, so that connections can be forbidden before anything else is imported.

Example:
    from toolbus.errors import ConfigurationError
    from toolbus.network import check_allowed, forbid

    def object_to(vendor: str, url: str) -> None:
        raise ConfigurationError(f"{vendor} is not to be asked in tests")

    forbid(object_to)
    try:
        check_allowed("openai", "https://api.openai.com/v1")  # every adapter does this before it connects
    except ConfigurationError as error:
        print(error)  # openai is not to be asked in tests
    forbid(None)
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["check_allowed", "forbid"]

_objection: Callable[[str, str], None] | None = None


def check_allowed(vendor: str, url: str) -> None:
    """Raise what the objection of `forbid` raises, if there is one. Adapters call this before they send anything."""
    if _objection is not None:
        _objection(vendor, url)


def forbid(objection: Callable[[str, str], None] | None) -> None:
    """Call `objection(vendor, url)` in this process before anything is sent, from now on; None removes the objection.

    The objection raises an exception to forbid the request. There is one at a time. The URL is without user, password
    and query.
    """
    global _objection  # noqa: PLW0603 -- it holds for the process, as any task may run a session
    _objection = objection
