"""Checks of handlers: refused arguments, results, cancellation, and leftovers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from ....errors import InvalidArguments
from ....events import ToolCallCompleted, ToolCallFailed
from ....records import json_bytes
from ....schemas import explain
from ....tools import Tool
from ...census import Census
from .._checks import Ledger, expect_nothing_left
from ._bench import EXAMPLES, Bench, Calls, ExampleCall, check, fits, new_key, open_files, said, until
from ._schemas import parameters_of, with_definitions_of

_ODD: tuple[Any, ...] = (None, True, 7.5, -1, "odd 😀", ["odd"], {"odd": 1})
_MOMENTS = (0, 1, 2, 5, 10)  # steps after which a call is cancelled
_AT_ONCE = 4


@check("wrong-arguments")
async def wrong_arguments(bench: Bench) -> None:
    """Arguments that break the schema are refused as `invalid_arguments`, and the handler does not run."""
    async with bench.calls() as calls:
        for tool in bench.tools:
            for wrong in _wrong(tool, _example_of(bench, tool)):
                label = f"the call of {tool.name} with {wrong}"
                if not bench.runs_here(tool):
                    bench.require(label, "refused", "its validator accepts them", ok=_refuses(tool, wrong))
                    continue
                answer = await calls.answer(calls.request(tool.name, wrong))
                refused = isinstance(answer, ToolCallFailed) and answer.reason == "invalid_arguments"
                bench.require(label, "refused as invalid_arguments", said(answer), ok=refused)
        bench.expect("handlers that ran with arguments that break their schema", [], calls.began)


def _example_of(bench: Bench, tool: Tool) -> Mapping[str, Any]:
    return next((each.arguments for each in bench.examples if each.name == tool.name), dict[str, Any]())


def _refuses(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    try:
        tool.spec.validate(arguments)
    except InvalidArguments:
        return True
    return False


def _wrong(tool: Tool, right: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments that break the schema, each in one way: missing, unknown, or of another type."""
    schema = tool.parameters
    required = cast("list[str]", schema.get("required", []))
    for name in required:
        yield {key: value for key, value in right.items() if key != name}
    if schema.get("additionalProperties") is False:
        yield {**right, "contract_unknown": 1}
    for name, each in parameters_of(schema).items():
        part = with_definitions_of(each, schema)
        # Null for a parameter that may be left out is as if it were left out.
        odds = _ODD if name in schema.get("required", ()) else _ODD[1:]
        for odd in [odd for odd in odds if fits(part, odd)][:1]:
            yield {**right, name: odd}


@check("results", EXAMPLES)
async def results(bench: Bench) -> None:
    """Each example has a result that can be written as JSON, and that is what the example requires."""
    async with bench.calls() as calls:
        for example in bench.examples:
            answer = await calls.completed(example)
            if answer is not None and (problem := _breaks(example, answer)):
                bench.fail(f"the result of {example.name}", "what the example says", problem)


def _breaks(example: ExampleCall, answer: ToolCallCompleted) -> str:
    """Return how a result differs from what the example requires."""
    if example.output is None:
        return ""
    value: Any = answer.content if answer.data is None else answer.data
    wanted: Any = example.output
    if isinstance(wanted, Mapping):
        return fits(cast("Mapping[str, Any]", wanted), value)
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    try:
        adapter.validate_json(json_bytes(value), strict=True)
    except ValidationError as exc:
        return explain(exc)
    return ""


@check("twice", EXAMPLES)
async def twice(bench: Bench) -> None:
    """A tool that is idempotent, or a query, can be called twice with one key, and several times at once."""
    again = {each.name for each in bench.tools if each.spec.idempotent or each.spec.kind == "query"}
    async with bench.calls() as calls:
        for example in bench.examples:
            if example.name not in again:
                continue
            key = new_key()
            for label in ("", ", the second time"):
                await calls.completed(example, key=key, label=label)
            for answer in await calls.answers([calls.ask(example) for _ in range(_AT_ONCE)]):
                ok = isinstance(answer, ToolCallCompleted)
                bench.require(f"the call of {example.name}, at once with others", "a result", said(answer), ok=ok)


@check("cancellation", EXAMPLES)
async def cancellation(bench: Bench) -> None:
    """A call that is cancelled, at any moment, has ended within the grace: its handler, and its thread."""
    async with bench.calls() as calls:
        for example in bench.examples:
            for moment in (*_MOMENTS, None):
                await _cancelled(calls, example, moment)
                if not await calls.is_quiet():
                    bench.fail(
                        f"the handler of {example.name}, cancelled",
                        f"ended within {bench.grace_seconds:g} s",
                        "it still runs; let the cancellation pass, and bound what cannot be cancelled",
                    )
                    break


async def _cancelled(calls: Calls, example: ExampleCall, moment: int | None) -> None:
    """Make a call, and cancel it at a moment, unless it has ended by then."""
    requested = calls.ask(example)
    await until(moment)
    if not calls.endings(requested):
        calls.settle(requested, "cancelled")


@check("nothing-left", EXAMPLES)
async def nothing_left(bench: Bench) -> None:
    """After the calls, whole and cancelled, no task, thread, process, open file or temporary file is left."""
    async with bench.calls() as calls:  # a first run makes the things that are made once
        await calls.answers([calls.ask(each) for each in bench.examples])
        await calls.is_quiet()
    async with leaves_nothing(bench), bench.calls() as calls:
        for example in bench.examples:
            await calls.answer(calls.ask(example))
            for moment in (1, None):
                await _cancelled(calls, example, moment)
        await calls.is_quiet()


@asynccontextmanager
async def leaves_nothing(ledger: Ledger) -> AsyncGenerator[None]:
    """Record a failure for everything that is left after the block and was not there before."""
    files = open_files()
    census = Census()
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = usual
        await expect_nothing_left(ledger, census)
        ledger.expect("open files that were not open before", [], sorted(open_files() - files))
        ledger.expect("temporary files", [], sorted(each.name for each in Path(folder).iterdir()))  # noqa: ASYNC240
