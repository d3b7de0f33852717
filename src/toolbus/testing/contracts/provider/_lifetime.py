"""Checks of a provider's lifetime: cancellation, concurrent calls, and leftovers after it is closed."""

from __future__ import annotations

import copy
import json

from ....messages import UserMessage
from ....protocols import ModelRequest
from ...census import Census
from ...wire import HttpRequest, WireBreak, WireCall, WireFault, WireReply, WireServer, WireStep
from .._checks import expect_nothing_left
from ._bench import Bench, Running, check, request_of

_TEXT = WireReply(text=("Sun", "ny ", "all ", "day."))
_CALLERS = 4


@check("cancellation")
async def cancellation(bench: Bench) -> None:
    """A cancellation passes soon and closes the connection; the provider serves the next request as usual."""
    for where, after in (("before the answer", None), ("in the stream", 3)):
        bench.server.left.clear()
        bench.server.script = [WireBreak(reply=_TEXT, how="stall", after=after)]
        async with bench.started(request_of()) as running:
            if not await bench.until(lambda: bench.server.stalls > 0):
                bench.fail(f"the server, {where}", "asked", running.outcome)
                return
            running.scope.cancel()
            await running.wait(lambda: running.ended, bench.patience_seconds)
            _judge(bench, running, where)
        left = await bench.until(bench.server.left.is_set)
        bench.require(f"the connection, cancelled {where}", "closed by the provider", "it is open", ok=left)
        reply, _ = await bench.ask(_TEXT)
        bench.expect(f"the next reply, after a cancellation {where}", "Sunny all day.", reply.message.text)


def _judge(bench: Bench, running: Running, where: str) -> None:
    what = f"respond, cancelled {where}"
    if not running.ended:
        bench.fail(what, "ends", f"it did not in {bench.patience_seconds:g} s")
    elif not running.scope.cancelled_caught:
        bench.fail(what, "cancelled", f"{running.outcome}")


@check("concurrent-calls")
async def concurrent_calls(bench: Bench) -> None:
    """Concurrent calls do not wait for one another, and no reply contains a part of another one."""
    said = [f"caller {number}" for number in range(_CALLERS)]
    bench.server.script = lambda request: _echo(bench, request, stall=True)
    runnings: list[Running] = []

    async def all_of_them(left: list[str]) -> None:
        if left:
            async with bench.started(request_of(UserMessage(content=left[0]))) as running:
                runnings.append(running)
                await all_of_them(left[1:])
                await running.wait(lambda: running.ended, bench.patience_seconds)
            return
        together = await bench.until(lambda: bench.server.stalls == _CALLERS)
        bench.require("the requests at the server at once", str(_CALLERS), str(bench.server.stalls), ok=together)
        bench.server.script = lambda request: _echo(bench, request, stall=False)
        bench.server.release()

    await all_of_them(said)
    for words, running in zip(said, runnings, strict=True):
        reply = running.outcome.reply
        got = (
            None if reply is None else (reply.message.text, [json.loads(c.arguments) for c in reply.message.tool_calls])
        )
        bench.expect(f"the reply to {words!r}", (f"You said {words}", [{"said": words}]), got)
        if running.outcome.text:
            bench.expect(f"the pieces emitted to {words!r}", f"You said {words}", running.outcome.text)


def _echo(bench: Bench, request: HttpRequest, *, stall: bool) -> WireStep:
    asked = bench.dialect.read(request).messages[-1]
    words = asked.text if isinstance(asked, UserMessage) else ""
    call = WireCall(name="echo", arguments=json.dumps({"said": words}), call_id=words)
    reply = WireReply(text=("You said ", words), calls=(call,))
    return WireBreak(reply=reply, how="stall", after=3) if stall else reply


@check("request-untouched")
async def request_untouched(bench: Bench) -> None:
    """The provider does not change the request: its messages and tools are the same afterwards."""
    request: ModelRequest = request_of()
    before = copy.deepcopy((request.messages, [(tool.name, tool.parameters) for tool in request.tools]))
    await bench.ask(_TEXT, request=request)
    after = (request.messages, [(tool.name, tool.parameters) for tool in request.tools])
    bench.expect("the request's messages and tools", before, after)


@check("nothing-left-open")
async def nothing_left_open(bench: Bench) -> None:
    """A closed provider (by `aclose` if it has one) leaves no connection and no task, whatever happened before."""
    census = Census()
    with WireServer(dialect=bench.dialect) as server:
        own = Bench(server, bench.make, patience_seconds=bench.patience_seconds, max_reply_bytes=bench.max_reply_bytes)
        own.name = bench.name
        own.prepare()
        steps = (
            _TEXT,
            WireFault(kind="server_error"),
            WireBreak(reply=_TEXT, how="error", after=2),
            WireBreak(reply=_TEXT, how="garbage", after=2),
            WireBreak(reply=_TEXT, how="cut", after=2),
            _TEXT,
        )
        for step in steps:
            await own.attempt(step)
        server.script = [WireBreak(reply=_TEXT, how="stall", after=2)]
        async with own.started(request_of()) as running:
            await own.until(lambda: server.stalls > 0)
            running.scope.cancel()
            await running.wait(lambda: running.ended, bench.patience_seconds)
        await own.attempt(_TEXT)
        await own.close_provider()
        closed = await own.until(lambda: server.open_connections == 0)
        bench.require("connections that are open", "none", f"{server.open_connections}", ok=closed)
    await expect_nothing_left(bench, census)
