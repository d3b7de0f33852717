"""A request that has ended is freed at once, however it has ended: no reference cycle keeps it for the collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from endings.test_every_ending import AT_ONCE, CASES, TOOLS, Case, Faulty
from support.garbage import FRAMES_KNOW_THEIR_CALLERS, garbage
from toolbus import Runtime, tool
from toolbus.errors import ProviderUnavailable
from toolbus.events import Event
from toolbus.protocols import Emit, ModelReply, ModelRequest
from toolbus.stores.sqlite import SqliteStore
from toolbus.testing import ScriptedProvider, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()


class Away:
    """A model that cannot be reached."""

    vendor = "away"

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        raise ProviderUnavailable("come back later", retryable=True)


@tool
def broken_in_a_thread() -> str:
    """Fail."""
    raise KeyError("a bug of the tool's")


# The exceptions of a script are kept by the script, and with them everything that their tracebacks refer to.
_OF_A_SCRIPT = {"an error, then text", "unavailable", "while it backs off"}
FREED = [
    *(each for each in CASES if each.name not in {*_OF_A_SCRIPT, "drained"}),
    Case("a model that is away", "failed", "provider_unavailable", Away()),
    Case("a thread that fails", "completed", "", [calls(("broken_in_a_thread", {})), text("Hi.")]),
]


_OF_THE_SESSION = {"an empty reply, then text", "empty twice", "broken instructions", "broken provider", "no script"}


def _marked(case: Case) -> Any:
    in_session = case.name in _OF_THE_SESSION or isinstance(case.script, Away)
    return pytest.param(case, id=case.name, marks=FRAMES_KNOW_THEIR_CALLERS if in_session else ())


@pytest.mark.parametrize("case", [_marked(each) for each in FREED])
async def test_a_request_that_has_ended_leaves_nothing_to_the_garbage_collector(case: Case) -> None:
    async with Runtime(ScriptedProvider([]), tools=[*TOOLS, broken_in_a_thread], keep_ended_seconds=0) as runtime:

        async def once() -> None:
            heard: list[Event] = []
            disconnect = runtime.bus.connect(Event, heard.append)
            session = runtime.start("Go.", provider=case.provider(), **case.options)
            if case.act is not None:
                await case.act(runtime, session, heard)
            result = await session.result()
            assert (result.outcome, result.reason) == (case.outcome, case.reason)
            disconnect()

        await once()  # what is made only once may have cycles
        await settle()
        with garbage() as left:
            await once()
            await settle()
        assert not left


@FRAMES_KNOW_THEIR_CALLERS
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_request_whose_journal_fails_leaves_nothing_to_the_garbage_collector(place: int, hangs: bool) -> None:
    """While a store is away, each request ends in this way."""
    store = Faulty()
    async with Runtime(ScriptedProvider([]), tools=TOOLS, store=store) as runtime:

        async def once() -> None:
            store.appends, store.fails_at, store.hangs = 0, place, hangs
            session = runtime.start("Go.", provider=ScriptedProvider([calls(AT_ONCE), text("Hi.")]))
            assert (await session.result()).outcome == "failed"
            del session
            await settle()
            store.entries.clear()

        await once()
        with garbage() as left:
            await once()
            await settle()
        assert not left


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_with_a_journal_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "toolbus.db")
    async with Runtime(ScriptedProvider(lambda _: text("Hi.")), store=store) as runtime:
        await runtime.run("Go.", conversation_id="c")
        with garbage() as left:
            await runtime.run("Go.", conversation_id="c")
        assert not left
