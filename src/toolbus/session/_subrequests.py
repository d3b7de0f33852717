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
_DEEPEST = 8  # each level holds a session, and a model that calls itself has to end


def inherited(options: SessionOptions, journal: Journal | None, own: SessionOptions) -> dict[str, Any]:
    """The options of a sub-request, its `own` or those of the one above; and a journal that wants its facts too."""
    above: Mapping[str, Any] = dict(options)
    taken = {key: above[key] for key in _INHERITED if key in above}
    if getattr(journal, "with_sub_requests", False):
        taken["journal"] = journal
    return {**taken, **own}


def sub_request_limits(state: TurnState, call_id: str, now: float, depth: int, wanted: Limits | None) -> Limits:
    """The limits of a sub-request of call `call_id`. Raises `LimitReached` where nothing is left, and for the depth."""
    if depth >= _DEEPEST:
        raise LimitReached(f"requests are nested {_DEEPEST} deep")
    limits = limits_left(state, call_id, now, wanted)
    if limits is None:
        raise LimitReached("the request that asks has used up its limits")
    return limits
