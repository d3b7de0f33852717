"""The inside of a session, for the parts of toolbus that continue, keep or record its request."""

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
    """What the runtime, its journal, sub-requests and recordings need of a session. Applications need none of it.

    `state` is the turn's, which the session still changes; whoever has it only reads it. `earlier` is how many of its
    messages `prepare` gave, and `stored` how many the store had before they were repaired. `left` is the reason for
    which the request is left for another process; "" for one that is not. `result` is None before the end.
    """

    state: TurnState
    view: SessionView
    earlier: int
    stored: int
    left: str
    result: RequestResult[Any] | None

    @property
    def turn(self) -> Sequence[Message]:
        """What the request adds to its conversation: all messages but the earlier ones; nothing before it begins."""
        return self.state.messages[self.earlier :] if self.state.facts else []
