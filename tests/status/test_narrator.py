"""Sentences from a quick model: asked beside the call, never in its way, and never with a secret."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus import EventBus
from toolbus.core.turn import TurnState
from toolbus.errors import ConfigurationError, ProviderUnavailable
from toolbus.events import StatusChanged, ToolCallRequested
from toolbus.messages import AssistantMessage, UserMessage
from toolbus.protocols import Emit, ModelReply, ModelRequest, ToolSpec
from toolbus.session import RequestSession
from toolbus.status import Narrator, StatusPublisher
from toolbus.testing import (
    Harness,
    ScriptedProvider,
    advance,
    assert_idle,
    calls,
    error,
    settle,
    text,
    virtual_backends,
)

anyio_backend = virtual_backends()

SENTENCE = "Looking up user information in the database"
LOOKUP = ("lookup_tool", {"user_id": 123})


class Slow:
    """A model that takes its time; `most` is how many asked it at once."""

    vendor = "slow"

    def __init__(self, seconds: float = 1.0, said: str = SENTENCE) -> None:
        self.seconds = seconds
        self.said = said
        self.requests: list[ModelRequest] = []
        self.running = self.most = self.cancelled = 0

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return ModelReply(message=AssistantMessage(text=self.said))


class Desk:
    """A harness, a narrator on its bus, and the sentences of calls that were said."""

    def __init__(self, harness: Harness, asking: Callable[[], int]) -> None:
        self.harness = harness
        self.asking = asking

    @property
    def said(self) -> list[str]:
        return [each.text for each in self.harness.seen(StatusChanged, stage="executing")]


@asynccontextmanager
async def desk(
    provider: Any, *requested: tuple[str, dict[str, Any]], tools: Any = ("lookup_tool",), **options: Any
) -> AsyncGenerator[Desk]:
    script = [calls(*(requested or (LOOKUP,))), text("Found.")]
    async with Harness(script, tools=tools) as harness:
        narrators = Narrator(provider, **options).attach(harness.bus)
        async with narrators:
            harness.start("Who is user 123?")
            yield Desk(harness, lambda: narrators.asking)


def asked(request: ModelRequest) -> str:
    (message,) = request.messages
    assert isinstance(message, UserMessage)
    return message.text


# ------------------------------------------------------------------------------------- a call and its sentence


async def test_a_call_gets_the_model_s_sentence_while_it_runs():
    model = ScriptedProvider([text(SENTENCE)])
    async with desk(model) as here:
        requested = await here.harness.expect(ToolCallRequested)
        await settle()
        assert here.said[-1:] == [SENTENCE]
        said = here.harness.seen(StatusChanged, text=SENTENCE)[0]
        assert (said.request_id, said.conversation_id) == (requested.request_id, requested.conversation_id)
        assert said.parent_id == requested.parent_id
        here.harness.complete(requested)
        assert (await here.harness.sessions[0].result()).text == "Found."
    (request,) = model.requests
    assert request.tools == ()
    assert request.settings.max_output_tokens == 20
    assert "Tool: Lookup Tool\n" in asked(request)
    assert 'Arguments: {"user_id":123}\n' in asked(request)
    assert "at most 10 words" in asked(request)


async def test_a_call_never_waits_for_its_sentence():
    model = Slow(1.5)
    async with desk(model) as here:
        began = anyio.current_time()
        requested = await here.harness.expect(ToolCallRequested)
        here.harness.complete(requested)
        await here.harness.sessions[0].result()
        assert anyio.current_time() == began
        await advance(10)
        assert SENTENCE not in here.said
    assert model.running == 0


async def test_a_call_that_has_ended_is_not_asked_about_any_longer():
    model = Slow()
    async with desk(model) as here:
        requested = await here.harness.expect(ToolCallRequested)
        await settle()
        assert (model.running, here.asking()) == (1, 1)
        here.harness.complete(requested)
        await settle()
        assert (model.running, model.cancelled, here.asking()) == (0, 1, 0)


@pytest.mark.parametrize(("seconds", "comes"), [(1.9, True), (2.1, False)])
async def test_a_sentence_that_takes_longer_than_two_seconds_does_not_come(seconds: float, comes: bool):
    model = Slow(seconds)
    async with desk(model) as here:
        await here.harness.expect(ToolCallRequested)
        await advance(10)
        assert (SENTENCE in here.said) is comes
        assert (model.running, model.cancelled) == (0, 0 if comes else 1)
        assert not here.harness.sessions[0].ended


async def test_a_model_that_lets_no_cancellation_pass_is_too_late_all_the_same():
    class Stubborn(Slow):
        async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.seconds)
            return ModelReply(message=AssistantMessage(text=self.said))

    async with desk(Stubborn(5)) as here:
        await here.harness.expect(ToolCallRequested)
        await advance(10)
        assert SENTENCE not in here.said


class Stray:
    """Raises a cancellation that nobody asked for, as awaiting a cancelled future does; trio has no such thing."""

    vendor = "stray"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        await anyio.lowlevel.checkpoint()
        on_asyncio = anyio.get_cancelled_exc_class() is asyncio.CancelledError
        raise asyncio.CancelledError if on_asyncio else ConnectionError


class Odd:
    vendor = "odd"

    async def respond(self, request: ModelRequest, emit: Emit) -> Any:
        return "no reply"


@pytest.mark.parametrize(
    "provider",
    [
        ScriptedProvider(lambda _request: error(ProviderUnavailable("overloaded", vendor="x", status=503))),
        ScriptedProvider(lambda _request: error(RuntimeError("a bug"))),
        ScriptedProvider(lambda _request: text("")),
        ScriptedProvider(lambda _request: text(' \n""\n...')),
        ScriptedProvider(lambda _request: calls(("lookup_tool", {}))),
        Odd(),
        Stray(),
    ],
)
async def test_whatever_goes_wrong_the_template_stays_and_the_request_goes_on(provider: Any):
    async with desk(provider) as here:
        requested = await here.harness.expect(ToolCallRequested)
        await advance(3)
        assert set(here.said) <= {"Using Lookup Tool..."}
        here.harness.complete(requested)
        result = await here.harness.sessions[0].result()
        assert (result.outcome, here.asking()) == ("completed", 0)
        await anyio.sleep(1)  # and whoever entered the narrator is not cancelled


@pytest.mark.leaves("buses", reason="no session ends the request that the publisher listens to")
async def test_the_publisher_of_a_session_decides_which_sentence_is_shown():
    reported: list[ToolCallRequested] = []

    class Publisher(StatusPublisher):
        def _so_far(self) -> list[ToolCallRequested]:
            return reported

    bus = EventBus()
    said: list[str] = []
    bus.connect(StatusChanged, lambda event: said.append(event.text))
    state = TurnState("r")
    publisher = Publisher(bus, state, dict)
    view = SimpleNamespace(tools=SimpleNamespace(specs={}), narrate=partial(publisher.narrate, "r"))
    mailbox = bus.arbitration.open_mailbox("r", cast("Any", view))
    bus.arbitration.open_calls(mailbox, ["a", "b"])
    model = ScriptedProvider(lambda request: text("Doing " + asked(request).partition("Tool: ")[2][:1]))
    events = [
        ToolCallRequested(**state.envelope(0), call_id=each, name=each, arguments={}, round=0, timeout_seconds=1, idempotency_key="")
        for each in ("a", "b")
    ]  # fmt: skip
    async with Narrator(model).attach(bus):
        for event in events:
            bus.arbitration.announce(event)
            reported.append(event)
            publisher.publish([event])
        await settle()
        assert said == ["Using A...", "Using B...", "Doing B"]
        settled = events[1].completed("done")
        bus.publish(settled)
        publisher.publish([settled])
        assert said[3:] == ["Doing A"]
    bus.arbitration.close_mailbox(mailbox)


# ------------------------------------------------------------------------------------- when it is not asked


async def test_while_nobody_wants_the_status_the_model_is_not_asked():
    model = ScriptedProvider([text(SENTENCE)])
    bus = EventBus()
    requests: list[ToolCallRequested] = []
    bus.connect(ToolCallRequested, requests.append)
    session = RequestSession(bus, ScriptedProvider([calls(LOOKUP), text("Found.")]), "Who?", tools=[ToolSpec(name="lookup_tool")])  # fmt: skip
    async with Narrator(model).attach(bus) as _, anyio.create_task_group() as group:
        group.start_soon(session.run)
        await settle()
        bus.publish(requests[0].completed("Ada"))
        assert (await session.result()).text == "Found."
    assert model.requests == []


async def test_a_tool_with_a_template_of_its_own_is_not_asked_about():
    model = ScriptedProvider([text(SENTENCE)])
    own = ToolSpec(name="lookup_tool", status="Looking {user_id} up")
    async with desk(model, tools=[own]) as here:
        await here.harness.expect(ToolCallRequested)
        await settle()
        assert set(here.said) <= {"Looking 123 up"}
    assert model.requests == []


async def test_a_call_that_nobody_opened_is_not_asked_about():
    model = ScriptedProvider([text(SENTENCE)])
    bus = EventBus()
    bus.connect(StatusChanged, lambda _event: None)
    async with Narrator(model).attach(bus):
        bus.publish(
            ToolCallRequested(
                request_id="r", call_id="a", name="x", arguments={}, round=0, timeout_seconds=1.0, idempotency_key="k"
            )
        )
        await settle()
    assert model.requests == []


async def test_more_calls_than_places_keep_their_template_and_places_come_back():
    model = Slow(1)
    many = [("lookup_tool", {"n": number}) for number in range(12)]
    async with desk(model, *many) as here:
        await here.harness.expect(ToolCallRequested, arguments={"n": 11})
        await settle()
        assert (here.asking(), model.running) == (8, 8)
        await advance(3)
        assert (here.asking(), len(model.requests), model.most) == (0, 8, 8)
    async with desk(Slow(1), *many, max_concurrency=2) as here:
        await here.harness.expect(ToolCallRequested, arguments={"n": 11})
        await settle()
        assert here.asking() == 2


# ------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (f'"{SENTENCE}"', SENTENCE),
        (f"\n\n**“{SENTENCE}.”**\nIt is a lookup.", f"{SENTENCE}."),
        ("one two three four five six seven eight nine ten", "one two three four five six seven eight nine ten"),
        ("one two three four five six seven eight nine ten eleven", "one two three four five six seven eight nine ten..."),
        ("Reading \x1b[31m the\tfile", "Reading the file"),
        ("Logging in with sk-proj-abcdefghij0123456789", "Logging in with •••"),
        ("日本の天気を調べています", "日本の天気を調べています"),
    ],
)  # fmt: skip
async def test_a_reply_is_cleaned_to_one_short_sentence(reply: str, said: str):
    async with desk(ScriptedProvider([text(reply)])) as here:
        await here.harness.expect(ToolCallRequested)
        await settle()
        assert here.said[-1] == said


@pytest.mark.parametrize("most", [10, 4])
async def test_a_reply_that_was_cut_short_loses_its_last_word(most: int):
    model = ScriptedProvider([text("Looking up the weath", finish_reason="length")])
    async with desk(model, max_words=most) as here:
        await here.harness.expect(ToolCallRequested)
        await settle()
        assert here.said[-1] == "Looking up the..."


@pytest.mark.parametrize(("reply", "said"), [("one two three four", "one two three..."), ("one two", "one two")])
async def test_bounds_of_its_own_are_kept(reply: str, said: str):
    model = ScriptedProvider([text(reply)])
    async with desk(model, max_words=3, max_tokens=7) as here:
        await here.harness.expect(ToolCallRequested)
        await settle()
        assert here.said[-1] == said
    assert model.requests[0].settings.max_output_tokens == 7
    assert "at most 3 words" in asked(model.requests[0])


def request_with(arguments: dict[str, Any]) -> ToolCallRequested:
    return ToolCallRequested(
        call_id="a", name="x", arguments=arguments, round=0, timeout_seconds=1.0, idempotency_key="k"
    )


def test_long_arguments_are_clipped_to_a_thousand_characters():
    prompt = Narrator(ScriptedProvider([])).prompt(request_with({f"n{n}": "word " * 1000 for n in range(50)}))
    assert len(prompt) < 1600
    assert "…\n" in prompt


def test_braces_in_arguments_are_no_fields_of_the_prompt():
    assert '{"q":"{tool} {0}"}' in Narrator(ScriptedProvider([])).prompt(request_with({"q": "{tool} {0}"}))


SECRET = "hunter2-hunter2"
KEY = "sk-proj-abcdefghij0123456789"
values = st.recursive(
    st.text(max_size=20) | st.integers() | st.none() | st.just(f"with {KEY} in it"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
named = st.sampled_from(["password", "apiKey", "X-Auth-Token", "cookie", "PIN", "clientSecret"])


@given(st.dictionaries(st.text(max_size=8), values, max_size=3), st.dictionaries(named, st.just(SECRET), min_size=1))
def test_no_secret_is_in_any_prompt(arguments: dict[str, Any], secrets: dict[str, str]):
    prompt = Narrator(ScriptedProvider([])).prompt(request_with({**arguments, "deep": [secrets], **secrets}))
    assert SECRET not in prompt
    assert KEY not in prompt
    assert json.dumps("•••", ensure_ascii=False) in prompt or "…\n" in prompt


# ------------------------------------------------------------------------------------- beginning and ending


async def test_leaving_cancels_what_runs_and_leaves_nothing_behind(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "toolbus.narrator")
    model = Slow(1000)
    bus = EventBus()
    async with Harness([calls(LOOKUP), text("Found.")], tools=["lookup_tool"], bus=bus) as harness:
        before = bus.statistics().receivers
        async with Narrator(model, timeout_seconds=500).attach(bus):
            harness.start("Who?")
            await harness.expect(ToolCallRequested)
            await settle()
            assert model.running == 1
            began = anyio.current_time()
        assert (model.running, model.cancelled, anyio.current_time()) == (0, 1, began)
        assert not [each for each in caplog.records if each.name == "toolbus.narrator"]
        assert bus.statistics().receivers == before + 2, "the status line hears progress and retries meanwhile"
        harness.complete(harness.pending[0])
        await harness.sessions[0].result()
    await assert_idle(bus)


async def test_an_exception_of_the_block_leaves_it_as_it_is():
    bus = EventBus()
    with pytest.raises(ZeroDivisionError):
        async with Narrator(ScriptedProvider([])).attach(bus):
            _ = 1 / 0
    assert bus.statistics().receivers == 0


async def test_one_narrator_serves_two_buses_and_one_bus_again():
    narrator = Narrator(ScriptedProvider(lambda _request: text(SENTENCE)))
    for _ in range(2):
        one, other = (Harness([calls(LOOKUP)], tools=["lookup_tool"]) for _ in range(2))
        async with one, other, narrator.attach(one.bus) as first, narrator.attach(other.bus):
            assert first is narrator
            for harness in (one, other):
                harness.start("Who?")
                await harness.expect(ToolCallRequested)
                await settle()
                assert harness.seen(StatusChanged, text=SENTENCE)


async def test_it_is_entered_once_at_a_time():
    entered = Narrator(ScriptedProvider([])).attach(EventBus())
    for _ in range(2):
        async with entered:
            with pytest.raises(ConfigurationError, match="already"):
                await entered.__aenter__()


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"max_tokens": 0},
        {"max_words": 0},
        {"max_concurrency": 0},
    ],
)
def test_bounds_that_leave_nothing_are_refused(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="too low"):
        Narrator(ScriptedProvider([]), **options)
    Narrator(ScriptedProvider([]), **dict.fromkeys(options, 1))
