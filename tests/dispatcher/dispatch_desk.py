"""A desk that hands calls to a dispatcher by hand-made events, as a session would, and hears what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import anyio

from toolbus import EventBus, ToolRegistry
from toolbus.bus import Mailbox
from toolbus.events import Event, ToolCallCompleted, ToolCallFailed, ToolCallRequested
from toolbus.messages import Message
from toolbus.protocols import CallView
from toolbus.secrets import NO_SECRETS
from toolbus.tools import ToolLike

E = TypeVar("E", bound=Event)
Terminal = ToolCallCompleted | ToolCallFailed


class View:
    """What handlers see of the request."""

    def __init__(
        self,
        tools: Sequence[ToolLike] = (),
        *,
        deps: Any = None,
        messages: Sequence[Message] = (),
        request_id: str = "r",
    ) -> None:
        self.request_id = request_id
        self.conversation_id = "conversation"
        self.is_stopping = False
        self.deps = deps
        self.messages = messages
        self.metadata: Mapping[str, Any] | None = None
        self.tools = ToolRegistry(tools)
        self.interceptors: Sequence[Any] = ()
        self.instrumentation: Sequence[Any] = ()
        self.original_metadata: Mapping[str, Any] | None = None
        self.options: Mapping[str, Any] = {}
        self.calls: Mapping[str, CallView] = {}
        self.is_released = False
        self.secrets = NO_SECRETS

    def narrate(self, call_id: str, text: str) -> None: ...

    def child(self, call_id: str, prompt: Any, **options: Any) -> Any:
        raise AssertionError((call_id, prompt, options))


class Desk:
    """One request on `bus`. Make it inside of an event loop."""

    def __init__(self, bus: EventBus | None = None, view: View | None = None, request_id: str = "r") -> None:
        self.bus = bus if bus is not None else EventBus()
        self.request_id = request_id
        self.events: list[Event] = []
        self._changed = anyio.Event()
        self._disconnect = self.bus.connect(Event, self._hear)
        self.mailbox: Mailbox = self.bus.arbitration.open_mailbox(request_id, view)  # type: ignore[arg-type]

    def leave(self) -> None:
        """End the request."""
        self._disconnect()
        self.bus.arbitration.close_mailbox(self.mailbox)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = anyio.Event()

    def ask(self, name: str, call_id: str = "c", *, seconds: float = 30.0, **arguments: Any) -> str:
        """Open a call and request it."""
        self.bus.arbitration.open_calls(self.mailbox, [call_id])
        self.bus.publish(self.request(name, call_id, seconds=seconds, **arguments))
        return call_id

    def request(self, name: str, call_id: str = "c", *, seconds: float = 30.0, **arguments: Any) -> ToolCallRequested:
        return ToolCallRequested(
            request_id=self.request_id,
            conversation_id="conversation",
            parent_id="parent",
            metadata={"tenant": "t"},
            at=self.bus.clock(),
            call_id=call_id,
            name=name,
            arguments=arguments,
            round=0,
            timeout_seconds=seconds,
            idempotency_key=f"key-{call_id}",
        )

    def settle(self, call_id: str = "c", name: str = "any", reason: Any = "timeout") -> bool:
        """Settle a call in the dispatcher's place, as a session's deadline does."""
        failed = ToolCallFailed(request_id=self.request_id, call_id=call_id, name=name, reason=reason, error="late")
        return self.bus.publish(failed)

    def seen(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def hear(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait until that many events of a kind were published."""
        with anyio.fail_after(30):
            while len(found := self.seen(kind)) < count:
                await self._changed.wait()
        return found

    def endings(self, call_id: str = "c") -> list[Terminal]:
        """The call's terminal events; there is never more than one."""
        return [
            event
            for event in self.events
            if isinstance(event, (ToolCallCompleted, ToolCallFailed)) and event.call_id == call_id
        ]

    async def ending(self, call_id: str = "c", *, seconds: float = 5) -> Terminal:
        """Wait for the call's terminal event."""
        with anyio.fail_after(seconds):
            while not (found := self.endings(call_id)):
                await self._changed.wait()
        assert len(found) == 1
        return found[0]

    async def failed(self, call_id: str = "c") -> ToolCallFailed:
        event = await self.ending(call_id)
        assert isinstance(event, ToolCallFailed), event
        return event

    async def completed(self, call_id: str = "c", *, seconds: float = 5) -> ToolCallCompleted:
        event = await self.ending(call_id, seconds=seconds)
        assert isinstance(event, ToolCallCompleted), event
        return event
