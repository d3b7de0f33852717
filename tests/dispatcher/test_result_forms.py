"""What the model gets of a result: all of it, a summary, or its message alone; listeners always have the whole."""

from __future__ import annotations

import functools
import logging
from typing import Any

import anyio
import pytest
from dispatch_desk import Desk, View

from toolbus import Interceptor, Runtime, ToolDispatcher, ToolRegistry, ToolResult, sub_request_tool, tool
from toolbus.errors import ConfigurationError
from toolbus.events import ToolCallCompleted, ToolCallLate, ToolCallRequested, decode, encode
from toolbus.messages import ImagePart, ToolMessage
from toolbus.records import replace
from toolbus.request_result import RequestResult
from toolbus.runtime._conversations import LateResultNotes
from toolbus.testing import ScriptedProvider, calls, text
from toolbus.tool_results import RenderedResult
from toolbus.tools import Tool, ToolContext

ROWS = [{"id": 1}, {"id": 2}]
PLOT = ImagePart.from_bytes(b"plot", "image/png")


def count_rows(data: Any) -> str:
    return f"{len(data)} rows"


def giving(value: Any, **options: Any) -> Tool:
    async def look() -> Any:
        return value

    return Tool("look", handler=look, **options)


async def result_of(made: Tool, **options: Any) -> RequestResult[Any]:
    provider = ScriptedProvider([calls(("look", {})), text("Done.")])
    async with Runtime(provider, tools=[made], **options) as runtime:
        return await runtime.run("Look.")


async def content_of(made: Tool, **options: Any) -> str:
    """What the model reads."""
    result = await result_of(made, **options)
    (message,) = [each for each in result.messages if isinstance(each, ToolMessage)]
    return message.content


