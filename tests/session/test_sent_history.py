"""What a model is sent of a long history, over whole requests: cut results and reading on, the window, refusals, summaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from support.long_talks import sent, talk, too_long
from support.wire_oracle import check_wires
from toolbus import (
    Compression,
    Denied,
    EventBus,
    Interceptor,
    Limits,
    Price,
    RequestResult,
    RequestSession,
    Runtime,
    Summarizer,
    Tool,
    ToolContext,
)
from toolbus.core.tokens import estimate_message, estimate_tools
from toolbus.core.transcript import validate
from toolbus.errors import ContextOverflow, InvalidHistory, ProviderUnavailable
from toolbus.events import Event, HistoryCompressed, ModelRetrying, RequestFailed, RoundStarted, ToolCallRequested
from toolbus.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from toolbus.protocols import ModelReply, ModelRequest
from toolbus.records import replace
from toolbus.testing import ScriptedProvider, calls, error, text, virtual_backends

anyio_backend = virtual_backends()

LONG = "0123456789" * 1000


def schema(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {} for name in names}}


def plain(name: str, result: str | Callable[[], str], **options: Any) -> Tool:
    """A tool that takes anything and gives `result`."""

    async def handler(**_arguments: Any) -> str:
        return result if isinstance(result, str) else result()

    return Tool(name, "", schema("n"), handler, validate=lambda _arguments: None, **options)


def results(messages: Sequence[Message]) -> list[str]:
    return [each.content for each in messages if isinstance(each, ToolMessage)]


def tools_of(request: ModelRequest) -> list[str]:
    return [each.name for each in request.tools]


# --------------------------------------------------------------------------------------------------- results too long


@pytest.mark.parametrize("whole", [f'{{"text": "{LONG}"}}', f'["{LONG}"]'])
async def test_a_long_result_that_is_json_becomes_an_artifact_of_json(whole: str) -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("done")])
    async with Runtime(provider, tools=[plain("fetch", whole)]) as runtime:
        (artifact,) = (await runtime.run("go")).artifacts
    assert (artifact.content, artifact.media_type) == (whole, "application/json")


async def test_a_long_result_is_cut_for_the_model_and_whole_everywhere_else() -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("done")])
    seen: list[Event] = []
    async with Runtime(provider, tools=[plain("fetch", LONG)]) as runtime:
        runtime.bus.connect(HistoryCompressed, seen.append)
        result = await runtime.run("go")
    (cut,) = results(sent(provider))
    assert 3900 < len(cut) <= 4000
    assert cut.startswith("0123456789")
    assert results(result.messages) == [LONG]
    assert result.tool_calls[0].content == LONG
    assert [(each.content, each.media_type) for each in result.artifacts] == [(LONG, "text/plain")]
    (reported,) = seen
    assert isinstance(reported, HistoryCompressed)
    assert reported.results_shortened == 1
    assert reported.after_tokens < reported.before_tokens


async def test_the_model_reads_on_page_by_page_without_a_dispatcher_and_over_turns() -> None:
    pages: list[str] = []

    def read(offset: int) -> Callable[[ModelRequest], Any]:
        def step(request: ModelRequest) -> Any:
            assert tools_of(request) == ["fetch", "read_result"]
            first = next(each for each in request.messages if isinstance(each, ToolMessage))
            return calls(("read_result", {"call_id": first.call_id, "offset": offset}))

        return step

    provider = ScriptedProvider([calls(("fetch", {})), read(4000), text("half"), read(8000), text("all")])
    async with Runtime(provider, tools=[plain("fetch", LONG)], max_result_chars=1000) as runtime:
        await runtime.run("go", conversation_id="c")
        result = await runtime.run("go on", conversation_id="c")
    assert tools_of(provider.requests[0]) == ["fetch"]
    pages = results(result.messages)[1:]
    assert all(len(page) <= 1000 for page in pages)
    assert "Characters 4000 to " in pages[0]
    assert "Characters 8000 to " in pages[1]
    assert results(sent(provider))[1:] == pages


@pytest.mark.parametrize(("result", "is_plain"), [("short", True), (LONG, False)])
async def test_a_transcript_is_folded_only_if_there_is_something_to_shorten(result: str, is_plain: bool) -> None:
    provider = ScriptedProvider([calls(("fetch", {})), calls(("fetch", {})), text("done")])
    async with Runtime(provider, tools=[plain("fetch", result)]) as runtime:
        session = runtime.start("go")
        assert (await session.result()).ok
    assert session.snapshot().view.window.is_plain == is_plain


async def test_a_tool_of_the_application_s_own_by_that_name_is_left_alone() -> None:
    provider = ScriptedProvider([calls(("fetch", {})), calls(("read_result", {"n": 1})), text("done")])
    async with Runtime(provider, tools=[plain("fetch", LONG), plain("read_result", "mine")]) as runtime:
        result = await runtime.run("go")
    assert tools_of(provider.requests[1]) == ["fetch", "read_result"]
    assert results(result.messages)[1] == "mine"


async def test_a_result_that_somebody_published_on_the_bus_is_cut_as_well() -> None:
    provider = ScriptedProvider([calls(("fetch", {})), text("done")])
    bus = EventBus()
    bus.connect(ToolCallRequested, lambda event: bus.publish(event.completed(LONG)))
    tools: list[Tool] = [Tool("fetch", "", schema(), external=True, validate=lambda _arguments: None)]
    await RequestSession(bus, provider, "go", tools=tools, max_result_chars=500).run()
    assert 400 < len(results(sent(provider))[0]) <= 500


# ------------------------------------------------------------------------------------------------------------ the window


@pytest.mark.repeats("each turn does what the one before it did")
@pytest.mark.guarantee("G08")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the window knows no event loop, and takes seconds
async def test_two_hundred_turns_go_through_a_window_of_eight_thousand_tokens() -> None:
    window = 8000
    state = iter(range(10_000))
    tools = [
        plain("get_state", lambda: f'{{"tick":{next(state)},"map":"{"." * 600}"}}', kind="query"),
        plain("move", lambda: "moved, and met " + "a troll, " * 60, kind="action"),
        plain("login", "the session token is 4711; " + "keep it. " * 10, keep_full_results=True),
        plain("look_up", "a page of a book. " * 30),
    ]

    def model(request: ModelRequest) -> Any:
        newest = request.messages[-1]
        if isinstance(newest, UserMessage):
            turn = len(asked)
            asked.append(turn)
            wanted: list[tuple[str, dict[str, int]]] = (
                [("login", {})] if turn == 0 else [("get_state", {}), ("move", {"n": turn})]
            )
            return calls(*wanted, *([("look_up", {"n": turn})] if turn % 3 == 0 else []), usage=used(request))
        return text("well " * 20, usage=used(request))

    def used(request: ModelRequest) -> Usage:
        estimate = sum(map(estimate_message, request.messages)) + estimate_tools(request.tools)
        true.append(int(estimate * 1.3))  # this model counts more than is estimated
        return Usage(input_tokens=true[-1], output_tokens=10)

    asked: list[int] = []
    true: list[int] = []
    provider = ScriptedProvider(model)
    limits = Limits(max_input_tokens=10**9)
    compression = Compression(max_context_tokens=window)
    compressed: list[HistoryCompressed] = []
    async with Runtime(provider, tools=tools, instructions="Play.", limits=limits, compression=compression) as runtime:
        runtime.bus.connect(HistoryCompressed, lambda event: compressed.append(event))  # type: ignore[arg-type]
        for turn in range(200):
            result = await runtime.run(f"turn {turn}", conversation_id="game")
            assert result.ok, result.timeline()
    assert len(provider.requests) == 400
    for number in range(400):
        messages = list(provider.requests[number].messages)
        validate(messages)
        if number % 25 == 0:
            check_wires(messages)
        if number:
            assert sum("token is 4711" in each for each in results(messages)) == 1
            login = next(each for each in messages if isinstance(each, ToolMessage) and each.name == "login")
            assert login.content == "the session token is 4711; " + "keep it. " * 10
    learned = true[40:]  # the first ones come before the model's own count is known
    assert max(learned) <= window * 1.02
    assert max(learned) > window * 0.6
    whole = result.messages
    assert len(whole) > 1000
    assert sum(1 for each in whole if isinstance(each, ToolMessage) and each.content.startswith("[")) == 0
    left_out = {each.turns_omitted for each in compressed}
    assert 3 < len(left_out) < 40  # so rarely does the beginning of what is sent change
    assert max(left_out) > 150


async def test_what_cannot_fit_fails_before_the_model_is_asked() -> None:
    provider = ScriptedProvider([text("never")])
    async with Runtime(provider, compression=Compression(max_context_tokens=300)) as runtime:
        result = await runtime.start("word " * 1000).result()
    assert (result.outcome, result.reason) == ("failed", "context_overflow")
    assert isinstance(result.error, ContextOverflow)
    assert result.error.__traceback__ is not None, "the error itself, and not one of its kind"
    assert "does not fit max_context_tokens=300: its messages take about 10" in str(result.error)
    assert provider.requests == []


async def test_instructions_and_tools_take_their_share_of_the_window() -> None:
    history: list[Message] = []
    for number in range(30):
        history += [UserMessage(content=f"q{number} " * 30), AssistantMessage(text="a " * 30)]
    narrow = ScriptedProvider([text("done")])
    wide = ScriptedProvider([text("done")])
    compression = Compression(max_context_tokens=1500)
    await RequestSession(EventBus(), wide, [*history, UserMessage(content="?")], compression=compression).run()
    await RequestSession(
        EventBus(),
        narrow,
        [*history, UserMessage(content="?")],
        compression=compression,
        instructions="Be brief. " * 200,
    ).run()
    assert len(sent(narrow)) < len(sent(wide)) < len(history)


async def test_a_conversation_goes_on_sending_what_it_has_sent() -> None:
    """The provider's prompt cache lives on what requests have in common at their beginning."""
    provider = ScriptedProvider(lambda _request: text("answer " * 40))
    compression = Compression(max_context_tokens=1000)
    async with Runtime(provider, compression=compression) as runtime:
        for turn in range(40):
            await runtime.run(f"question {turn} " * 10, conversation_id="c")
    alike = 0
    for earlier, later in zip(provider.requests, provider.requests[1:], strict=False):
        alike += list(later.messages)[: len(earlier.messages)] == list(earlier.messages)
    assert alike >= 25


