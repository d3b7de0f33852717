"""The real clients from npm against a real server: `ai` 6 and 7 (under `useChat`), `@ag-ui/client` 1 and CopilotKit's.

They validate what they read. What they end with is the transcript, byte for byte.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import anyio
import pytest
from ui_app import CLIENT_TOOLS, PIXEL, SCENES, TOOLS, Chat

from support import npm_servers
from support.http_serving import serving
from toolbus import Runtime
from toolbus.messages import AssistantMessage, ImagePart, ToolMessage, UserMessage
from toolbus.request_result import RequestResult
from toolbus.testing import ScriptedProvider

CLIENTS = npm_servers.LOCKED.parents[1] / "web" / "clients.mjs"
AGENTS = ["agui", "agui-0"]
KINDS = ["6", "7", *AGENTS]
CLOSED = "This question is no longer open."
Ended = dict[str, tuple[dict[str, Any], RequestResult[Any]]]
"""By scene: the client's report, and the result of its request."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Outside of the tests, whose calls have deadlines."""
    npm_servers.installed()


@functools.cache
def ended(kind: str) -> Ended:
    """What a client ends with in each scene. It plays them one after the other, since it takes a second to begin."""
    return anyio.run(_played, kind)


async def _played(kind: str) -> Ended:
    async with Runtime(ScriptedProvider([]), tools=TOOLS, on_approval="wait") as runtime:
        chat = Chat(runtime)
        async with serving(chat.app) as server:
            address = str(server.client.base_url).rstrip("/")
            command = [npm_servers.node(), str(CLIENTS), str(npm_servers.installed()), address, kind, *SCENES]
            done = await anyio.run_process(command, check=False)
            assert done.returncode == 0, done.stderr.decode()[-3000:]
            with anyio.fail_after(30):
                results = [await session.result() for session in chat.sessions]
    reports: dict[str, Any] = json.loads(done.stdout)
    return {scene: (reports[scene], result) for scene, result in zip(SCENES, results, strict=True)}


def ends_with(kind: str, scene: str) -> tuple[dict[str, Any], RequestResult[Any]]:
    report, result = ended(kind)[scene]
    assert result.outcome == {"error": "failed", "cancel": "cancelled"}.get(scene, "completed")
    return report, result


@pytest.mark.parametrize("version", ["6", "7"])
@pytest.mark.parametrize("scene", SCENES)
def test_use_chat_ends_with_the_transcript(scene: str, version: str):
    report, result = ends_with(version, scene)
    if scene == "error":
        assert report["errors"] == ["Error: I could not finish because of an internal error."]
        assert report["status"] == "error"
        assert "secret" not in json.dumps(report)
    else:
        assert report["errors"] == []
        assert report["status"] == "ready"
    user, page = report["messages"]
    assert user["role"] == "user"
    assert page["id"] == result.request_id
    check_page(page["parts"], result, scene, version)
    if scene not in {"error", "cancel", "retry"}:
        (late,) = report["late"]
        assert visible(late["parts"]) == visible(page["parts"])


@pytest.mark.parametrize("version", ["6", "7"])
def test_use_chat_that_comes_back_at_any_of_fifty_points_ends_with_the_same(version: str):
    report, _ = ends_with(version, "rejoin")
    whole = visible(report["messages"][-1]["parts"])
    assert len(report["rejoined"]) == 50
    assert report["points"] > 10  # different ones, in the middle of the answer
    for messages in report["rejoined"]:
        (again,) = messages
        assert again["id"] == report["messages"][-1]["id"]
        assert visible(again["parts"]) == whole


def visible(parts: list[dict[str, Any]]) -> list[Any]:
    """What a person sees of a message."""
    shown = [{name: each.get(name) for name in ("type", "text", "output", "errorText")} for each in parts]
    return [each for each in shown if each["type"] != "step-start"]