# ------------------------------------------------------------------------------------------------ without data


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (ROWS, '{"ok":true}'),
        (0, '{"ok":true}'),
        (ToolResult(message="Two.", data=ROWS), '{"ok":true,"message":"Two."}'),
        (ToolResult(data=ROWS, affected=["a", "b"]), '{"ok":true,"affected":2}'),
        (ToolResult(message="None."), '{"ok":true,"message":"None."}'),
        ("a text is no data", "a text is no data"),
        (None, '{"ok":true}'),
        (["words", PLOT], "words"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_without_data_the_model_gets_the_message_alone(value: Any, content: str):
    assert await content_of(giving(value, include_data=False)) == content
    assert await content_of(giving(value), include_data=False) == content


async def test_what_a_tool_says_comes_before_what_the_request_says():
    assert await content_of(giving(ROWS, include_data=True), include_data=False) == '[{"id":1},{"id":2}]'
    assert await content_of(giving(ROWS, include_data=False), include_data=True) == '{"ok":true}'
    assert await content_of(giving(ROWS, summarize=count_rows), include_data=False) == "2 rows"
    assert await content_of(giving(ROWS)) == '[{"id":1},{"id":2}]'


async def test_one_request_may_go_without_data_and_the_next_one_have_it():
    provider = ScriptedProvider([calls(("look", {})), text("Done.")] * 2)
    async with Runtime(provider, tools=[giving(ROWS)]) as runtime:
        bare = await runtime.run("Look.", include_data=False)
        whole = await runtime.run("Look.")
    assert [each.tool_calls[0].content for each in (bare, whole)] == ['{"ok":true}', '[{"id":1},{"id":2}]']


async def test_the_data_is_whole_for_listeners_and_on_the_result():
    desk = Desk(view=View())
    async with ToolDispatcher(desk.bus, ToolRegistry([giving(ROWS, include_data=False)])):
        desk.ask("look")
        assert (await desk.completed()).data == ROWS
    desk.leave()
    result = await result_of(giving(ToolResult(data=ROWS, affected=["a"])), include_data=False)
    assert (result.tool_calls[0].data, result.affected) == (ROWS, ["a"])


# -------------------------------------------------------------------------------------------------- summaries


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (ROWS, "of list: 2"),
        ({"a": 1}, "of dict: 1"),
        ("words", "of str: 5"),
        ((1, 2, 3), "of list: 3"),
        (None, '{"ok":true}'),
        (ToolResult(message="Two.", data=ROWS), '{"ok":true,"message":"Two.","data":"of list: 2"}'),
        (ToolResult(data=ROWS, affected=["a"]), '{"ok":true,"affected":1,"data":"of list: 2"}'),
        (ToolResult(message="None."), '{"ok":true,"message":"None."}'),
        (["words", PLOT], "of str: 5"),
        (PLOT, '{"ok":true}'),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_summary_stands_in_the_place_of_the_data(value: Any, content: str):
    def summarize(data: Any) -> str:
        return f"of {type(data).__name__}: {len(data)}"

    assert await content_of(giving(value, summarize=summarize)) == content


async def test_a_summary_is_made_of_json_and_is_text_that_json_can_carry():
    seen: list[Any] = []

    def summarize(data: Any) -> str:
        seen.append(data)
        data.clear()
        return "half \ud83d"

    value = {"rows": (1, 2)}
    result = await result_of(giving(value, summarize=summarize))
    assert result.tool_calls[0].content == "half ?"
    assert value == {"rows": (1, 2)}


def raising(_data: Any) -> str:
    raise KeyError("total")


def giving_no_text(data: Any) -> Any:
    return len(data)


@pytest.mark.parametrize(
    ("summarize", "why"),
    [(raising, "KeyError: 'total'"), (giving_no_text, "TypeError: it returned an int; it has to return a text")],
)
async def test_a_summary_that_fails_leaves_the_data_and_a_line_in_the_log_since_the_tool_has_done_its_work(
    summarize: Any, why: str, caplog: pytest.LogCaptureFixture
):
    value = ToolResult(message="Sent.", data=ROWS)
    with caplog.at_level(logging.WARNING, "toolbus.dispatcher"):
        result = await result_of(giving(value, summarize=summarize))
    (call,) = result.tool_calls
    assert (call.ok, call.content) == (True, '{"ok":true,"message":"Sent.","data":[{"id":1},{"id":2}]}')
    (record,) = [each for each in caplog.records if "summarize" in each.message]
    assert record.message.endswith(": summarize of tool look failed")
    assert caplog.text.endswith(f"{why}\n")
    assert vars(record)["call_id"] == call.call_id


# ---------------------------------------------------------------------------------------------- along the way


async def test_requests_that_share_a_kept_result_each_get_their_own_part_of_it():
    @tool(cache_seconds=60)
    async def look() -> list[dict[str, int]]:
        """Look."""
        return ROWS

    provider = ScriptedProvider([calls(("look", {}), ("look", {})), text("Done.")] * 3)
    async with Runtime(provider, tools=[look]) as runtime:
        bare = await runtime.run("Look.", include_data=False)
        whole = await runtime.run("Look.")
        again = await runtime.run("Look.", include_data=False)
    assert [[call.content for call in each.tool_calls] for each in (bare, whole, again)] == [
        ['{"ok":true}'] * 2,
        ['[{"id":1},{"id":2}]'] * 2,
        ['{"ok":true}'] * 2,
    ]
    assert all(call.data == ROWS for each in (bare, whole, again) for call in each.tool_calls)


async def test_a_kept_result_is_summarised_for_each_call():
    made = giving(ROWS, cache_seconds=60, summarize=count_rows)
    provider = ScriptedProvider([calls(("look", {}), ("look", {})), calls(("look", {})), text("Done.")])
    async with Runtime(provider, tools=[made]) as runtime:
        result = await runtime.run("Look.")
    assert [call.content for call in result.tool_calls] == ["2 rows"] * 3


class Redacting(Interceptor):
    """Sees what the model would read, and has the last word."""

    def __init__(self) -> None:
        self.seen: list[RenderedResult] = []

    async def after_tool(
        self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
    ) -> RenderedResult:
        self.seen.append(result)
        return replace(result, content=f"<{result.content}>")


async def test_interceptors_see_what_the_model_would_and_their_word_is_the_last():
    redacting = Redacting()
    made = giving(["two", PLOT], summarize=str.upper)
    result = await result_of(made, interceptors=[redacting])
    (message,) = [each for each in result.messages if isinstance(each, ToolMessage)]
    assert (message.content, message.parts) == ("<TWO>", (PLOT,))
    assert redacting.seen[0].parts == (PLOT,)


async def test_sub_requests_go_without_data_as_the_request_above_them_does():
    seen: list[ToolCallCompleted] = []
    inner = ScriptedProvider([calls(("look", {})), text("Found.")])
    ask = sub_request_tool("ask", "Ask.", provider=inner, tools=[giving(ROWS)])
    outer = ScriptedProvider([calls(("ask", {"task": "look"})), text("Done.")])
    async with Runtime(outer, tools=[ask], include_data=False) as runtime:
        runtime.bus.connect(ToolCallCompleted, seen.append)
        await runtime.run("Ask.")
    assert [(each.name, each.content) for each in seen] == [
        ("look", '{"ok":true}'),
        ("ask", '{"ok":true,"message":"Found."}'),
    ]


async def test_what_a_sub_request_has_affected_is_gathered_and_counted_above():
    made = giving(ToolResult(affected=["a", "b"]))
    inner = ScriptedProvider([calls(("look", {})), text("Changed.")])
    ask = sub_request_tool("ask", "Ask.", provider=inner, tools=[made])
    outer = ScriptedProvider([calls(("ask", {"task": "change"})), text("Done.")])
    async with Runtime(outer, tools=[ask]) as runtime:
        result = await runtime.run("Ask.")
    assert result.affected == ["a", "b"]
    assert result.tool_calls[0].content == '{"ok":true,"message":"Changed.","affected":2}'


async def test_images_stand_in_the_transcript_beside_the_text():
    result = await result_of(giving(ToolResult(message="Drawn.", parts=[PLOT])))
    (message,) = [each for each in result.messages if isinstance(each, ToolMessage)]
    assert (message.content, message.parts) == ('{"ok":true,"message":"Drawn."}', (PLOT,))


async def test_a_late_result_has_its_images_and_the_note_for_the_next_turn_says_that_it_has_not():
    begun, let_go = anyio.Event(), anyio.Event()

    @tool(summarize=str.upper)
    async def draw() -> list[str | ImagePart]:
        """Draw."""
        begun.set()
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        return ["a plot", PLOT]

    desk, late_notes = Desk(), LateResultNotes()
    desk.mailbox.late = "next_turn"
    desk.bus.connect(ToolCallLate, late_notes)
    async with ToolDispatcher(desk.bus, ToolRegistry([draw])):
        desk.ask("draw")
        await begun.wait()
        desk.settle()
        let_go.set()
        (late,) = await desk.hear(ToolCallLate)
    desk.leave()
    assert (late.content, late.parts) == ("A PLOT", (PLOT,))
    assert decode(encode(late)) == late
    (note,) = late_notes.take("conversation", (), late_notes.of("conversation"))
    assert note.text.endswith("gave: A PLOT\n(images and files left out: 1)")


# ---------------------------------------------------------------------------------------------------- options


def test_what_a_tool_says_of_its_results_stands_on_its_spec():
    spec = giving(1, kind="query", keep_full_results=True, max_result_chars=500).spec
    assert (spec.kind, spec.keep_full_results, spec.max_result_chars) == ("query", True, 500)
    spec = giving(1).spec
    assert (spec.kind, spec.keep_full_results, spec.max_result_chars) == ("", False, None)


async def summarize_later(_data: Any) -> str:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"kind": "read"}, "kind is 'read'; say 'query' or 'action'"),
        ({"kind": ["query"]}, "kind is .*; say 'query' or 'action'"),
        ({"keep_full_results": "yes"}, "keep_full_results is 'yes'; say True or False"),
        ({"max_result_chars": 199}, "max_result_chars is 199; it must be a whole number of at least 200"),
        ({"max_result_chars": 1e6}, "max_result_chars is 1000000.0"),
        ({"max_result_chars": True}, "max_result_chars is True"),
        ({"include_data": "no"}, "include_data is 'no'; say True or False"),
        ({"summarize": "short"}, "summarize is 'short'; pass a function, not async, that takes the data"),
        ({"summarize": lambda: ""}, "summarize is .*; pass a function"),
        ({"summarize": summarize_later}, "summarize is .*; pass a function, not async"),
        ({"summarize": functools.partial(summarize_later)}, "summarize is .*; pass a function, not async"),
        ({"summarize": str, "include_data": False}, "summarize replaces the data, .*; pass one of them"),
        ({"summarize": str, "include_data": True}, "summarize replaces the data, .*; pass one of them"),
    ],
    ids=[f"wrong-{number}" for number in range(13)],
)
def test_options_that_make_no_sense_are_refused_when_the_tool_is_made(options: dict[str, Any], reported: str):
    with pytest.raises(ConfigurationError, match=f"tool 'look': {reported}"):
        giving(1, **options)


@pytest.mark.parametrize("options", [{"include_data": False}, {"summarize": str}], ids=["data", "summary"])
def test_who_answers_an_external_tool_says_what_the_model_reads(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="it is external, so its executor decides"):
        Tool("look", "Look.", {"type": "object"}, external=True, **options)