# -------------------------------------------------------------------------------------------- a provider that refuses


async def carry_out(provider: Any, messages: Any, **options: Any) -> tuple[RequestResult[Any], list[Event]]:
    bus = EventBus()
    seen: list[Event] = []
    for kind in (ModelRetrying, HistoryCompressed, RoundStarted, RequestFailed):
        bus.connect(kind, seen.append)
    result = await RequestSession(bus, provider, messages, **options).run()
    return result, seen


async def test_a_refusal_for_length_shortens_the_history_and_asks_once_more() -> None:
    provider = ScriptedProvider([too_long(), text("here")])
    result, seen = await carry_out(provider, talk(20))
    assert (result.outcome, result.text, result.rounds) == ("completed", "here", 1)
    assert [type(each) for each in seen] == [RoundStarted, ModelRetrying, HistoryCompressed]
    assert isinstance(seen[1], ModelRetrying)
    assert (seen[1].reason, seen[1].delay_seconds) == ("context_overflow", 0.0)
    before, after = (sum(map(estimate_message, sent(provider, number))) for number in range(2))
    assert after <= before / 2
    assert result.messages[:-1] == [*talk(20)[:-1], result.messages[-2]]


async def test_the_limit_that_the_server_tells_is_made_use_of() -> None:
    provider = ScriptedProvider([too_long(1000), text("here")])
    result, _ = await carry_out(provider, talk(40))
    assert result.ok
    assert sum(map(estimate_message, sent(provider))) <= 900


