"""The fold from a request's events to what a page shows: messages in pieces, tool calls, questions and an ending. Pure.

Both protocols have the same states, so they are decided here, and each encoder only writes them in its protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from ..core.endings import explain
from ..core.turn import was_steered
from ..events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    ReasoningDelta,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    StatusChanged,
    SteeringAdded,
    SubscriberLagged,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallProgress,
    ToolCallRequested,
    ToolCallResumed,
)
from ..messages import ToolCall
from ..records import json_bytes
from ._incoming import approval_id, result_id, tool_names
from ._shown_call import PieceWise, ShownCall

Chunk: TypeAlias = dict[str, Any]
"""One chunk of a protocol: a dictionary of JSON values with a `type`."""

PartKind: TypeAlias = Literal["text", "reasoning"]
"""The kind of a part of a reply that is shown in pieces."""

# What follows the reply's id in the id of each part.
_SUFFIXES: Mapping[PartKind, str] = {"text": "", "reasoning": "_r"}

VOID_CALL = "This call was not finished."
ASKS_BELOW = "A decision is needed."
CLOSED = "This question is no longer open."
LOST = "The connection ends here, and the work is not finished."


def sse_frame(data: Chunk | str, *, event: str = "", event_id: str = "") -> bytes:
    """Return one server-sent event. A dictionary is written as JSON on one line, a text as it is.

    Values that JSON does not have are written as text.
    """
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {event}\n" if event else "")
    body = data.encode() if isinstance(data, str) else json_bytes(data, str)
    return head.encode() + b"data: " + body + b"\n\n"


_ANSWERS = (ApprovalDecided, ToolCallCompleted, ToolCallFailed)
_SETTLED = (ToolCallCompleted, ToolCallFailed)
_WAITING = frozenset({"asked", "called", "paused"})


class EventEncoder(ABC):
    """The events of one request, in order, as chunks of a protocol.

        encoder = VercelEncoder(client_tools=["ask_location"])
        async with session.events() as events:
            async for event in events:
                for chunk in encoder.feed(event): ...

    `client_tools` are the external tools that the page itself runs. `answered` are the answers that came with the
    page's HTTP request (`ClientRequest.answered`): the chunks that the page has already are left out, until the first
    answer takes effect. Without I/O or a clock; not thread-safe.
    """

    media_type: ClassVar[str] = "text/event-stream"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *, client_tools: Collection[str] = (), answered: Collection[str] = ()) -> None:
        self._client_tools = tool_names(client_tools)
        self._answered: frozenset[str] = frozenset(answered)
        self._left_out = self._answered
        self._out: list[Chunk] = []
        self._request_id = ""
        self._conversation_id = ""
        self._has_begun = False
        self._has_ended = False
        self._has_gap = False  # since the newest reply that is whole
        self._step: int | None = None
        self._reply_id = ""  # the id of the reply that arrives, or has arrived
        self._has_answer = False  # whether the newest whole reply has no calls
        self._last_text = ""  # the text of the newest whole reply
        self._parts: dict[PartKind, PieceWise] = {}  # those that arrive
        self._arriving: dict[int, ShownCall] = {}
        self._calls: dict[str, ShownCall] = {}  # those of whole replies, until they are settled
        self._below: dict[str, ShownCall] = {}  # those of sub-requests, while they are asked about
        self._resumed = ""  # a call that waits for no question, unless the next event pauses it again
        self._void_calls: dict[str, int] = {}
        self._steering = set[str]()  # the ids of the messages that were shown before the model has read them

    @property
    def ended(self) -> bool:
        """True after the ending of the request, or after `pause` or `close`: no chunk may follow."""
        return self._has_ended

    @property
    def waits_for_client(self) -> bool:
        """True while nothing can happen before the page answers.

        Each open call is a question, has one in a sub-request, or is one of the page's tools.
        """
        calls = self._calls.values()
        if not calls or self._arriving or any(each.state not in _WAITING for each in calls):
            return False
        # The next round does not wait for calls in the background. After the last reply, the request does.
        return self._has_answer or any(not each.in_background for each in calls)

    @property
    def waits_for_effect(self) -> bool:
        """True while none of the `answered` calls has been decided or settled: nothing was sent yet."""
        return bool(self._left_out)

    def feed(self, event: Event) -> list[Chunk]:
        """Return the chunks of one event. Events of sub-requests, and those that a page does not show, have none.

        A `SteeringAdded` of `pending_messages` may come before the request takes it; it is shown once.
        """
        if isinstance(event, SubscriberLagged):
            self._note_gap()
        take = self._takes.get(type(event))
        if take is None or self._has_ended or event.request_id != (self._request_id or event.request_id):
            return []
        self._request_id, self._conversation_id = event.request_id, event.conversation_id
        closed = self._closed_by(event) if self._below or self._resumed else ()
        is_answered = any(each.call_id in self._left_out for each in closed)
        if self._left_out and (is_answered or self._ends_left_out(event)):
            self._left_out = frozenset[str]()
            self._has_begun, self._step = False, None
            if self._parts or self._arriving:
                # The page does not have the beginning of this reply, so it gets the reply when it is whole.
                self._parts, self._arriving, self._has_gap = {}, {}, True
        if not self._has_begun:
            self._has_begun = True
            self.on_start(self._request_id, self._conversation_id)
        for each in closed:
            del self._below[each.call_id]
            self.on_closed(each)
        take(self, event)
        if self._left_out:
            self._out.clear()
        return self._taken()

    def _ends_left_out(self, event: Event) -> bool:
        """Return whether events are no longer left out: this is the first effect of an answer, or the ending."""
        is_decided = isinstance(event, _ANSWERS) and event.call_id in self._left_out
        is_settled = isinstance(event, _SETTLED) and result_id(event.call_id) in self._left_out
        return is_decided or is_settled or isinstance(event, RequestEnding)

    def _closed_by(self, event: Event) -> list[ShownCall]:
        """Return the questions of sub-requests that this event has closed."""
        over, self._resumed = {self._resumed}, event.call_id if isinstance(event, ToolCallResumed) else ""
        still = {each.call_id for each in event.pending_approvals} if isinstance(event, ToolCallPaused) else ()
        if isinstance(event, (ToolCallPaused, ToolCallRequested, *_SETTLED)):
            over.add(event.call_id)
        return [each for each in self._below.values() if each.asks_for in over and each.call_id not in still]

    def pause(self) -> list[Chunk]:
        """End the stream because `waits_for_client`, and return its last chunks. The request itself stays open.

        If the answers of the page had no effect, the page is asked once more.
        """
        return self._stop(self._pause)

    def close(self) -> list[Chunk]:
        """End the stream of a request that has not ended, because its server stops, and return the last chunks."""
        return self._stop(self.on_lost)

    def _stop(self, add_last: Callable[[], None]) -> list[Chunk]:
        if self._has_ended:
            return []
        self._close_reply()
        self._end_step()
        if self._left_out or not self._has_begun:
            self._out.clear()
            self.on_start(self._request_id, self._conversation_id)
        add_last()
        self._has_ended = True
        return self._taken()

    def _pause(self) -> None:
        own = [each for each in self._calls.values() if each.state in _WAITING]
        waiting = [*(each for each in own if each.state != "paused"), *self._below.values()]
        for call in waiting:
            is_unanswered = call.state == "called" and self.has_answered(call)
            if is_unanswered or (self._left_out and call.is_open):
                self.on_arguments_known(call)
            if self._left_out and call.question is not None and call.state == "asked":
                self.on_question(call, call.question)
        self.on_pause(waiting)

    def _taken(self) -> list[Chunk]:
        taken, self._out = self._out, []
        return taken

    def emit(self, kind: str, **fields: Any) -> None:
        """Add a chunk."""
        self._out.append({"type": kind, **fields})

    def has_answered(self, call: ShownCall) -> bool:
        """Return whether the page itself has brought the result of the call with its request."""
        return result_id(call.call_id) in self._answered and call.name in self._client_tools

    def is_client_tool(self, name: str) -> bool:
        """Return whether the page runs the tool."""
        return name in self._client_tools

    def _replaces_arguments(self, name: str) -> bool:  # noqa: ARG002 -- for protocols that can
        """Return whether `on_arguments_known` replaces the shown pieces, for example those of an edited call."""
        return False

    # ------------------------------------------------------------------------------------------------ the reply

    def _note_gap(self) -> None:
        self._has_gap = True
        for each in (*self._parts.values(), *(call.pieces for call in self._arriving.values())):
            each.holds = True

    def _expect_reply(self, message_id: str) -> None:
        if message_id != self._reply_id:
            self._void_reply()
            self._reply_id = message_id

    def _take_piece(self, event: TextDelta | ReasoningDelta) -> None:
        self._expect_reply(event.message_id)
        kind: PartKind = "text" if isinstance(event, TextDelta) else "reasoning"
        part = self._parts.get(kind)
        if part is None:
            part = self._parts[kind] = PieceWise(self._reply_id + _SUFFIXES[kind], holds=self._has_gap)
            self.on_part_start(kind, part.shown_id)
        if part.takes(event.text) and event.text:
            self.on_part(kind, part.shown_id, event.text)

    def _take_arguments(self, event: ToolArgumentsDelta) -> None:
        self._expect_reply(event.message_id)
        call = self._arriving.get(event.index)
        if call is None and event.index > len(self._arriving):
            return  # The reader began after an earlier call of the reply, and is shown the calls in their order.
        if call is None:
            call = self._new_call(f"{event.request_id}_{event.round}_{event.index}", event.name)
            self._arriving[event.index] = call
            # The reader may have begun in the middle of the arguments, which are an object.
            call.pieces.holds = self._has_gap or not event.text.startswith("{")
        if call.pieces.takes(event.text) and event.text:
            self.on_arguments(call, event.text)

    def _new_call(self, call_id: str, name: str) -> ShownCall:
        count = self._void_calls.get(call_id, 0)
        call = ShownCall(call_id, f"{call_id}~{count + 1}" if count else call_id, name)
        self.on_call(call, self._reply_id)
        return call

    def _take_reply(self, event: ModelResponded) -> None:
        message = event.message
        self._expect_reply(message.message_id)
        self._has_answer = not message.tool_calls
        if not (message.tool_calls or message.text.strip() or message.interrupted):
            self._void_reply()  # It is empty, whatever its reasoning. The model is asked again, or the request ends.
            self._has_gap = False
            return
        self._finish_part("reasoning", message.reasoning)
        self._reply_id = self._finish_part("text", message.text)
        self._last_text = message.text if message.text.strip() else self._last_text
        arriving, self._arriving = self._arriving, {}
        for call in message.tool_calls:
            index = next((at for at, each in arriving.items() if each.call_id == call.call_id), None)
            self._finish_call(call, None if index is None else arriving.pop(index))
        for left in arriving.values():
            self._void_call(left)
        self._has_gap = False

    def _finish_part(self, kind: PartKind, whole: str) -> str:
        """Show the rest of a text of the reply, and return the id under which it was shown."""
        part, shown_id = self._parts.pop(kind, None), self._reply_id + _SUFFIXES[kind]
        rest = whole if part is None else part.rest(whole)
        if part is not None and rest is None:
            # The pieces that were shown are not the beginning of the whole, so it is shown again: the reader began in
            # the middle, or the provider streams reasoning that its reply does not repeat.
            self.on_part_end(kind, part.shown_id)
            part, rest, shown_id = None, whole, f"{shown_id}_2"
        if rest and part is None:
            part = PieceWise(shown_id)
            self.on_part_start(kind, shown_id)
        if part is not None:
            if rest:
                self.on_part(kind, part.shown_id, rest)
            self.on_part_end(kind, part.shown_id)
        return shown_id

    def _finish_call(self, made: ToolCall, arriving: ShownCall | None) -> None:
        whole = made.arguments or "{}"
        rest = whole if arriving is None else arriving.pieces.rest(whole)
        is_void = rest is None and not self._replaces_arguments(made.name)
        if arriving is not None and (is_void or arriving.name != made.name):
            self._void_call(arriving)
            arriving, rest = None, whole
        call = arriving or self._new_call(made.call_id, made.name)
        call.state, call.text = "whole", whole
        self._calls[call.call_id] = call
        self.on_whole_call(call, rest or "")

    def _void_call(self, call: ShownCall) -> None:
        self._void_calls[call.call_id] = self._void_calls.get(call.call_id, 0) + 1
        self.on_void_call(call)

    def _close_reply(self) -> bool:
        """Close what has arrived of a reply that will not be finished, and return whether anything has."""
        if not self._parts and not self._arriving:
            return False
        parts, arriving = self._parts, self._arriving
        self._parts, self._arriving, self._has_gap = {}, {}, False
        for kind, part in parts.items():
            self.on_part_end(kind, part.shown_id)
        for call in arriving.values():
            self._void_call(call)
        return True

    def _void_reply(self) -> None:
        """Take back what has arrived of a reply that does not join the transcript."""
        if self._close_reply() and self._step is not None:
            self.on_void_reply()

    def _take_beginning(self, event: RequestStarted | RequestResumed | ModelRetrying) -> None:
        self._void_reply()
        if isinstance(event, ModelRetrying):
            self._has_answer = False  # An empty reply is whole, and the model is asked once more.

    # ------------------------------------------------------------------------------------------------ steps and calls

    def _take_round(self, event: RoundStarted) -> None:
        self._void_reply()
        self._end_step()
        self._step = event.round
        self._has_answer = False
        self.on_step(event.round)

    def _take_message(self, event: MessageAppended) -> None:
        if was_steered(event.message, self._request_id):
            self._void_reply()  # The request is about to end, and the reply that was arriving is not kept.
            self.on_steered(event.message.message_id, event.message.text)

    def _take_steering(self, event: SteeringAdded) -> None:
        if event.event_id not in self._steering:
            self._steering.add(event.event_id)
            self.on_steering(event)

    def _end_step(self) -> None:
        if self._step is not None:
            self.on_step_end(self._step)

    def _opened(self, event: ToolCallRequested | ApprovalRequested, calls: dict[str, ShownCall]) -> ShownCall:
        call = calls.get(event.call_id)
        if call is None:  # The reader began after the reply, or the call is that of a sub-request.
            call = calls[event.call_id] = self._new_call(event.call_id, event.name)
            self.on_whole_call(call, json_bytes(event.arguments, str).decode())
        # A page runs its own tool as soon as it has the whole arguments: not before a decision, nor after its answer.
        is_asked = isinstance(event, ApprovalRequested) and self.is_client_tool(event.name)
        if is_asked or (call.question is not None and self.has_answered(call)):
            call.arguments = event.arguments
        elif not call.is_open or call.arguments != event.arguments:
            call.is_open, call.arguments = True, event.arguments
            self.on_arguments_known(call)
        return call

    def _take_request(self, event: ToolCallRequested) -> None:
        call = self._opened(event, self._calls)
        call.in_background = event.background
        call.state = "called" if event.name in self._client_tools else "running"

    def _take_question(self, event: ApprovalRequested) -> None:
        self._ask(self._opened(event, self._calls), event)

    def _ask(self, call: ShownCall, question: ApprovalRequested) -> None:
        call.state, call.question = "asked", question
        call.approval_id = approval_id(question, self._request_id)
        self.on_question(call, question)

    def _take_pause(self, event: ToolCallPaused) -> None:
        call = self._calls.get(event.call_id)
        if call is None or not event.pending_approvals:  # Without questions, it waits for somebody other than the page.
            return
        call.state = "paused"
        self.on_paused(call)
        for question in event.pending_approvals:
            if question.call_id not in self._below:
                below = self._opened(question, self._below)
                below.asks_for = call.call_id
                self._ask(below, question)

    def _take_answer(self, event: ApprovalDecided | ToolCallResumed) -> None:
        if call := self._calls.get(event.call_id):
            call.state = "running"

    def _take_progress(self, event: ToolCallProgress) -> None:
        call = self._calls.get(event.call_id)
        if call is not None and call.is_open:
            self.on_progress(call, event)

    def _take_result(self, event: ToolCallCompleted) -> None:
        if call := self._calls.pop(event.call_id, None):
            self.on_result(call, event)

    def _take_failure(self, event: ToolCallFailed) -> None:
        if call := self._calls.pop(event.call_id, None):
            self.on_failure(call, event)

    def _take_ending(self, event: RequestEnding) -> None:
        self._has_ended = True
        self._void_reply()
        for call in (*self._calls.values(), *self._below.values()):
            self.on_void_call(call)
        self._end_step()
        # An answer that is not the text of a reply, such as that of a tool that ends the request.
        text = event.text if isinstance(event, RequestCompleted) and event.text != self._last_text else ""
        # A page that finds only calls with results in the newest step would send them, and expect a reply.
        if text or not self._has_answer:
            self._step = 0 if self._step is None else self._step + 1
            self.on_step(self._step)
            self._reply_id = f"{event.request_id}_answer"
            self._finish_part("text", text)
            self._end_step()
        self.on_end(event, explain(event))

    # --------------------------------------------------------------------------------- the chunks of a protocol

    @abstractmethod
    def on_start(self, request_id: str, conversation_id: str) -> None:
        """Encode the beginning of the stream."""

    @abstractmethod
    def on_step(self, number: int) -> None:
        """Encode the beginning of a round."""

    @abstractmethod
    def on_step_end(self, number: int) -> None:
        """Encode the end of a round."""

    @abstractmethod
    def on_part_start(self, kind: PartKind, shown_id: str) -> None:
        """Encode the beginning of a text, or of the model's reasoning."""

    @abstractmethod
    def on_part(self, kind: PartKind, shown_id: str, piece: str) -> None:
        """Encode a piece of such a part."""

    @abstractmethod
    def on_part_end(self, kind: PartKind, shown_id: str) -> None:
        """Encode the end of such a part."""

    def on_void_reply(self) -> None:  # noqa: B027 -- not every protocol can take a reply back
        """Encode that the part of the reply that was shown is void. Its parts are closed."""

    @abstractmethod
    def on_call(self, call: ShownCall, reply_id: str) -> None:
        """Encode that a call begins to arrive."""

    @abstractmethod
    def on_arguments(self, call: ShownCall, piece: str) -> None:
        """Encode a piece of a call's arguments."""

    @abstractmethod
    def on_whole_call(self, call: ShownCall, rest: str) -> None:
        """Encode that the reply with the call is whole. `rest` is the part of its arguments that was not shown."""

    @abstractmethod
    def on_arguments_known(self, call: ShownCall) -> None:
        """Encode that `call.arguments` are valid, or have been edited by a person."""

    @abstractmethod
    def on_void_call(self, call: ShownCall) -> None:
        """Encode that a call will not run."""

    @abstractmethod
    def on_question(self, call: ShownCall, question: ApprovalRequested) -> None:
        """Encode that a person has to approve the call."""

    def on_paused(self, call: ShownCall) -> None:  # noqa: B027 -- not every protocol has to say so
        """Encode that a call continues only after decisions on calls of its sub-requests, whose questions follow."""

    @abstractmethod
    def on_closed(self, call: ShownCall) -> None:
        """Encode that a call of a sub-request needs no decision any more. The page is not shown its result."""

    @abstractmethod
    def on_progress(self, call: ShownCall, event: ToolCallProgress) -> None:
        """Encode the progress of a call."""

    @abstractmethod
    def on_result(self, call: ShownCall, event: ToolCallCompleted) -> None:
        """Encode the result of a call."""

    @abstractmethod
    def on_failure(self, call: ShownCall, event: ToolCallFailed) -> None:
        """Encode the failure of a call."""

    @abstractmethod
    def on_status(self, event: StatusChanged) -> None:
        """Encode the status line."""

    @abstractmethod
    def on_plan(self, event: PlanChanged) -> None:
        """Encode the model's plan."""

    @abstractmethod
    def on_steering(self, event: SteeringAdded) -> None:
        """Encode that the user has sent a message, which the model has not read yet."""

    @abstractmethod
    def on_steered(self, shown_id: str, text: str) -> None:
        """Encode that a message of the user has joined the transcript."""

    @abstractmethod
    def on_end(self, ending: RequestEnding, explanation: str) -> None:
        """Encode the end of the request. `explanation` is a sentence for people; empty for a whole answer."""

    @abstractmethod
    def on_pause(self, waiting: list[ShownCall]) -> None:
        """Encode the end of a stream that waits for the page."""

    @abstractmethod
    def on_lost(self) -> None:
        """Encode the end of a stream whose request has not ended."""

    # ------------------------------------------------------------------------------------------------ the table

    _takes: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        RequestStarted: _take_beginning,
        RequestResumed: _take_beginning,
        RoundStarted: _take_round,
        TextDelta: _take_piece,
        ReasoningDelta: _take_piece,
        ToolArgumentsDelta: _take_arguments,
        ModelResponded: _take_reply,
        ModelRetrying: _take_beginning,
        ToolCallRequested: _take_request,
        ApprovalRequested: _take_question,
        ApprovalDecided: _take_answer,
        ToolCallPaused: _take_pause,
        ToolCallResumed: _take_answer,
        ToolCallProgress: _take_progress,
        ToolCallCompleted: _take_result,
        ToolCallFailed: _take_failure,
        StatusChanged: lambda self, event: self.on_status(event),
        PlanChanged: lambda self, event: self.on_plan(event),
        SteeringAdded: _take_steering,
        MessageAppended: _take_message,
        RequestCompleted: _take_ending,
        RequestFailed: _take_ending,
        RequestCancelled: _take_ending,
    }
