"""The text of a reply that was cut off because its request ended: what is kept of it, where, and who reads it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import anyio
import pydantic
import pytest

from support.journaled import JournaledStore
from support.wire_oracle import check_wires
from toolbus import EventBus, Interceptor, Limits, RequestResult, RequestSession, Runtime, ToolContext, tool
from toolbus.core.transcript import Dialect, repair, validate
from toolbus.errors import ProviderRejected, ProviderUnavailable
from toolbus.events import Event, MessageAppended, ModelResponded, RequestEnding, TextDelta
from toolbus.messages import (
    AssistantMessage,
    Message,
    ToolMessage,
    UserMessage,
    to_anthropic,
    to_ollama,
    to_openai,
    to_openai_responses,
)
from toolbus.protocols import ArgumentsPiece, Delta, Emit, ModelReply, ModelRequest, ReasoningPiece, TextPiece
from toolbus.providers.scripted import Step
from toolbus.testing import ScriptedProvider, advance, calls, error, hang, text, virtual_backends

anyio_backend = virtual_backends()

HALF = "The answer is fo"
GONE = ProviderUnavailable("gone", retryable=True)


@tool
async def look_up(key: str) -> str:
    """Look a key up."""
    return f"{key} is there"


class Emits:
    """A model that emits these pieces and then nothing more."""

    vendor = "stub"

    def __init__(self, *pieces: Delta) -> None:
        self._pieces = pieces

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        for piece in self._pieces:
            emit(piece)
        await anyio.sleep_forever()
        raise AssertionError


def kept_in(messages: list[Message]) -> list[str]:
    return [each.text for each in messages if isinstance(each, AssistantMessage) and each.interrupted]


async def cancelled(runtime: Runtime, prompt: str = "?", **options: Any) -> RequestResult[Any]:
    """Start a request, cancel it once its model stands still, and return the result."""
    session = runtime.start(prompt, **options)
    await advance(1)
    session.cancel("enough")
    return await session.result()


# ------------------------------------------------------------------------------------------------ the ways to end

WAYS: dict[str, tuple[Step, Limits, str]] = {
    "cancelled": (hang(after=HALF), Limits(), "cancelled"),
    "out of time": (hang(after=HALF), Limits(timeout_seconds=20), "stopped"),
    "silent": (hang(after=HALF), Limits(stream_idle_seconds=10, max_model_attempts=1), "failed"),
    "broken off": (error(GONE, after=HALF), Limits(max_model_attempts=1), "failed"),
    "refused": (error(ProviderRejected("no"), after=HALF), Limits(), "failed"),
}


@pytest.mark.parametrize("store", [None, JournaledStore], ids=["without a journal", "with a journal"])
@pytest.mark.parametrize("way", WAYS)
async def test_the_text_stays_however_the_request_ends(way: str, store: Callable[[], Any] | None) -> None:
    step, limits, outcome = WAYS[way]
    heard: list[Event] = []
    async with Runtime(ScriptedProvider([step]), limits=limits, store=store and store()) as runtime:
        runtime.bus.connect(Event, heard.append)
        session = runtime.start("?")
        if outcome == "cancelled":
            await advance(1)
            session.cancel("enough")
        result = await session.result()
    assert (result.outcome, result.text) == (outcome, HALF)
    expected = AssistantMessage(text=HALF, message_id=f"{result.request_id}_r0", interrupted=True)
    assert result.new_messages[1:] == [expected]
    facts = [each for each in heard if isinstance(each, (ModelResponded, MessageAppended, RequestEnding))]
    replied, appended, _ = facts[-3:]
    assert isinstance(replied, ModelResponded)
    assert isinstance(appended, MessageAppended)
    assert (replied.message, replied.finish_reason, appended.message) == (expected, "interrupted", expected)
    assert replied.cost is None, "no price is known"
    assert isinstance(heard[-1], RequestEnding)
    assert {each.message_id for each in heard if isinstance(each, TextDelta)} == {expected.message_id}
    assert "model was interrupted after" in result.timeline()


async def test_the_text_stays_when_the_host_cancels_the_task_of_the_request() -> None:
    session = RequestSession(EventBus(), ScriptedProvider([hang(after=HALF)]), "?")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run)
        await advance(1)
        group.cancel_scope.cancel()
    result = await session.result()
    assert (result.outcome, result.text, kept_in(result.messages)) == ("cancelled", HALF, [HALF])
    # A reader who comes now gets it once, before the ending.
    assert [piece async for piece in session.text()] == [HALF]
    assert [event.type async for event in session.events()][-1] == "request_cancelled"


async def test_the_text_of_a_last_answer_that_was_cut_off_is_the_requests_text() -> None:
    script = [calls(("look_up", {"key": "a"}), text="Let me look."), error(GONE, after=HALF)]
    limits = Limits(max_rounds=1, max_model_attempts=1)
    async with Runtime(ScriptedProvider(script), tools=[look_up], limits=limits) as runtime:
        result = await runtime.run("?")
    assert (result.outcome, result.limit, result.text) == ("stopped", "max_rounds", HALF)
    assert [each.role for each in result.messages] == ["user", "assistant", "tool", "assistant"]


# ------------------------------------------------------------------------------------------------ what is not kept

NOTHING: dict[str, list[Delta]] = {
    "a call": [ArgumentsPiece(0, "look_up", '{"key": ')],
    "blanks": [TextPiece(" \n")],
    "nothing": [],
}


@pytest.mark.parametrize("pieces", NOTHING.values(), ids=NOTHING)
async def test_calls_and_blanks_are_not_kept(pieces: list[Delta]) -> None:
    async with Runtime(Emits(*pieces), tools=[look_up]) as runtime:
        replied: list[ModelResponded] = []
        runtime.bus.connect(ModelResponded, replied.append)
        result = await cancelled(runtime)
    assert [each.role for each in result.messages] == ["user"]
    assert replied == []


@pytest.mark.parametrize("step", [hang(after=text("", reasoning="Hm.")), error(GONE, after=text("", reasoning="Hm."))])
async def test_reasoning_without_a_text_is_only_in_the_fact(step: Step) -> None:
    provider = ScriptedProvider([step, text("Forty-two.")])
    replied: list[ModelResponded] = []
    async with Runtime(provider, limits=Limits(max_model_attempts=1)) as runtime:
        runtime.bus.connect(ModelResponded, replied.append)
        result = await cancelled(runtime, conversation_id="c")
        await runtime.run("Go on.", conversation_id="c")
    expected = AssistantMessage(reasoning="Hm.", message_id=f"{result.request_id}_r0", interrupted=True)
    assert [each.message for each in replied[:1]] == [expected]
    assert [each.role for each in result.messages] == ["user"]
    assert [(each.role, each.text) for each in provider.requests[1].messages] == [("user", "?"), ("user", "Go on.")]


async def test_the_text_and_the_reasoning_are_kept_of_a_reply_that_had_more() -> None:
    pieces = (ReasoningPiece("Hm."), TextPiece("Let me look."), ArgumentsPiece(0, "look_up", '{"key": "a"}'))
    async with Runtime(Emits(*pieces), tools=[look_up]) as runtime:
        result = await cancelled(runtime)
    about: Any = {"message_id": f"{result.request_id}_r0", "interrupted": True}
    expected = AssistantMessage(text="Let me look.", reasoning="Hm.", **about)
    assert result.messages[1:] == [expected]
    assert result.tool_calls == []


class Weather(pydantic.BaseModel):
    city: str


async def test_half_a_structured_output_is_kept_as_a_text() -> None:
    async with Runtime(Emits(TextPiece(half := '{"city": "Ro'))) as runtime:
        result = await cancelled(runtime, output=Weather)
    assert (result.output, result.text, kept_in(result.messages)) == (None, half, [half])


async def test_text_that_an_interceptor_has_not_passed_is_not_kept() -> None:
    class Guard(Interceptor):
        async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
            return text.replace("fo", "**")

    replied: list[ModelResponded] = []
    step = hang(after=text(HALF, reasoning="Hm."))
    async with Runtime(ScriptedProvider([step]), interceptors=[Guard()]) as runtime:
        runtime.bus.connect(ModelResponded, replied.append)
        result = await cancelled(runtime)
    assert (result.text, kept_in(result.messages), replied) == ("", [], [])


class Breaks(Emits):
    """A model that emits its pieces and then raises something of its own."""

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        with anyio.move_on_after(0):
            await super().respond(request, emit)
        raise KeyError("broken")


@pytest.mark.parametrize(
    ("provider", "interceptors"),
    [
        (Breaks(TextPiece(HALF)), []),
        (ScriptedProvider(lambda _request: error(ProviderRejected("gone"), after=HALF)), [Interceptor()]),
    ],
)
async def test_the_text_before_an_error_of_the_provider_is_kept(provider: Any, interceptors: list[Interceptor]) -> None:
    async with Runtime(provider, interceptors=interceptors) as runtime:
        result = await runtime.start("?").result()
    assert (result.outcome, result.text, kept_in(result.messages)) == ("failed", HALF, [HALF])


async def test_half_a_surrogate_pair_is_kept_as_every_other_text_is() -> None:
    async with Runtime(Emits(TextPiece("so \ud83d"))) as runtime:
        result = await cancelled(runtime)
    assert result.text == "so ?"


# ---------------------------------------------------------------------------------------------------- begun anew


async def test_a_reply_that_is_retried_is_a_new_part_and_its_first_pieces_are_void() -> None:
    heard: list[TextDelta] = []
    async with Runtime(ScriptedProvider([error(GONE, after=HALF), text("Forty-two.")])) as runtime:
        runtime.bus.connect(TextDelta, heard.append)
        session = runtime.start("?")
        pieces = [piece async for piece in session.text()]
        result = await session.result()
    first, second = f"{result.request_id}_r0", f"{result.request_id}_r0_1"
    assert "".join(each.text for each in heard if each.message_id == first) == HALF
    assert "".join(each.text for each in heard if each.message_id == second) == "Forty-two."
    assert result.messages[1:] == [AssistantMessage(text="Forty-two.", message_id=second)]
    assert "".join(pieces) == f"{HALF}\n\nForty-two."


async def test_pieces_of_an_attempt_that_was_given_up_do_not_stay() -> None:
    async with Runtime(ScriptedProvider([error(GONE, after=HALF), hang(after="Forty")])) as runtime:
        session = runtime.start("?")
        await advance(0.01)
        session.cancel("while it waits to ask again")
        waiting = await session.result()
    async with Runtime(ScriptedProvider([error(GONE, after=HALF), hang(after="Forty")])) as runtime:
        session = runtime.start("?")
        await advance(30)
        session.cancel("while it is asked again")
        asked = await session.result()
    assert kept_in(waiting.messages) == []
    assert kept_in(asked.messages) == ["Forty"]


async def test_a_reply_that_another_process_asks_for_again_is_a_new_part() -> None:
    store = JournaledStore()
    heard: list[TextDelta] = []
    async with Runtime(ScriptedProvider([hang(after=HALF)]), store=store, drain_seconds=0) as runtime:
        runtime.bus.connect(TextDelta, heard.append)
        left = runtime.start("?")
        await advance(1)
    assert (await left.result()).resumable
    async with Runtime(ScriptedProvider([text("Forty-two.")]), store=store) as runtime:
        runtime.bus.connect(TextDelta, heard.append)
        (session,) = await runtime.resume()
        result = await session.result()
    assert [each.message_id for each in result.new_messages][1:] == [f"{result.request_id}_r0_1"]
    assert {each.message_id for each in heard} == {f"{result.request_id}_r0", f"{result.request_id}_r0_1"}
    assert kept_in(result.messages) == []


async def test_a_request_that_was_resumed_keeps_its_text_like_any_other_and_is_recalled_with_it() -> None:
    store = JournaledStore()
    async with Runtime(ScriptedProvider([hang()]), store=store, drain_seconds=0) as runtime:
        runtime.start("?")
        await advance(1)
    async with Runtime(ScriptedProvider([hang(after=HALF)]), store=store, keep_ended_seconds=0) as runtime:
        (session,) = await runtime.resume()
        await advance(1)
        session.cancel("enough")
        result = await session.result()
        recalled = await runtime.recall(result.request_id)
    assert (result.text, kept_in(result.messages)) == (HALF, [HALF])
    assert recalled is not None
    assert (recalled.text, recalled.messages) == (result.text, result.messages)


# ------------------------------------------------------------------------------------------------ who reads it later


async def test_the_next_turn_of_the_conversation_knows_it() -> None:
    provider = ScriptedProvider([hang(after=HALF), text("Forty-two, I was about to say.")])
    async with Runtime(provider) as runtime:
        await cancelled(runtime, "How much?", conversation_id="c")
        await runtime.run("Go on.", conversation_id="c")
    assert [(each.role, each.text) for each in provider.requests[1].messages] == [
        ("user", "How much?"),
        ("assistant", HALF),
        ("user", "Go on."),
    ]


@pytest.mark.parametrize("final_only", [False, True])
async def test_a_late_reader_of_the_text_gets_it(final_only: bool) -> None:
    async with Runtime(ScriptedProvider([hang(after=HALF)])) as runtime:
        session = runtime.start("?")
        await advance(1)
        session.cancel()
        await session.result()
        pieces = [piece async for piece in session.text(final_only=final_only)]
    assert "".join(pieces) == HALF


async def test_a_reader_who_has_read_along_gets_it_once() -> None:
    heard: list[str] = []
    async with Runtime(ScriptedProvider([hang(after=HALF)]), limits=Limits(timeout_seconds=5)) as runtime:
        heard += [piece async for piece in runtime.start("?").text()]
    assert "".join(heard) == f"{HALF}\n\n[I stopped because it took longer than 5 seconds.]"


# ------------------------------------------------------------------------------------------------ for every vendor


@pytest.mark.guarantee("G08")
@pytest.mark.parametrize("dialect", get_args(Dialect))
async def test_the_transcript_is_valid_for_every_vendor_and_needs_no_repair(dialect: Dialect) -> None:
    script = [calls(("look_up", {"key": "a"})), hang(after=HALF)]
    async with Runtime(ScriptedProvider(script), tools=[look_up]) as runtime:
        session = runtime.start("?")
        await advance(1)
        session.cancel()
        messages = (await session.result()).messages
    messages.append(UserMessage(content="Go on."))
    validate(messages, dialect)
    check_wires(messages)
    assert repair(messages) == messages


def test_what_each_vendor_is_sent_of_it() -> None:
    messages: list[Message] = [
        UserMessage(content="How much?"),
        AssistantMessage(text=HALF, message_id="r_r0", interrupted=True),
        UserMessage(content="Go on."),
    ]
    plain = [{"role": each.role, "content": each.text} for each in messages if not isinstance(each, ToolMessage)]
    assert to_openai(messages) == plain
    assert to_ollama(messages) == plain
    sent = (to_anthropic(messages), to_openai_responses(messages))
    assert all("interrupted" not in str(each) and HALF in str(each) for each in sent)
