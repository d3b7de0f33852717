"""Requests within requests: what one that works for a call of another may use, and how its waiting is told above.

Belongs to `toolbus.session`, which makes them. Knows the bus and the turn's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bus import EventBus
from ..core.limits import Limits
from ..core.turn import CallState, TurnState, limits_left
from ..errors import LimitReached
from ..events import ToolCallPaused, ToolCallResumed
from ..storage import Journal
from ._options import SessionOptions

__all__ = ["inherited", "sub_request_limits", "tell_above"]

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


def tell_above(bus: EventBus, state: TurnState, call: CallState, *, waits: bool) -> None:
    """A sub-request of `call` has begun or ended to wait for a person: so does the call, until none of them waits."""
    others = sum(request.waits for request in call.sub_requests) - waits
    if not others and call.call.call_id in state.open_calls:
        kind = ToolCallPaused if waits else ToolCallResumed
        bus.publish(kind(**state.envelope(bus.clock()), call_id=call.call.call_id))
