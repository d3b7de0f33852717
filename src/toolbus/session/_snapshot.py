"""The inner state of a session, for the parts of toolbus that continue, store or record its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.turn import TurnState
from ..messages import Message

if TYPE_CHECKING:
    from ..request_result import RequestResult
    from ._view import SessionView

__all__ = ["SessionSnapshot"]


@dataclass(slots=True, kw_only=True, frozen=True)
class SessionSnapshot:
    """The state of a session, for the runtime, its journal, sub-requests and recordings. Applications need none of it.

    `state` is the turn's state, which the session still changes; others only read it. `earlier` is the number of its
    messages that came from `prepare`, and `stored` the number that the store had before they were repaired. `left` is
    the reason why the request is left for another process; "" for a request that is not left. `result` is set at
    the end.
    """

    state: TurnState
    view: SessionView
    earlier: int
    stored: int
    left: str
    result: RequestResult[Any] | None

    @property
    def turn(self) -> Sequence[Message]:
        """The messages that the request adds to its conversation, without the earlier ones; empty before it begins."""
        return self.state.messages[self.earlier :] if self.state.facts else []