async def test_the_second_refusal_ends_the_request() -> None:
    provider = ScriptedProvider([too_long(), too_long()])
    result, seen = await carry_out(provider, talk(20))
    assert (result.outcome, result.reason) == ("failed", "context_overflow")
    assert len([each for each in seen if isinstance(each, ModelRetrying)]) == 1
    assert isinstance(result.error, ContextOverflow)


async def test_what_cannot_be_shortened_is_not_sent_again() -> None:
    provider = ScriptedProvider([too_long()])
    result, _ = await carry_out(provider, "word " * 500)
    assert (result.outcome, result.reason) == ("failed", "context_overflow")
    assert str(result.error).endswith("nothing is left to shorten: prompt is too long"), "the server knows the numbers"
    assert len(provider.requests) == 1


async def test_each_round_may_be_refused_once() -> None:
    provider = ScriptedProvider([too_long(), calls(("fetch", {})), too_long(), text("here")])
    result, seen = await carry_out(
        provider, talk(30), tools=[plain("fetch", "word " * 100).spec], limits=Limits(tool_timeout_seconds=1)
    )
    assert result.ok
    assert len([each for each in seen if isinstance(each, ModelRetrying)]) == 2


async def test_a_conversation_remembers_how_much_was_too_much() -> None:
    long = text("one " * 200)
    provider = ScriptedProvider([long, long, too_long(), *[long] * 5])
    async with Runtime(provider) as runtime:
        for turn in range(7):
            await runtime.run(f"turn {turn}", conversation_id="c")
    assert len(provider.requests) == 8
    sizes = [sum(map(estimate_message, sent(provider, number))) for number in range(8)]
    assert max(sizes[3:]) < sizes[2] * 0.8


