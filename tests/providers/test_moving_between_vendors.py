"""One application, moved from vendor to vendor: whole requests, over each vendor's wire."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from toolbus import Limits, ModelSettings, Runtime, ToolResult, tool
from toolbus.events import HistoryCompressed
from toolbus.messages import AssistantMessage, FilePart, ImagePart, Message, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Provider
from toolbus.providers import AnthropicProvider, OllamaProvider, OpenAIProvider
from toolbus.testing import WireServer, calls, text
from toolbus.testing.wire import DIALECTS, HttpRequest, WireBreak, WireCall, WireFault, WireReply, WireStep

pytestmark = pytest.mark.repeats("each vendor and each part of a request has its own tests")

KEY = "sk-not-a-real-key"
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(24)

MAKERS: Mapping[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIProvider("stub", api_key=KEY, base_url=url),
    "responses": lambda url: OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url),
    "anthropic": lambda url: AnthropicProvider("stub", api_key=KEY, base_url=url),
    "ollama": lambda url: OllamaProvider("stub", host=url),
}
every_vendor = pytest.mark.parametrize("dialect", MAKERS)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough for what is sent and read. `test_provider_contract.py` has each vendor's wire on both."""
    return "asyncio"


@asynccontextmanager
async def provider_over(server: WireServer) -> AsyncGenerator[Provider]:
    provider: Any = MAKERS[server.dialect.name](server.base_url)
    try:
        yield provider
    finally:
        await provider.aclose()


def problems(server: WireServer) -> list[str]:
    """All that the vendor would have refused, of all requests."""
    return [problem for number in range(len(server.requests)) for problem in server.read(number).problems]


# ------------------------------------------------------------------------------------------ replies that were cut off


@pytest.mark.guarantee("G28")
@every_vendor
async def test_a_call_that_was_cut_off_before_its_arguments_does_not_run_with_its_defaults(dialect: str) -> None:
    deleted: list[str] = []

    @tool
    def delete(path: str = "/") -> str:
        """Delete a path."""
        deleted.append(path)
        return "gone"

    cut = WireReply(calls=(WireCall(name="delete", arguments=""),), finish_reason="length")
    whole = WireReply(calls=(WireCall(name="delete", arguments="", call_id="call_1"),))
    with WireServer([cut, whole, text("Done.")], dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider, tools=[delete]) as runtime:
            result = await runtime.run("Delete what is in the bin.")
        assert [call.ok for call in result.tool_calls] == [False, True]
        assert "cut off" in result.tool_calls[0].error
        assert deleted == ["/"], "of the whole reply, where no arguments are no arguments"
        assert [server.read(number).problems for number in range(3)] == [(), (), ()]


# ------------------------------------------------------------------------------------------------- what can be seen


@every_vendor
async def test_prompts_and_results_with_images_and_files_reach_every_vendor(dialect: str) -> None:
    @tool
    def screenshot() -> ToolResult:
        """Take a screenshot."""
        return ToolResult(message="Here it is.", parts=[ImagePart.from_bytes(PIXEL, "image/png")])

    note = FilePart.from_bytes("Grüße 😀".encode(), "text/plain", "note.txt")
    script: list[WireStep] = [calls(("screenshot", {}), ("screenshot", {})), text("Seen.")]
    with WireServer(script, dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider, tools=[screenshot]) as runtime:
            prompt = ["What is on it? 😀", ImagePart.from_bytes(PIXEL, "image/png"), note]
            result = await runtime.run(prompt)
        assert (result.outcome, result.text, problems(server)) == ("completed", "Seen.", [])
        sent = str(server.requests[1].body)
        assert sent.count("iVBORw0KGgo") == 3
        assert ("Grüße 😀" in sent) or "R3LDvMOfZSDwn5iA" in sent


@every_vendor
async def test_an_image_or_a_file_that_a_vendor_refuses_does_not_end_the_conversation(dialect: str) -> None:
    """One tool result that an API refuses would be an error in every later turn."""

    @tool
    def draw() -> ToolResult:
        """Draw it."""
        drawing = ImagePart.from_bytes(b"<svg/>", "image/svg+xml")
        return ToolResult(message="Drawn.", parts=[drawing, FilePart.from_bytes(b"# Plan", "text/markdown", "plan.md")])

    with WireServer([calls(("draw", {})), text("I see.")], dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider, tools=[draw]) as runtime:
            result = await runtime.run("Draw it.")
        assert (result.outcome, problems(server)) == ("completed", [])
        sent = str(server.requests[1].body)
        assert "[an image of type image/svg+xml, not shown]" in sent
        assert ("# Plan" in sent) or dialect == "responses"
        if dialect == "openai":
            assert "text/markdown" not in sent, "chat completions take no other file than PDF"


# ----------------------------------------------------------------------------------- from one vendor to the next


ODD = "call/with:odd characters and of more than sixty-four, as some gateways make them 0123456789"


