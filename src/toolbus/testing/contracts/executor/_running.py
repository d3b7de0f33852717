"""Checks of running calls: many at once, calls beside a handler that hangs, and the context of a handler."""

from __future__ import annotations

import anyio

from ....events import ToolCallCompleted, ToolCallProgress
from ._bench import BOUND, TWO_AT_ONCE, Bench, check

_MANY = 40
_AT_ONCE = 8


@check("many-at-once")
async def many_at_once(bench: Bench) -> None:
    """Each of many calls at once gets its own result, in any order."""
    async with bench.executor() as caller:
        calls = [caller.ask("contract_echo", said=f"caller {number}") for number in range(_MANY)]
        answers = await caller.answers(calls)
        contents = [each.content if isinstance(each, ToolCallCompleted) else each for each in answers]
        bench.expect("the contents", [f"caller {number}" for number in range(_MANY)], contents)


@check("side-by-side", "notes", TWO_AT_ONCE)
async def side_by_side(bench: Bench) -> None:
    """Handlers run side by side, up to the executor's bound."""
    wanted = min(bench.max_concurrency or _AT_ONCE, _AT_ONCE)
    async with bench.executor() as caller:
        key = f"side by side {caller.request_id}"
        answers = await caller.answers([caller.ask("contract_meet", key=key, wanted=wanted) for _ in range(wanted)])
        inside = [each.data for each in answers if isinstance(each, ToolCallCompleted)]
        bench.expect("handlers inside at once", wanted, max(inside, default=0))


@check("bounds", "notes", BOUND)
async def bounds(bench: Bench) -> None:
    """No more handlers run at once than the bound; other calls wait, and one that is settled meanwhile never runs."""
    limit = bench.max_concurrency
    assert limit is not None
    async with bench.executor() as caller:
        key = f"bounds {caller.request_id}"
        answers = await caller.answers(
            [caller.ask("contract_meet", key=key, wanted=limit + 1) for _ in range(2 * limit + 1)]
        )
        inside = [each.data for each in answers if isinstance(each, ToolCallCompleted)]
        bench.expect("calls that were answered with a result", 2 * limit + 1, len(inside))
        bench.require(
            "handlers inside at once", f"{limit} at most", max(inside, default=0), ok=max(inside, default=0) <= limit
        )
        # These keep all handlers busy until they give up, so that no call has to release them.
        meeting = [caller.ask("contract_meet", key=f"{key} again", wanted=limit + 1) for _ in range(limit)]
        waiting = caller.ask("contract_add", a=1, b=2, key=key)
        await anyio.sleep(bench.quiet_seconds)
        caller.settle(waiting)
        await caller.answers(meeting)
        await caller.quiet()
        bench.expect("notes of a call that was settled while it waited", [], await caller.notes(key))


@check("hanging-handlers", "notes", TWO_AT_ONCE)
async def hanging_handlers(bench: Bench) -> None:
    """A handler that hangs delays no other call, even if the handler ignores its cancellation."""
    async with bench.executor() as caller:
        for deaf in (False, True):
            hanging, key = await caller.held(deaf=deaf)
            if deaf:
                caller.settle(hanging)
            answer = await caller.completed("contract_echo", said="beside")
            bench.expect("the content of another call", "beside", answer.content)
            await caller.release(key)
            await caller.answer(hanging)


@check("hanging-threads", "sync", "notes", TWO_AT_ONCE)
async def hanging_threads(bench: Bench) -> None:
    """A handler that blocks its thread blocks neither the event loop nor another call."""
    async with bench.executor() as caller:
        hanging, key = await caller.held("contract_hold_sync")
        try:
            for name in ("contract_echo", "contract_echo_sync"):
                bench.expect("the content of another call", "on", (await caller.completed(name, said="on")).content)
        finally:
            await caller.release(key)
        answer = await caller.answer(hanging)
        bench.expect("its result", f"held {key}", answer.content if isinstance(answer, ToolCallCompleted) else answer)


@check("context", "context")
async def context(bench: Bench) -> None:
    """A handler's context has the ids, the idempotency key and the metadata of its own call."""
    async with bench.executor() as caller:
        calls = [caller.ask("contract_about") for _ in range(5)]
        for requested, answer in zip(calls, await caller.answers(calls), strict=True):
            names = ("request_id", "conversation_id", "call_id", "name", "idempotency_key", "metadata")
            expected = {each: getattr(requested, each) for each in names}
            got = answer.data if isinstance(answer, ToolCallCompleted) else answer
            bench.expect("the handler's context", expected, got)


@check("context-variables")
async def context_variables(bench: Bench) -> None:
    """Context variables that a handler sets are not seen by any other call."""
    async with bench.executor() as caller:
        for number in range(5):
            answer = await caller.completed("contract_mark", text=f"left by call {number}")
            bench.expect("what an earlier call left", "", answer.content)


@check("progress", "context", "progress")
async def progress(bench: Bench) -> None:
    """Progress that a handler reports is published as `ToolCallProgress`, in order, before the call's answer."""
    async with bench.executor() as caller:
        requested = caller.ask("contract_progress", message="half 😀")
        await caller.answer(requested)
        mine = [each for each in caller.events if getattr(each, "call_id", "") == requested.call_id]
        reported = [
            (each.request_id, each.name, each.message, each.done, each.total)
            for each in mine
            if isinstance(each, ToolCallProgress)
        ]
        said = (requested.request_id, requested.name, "half 😀")
        bench.expect("the progress reported", [(*said, 1, 2), (*said, 2, 2)], reported)
        bench.require("the last event", "the answer", mine[-1].type, ok=not isinstance(mine[-1], ToolCallProgress))
