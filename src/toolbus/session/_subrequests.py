"""The options and the limits of sub-requests, which work for a call of another request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.limits import Limits
from ..core.turn import TurnState, limits_left
from ..errors import LimitReached
from ..storage import Journal
from ._options import SessionOptions

__all__ = ["inherited", "sub_request_limits"]

_INHERITED = (
    "deps",
    "metadata",
    "approval",
    "interceptors",
    "prices",
    "compression",
    "max_result_chars",
    "include_data",
    "output_mode",
)
# Each level of nesting holds a session, and a model that calls itself has to end.
_DEEPEST = 8


def inherited(options: SessionOptions, journal: Journal | None, own: SessionOptions) -> dict[str, Any]:
    """Return the options of a sub-request: its `own` ones over those that it inherits from the request above.

    A journal is inherited only if it records sub-requests too.
    """
    above: Mapping[str, Any] = dict(options)
    taken = {key: above[key] for key in _INHERITED if key in above}
    if getattr(journal, "with_sub_requests", False):
        taken["journal"] = journal
    return {**taken, **own}


def sub_request_limits(state: TurnState, call_id: str, now: float, depth: int, wanted: Limits | None) -> Limits:
    """Return the limits of a sub-request of call `call_id`.

    Raises `LimitReached` if nothing is left, or if requests are nested too deep.
    """
    if depth >= _DEEPEST:
        raise LimitReached(f"requests are nested {_DEEPEST} deep")
    limits = limits_left(state, call_id, now, wanted)
    if limits is None:
        raise LimitReached("the request that asks has used up its limits")
    return limits
