"""Who comes late to a request with a journal hears its facts from the beginning, each once."""

from __future__ import annotations

import anyio
import pytest

from support.resuming import facts_of
from toolbus import Runtime, tool
from toolbus.events import FACT_TYPES, Event, ModelResponded, RequestCompleted, RequestStarted, ToolCallCompleted
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, text

GATE: list[anyio.Event] = []
ANSWERS = (ModelResponded, ToolCallCompleted)


@tool
async def wait() -> str:
    await GATE[-1].wait()
    return "waited"


def runtime_with(store: MemoryStore) -> Runtime:
    GATE.append(anyio.Event())
    return Runtime(ScriptedProvider([calls(("wait", {})), text("Done.")]), tools=[wait], store=store)


def in_the_journal(heard: list[Event]) -> list[Event]:
    """The facts, once the messages are in their places that are derived from a reply and a result."""
    kinds = [event.type if event.is_derived else "" for event in heard]
    replied, settled = (next(i for i, each in enumerate(heard) if isinstance(each, kind)) for kind in ANSWERS)
    derived = [replied + 1, settled + 1, len(heard) - 2]
    assert [place for place, kind in enumerate(kinds) if kind] == derived
    return [event for event in heard if event.is_fact and not event.is_derived]


@pytest.mark.guarantee("G01")
async def test_a_late_listener_hears_what_was_so_far_and_then_what_comes() -> None:
    store = MemoryStore(journal=True)
    async with runtime_with(store) as runtime:
        session = runtime.start("hi")
        await session.accepted()
        await anyio.wait_all_tasks_blocked()
        late = session.events()
        GATE[-1].set()
        heard = [event async for event in late if event.is_fact]
        assert in_the_journal(heard) == await facts_of(store, session.request_id)
        assert isinstance(heard[-1], RequestCompleted)


async def test_what_comes_between_subscribing_and_reading_is_heard_once_and_in_its_place() -> None:
    store = MemoryStore(journal=True)
    async with runtime_with(store) as runtime:
        session = runtime.start("hi")
        await session.accepted()
        await anyio.wait_all_tasks_blocked()
        late = session.events(*FACT_TYPES)
        GATE[-1].set()
        await session.result()
        assert in_the_journal([event async for event in late]) == await facts_of(store, session.request_id)


async def test_a_request_that_has_ended_is_heard_whole_and_in_the_kinds_that_were_asked_for() -> None:
    store = MemoryStore(journal=True)
    async with runtime_with(store) as runtime:
        GATE[-1].set()
        session = runtime.start("hi")
        await session.result()
        assert in_the_journal([event async for event in session.events()]) == await facts_of(store, session.request_id)
        assert [type(event) async for event in session.events(ToolCallCompleted)] == [ToolCallCompleted]


async def test_without_a_journal_the_session_has_the_facts() -> None:
    store = MemoryStore()
    async with runtime_with(store) as runtime:
        GATE[-1].set()
        session = runtime.start("hi")
        await session.result()
        facts = [event async for event in session.events()]
        assert [type(facts[0]), type(facts[-1])] == [RequestStarted, RequestCompleted]
