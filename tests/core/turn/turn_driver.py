"""Drives the pure turn machine as a session would: steps, a clock that stands until it is moved, no bus.

Every step checks what holds for all steps: its facts, applied to the state from before, give the state afterwards, and
fact ids are unique.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from toolbus.core.limits import Limits
from toolbus.core.turn import (
    AwaitCalls,
    CallModel,
    Command,
    Elapsed,
    Input,
    ModelFailed,
    ModelReplied,
    Start,
    TurnState,
    advance,
    apply_all,
    pending,
    with_messages,
)
from toolbus.errors import InvalidArguments
from toolbus.events import (
    ApprovalDecided,
    CancelRequested,
    Event,
    MessageAppended,
    RequestCompleted,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallResumed,
)
from toolbus.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from toolbus.protocols import FinishReason, ModelReply, ToolSpec

E = TypeVar("E", bound=Event)


def _wants_city(arguments: Mapping[str, object]) -> None:
    if not isinstance(arguments.get("city"), str):
        raise InvalidArguments("$.city: a string is required")


WEATHER = ToolSpec(name="weather", validate=_wants_city)
CLOCK = ToolSpec(name="clock")
TOOLS: Mapping[str, ToolSpec] = {each.name: each for each in (WEATHER, CLOCK)}


def call(name: str = "clock", arguments: str = "{}", provider_call_id: str = "") -> ToolCall:
    """A call as a provider gives it: without an id of ours."""
    return ToolCall(name=name, arguments=arguments, provider_call_id=provider_call_id)


def replied(
    text: str = "",
    *calls: ToolCall,
    usage: Usage | None = None,
    finish_reason: FinishReason = "",
    native_output: bool = False,
) -> ModelReplied:
    message = AssistantMessage(text=text, tool_calls=calls)
    return ModelReplied(
        ModelReply(message=message, finish_reason=finish_reason, usage=usage or Usage(), vendor="scripted"),
        native_output=native_output,
    )


def completed(call_id: str, content: str = "done", **fields: object) -> ToolCallCompleted:
    return ToolCallCompleted(request_id="r", call_id=call_id, name="clock", content=content, **fields)  # type: ignore[arg-type]


def failed(call_id: str, error: str = "broken", reason: Any = "error", **fields: Any) -> ToolCallFailed:
    return ToolCallFailed(request_id="r", call_id=call_id, name="clock", reason=reason, error=error, **fields)


def decided(call_id: str, approved: bool = True, **fields: Any) -> ApprovalDecided:
    return ApprovalDecided(request_id="r", call_id=call_id, approved=approved, **fields)


def paused(call_id: str, **fields: Any) -> ToolCallPaused:
    return ToolCallPaused(request_id="r", call_id=call_id, **fields)


def resumed(call_id: str, **fields: Any) -> ToolCallResumed:
    return ToolCallResumed(request_id="r", call_id=call_id, **fields)


class Turn:
    """One request `r`. `facts` is its journal so far; a method's result are the facts of its step."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        history: Sequence[Message] = (),
        prompt: str | None = "What time is it?",
        steered: Sequence[str] = (),
        now: float = 1_000_000.0,
        tools: Mapping[str, ToolSpec] = TOOLS,
        **agreed: Any,
    ) -> None:
        self.history = list(history)
        self.limits = limits or Limits()
        self.tools = tools
        self.agreed = agreed
        self.state = self.fresh()
        self.facts: list[Event] = []
        self.now = now
        message = None if prompt is None else UserMessage(content=prompt, message_id="r_u")
        self.step(Start(message, self.history), *(SteeringAdded(request_id="r", text=each) for each in steered))

    def fresh(self) -> TurnState:
        """The state that a replay of `facts` begins with."""
        return TurnState(
            "r",
            conversation_id="c",
            parent_id="r_u",
            limits=self.limits,
            messages=list(self.history),
            tools=self.tools,
            **self.agreed,
        )

    def step(self, *inputs: Input) -> list[Event]:
        """One step. Its facts alone have to give the same state."""
        before = self.copy()
        made, own = advance(self.state, inputs, self.now)
        assert apply_all(before, made) == self.state, "the facts do not give the state"
        assert own == [each for each in made if each.event_id.startswith("r_f")], "inputs have ids of others"
        self.facts += made
        ids = [each.event_id for each in self.facts]
        assert len(set(ids)) == len(ids), "a fact's id came twice"
        return made

    def copy(self) -> TurnState:
        state = self.state
        given = (state.tools, state.output, state.prices, state.limits, state.needs_approval)
        return copy.deepcopy(state, {id(each): each for each in given})

    def offer(self, tools: Mapping[str, ToolSpec]) -> None:
        """These are the tools from now on."""
        self.tools = self.state.tools = tools

    # What may happen, by name.

    def reply(self, text: str = "", *calls: ToolCall, **reply: Any) -> list[Event]:
        return self.step(replied(text, *calls, **reply))

    def call(self, *calls: ToolCall) -> list[Event]:
        return self.reply("", *(calls or (call(),)))

    def complete(self, *call_ids: str, content: str = "done") -> list[Event]:
        return self.step(*(completed(each, content) for each in call_ids or tuple(self.state.open_calls)))

    def fail(self, *call_ids: str) -> list[Event]:
        return self.step(*(failed(each) for each in call_ids or tuple(self.state.open_calls)))

    def break_model(self, code: str = "provider_unavailable", *, retryable: bool = True) -> list[Event]:
        return self.step(ModelFailed(code, "no answer", retryable=retryable))

    def elapse(self, seconds: float | None = None) -> list[Event]:
        """Move the clock by `seconds`, or to the pending deadline, and tell the machine."""
        self.now = self.waiting.deadline if seconds is None else self.now + seconds
        return self.step(Elapsed())

    def cancel(self, reason: str = "enough") -> list[Event]:
        return self.step(CancelRequested(request_id="r", reason=reason))

    def steer(self, *texts: str) -> list[Event]:
        return self.step(*(SteeringAdded(request_id="r", text=each) for each in texts))

    def approve(self, *call_ids: str, **fields: Any) -> list[Event]:
        return self.step(*(decided(each, **fields) for each in call_ids))

    def deny(self, *call_ids: str, **fields: Any) -> list[Event]:
        return self.step(*(decided(each, approved=False, **fields) for each in call_ids))

    def pause(self, *call_ids: str) -> list[Event]:
        return self.step(*(paused(each) for each in call_ids))

    def resume(self, *call_ids: str) -> list[Event]:
        return self.step(*(resumed(each) for each in call_ids))

    # What came of it.

    @property
    def command(self) -> Command:
        return pending(self.state)

    @property
    def waiting(self) -> CallModel | AwaitCalls:
        command = self.command
        assert isinstance(command, (CallModel, AwaitCalls))
        return command

    def appended(self, facts: Sequence[Event]) -> list[MessageAppended]:
        """The appended messages that listeners to these facts hear of."""
        return of(MessageAppended, with_messages(self.state, facts))

    @property
    def roles(self) -> list[str]:
        return [each.role for each in self.state.messages]

    @property
    def stopped_by(self) -> str:
        """The reason of a request that was stopped; an error for any other."""
        ending = self.state.ending
        assert isinstance(ending, RequestCompleted)
        assert ending.outcome == "stopped"
        return ending.reason

    @property
    def ending(self) -> RequestCompleted:
        """The ending of a request that was completed or stopped; an error for any other."""
        ending = self.state.ending
        assert isinstance(ending, RequestCompleted)
        return ending

    @property
    def last_answer_is_asked(self) -> bool:
        """Whether a limit was reached, and the model is asked once more, without tools."""
        return isinstance(self.command, CallModel) and not self.command.offer_tools


def of(kind: type[E], facts: Sequence[Event]) -> list[E]:
    return [each for each in facts if isinstance(each, kind)]
