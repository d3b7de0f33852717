"""Checks of the answers to calls: results and failures."""

from __future__ import annotations

import copy
from typing import Any

from ....events import Artifact, ToolCallCompleted
from ....messages import ImagePart
from .._checks import json_or_text
from ._bench import Bench, Caller, check

_TEXT = " Zürich 😀\x00\n"
_SECRET = "the password is swordfish"  # noqa: S105 -- an invented one


@check("text")
async def text(bench: Bench) -> None:
    """The text that a handler returns is the content, unchanged; an empty text too."""
    async with bench.executor() as caller:
        for said in (_TEXT, ""):
            bench.expect("the content", said, (await caller.completed("contract_echo", said=said)).content)


@check("sync-handlers", "sync")
async def sync_handlers(bench: Bench) -> None:
    """A handler that is not async runs like any other."""
    async with bench.executor() as caller:
        bench.expect("the content", _TEXT, (await caller.completed("contract_echo_sync", said=_TEXT)).content)


@check("values")
async def values(bench: Bench) -> None:
    """A returned value is the data, and the content is its JSON; `None` becomes `{"ok": true}`."""
    value: dict[str, Any] = {"city": "Zürich", "list": [1, 2.5, None, True, {}]}
    async with bench.executor() as caller:
        answer = await caller.completed("contract_value", value=value)
        bench.expect("the data", value, answer.data)
        bench.expect("the content, read as JSON", value, json_or_text(answer.content))
        nothing = await caller.completed("contract_value")
        bench.expect("the content of None, read as JSON", {"ok": True}, json_or_text(nothing.content))
        bench.expect("the data of None", None, nothing.data)


@check("whole-results")
async def whole_results(bench: Bench) -> None:
    """All of a `ToolResult` arrives: message, data, images, artifacts, and the list of what was affected."""
    async with bench.executor() as caller:
        answer = await caller.completed("contract_result", message="Done: 😀", data={"a": [1]})
    written = json_or_text(answer.content)
    bench.require("the content", "has the message", written, ok="message" in written and "Done: 😀" in answer.content)
    bench.expect("the data", {"a": [1]}, answer.data)
    bench.expect("the parts", (ImagePart(url="data:image/png;base64,aGVsbG8="),), answer.parts)
    bench.expect("the artifacts", (Artifact(name="notes.txt", content="kept 😀"),), answer.artifacts)
    bench.expect("what was affected", ("a.txt", "b.txt"), answer.affected)


@check("unserializable-results")
async def unserializable_results(bench: Bench) -> None:
    """A result that is not JSON, for example bytes or a cycle, fails the call, and the error names the type."""
    async with bench.executor() as caller:
        for kind, word in (("bytes", "bytes"), ("cycle", "list")):
            answer = await caller.failed("contract_unwritable", kind=kind)
            bench.expect(f"the reason for {kind}", "error", answer.reason)
            bench.require(f"the error for {kind}", f"names {word}", answer.error, ok=word in answer.error)


@check("ids")
async def ids(bench: Bench) -> None:
    """Answers carry the call's ids, its tool's name and the application's metadata, whether they succeed or fail."""
    names = ("request_id", "conversation_id", "parent_id", "metadata", "call_id", "name")
    async with bench.executor() as caller:
        calls = [caller.ask("contract_echo", said="a"), caller.ask("contract_fail", way="tool_error", text="no")]
        for requested, answer in zip(calls, await caller.answers(calls), strict=True):
            for each in names:
                bench.expect(f"{each} of the {answer.type}", getattr(requested, each), getattr(answer, each))


@check("tool-errors")
async def tool_errors(bench: Bench) -> None:
    """The text of a `ToolError` is for the model; a `ToolRetry` is marked as worth another try."""
    async with bench.executor() as caller:
        for way, retryable in (("tool_error", False), ("retry", True)):
            answer = await caller.failed("contract_fail", way=way, text="no such city: Zürich")
            bench.expect(f"reason and error of a {way}", ("error", "no such city: Zürich"), _said(answer))
            bench.expect(f"retryable of a {way}", retryable, answer.retryable)


@check("internal-errors")
async def internal_errors(bench: Bench) -> None:
    """For any other exception, the model is sent a sentence without the exception's words or a traceback."""
    async with bench.executor() as caller:
        await _is_internal(bench, caller, "contract_fail", "error")


@check("base-exceptions")
async def base_exceptions(bench: Bench) -> None:
    """Any exception that a handler raises, including `SystemExit`, fails only its own call."""
    async with bench.executor() as caller:
        for way in ("base_exception", "exit"):  # SystemExit comes last: it ends asyncio if it gets through
            await _is_internal(bench, caller, "contract_fail", way)
        bench.expect("the next call", "on", (await caller.completed("contract_echo", said="on")).content)


@check("sync-failures", "sync")
async def sync_failures(bench: Bench) -> None:
    """Handlers that are not async fail in the same ways."""
    async with bench.executor() as caller:
        answer = await caller.failed("contract_fail_sync", way="tool_error", text="no such city")
        bench.expect("reason and error of a ToolError", ("error", "no such city"), _said(answer))
        for way in ("error", "base_exception", "exit"):
            await _is_internal(bench, caller, "contract_fail_sync", way)


async def _is_internal(bench: Bench, caller: Caller, name: str, way: str) -> None:
    answer = await caller.failed(name, way=way, text=_SECRET)
    bench.expect(f"the reason of {way}", "error", answer.reason)
    leaked = any(word in answer.error for word in ("swordfish", "Traceback", 'File "'))
    bench.require(f"the error of {way}", "a sentence without the exception's words", answer.error, ok=not leaked)
    bench.require(f"the error of {way}", "a sentence", answer.error, ok=bool(answer.error.strip()))


@check("arguments")
async def arguments(bench: Bench) -> None:
    """Arguments are validated again where the tool runs: if they break its schema, the handler does not run."""
    key = f"arguments of {id(bench)}"
    wrong: tuple[dict[str, Any], ...] = ({"a": 1}, {"a": "one", "b": 2}, {"a": 1, "b": 2, "c": 3})
    async with bench.executor() as caller:
        for each in wrong:
            answer = await caller.failed("contract_add", key=key, **each)
            bench.expect(f"the reason for the arguments {each}", "invalid_arguments", answer.reason)
        answer = await caller.completed("contract_add", a=1, b=2)
        bench.expect("the sum of 1 and 2", 3, answer.data)


@check("arguments-untouched")
async def arguments_untouched(bench: Bench) -> None:
    """A handler that changes its arguments changes a copy, because all listeners share the arguments of the event."""
    async with bench.executor() as caller:
        requested = caller.ask("contract_scribble", items=[1, 2], inner={"a": {"b": 1}})
        before = copy.deepcopy(requested.arguments)
        answer = await caller.answer(requested)
        bench.expect("the result", 2, answer.data if isinstance(answer, ToolCallCompleted) else answer)
        bench.expect("the event's arguments", before, requested.arguments)


def _said(answer: Any) -> tuple[str, str]:
    return answer.reason, answer.error
