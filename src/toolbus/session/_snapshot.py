"""The inner state of a session, for the parts of toolbus that continue, store or record its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..events import RequestCompleted
from ..messages import Message, UserMessage

if TYPE_CHECKING:
    from ..events import Event
    from ..request_result import RequestResult
    from ._view import SessionView


@dataclass(slots=True, kw_only=True, frozen=True)
class SessionSnapshot:
    """The state of a session, for the runtime, its journal, sub-requests and recordings. Applications need none of it.

    `view` has the turn's state, and the reason why the request is left, if it is. `prompt` is the one that a request
    which has not begun was given; None while interceptors screen it. `facts` are the published ones, in a
    list that grows with them. `earlier` is the number of messages of its transcript that came from `prepare`, and
    `stored` the number that the store had before they were repaired. `has_joined` is whether its turn in its
    conversation has come. `result` is None until the end.
    """

    view: SessionView
    prompt: UserMessage | None
    facts: Sequence[Event]
    earlier: int
    stored: int
    has_joined: bool
    result: RequestResult[Any] | None

    @property
    def has_output(self) -> bool:
        """True once the request has ended with a valid output. For a type such as `int | None`, it may be None."""
        ending = self.view.state.ending
        return isinstance(ending, RequestCompleted) and ending.output is not None

    @property
    def turn(self) -> Sequence[Message]:
        """The messages that the request adds to its conversation, without the earlier ones; empty before it begins.

        A request that ended while it waited for its turn adds nothing: its prompt would come before the answer that it
        has waited for.
        """
        state = self.view.state
        return state.messages[self.earlier :] if state.facts and self.has_joined else []