# ------------------------------------------------------------------------------------------------------------- summaries


async def test_turns_that_leave_are_summed_up_and_the_summary_is_paid_for() -> None:
    quick = ScriptedProvider(
        [text("They asked questions.", usage=Usage(input_tokens=70, output_tokens=7))], vendor="quick"
    )
    provider = ScriptedProvider([text("here", usage=Usage(input_tokens=100, output_tokens=10))])
    compression = Compression(max_context_tokens=2000, summarizer=Summarizer(quick))
    prices = {
        "quick:script": Price(input_per_million=1_000_000, output_per_million=0),
        "*": Price(input_per_million=1, output_per_million=1),
    }
    result, seen = await carry_out(provider, talk(20), compression=compression, prices=prices)
    assert result.ok
    assert result.usage == Usage(input_tokens=170, output_tokens=17)
    assert result.cost == pytest.approx(70, abs=0.01)
    (reported,) = (each for each in seen if isinstance(each, HistoryCompressed))
    assert reported.summary == "They asked questions."
    assert reported.usage == Usage(input_tokens=70, output_tokens=7)
    note = sent(provider)[0]
    assert isinstance(note, SystemMessage)
    assert note.text.endswith("In short:]\nThey asked questions.")
    asked = quick.requests[0].messages
    assert "User: question 0" in str(asked[1])
    assert "Assistant: answer" in str(asked[1])


async def test_later_summaries_go_on_from_earlier_ones_over_the_turns_of_a_conversation() -> None:
    provider = ScriptedProvider(lambda _request: text("answer " * 100))
    quick = ScriptedProvider(lambda request: text(f"summary {len(quick.requests)}"))
    compression = Compression(max_context_tokens=1000, summarizer=Summarizer(quick))
    async with Runtime(provider, compression=compression) as runtime:
        for turn in range(20):
            assert (await runtime.run(f"question {turn} " * 10, conversation_id="c")).ok
            sent(provider)
    assert 2 <= len(quick.requests) <= 10
    assert "Summary of what came before:\nsummary 1\n" in str(quick.requests[1].messages[1].content)  # type: ignore[union-attr]
    assert "question 0" not in str(quick.requests[1].messages)