def looked_up(dialect: str) -> list[WireStep]:
    """Three rounds with thinking, and calls with ids that others do not take."""
    lacks = DIALECTS[dialect].lacks
    ids: list[str | None] = ["", "", "same", "same", ODD] if "ids" not in lacks else [None] * 5
    opaque = iter(["c2VjcmV0MQ==", "c2VjcmV0Mg==", "c2VjcmV0Mw=="])

    def thinking(**more: Any) -> WireReply:
        secret = "" if "opaque_reasoning" in lacks else next(opaque)
        return WireReply(reasoning="Hm… 🤔", opaque_reasoning=secret, **more)

    many = tuple(WireCall(name="look_up", arguments=f'{{"n": {n}}}', call_id=each) for n, each in enumerate(ids))
    return [
        thinking(text="One moment.", calls=many),
        thinking(calls=(WireCall(name="look_up", arguments='{"n": 9}', call_id=ids[2]),)),
        thinking(text=f"{dialect} knows."),
    ]


@tool
def look_up(n: int) -> str:
    """Look a number up."""
    if n == 1:
        raise ValueError("there is no 1")
    return f"{n} is 東京"


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(MAKERS, 2)))
async def test_a_conversation_goes_on_with_another_vendor_and_comes_back(one: str, other: str) -> None:
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(WireServer(looked_up(each), dialect=each)) for each in (one, other)]
        first, second = [await stack.enter_async_context(provider_over(server)) for server in servers]
        async with Runtime(first, tools=[look_up], instructions="Be brief.") as runtime:
            talk: Any = {"conversation_id": "c"}
            begun = await runtime.run("Look all of them up.", **talk)
            gone_on = await runtime.run("And again?", provider=second, **talk)
            servers[0].script = looked_up(one)
            back = await runtime.run("And here?", **talk)
        assert [each.outcome for each in (begun, gone_on, back)] == ["completed"] * 3
        assert [problems(server) for server in servers] == [[], []]
        if "opaque_reasoning" not in DIALECTS[one].lacks:
            assert len(servers[0].read().opaque) >= 3, "its own thinking of the first turn goes back, and no other"
        assert said(servers[1].read(0).messages) == said([*begun.messages, UserMessage(content="And again?")])


def said(messages: Any) -> list[str]:
    """What a model reads, in order."""
    found: list[str] = []
    for message in messages:
        if message.role == "user":
            parts = message.content
            found.append(parts if isinstance(parts, str) else "".join(part.text for part in parts))
        elif message.role == "assistant":
            found += [message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls)]
        elif message.role == "tool":
            found.append(message.content)
    return [each.replace(" ", "") for each in found if each]


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(MAKERS, 2)))
async def test_a_request_fails_over_amid_its_rounds(one: str, other: str) -> None:
    async with AsyncExitStack() as stack:
        script: list[WireStep] = [*looked_up(one)[:2], *[WireFault(kind="server_error", retry_after_seconds=0)] * 3]
        servers = [
            stack.enter_context(WireServer(script, dialect=one)),
            stack.enter_context(WireServer([text("The rest is mine.")], dialect=other)),
        ]
        providers = [await stack.enter_async_context(provider_over(server)) for server in servers]
        async with Runtime(providers=providers, tools=[look_up], limits=Limits(max_model_attempts=1)) as runtime:
            result = await runtime.run("Look all of them up.")
        assert (result.outcome, result.text) == ("completed", "The rest is mine.")
        assert [problems(server) for server in servers] == [[], []]


# --------------------------------------------------------------------------------------------- the context's length


WORDINGS = [
    (dialect, wording)
    for dialect in MAKERS
    for wording in range(len(DIALECTS[dialect].refusals(WireFault(kind="context_overflow"))))
]


@pytest.mark.parametrize(("dialect", "wording"), WORDINGS)
async def test_what_is_too_long_in_a_vendors_words_is_sent_once_more_and_shorter(dialect: str, wording: int) -> None:
    history: list[Message] = []
    for number in range(30):
        history += [UserMessage(content=f"{number}? " + "words " * 200)]
        history += [*read_back(number)]
    script: list[WireStep] = [WireFault(kind="context_overflow", wording=wording), text("Short.")]
    reported: list[HistoryCompressed] = []
    with WireServer(script, dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider, tools=[look_up]) as runtime:
            runtime.bus.connect(HistoryCompressed, reported.append)
            result = await runtime.run("And now?", history=history)
        assert (result.outcome, result.text, problems(server)) == ("completed", "Short.", [])
        first, second = (len(str(each.body)) for each in server.requests)
        assert second < first * 0.8
        assert reported
        assert len(result.messages) == len(history) + 2, "what is kept stays whole"


def read_back(number: int) -> list[Message]:
    call = ToolCall(name="look_up", arguments=f'{{"n":{number}}}', call_id=f"c{number}", provider_call_id=f"c{number}")
    return [
        AssistantMessage(tool_calls=(call,)),
        ToolMessage(call_id=call.call_id, name="look_up", content="x" * 800),
        AssistantMessage(text="It is so."),
    ]


# ------------------------------------------------------------------------------------------------ tools of all kinds


class Colour(Enum):
    RED = "red"
    GREEN = "grün"