def check_page(parts: list[dict[str, Any]], result: RequestResult[Any], scene: str, version: str) -> None:
    """Compare a message of a page with the transcript."""
    replies = [each for each in result.new_messages if isinstance(each, AssistantMessage)]
    messages = [each.text for each in result.new_messages[1:] if isinstance(each, UserMessage)]
    assert [each["data"]["text"] for each in parts if each["type"] == "data-steered"] == messages
    texts = [each["text"] for each in parts if each["type"] == "text"]
    if scene == "retry" and version == "6":
        assert texts.pop(0) == "I begin bad"
    assert texts == [each.text for each in replies if each.text]
    assert [each["text"] for each in parts if each["type"] == "reasoning"] == [
        each.reasoning for each in replies if each.reasoning
    ]
    assert all(each.get("state") in {None, "done"} for each in parts if each["type"] in {"text", "reasoning"}), parts
    calls = {each["toolCallId"]: each for each in parts if "toolCallId" in each}
    results = [each for each in result.new_messages if isinstance(each, ToolMessage)]
    if scene == "retry" and version == "6":
        void = [each["state"] for call_id, each in calls.items() if "~" not in call_id]
        assert void == ["output-error"] * 2
        calls = {call_id: each for call_id, each in calls.items() if "~" in call_id}
    below = {call_id: each for call_id, each in calls.items() if not call_id.startswith(f"{result.request_id}_")}
    assert [each["toolName"] for each in below.values()] == (["remove", "remove"] if scene == "below" else [])
    assert all(each["output"] == CLOSED for each in below.values())
    calls = {call_id: each for call_id, each in calls.items() if call_id not in below}
    assert {each.partition("~")[0] for each in calls} == {each.call_id for each in results}
    for message in results:
        check_call(calls.get(f"{message.call_id}~2") or calls[message.call_id], message)


def check_call(part: dict[str, Any], message: ToolMessage) -> None:
    """Compare a call on a page with its result."""
    assert part["type"] == (f"tool-{message.name}" if message.name in CLIENT_TOOLS else "dynamic-tool")
    if message.is_error:
        assert part["state"] in {"output-error", "output-denied"}
        assert part["state"] == "output-denied" or part["errorText"] in message.content
    else:
        assert part["state"] == "output-available"
        output = part["output"]
        if message.parts:
            assert output["value"][0] == {"type": "text", "text": message.content}
            assert PIXEL.endswith(output["value"][1]["data"])
        else:
            assert output == (json.loads(message.content) if isinstance(output, dict) else message.content)


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("scene", SCENES)
def test_an_agent_of_ag_ui_ends_with_the_transcript(scene: str, kind: str):
    report, result = ends_with(kind, scene)
    expected = ["I could not finish because of an internal error."] if scene == "error" else []
    assert report["errors"] == expected
    messages = report["messages"]
    roles = ("user", "assistant", "tool", "reasoning")
    by_role = {role: [each for each in messages if each["role"] == role] for role in roles}
    steered = [each.text for each in result.new_messages[1:] if isinstance(each, UserMessage)]
    assert [each["content"] for each in by_role["user"][1:]] == steered
    replies = [each for each in result.new_messages if isinstance(each, AssistantMessage)]
    texts = [each["content"] for each in by_role["assistant"] if each.get("content")]
    if scene == "retry":
        assert texts.pop(0) == "I begin bad"
    assert texts == [each.text for each in replies if each.text]
    assert [each["content"] for each in by_role["reasoning"]] == [each.reasoning for each in replies if each.reasoning]
    made = {call["id"]: call["function"] for each in by_role["assistant"] for call in each.get("toolCalls", ())}
    for reply in replies:
        for call in reply.tool_calls:
            shown = made.get(f"{call.call_id}~2") or made[call.call_id]
            assert shown == {"name": call.name, "arguments": call.arguments}
    answers = {each["toolCallId"]: each["content"] for each in by_role["tool"]}
    assert answers.keys() == made.keys()
    assert len(answers) == len(by_role["tool"]), "a result came twice"
    below = [answer for call_id, answer in answers.items() if not call_id.startswith(f"{result.request_id}_")]
    assert below == ([CLOSED, CLOSED] if scene == "below" else [])
    for message in result.new_messages:
        if isinstance(message, ToolMessage):
            check_answer(answers.get(f"{message.call_id}~2") or answers[message.call_id], message, kind)
    if scene == "cancel":
        assert report.get("outcome") == ({"type": "cancelled"} if kind == "agui" else None)


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_page_of_ag_ui_that_connects_after_each_run_has_the_same_messages_and_questions(scene: str, kind: str):
    report, _ = ends_with(kind, scene)
    assert len(report["loaded"]) == report["turns"]
    for loaded in report["loaded"]:
        assert loaded["asks"] == loaded["asked"]
        others, results = as_seen(loaded["messages"])
        if scene in {"retry", "below"} and loaded is report["loaded"][-1]:
            # A reply that was abandoned and the questions of sub-requests are not part of the conversation.
            assert results.items() <= as_seen(loaded["as"])[1].items() or scene == "retry"
            assert others[-1] == loaded["as"][-1]
        else:
            assert (others, results) == as_seen(loaded["as"])