async def test_a_request_that_asks_no_model_leaves_the_summary_to_the_next_one() -> None:
    class Closed(Interceptor):
        async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
            raise Denied("closed")

    provider = ScriptedProvider(lambda _request: text("answer"))
    quick = ScriptedProvider(lambda _request: text("a summary"))
    compression = Compression(max_context_tokens=1000, summarizer=Summarizer(quick))
    async with Runtime(provider, compression=compression) as runtime:
        while not quick.requests:
            await runtime.run("question " * 100, conversation_id="c")
        await runtime.start("now", conversation_id="c", interceptors=[Closed()]).result()
        # The fold of the turns before was made with other options, so that only the summary is left.
        await runtime.run(
            "now", conversation_id="c", compression=Compression(max_context_tokens=1001, summarizer=Summarizer(quick))
        )
    assert len(quick.requests) == 1
    assert "a summary" in str(sent(provider, -1))


@pytest.mark.parametrize("failure", [error(ProviderUnavailable("away", vendor="quick")), text(" ")])
async def test_without_a_summary_the_turns_leave_all_the_same(failure: Any, caplog: pytest.LogCaptureFixture) -> None:
    provider = ScriptedProvider([text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Summarizer(ScriptedProvider([failure])))
    result, _ = await carry_out(provider, talk(20), compression=compression)
    assert result.ok
    note = sent(provider)[0]
    assert isinstance(note, SystemMessage)
    assert note.text.endswith("left out here.]")
    assert "the history was not summed up" in caplog.text or "has no text, and is not used" in caplog.text


async def test_a_summary_is_made_by_the_request_s_own_model_where_no_other_is_given() -> None:
    provider = ScriptedProvider([text("in short"), text("here")])
    compression = Compression(max_context_tokens=1000, summarizer=Summarizer())
    result, _ = await carry_out(provider, talk(20), compression=compression)
    assert result.text == "here"
    assert "at most 300 words" in str(provider.requests[0].messages[0])


# ------------------------------------------------------------------------------------------------ what is valid, and not


class Cutting(Interceptor):
    """An application that cuts the history itself, in the middle of a round."""

    async def around_model(self, request: ModelRequest, context: Any, ask: Any) -> ModelReply:
        return await ask(replace(request, messages=list(request.messages)[2:]))


@pytest.mark.guarantee("G08")
async def test_a_history_that_an_interceptor_breaks_is_repaired_before_it_is_sent() -> None:
    provider = ScriptedProvider([text("done")])
    history = [
        UserMessage(content="hello"),
        AssistantMessage(tool_calls=(ToolCall(name="a", call_id="1"),)),
        ToolMessage(call_id="1", name="a", content="x"),
        AssistantMessage(text="hm"),
        UserMessage(content="more"),
    ]
    result, _ = await carry_out(provider, history, interceptors=[Cutting()])
    assert result.ok
    assert sent(provider) == [UserMessage(content="more", message_id=result.messages[4].message_id)]


BROKEN: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "lost", "content": "x"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "a", "arguments": "{}"}}]},
    {"role": "user", "content": "are you there?"},
    {"role": "assistant", "content": "yes"},
]


@pytest.mark.guarantee("G08")
async def test_a_broken_history_is_refused_with_its_index_and_repaired_when_asked() -> None:
    provider = ScriptedProvider([text("done")])
    async with Runtime(provider) as runtime:
        with pytest.raises(InvalidHistory, match=r"history\[0\]: a tool message"):
            await runtime.run("?", history=BROKEN)
        result = await runtime.run("?", history=BROKEN, repair_history=True)
    assert [each.role for each in sent(provider)] == ["user", "assistant", "tool", "user", "assistant", "user"]
    assert result.ok


@pytest.mark.parametrize("finish_reason", ["content_filter", "refusal"])
async def test_a_reply_that_was_withheld_is_not_asked_for_again(finish_reason: Any) -> None:
    provider = ScriptedProvider([text("", finish_reason=finish_reason)])
    result, seen = await carry_out(provider, "hi")
    assert (result.outcome, result.reason) == ("failed", "content_filtered")
    assert "the provider gave no answer" in str(result.error)
    assert not any(isinstance(each, ModelRetrying) for each in seen)