class Inner(BaseModel):
    size: int | None = None
    child: Inner | None = None


@tool
def paint(colour: Colour, inner: Inner, mode: Literal["a", "b"] | int = "a", tags: list[str] | None = None) -> str:
    """Paint it."""
    return f"{colour.value} {inner.size} {mode} {tags}"


@every_vendor
async def test_schemas_of_all_kinds_and_many_calls_at_once(dialect: str) -> None:
    written = [{"colour": "grün", "inner": {"child": {"size": n}}, "mode": n, "tags": ["é", "😀"]} for n in range(64)]
    script: list[WireStep] = [calls(*[("paint", each) for each in written]), text("Painted.")]
    with WireServer(script, dialect=dialect) as server:
        limits = Limits(max_calls_per_round=64, max_tool_calls=64)
        async with provider_over(server) as provider, Runtime(provider, tools=[paint], limits=limits) as runtime:
            result = await runtime.run("Paint it 64 times.")
        assert [call.content for call in result.tool_calls] == [f"grün None {n} ['é', '😀']" for n in range(64)]
        assert problems(server) == []
        offered = server.read(0).tools[0].parameters
        assert set(offered["properties"]) == {"colour", "inner", "mode", "tags"}
        assert offered["required"] == ["colour", "inner"]
        results = [message for message in server.read(1).messages if message.role == "tool"]
        assert [each.content for each in results] == [call.content for call in result.tool_calls]


class Answer(BaseModel):
    city: str
    celsius: int | None


@every_vendor
async def test_a_structured_output_comes_by_call_or_as_text(dialect: str) -> None:
    wanted = {"city": "東京", "celsius": None}
    script: list[WireStep] = [
        calls(("final_answer", {"city": 1})),
        calls(("final_answer", wanted)),
        text('{"city": "Rom", "celsius": 3}'),
    ]
    with WireServer(script, dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider) as runtime:
            by_call = await runtime.run("Weather?", output=Answer, conversation_id="c")
            as_text = await runtime.run("And in Rome?", output=Answer, conversation_id="c")
        assert by_call.output == Answer(city="東京", celsius=None)
        assert as_text.output == Answer(city="Rom", celsius=3)
        assert problems(server) == []


@every_vendor
@pytest.mark.parametrize("choice", [None, "auto", "required", "look_up", "none"])
async def test_the_last_answer_after_a_limit_is_asked_for_in_words_that_the_vendor_takes(
    dialect: str, choice: str | None
) -> None:
    script: list[WireStep] = [calls(("look_up", {"n": 2})), text("That is all.")]
    with WireServer(script, dialect=dialect) as server:
        settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False, reasoning_effort="low")
        options: Any = {"limits": Limits(max_rounds=1), "settings": settings, "guidance": True}
        async with provider_over(server) as provider, Runtime(provider, tools=[look_up, paint], **options) as runtime:
            result = await runtime.run("Look it up.")
        assert (result.outcome, result.text, problems(server)) == ("stopped", "That is all.", [])


# -------------------------------------------------------------------------------------------------- lifetimes


@every_vendor
async def test_runtimes_share_a_provider_one_after_the_other_and_at_once(dialect: str) -> None:
    def answer(_: HttpRequest) -> WireStep:
        return WireReply(text="Yes.")

    with WireServer(answer, dialect=dialect) as server:
        async with provider_over(server) as provider:
            runtime, other = Runtime(provider), Runtime(provider)
            async with runtime, other, anyio.create_task_group() as group:
                for each in (runtime, other) * 3:
                    group.start_soon(each.run, "Are you there?")
            async with runtime:
                assert (await runtime.run("Still?")).text == "Yes."
        assert len(server.requests) == 7


@every_vendor
def test_a_provider_serves_one_event_loop_after_the_other(dialect: str) -> None:
    with WireServer(lambda _: WireReply(text="Yes."), dialect=dialect) as server:
        provider: Any = MAKERS[dialect](server.base_url)

        async def once() -> str:
            try:
                async with Runtime(provider) as runtime:
                    return (await runtime.run("Are you there?")).text
            finally:
                await provider.aclose()

        assert [anyio.run(once, backend=each) for each in ("asyncio", "trio", "asyncio")] == ["Yes."] * 3


@every_vendor
async def test_a_request_that_is_cancelled_amid_a_stream_leaves_the_conversation_usable(dialect: str) -> None:

    slow = WireReply(text=("One ", "moment. ", "please"))
    frames = DIALECTS[dialect].render(slow).frames
    begun = next(number for number, frame in enumerate(frames) if b"One " in frame) + 1
    script: list[WireStep] = [WireBreak(reply=slow, how="stall", after=begun), text("Here.")]
    with WireServer(script, dialect=dialect) as server:
        async with provider_over(server) as provider, Runtime(provider) as runtime:
            session = runtime.start("Count.", conversation_id="c")
            async for _ in session.text():
                session.cancel("enough")
            first = await session.result()
            second = await runtime.run("Go on.", conversation_id="c")
        server.release()
        assert (first.outcome, second.text, problems(server)) == ("cancelled", "Here.", [])