@pytest.mark.parametrize("kind", AGENTS)
def test_an_agent_of_ag_ui_that_connects_at_any_of_fifty_points_ends_with_the_same(kind: str):
    report, _ = ends_with(kind, "rejoin")
    assert len(report["rejoined"]) == 50
    assert report["points"] > 10  # different ones, in the middle of the answer
    for page in report["rejoined"]:
        assert as_seen(page["messages"]) == as_seen(report["messages"])


def as_seen(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages without the ids that a page itself has chosen, and the results, which arrive in any order."""
    others = [
        {**each, "id": each["id"] if each["role"] != "user" else ""} for each in messages if each["role"] != "tool"
    ]
    return others, {each["toolCallId"]: each["content"] for each in messages if each["role"] == "tool"}


def check_answer(content: Any, message: ToolMessage, kind: str) -> None:
    """Compare a result on a page with the transcript."""
    if message.parts and kind == "agui":
        assert content[0] == {"type": "text", "text": message.content}
        assert content[1]["source"]["mimeType"] == "image/png"
    elif message.is_error:
        assert content in message.content
    else:
        assert content == message.content


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_the_user_reach_the_model(kind: str):
    _, result = ends_with(kind, "image")
    (prompt, *_) = result.new_messages
    assert isinstance(prompt, UserMessage)
    assert prompt.content[-1 if kind in AGENTS else 0] == ImagePart(url="data:image/png;base64,iVBORw0KGgo=")


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_and_results_of_the_page_count(kind: str):
    _, result = ends_with(kind, "approval")
    assert [(each.name, each.ok, each.reason) for each in result.tool_calls] == [
        ("remove", True, ""),
        ("remove", False, "denied"),
        ("weather", True, ""),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_of_the_page_on_calls_of_sub_requests_count(kind: str):
    _, result = ends_with(kind, "below")
    assert result.affected == ["/a", "/c"]
    assert [(each.name, each.ok) for each in result.tool_calls] == [("clerk", True), ("clerk", True), ("remove", True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_runs_its_own_tools_after_the_decision(kind: str):
    report, result = ends_with(kind, "permit")
    assert [(each.ok, each.reason) for each in result.tool_calls] == [(True, ""), (False, "denied")]
    assert report["ran"] == ([] if kind in AGENTS else [{"path": "/a"}])


@pytest.mark.anyio
async def test_a_stream_that_the_server_cancels_has_a_last_frame():
    runtime = Runtime(ScriptedProvider([]), tools=TOOLS)
    async with runtime, serving(Chat(runtime).app, graceful_seconds=0) as server:
        body = {"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
        async with server.client.stream("POST", "/vercel/cancel", json=body) as response:
            lines = response.aiter_lines()
            with anyio.fail_after(30):
                while "I am" not in await anext(lines):
                    pass
                server.stop()
                rest = [each async for each in lines if each.startswith("data:")]
    assert json.loads(rest[-2].removeprefix("data: "))["type"] == "error"
    assert rest[-1] == "data: [DONE]"
