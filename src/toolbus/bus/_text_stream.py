"""A request's text as an async iterator of pieces, made from its events.

Knows events, wherever they come from. Must not know sessions.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from ..core.endings import explain
from ..events import Event, ModelResponded, ModelRetrying, RequestCompleted, RequestFailed, TextDelta
from ..messages import AssistantMessage


class EventSource(Protocol):
    """The events of one request, for one reader: a `Subscription`, or the events of a request in another process."""

    async def __anext__(self) -> Any:
        """Wait for the next event. Raises `StopAsyncIteration` after the last one."""
        ...

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        ...


class TextFold:
    """The fold from events to pieces of text, as `TextStream` describes them. Pure.

    With `final_only`, the text of rounds that have called tools is left out, so pieces are held until their round ends.

    Example:
        from toolbus.bus import TextFold
        from toolbus.events import TextDelta

        fold = TextFold()
        print(fold.feed(TextDelta(request_id="r1", message_id="m1", text="Hello")))  # ['Hello']
    """

    __slots__ = ("_begins_message", "_final_only", "_has_text", "_held", "_last", "_ready", "_streamed")

    def __init__(self, *, final_only: bool = False) -> None:
        self._final_only = final_only
        self._held: list[str] = []  # the pieces of a round that may or may not be the last one
        self._ready: list[str] = []
        self._streamed = ""  # the id of the message that is streamed
        self._has_text = False  # whether the reader has got any text, or will get the text in `_ready`
        self._begins_message = False  # whether the next piece is the first of its message
        self._last = ""  # the text of the newest reply that the reader has got

    def feed(self, event: Event) -> list[str]:
        """Return the pieces that follow from an event."""
        if isinstance(event, TextDelta):
            self._begins_message |= event.message_id != self._streamed
            self._streamed = event.message_id
            if self._final_only:
                self._held.append(event.text)
            else:
                self._give(event.text)
        elif isinstance(event, ModelRetrying):  # The pieces of this reply are void.
            self._held.clear()
        elif isinstance(event, ModelResponded):
            self._end_message(event.message)
        elif isinstance(event, (RequestCompleted, RequestFailed)):
            self._end(event)
        ready, self._ready = self._ready, []
        return ready

    def _give(self, piece: str) -> None:
        self._ready.append(f"\n\n{piece}" if self._begins_message and self._has_text else piece)
        self._has_text, self._begins_message = True, False

    def _end(self, event: RequestCompleted | RequestFailed) -> None:
        answer = event.text if isinstance(event, RequestCompleted) and event.text != self._last else ""
        why = explain(event)
        for text in (answer, f"[{why}]" if why else ""):
            if text:
                self._begins_message = True
                self._give(text)

    def _end_message(self, message: AssistantMessage) -> None:
        # The reply of a provider that does not stream has had no pieces.
        if message.text and message.message_id != self._streamed:
            self._begins_message = True
            self._held.append(message.text)
        if not self._final_only or not message.tool_calls:
            for piece in self._held:
                self._give(piece)
            self._last = message.text or self._last
        self._held.clear()


class TextStream:
    """The pieces of text of one request, in order. Made by `RequestSession.text` and `RequestHandle.text`.

    Cancelling a wait for the next piece loses nothing: the iteration can be continued. `aclose` (also by
    `contextlib.aclosing`) closes the subscription, which is closed by itself when the request ends. For one reader.

    Texts of different rounds are separated by an empty line. An answer that is not the text of a model's reply, such as
    that of `task_complete`, comes as one piece at the end. The text of a request that was stopped or has failed ends
    with a sentence in brackets that says why, such as `[I stopped after 10 steps without finishing.]`.

    Example:
        from toolbus import Runtime
        from toolbus.bus import TextStream
        from toolbus.testing import ScriptedProvider, text

        async with Runtime(ScriptedProvider([text("Hello.")])) as runtime:
            stream: TextStream = runtime.start("Hello?").text()
            print("".join([piece async for piece in stream]))  # Hello.
    """

    __slots__ = ("_fold", "_ready", "_source")

    kinds = (TextDelta, ModelResponded, ModelRetrying, RequestCompleted, RequestFailed)
    """The types of events that `source` has to give."""

    def __init__(self, source: EventSource, *, final_only: bool) -> None:
        self._source = source
        self._fold = TextFold(final_only=final_only)
        self._ready: deque[str] = deque()

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str:
        while not self._ready:
            self._ready.extend(self._fold.feed(await self._source.__anext__()))
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop listening and reading. Idempotent."""
        self._ready.clear()
        await self._source.aclose()
