"""What is sent to the model, in whatever happens: valid in every dialect, and on each vendor's wire what it takes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_args

import pytest

from endings.ended_well import assert_left_idle
from endings.test_every_ending import (
    AT_ONCE,
    BROKEN,
    CASES,
    CONVERSATION,
    FOR_EVER,
    LOOK_UP,
    TOOLS,
    Case,
    Faulty,
    talk_before,
    unavailable,
)
from support.results import result_of
from support.wire_oracle import check_wires
from toolbus import (
    EventBus,
    Interceptor,
    Limits,
    RequestResult,
    RequestSession,
    Runtime,
    ToolContext,
    sub_request_tool,
    tool,
)
from toolbus.core.transcript import Dialect, Rules, validate
from toolbus.errors import InvalidHistory, ProviderUnavailable
from toolbus.events import ApprovalDecided, ApprovalRequested, Event, ToolCallCompleted, ToolCallRequested
from toolbus.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    to_anthropic,
)
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.records import replace
from toolbus.testing import ScriptedProvider, advance, calls, error, text, virtual_backends
from toolbus.tool_results import RenderedResult

anyio_backend = virtual_backends()
pytestmark = [pytest.mark.guarantee("G08"), pytest.mark.repeats("whole requests, of which each part has its own tests")]

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


# ------------------------------------------------------------------------------------------------- recording

Sent = list[tuple[Message, ...]]


class Recorded:
    """A provider of which all that it is sent is kept, as it was then."""

    def __init__(self, inner: Any, sent: Sent) -> None:
        self._inner = inner
        self._sent = sent

    @property
    def vendor(self) -> str:
        return self._inner.vendor

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self._sent.append(tuple(copy.deepcopy(each) for each in request.messages))
        return await self._inner.respond(request, emit)


class Vendor:
    """A model of one vendor, which keeps things of its own beside its replies, under ids of its own kind."""

    _numbers = itertools.count(1)

    def __init__(self, vendor: str, *names: str) -> None:
        self.vendor = vendor
        self._names = names or ("at_once", "look_up")
        self._number = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self._number = next(self._numbers)
        names = self._names if request.tools else ()
        wire_ids = [self._id(number) for number in range(len(names))]
        asked = tuple(
            ToolCall(name=name, arguments='{"key": "a"}', provider_call_id=wire_id)
            for name, wire_id in zip(names, wire_ids, strict=True)
        )
        said = f"{self.vendor} speaks."
        message = AssistantMessage(text=said, tool_calls=asked, reasoning="Hm.", vendor_data=self._kept(said, asked))
        return ModelReply(message=message, vendor=self.vendor)

    def _id(self, number: int) -> str:
        return {
            "openai": f"call_{self._number}_{number}",
            "anthropic": f"toolu_{self._number}{number}",
            "gemini": f"call_{self._number}{number}__thought__{'x' * 100}",
            "kimi": f"functions.look_up:{number}",
        }.get(self.vendor, "")

    def _kept(self, said: str, asked: Sequence[ToolCall]) -> dict[str, Any] | None:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
        uses = [
            {"type": "tool_use", "id": each.provider_call_id, "name": each.name, "input": {"key": "a"}}
            for each in asked
        ]
        reasoning: dict[str, Any] = {
            "type": "reasoning",
            "id": f"rs_{self._number}",
            "summary": [],
            "encrypted_content": "x",
        }
        spoken = {"type": "message", "id": f"msg_{self._number}", "role": "assistant", "content": len(said)}
        items = [{"type": "function_call", "id": f"fc_{self._number}_{number}"} for number in range(len(asked))]
        return {
            "openai": {"openai": {"responses": [reasoning, spoken, *items]}},
            "anthropic": {"anthropic": {"content": [thought, {"type": "text", "text": said}, *uses]}},
            "gemini": {"gemini": {"tool_calls": [{"extra_content": {"google": "t"}} for _ in asked]}},
        }.get(self.vendor)


def check_sent(sent: Sent, at_least: int = 0) -> None:
    """Each request is one that every vendor takes, and asks for a reply: nobody lets a model write on its own last words."""
    assert len(sent) >= at_least
    for messages in sent:
        for dialect in DIALECTS:
            validate(messages, dialect)
        check_wires(messages)
        assert [each["role"] for each in to_anthropic(messages)["messages"]][-1:] == ["user"]


async def check_next_turn(runtime: Runtime, conversation_id: str = CONVERSATION) -> None:
    """The conversation goes on, and its next turn calls tools like any other."""
    sent: Sent = []
    provider = Recorded(ScriptedProvider([calls(AT_ONCE, BROKEN), text("Still here.")]), sent)
    result = await runtime.run("And now?", conversation_id=conversation_id, provider=provider, limits=Limits())
    assert (result.outcome, result.text) == ("completed", "Still here.")
    check_sent(sent, 2)
    check_sent([(*result.messages, UserMessage(content="Thanks."))])


async def played(
    provider: Any,
    *,
    act: Callable[[Runtime, RequestSession], Awaitable[None]] | None = None,
    tools: Sequence[Any] = (),
    **options: Any,
) -> tuple[RequestResult[Any], Sent]:
    """A turn behind another one, with what may happen meanwhile, and the next turn behind it."""
    sent: Sent = []
    options.setdefault("provider", Recorded(provider, sent))
    runtime = Runtime(ScriptedProvider([]), tools=[*TOOLS, *tools])
    async with runtime:
        await talk_before(runtime)
        session = runtime.start("Go.", conversation_id=CONVERSATION, **options)
        if act is not None:
            await act(runtime, session)
        result = await session.result()
        await check_next_turn(runtime)
    await assert_left_idle(runtime)
    check_sent(sent)
    return result, sent


# ------------------------------------------------------------------------------------------------- every ending


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_all_that_is_sent_is_valid_whatever_the_ending_and_so_is_the_next_turn(case: Case) -> None:
    sent: Sent = []
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS)
    async with runtime:
        await talk_before(runtime)
        provider = Recorded(case.provider(), sent)
        session = runtime.start("Go.", conversation_id=CONVERSATION, provider=provider, **case.options)
        if case.act is not None:
            heard: list[Any] = []
            runtime.bus.connect(Event, heard.append)
            await case.act(runtime, session, heard)
        result = await session.result()
        assert result.outcome == case.outcome
        if case.name != "drained":
            await check_next_turn(runtime)
    if case.name == "drained":
        async with runtime:
            await check_next_turn(runtime)
    check_sent(sent)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("place", range(8))
async def test_a_journal_that_breaks_leaves_a_transcript_to_go_on_with(place: int, fault: str) -> None:
    store = Faulty()
    sent: Sent = []
    async with Runtime(ScriptedProvider([]), tools=TOOLS, store=store) as runtime:
        await talk_before(runtime)
        store.appends, store.fails_at, store.hangs = 0, place, fault == "hangs"
        script = ScriptedProvider([calls(AT_ONCE, LOOK_UP), calls(AT_ONCE, BROKEN), text("Done.")])
        await result_of(runtime.run("Go.", conversation_id=CONVERSATION, provider=Recorded(script, sent)))
        store.fails_at = -1
        await check_next_turn(runtime)
    check_sent(sent, 0 if place == 0 else 1)


# ------------------------------------------------------------------------------------------------- several vendors

VENDORS = ("openai", "anthropic", "gemini", "kimi", "local")


@pytest.mark.parametrize("first", VENDORS)
@pytest.mark.parametrize("second", VENDORS)
async def test_a_request_that_turns_from_one_vendor_to_another_takes_its_transcript_along(
    first: str, second: str
) -> None:
    sent: Sent = []
    reported = 0

    class Failing(Vendor):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            nonlocal reported
            reported += 1
            if reported > 2:
                raise ProviderUnavailable("overloaded", retryable=True)
            return await super().respond(request, emit)

    limits = Limits(max_rounds=4, max_repeats=10)
    providers = [Recorded(Failing(first), sent), Recorded(Vendor(second), sent)]
    async with Runtime(ScriptedProvider([]), tools=TOOLS) as runtime:
        await talk_before(runtime)
        result = await runtime.run("Go.", conversation_id=CONVERSATION, providers=providers, limits=limits)
        assert (result.outcome, result.text) == ("stopped", f"{second} speaks.")
        again = await runtime.run(
            "And?", conversation_id=CONVERSATION, provider=Recorded(Vendor(first), sent), limits=limits
        )
        assert again.text == f"{first} speaks."
        await check_next_turn(runtime)
    check_sent(sent, 10)


async def test_a_request_that_asks_another_vendor_in_each_round_is_valid_for_each() -> None:
    vendors = [Vendor(name) for name in VENDORS]
    sent: Sent = []
    limits = Limits(max_rounds=10, max_repeats=20)
    async with Runtime(ScriptedProvider([]), tools=TOOLS) as runtime:
        await talk_before(runtime)
        result = await runtime.run(
            "Go.",
            conversation_id=CONVERSATION,
            provider=Recorded(vendors[0], sent),
            limits=limits,
            provider_for_round=lambda number: Recorded(vendors[number % len(vendors)], sent),
        )
        assert (result.outcome, result.reason) == ("stopped", "max_rounds=10")
        await check_next_turn(runtime)
    check_sent(sent, 11)


# ------------------------------------------------------------------------------------------------- people, meanwhile


@pytest.mark.parametrize("seconds", [0, 0.5, 1.5, 2.5])
async def test_what_people_say_while_it_runs_stands_behind_whole_rounds(seconds: float) -> None:
    async def steer(_runtime: Runtime, session: RequestSession) -> None:
        await advance(seconds)
        assert [session.steer(each) for each in ("Hurry!", "And be nice.")] == [True] * 2

    script = ScriptedProvider([calls(LOOK_UP, AT_ONCE), calls(LOOK_UP), calls(LOOK_UP, BROKEN), text("Done.")])
    result, sent = await played(script, act=steer)
    assert result.outcome == "completed"
    said = [each.content for each in sent[-1] if isinstance(each, UserMessage)]
    assert said == ["Hello?", "Go.", "Hurry!", "And be nice."]


@pytest.mark.parametrize("approve", [True, False])
async def test_decisions_of_people_and_what_times_out_meanwhile_leave_results_in_call_order(approve: bool) -> None:
    async def decide(runtime: Runtime, session: RequestSession) -> None:
        asked: list[ApprovalRequested] = []
        stop = runtime.bus.connect(ApprovalRequested, asked.append)
        await advance(6)
        stop()
        assert len(asked) == 2
        for each in reversed(asked):
            runtime.bus.publish(ApprovalDecided(request_id=each.request_id, call_id=each.call_id, approved=approve))

    script = ScriptedProvider([
        calls(("delete", {"key": "1"}), FOR_EVER, LOOK_UP, ("delete", {"key": "2"}), ("swallows", {})),
        text("Done."),
    ])  # fmt: skip
    result, sent = await played(script, act=decide, limits=Limits(tool_timeout_seconds=5), note_failures=True)
    assert result.outcome == "completed"
    assert [each.name for each in sent[-1] if isinstance(each, ToolMessage)][-5:] == [
        "delete", "for_ever", "look_up", "delete", "swallows",
    ]  # fmt: skip


async def test_results_that_come_late_twice_and_from_nobody_are_never_sent() -> None:
    async def meddle(runtime: Runtime, session: RequestSession) -> None:
        requested: list[ToolCallRequested] = []
        runtime.bus.connect(ToolCallRequested, requested.append)
        await advance(0.5)
        for each in [*requested, *requested]:
            publish(runtime.bus, each, each.call_id)
            publish(runtime.bus, each, "nobody's")
        await advance(2)
        for each in requested:
            publish(runtime.bus, each, each.call_id)

    script = ScriptedProvider([calls(LOOK_UP, AT_ONCE), calls(LOOK_UP), text("Done.")])
    result, _ = await played(script, act=meddle, late_results="next_turn")
    assert result.outcome == "completed"


def publish(bus: EventBus, call: ToolCallRequested, call_id: str) -> None:
    bus.publish(
        ToolCallCompleted(request_id=call.request_id, call_id=call_id, name="another", content="from elsewhere")
    )


# ------------------------------------------------------------------------------------------------- odd models

LONG = "x" * 300
ODD = {
    "no ids": calls(AT_ONCE, AT_ONCE, ids=["", ""]),
    "one id for all": calls(AT_ONCE, LOOK_UP, BROKEN, ids=["a", "a", "a"]),
    "long ids": calls(AT_ONCE, LOOK_UP, ids=[LONG, LONG]),
    "strange ids": calls(AT_ONCE, LOOK_UP, ids=["functions.a:0", "a b/c"]),
    "no such tools": calls(("", {}), ("functions.at once", {}), (LONG, {}), ("\u00fchr", {})),
    "malformed arguments": calls(
        ("at_once", '{"key": '), ("at_once", "[]"), ("at_once", ""), ("at_once", '{"key": NaN}')
    ),
    "many calls": calls(*[AT_ONCE] * 70),
    "blanks beside calls": calls(AT_ONCE, text=" \n"),
}


@pytest.mark.parametrize("odd", ODD)
async def test_replies_of_odd_models_are_sent_back_as_every_vendor_takes_them(odd: str) -> None:
    limits = Limits(max_consecutive_errors=1_000, max_repeats=1_000, max_tool_calls=1_000)
    result, sent = await played(ScriptedProvider([ODD[odd], ODD[odd], text("Done.")]), limits=limits)
    assert (result.outcome, len(sent)) == ("completed", 3)


class Bare:
    """A model whose first reply has no text: thinking alone, or blanks."""

    vendor = "anthropic"

    def __init__(self, reply: AssistantMessage) -> None:
        self._reply = reply

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        message, self._reply = self._reply, AssistantMessage(text="Done.")
        return ModelReply(message=message, vendor=self.vendor)


@pytest.mark.parametrize(
    "reply",
    [
        AssistantMessage(text=" \n "),
        AssistantMessage(reasoning="Hm.", vendor_data={"anthropic": {"content": [{"type": "thinking", "thinking": "Hm."}]}}),
        AssistantMessage(reasoning="Hm.", vendor_data={"openai": {"responses": [{"type": "reasoning", "id": "rs_1", "summary": []}]}}),
    ],
    ids=["blanks", "thinking", "a reasoning item"],
)  # fmt: skip
async def test_a_reply_in_which_nothing_is_said_is_not_sent_back(reply: AssistantMessage) -> None:
    result, sent = await played(Bare(reply))
    assert (result.outcome, result.text, len(sent)) == ("completed", "Done.", 2)


# ------------------------------------------------------------------------------------------------- interceptors


class Edits(Interceptor):
    """Edits all that can be edited."""

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        return UserMessage(content=f"{prompt.content} Please.")

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
        reply = await ask(request)
        return replace(reply, message=replace(reply.message, text=reply.message.text.upper()))

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        return {**arguments, "key": "edited"}

    async def after_tool(
        self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
    ) -> RenderedResult:
        return replace(result, content="")

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        return f"{text}!"


@pytest.mark.parametrize("vendor", VENDORS)
async def test_what_interceptors_edit_is_valid_and_what_vendors_keep_goes_with_it(vendor: str) -> None:
    result, sent = await played(Vendor(vendor), interceptors=[Edits()], limits=Limits(max_rounds=3, max_repeats=10))
    assert result.outcome == "stopped"
    assert len(sent) == 4
    edited = [each for each in sent[-1] if isinstance(each, AssistantMessage)][-1]
    assert edited.text == f"{vendor} speaks.".upper()


def redacted(message: Message) -> Message:
    return replace(message, content="") if isinstance(message, UserMessage) else message


Shape = Callable[[list[Message]], list[Message]]
SHAPES: dict[str, Shape] = {
    "a window": lambda messages: messages[-3:],
    "without the results": lambda messages: [each for each in messages if not isinstance(each, ToolMessage)],
    "without the replies": lambda messages: [each for each in messages if not isinstance(each, AssistantMessage)],
    "in reverse": lambda messages: [*messages[::-1], UserMessage(content="Go on.")],
    "twice": lambda messages: [*messages, *messages],
    "a note behind each": lambda messages: [each for one in messages for each in (one, SystemMessage(text="Note."))],
    "redacted": lambda messages: [*map(redacted, messages[:-1]), UserMessage(content="Go on.")],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_interceptors_make_of_a_request_is_repaired_before_it_is_sent(shape: str) -> None:
    class Shapes(Interceptor):
        async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Any) -> ModelReply:
            return await ask(replace(request, messages=SHAPES[shape](list(request.messages))))

    script = ScriptedProvider([calls(AT_ONCE, LOOK_UP), calls(AT_ONCE, BROKEN), text("Done.")])
    sent: Sent = []
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS)
    async with runtime:
        await talk_before(runtime)
        provider = Recorded(script, sent)
        result = await runtime.run("Go.", conversation_id=CONVERSATION, provider=provider, interceptors=[Shapes()])
        assert result.outcome == "completed"
        await check_next_turn(runtime)
    for messages in sent:
        for dialect in DIALECTS:
            validate(messages, dialect)
        check_wires(messages)


# ------------------------------------------------------------------------------------------------- requests of requests


@tool
async def shows(key: str, context: ToolContext[Any]) -> str:
    """Look at the transcript as it stands for a tool."""
    rules = Rules()
    for message in list(context.messages)[:-1]:
        rules.add(message)
    rules.end()
    return "seen"


@pytest.mark.parametrize("end", ["completed", "cancelled", "timed out", "failed"])
async def test_sub_requests_send_what_is_valid_however_they_end(end: str) -> None:
    below: Sent = []
    steps = [calls(AT_ONCE, LOOK_UP, ("shows", {"key": "a"})), unavailable, calls(FOR_EVER, AT_ONCE) if end in {"cancelled", "timed out"} else calls(AT_ONCE)]  # fmt: skip
    steps += [text("Found.")] if end == "completed" else [error(ProviderUnavailable("gone"))] * 4
    desk = sub_request_tool(
        "desk", "Looks up.", provider=Recorded(ScriptedProvider(steps), below), tools=[*TOOLS, shows]
    )

    async def cancel(_runtime: Runtime, session: RequestSession) -> None:
        await advance(20)
        assert session.cancel("enough")

    script = ScriptedProvider([calls(("desk", {"task": "Look."}), AT_ONCE), text("Done.")])
    limits = Limits(tool_timeout_seconds=10) if end == "timed out" else Limits()
    result, sent = await played(script, act=cancel if end == "cancelled" else None, tools=[desk], limits=limits)
    assert result.outcome == ("cancelled" if end == "cancelled" else "completed")
    check_sent(below, 3)
    assert len(sent) == (1 if end == "cancelled" else 2)


# ------------------------------------------------------------------------------------------------- given histories

ASKED = AssistantMessage(tool_calls=(ToolCall(name="at_once", call_id="a"), ToolCall(name="look_up", call_id="b")))
GIVEN: dict[str, list[Message]] = {
    "cut": [UserMessage(content="Hi."), ASKED, ToolMessage(call_id="b", name="look_up", content="it")],
    "a window": [ToolMessage(call_id="b", name="look_up", content="it"), AssistantMessage(text="So."), UserMessage(content="Hi.")],
    "merged": [UserMessage(content="Hi."), ASKED, UserMessage(content="Hi."), ASKED, ToolMessage(call_id="a", name="at_once", content="it")],
    "parts": [UserMessage(content="Hi."), ToolMessage(call_id="a", name="at_once", content="", parts=(ImagePart(url="data:image/png;base64,iVBORw0KGgo="),)), ASKED],
    "empty": [UserMessage(content=""), AssistantMessage()],
}  # fmt: skip


@pytest.mark.parametrize("history", GIVEN)
async def test_a_history_that_an_application_kept_is_refused_or_repaired_and_then_sent(history: str) -> None:
    sent: Sent = []
    async with Runtime(ScriptedProvider([]), tools=TOOLS) as runtime:
        provider = Recorded(ScriptedProvider([calls(AT_ONCE), text("Done.")]), sent)
        options: dict[str, Any] = {"conversation_id": CONVERSATION, "provider": provider, "history": GIVEN[history]}
        with pytest.raises(InvalidHistory):
            await runtime.run("Go.", **options)
        assert sent == []
        result = await runtime.run("Go.", repair_history=True, **options)
        assert result.outcome == "completed"
        await check_next_turn(runtime)
    check_sent(sent, 2)


# ------------------------------------------------------------------------------------------------- the check itself


def test_what_is_broken_is_found_by_the_check() -> None:
    user, result = UserMessage(content="Hi."), ToolMessage(call_id="a", name="at_once", content="it")
    broken: list[list[Message]] = [
        [user, ASKED],
        [user, ASKED, result],
        [user, result],
        [user, ASKED, replace(result, call_id="b"), result],
        [user, AssistantMessage(text="Said.")],
        [SystemMessage(text="Hi.")],
        [UserMessage(content=" ")],
    ]
    for messages in broken:
        with pytest.raises((AssertionError, InvalidHistory)):
            check_sent([tuple(messages)])
    for messages in broken[:4]:
        with pytest.raises(AssertionError):
            check_wires(messages)
