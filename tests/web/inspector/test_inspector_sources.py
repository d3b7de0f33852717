"""What the inspector's sources read, keep and release, without its application."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from inspected_runtime import PAYMENT, RESEARCH, SCENES, TOOLS, trip

from toolbus import Runtime, Tool, sub_request_tool
from toolbus.errors import UnknownRequest
from toolbus.events import (
    ApprovalRequested,
    RequestStarted,
    RoundStarted,
    SubscriptionFull,
    TextDelta,
    ToolCallRequested,
)
from toolbus.providers.scripted import ScriptedProvider, calls, hang, text
from toolbus.stores import MemoryStore
from toolbus.testing import record, virtual_backends
from toolbus.testing.recording import RecordingError, read_recording
from toolbus.web.inspector import RecordingSource, StoreSource, _event_log, _sources
from toolbus.web.inspector._sources import LiveSource

anyio_backend = virtual_backends()


def quick(**options: Any) -> Runtime[Any]:
    """A runtime whose model answers each prompt at once."""
    return Runtime(ScriptedProvider(lambda _request: text("Yes.")), drain_seconds=0, **options)


async def begun(runtime: Runtime[Any], *steps: Any, **options: Any) -> Any:
    """A request whose model has asked for its first calls, and they have begun."""
    session = runtime.start("Begin", provider=ScriptedProvider([*steps]), **options)
    await anyio.sleep(1)
    return session


async def prompts(source: Any) -> list[str]:
    """The prompts of the list, once everything is read."""
    for _ in range(20):
        rows = await source.requests()
        if all(each["prompt"] for each in rows):
            break
    return [each["prompt"] for each in rows]


class CountedStore(MemoryStore):
    """A store that counts how often it was opened and closed."""

    def __init__(self) -> None:
        super().__init__(journal=True)
        self.opened = self.closed = 0

    async def open(self) -> None:
        """Count."""
        self.opened += 1

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


# -------------------------------------------------------------------------------------------------------- the list


async def test_the_list_has_the_newest_requests_of_the_process_and_then_those_of_its_store(
    monkeypatch: pytest.MonkeyPatch,
):
    assert _sources.MAX_LISTED == 300
    monkeypatch.setattr(_sources, "MAX_LISTED", 3)
    store = MemoryStore(journal=True)
    async with quick(store=store) as runtime:
        for number in range(4):
            await runtime.run(f"Before {number}")
        assert await prompts(StoreSource(store, "store")) == ["Before 3", "Before 2", "Before 1"]
    async with quick(store=store) as runtime:
        source = LiveSource(runtime)
        assert await prompts(source) == ["Before 3", "Before 2", "Before 1"]
        await runtime.run("Now 0")
        await runtime.run("Now 1")
        assert await prompts(source) == ["Now 1", "Now 0", "Before 3"]
        await runtime.run("Now 2")
        await runtime.run("Now 3")
        assert await prompts(source) == ["Now 3", "Now 2", "Now 1"]


async def test_an_open_request_is_in_the_list_however_many_newer_ones_have_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_sources, "MAX_LISTED", 2)
    store = MemoryStore(journal=True)
    asks = calls(("look", {"page": 1}))
    async with quick(store=store, tools=[Tool("look", "Look.", {"type": "object"}, external=True)]) as old:
        await begun(old, asks, needs_approval=True, on_approval="wait")
    async with quick(store=store) as runtime:
        live, stored = LiveSource(runtime), StoreSource(store, "store")
        for number in range(3):
            await runtime.run(f"Now {number}")
        for source in (live, stored):
            assert await prompts(source) == ["Now 2", "Begin"]
            assert [each["state"] for each in await source.requests()] == ["completed", "waiting"]


async def test_a_request_that_is_parked_waits_and_does_not_have_to_be_resumed():
    store = MemoryStore(journal=True)
    async with quick(store=store, tools=[Tool("look", "Look.", {"type": "object"}, external=True)]) as old:
        session = await begun(old, calls(("look", {"page": 1})))
    source = StoreSource(store, "store")
    assert [each["state"] for each in await source.requests()] == ["released"]
    journal: Any = store.journal
    await journal.take(session.request_id, "somebody", 30)
    await journal.park(session.request_id, 2, 60)
    [row] = await source.requests()
    assert (row["state"], row["doing"]) == ("waiting", "runs look; no process holds it")


async def test_the_recorded_list_is_bounded_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with quick() as runtime:
        with record(tmp_path / "r.jsonl", runtime):
            for number in range(3):
                await runtime.run(f"Prompt {number}")
    monkeypatch.setattr(_sources, "MAX_LISTED", 2)
    source = RecordingSource(tmp_path / "r.jsonl")
    await source.open()
    assert await prompts(source) == ["Prompt 2", "Prompt 1"]


# ------------------------------------------------------------------------------------------------------- following


async def test_pieces_of_texts_are_not_heard():
    async with quick() as runtime:
        source = LiveSource(runtime)
        result = await runtime.run("Hello?")
        followed = await source.follow(result.request_id)
        assert not any(isinstance(each, TextDelta) for each in followed.events)
        assert followed.version == len(followed.events)


async def test_events_of_no_request_are_passed_over(caplog: pytest.LogCaptureFixture):
    async with quick() as runtime:
        source = LiveSource(runtime)
        runtime.bus.publish(SubscriptionFull(name="slow", capacity=1, ended=False))
        assert (await source.requests(), caplog.records) == ([], [])


async def test_a_request_with_forgotten_events_is_read_from_its_facts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_event_log, "_MAX_EVENTS", 3)
    store = MemoryStore(journal=True)
    async with quick(store=store) as runtime:
        source = LiveSource(runtime)
        result = await runtime.run("Hello?")
        followed = await source.follow(result.request_id)
        await followed.update()
        assert isinstance(followed.events[0], RequestStarted)
        assert followed.fold.summary()["state"] == "completed"
        runtime.bus.publish(RoundStarted(request_id="foreign", round=0, message_count=1))
        foreign = await source.follow("foreign")  # It has no beginning, and is nowhere else.
        assert [type(each) for each in foreign.events] == [RoundStarted]
        with pytest.raises(UnknownRequest):
            await source.follow("none")


async def test_a_request_that_the_log_has_whole_is_not_read_from_the_store():
    store = MemoryStore(journal=True)
    async with quick(store=store) as runtime:
        source = LiveSource(runtime)
        result = await runtime.run("Hello?")
        store.journal.facts = None  # type: ignore[union-attr,method-assign] -- nobody needs to ask
        followed = await source.follow(result.request_id)
        await followed.update()
        assert followed.fold.summary()["state"] == "completed"


async def test_the_requests_that_were_followed_last_stay_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_sources, "MAX_FOLLOWED", 8)
    store = MemoryStore(journal=True)
    async with quick(store=store) as runtime:
        ids = [(await runtime.run(f"Prompt {number}")).request_id for number in range(10)]
    source = StoreSource(store, "store")
    followed = [await source.follow(each) for each in ids[:8]]
    assert await source.follow(ids[0]) is followed[0]  # It is the newest one now.
    last = await source.follow(ids[8])
    assert [await source.follow(each) for each in (ids[0], *ids[2:9])] == [followed[0], *followed[2:], last]
    await followed[1].update()
    assert followed[1].version == 0  # It was closed.
    assert await source.follow(ids[1]) is not followed[1]
    await followed[0].update()
    assert followed[0].version == 0  # Now this one was the oldest.
    await last.update()
    assert last.version > 0


async def test_closing_a_source_ends_what_it_follows():
    store = CountedStore()
    async with quick(store=store) as runtime:
        ids = [(await runtime.run(f"Prompt {number}")).request_id for number in range(2)]
        store.opened = store.closed = 0
        sources = [StoreSource(store, "store"), LiveSource(runtime)]
        for source in sources:
            await source.open()
            followed = [await source.follow(each) for each in ids]
            await source.aclose()
            for each in followed:
                await each.update()
                assert each.version == 0
    assert (store.opened, store.closed) == (1, 2)  # The runtime has closed its store, too.


async def test_a_store_is_opened_and_closed_once():
    store = CountedStore()
    source = StoreSource(store, "store")
    await source.aclose()
    assert (store.opened, store.closed) == (0, 0)
    for _ in range(2):
        await source.open()
    for _ in range(2):
        await source.aclose()
    assert (store.opened, store.closed) == (1, 1)
    await source.open()
    assert (store.opened, store.closed) == (2, 1)


# ----------------------------------------------------------------------------------------------- tools and messages


async def test_open_calls_have_what_their_own_request_says_of_its_tools():
    own: Tool = Tool(name="sign", description="Sign it.", schema={"type": "object"}, external=True)
    async with quick(tools=[PAYMENT]) as runtime:
        source = LiveSource(runtime)
        session = await begun(runtime, calls(("sign", {})), hang(), tools=[own])
        other = await begun(runtime, calls(("wait_for_payment", {})), hang())
        for one, name in ((session, "sign"), (other, "wait_for_payment")):
            followed = await source.follow(one.request_id)
            await followed.update()
            [call] = followed.fold.view()["open_calls"]
            assert (call["name"], call["external"]) == (name, True)
        for request_id, name, is_external in (("foreign", "unknown", False), ("other", "wait_for_payment", True)):
            requested = ToolCallRequested(
                request_id=request_id,
                call_id="c",
                name=name,
                arguments={},
                round=0,
                timeout_seconds=1,
                idempotency_key="c",
            )
            runtime.bus.publish(requested)  # of no session, so the runtime's own tools count
            followed = await source.follow(request_id)
            await followed.update()
            [call] = followed.fold.view()["open_calls"]
            assert call["external"] is is_external


async def test_a_store_does_not_have_the_tools_so_any_open_call_may_be_answered():
    store = MemoryStore(journal=True)
    async with quick(tools=[PAYMENT], store=store) as runtime:
        session = await begun(runtime, calls(("wait_for_payment", {})), hang())
        followed = await StoreSource(store, "store").follow(session.request_id)
        await followed.update()
        [call] = followed.fold.view()["open_calls"]
        assert call["external"]


async def test_the_messages_of_a_sub_request_are_its_own():
    helper = sub_request_tool("help", "Help.", provider=ScriptedProvider([hang()]), instructions="Be quick.")
    async with quick(tools=[helper]) as runtime:
        source = LiveSource(runtime)
        session = await begun(runtime, calls(("help", {"task": "Look."})), hang())
        followed = await source.follow(session.request_id)
        await followed.update()
        [below] = {each.request_id for each in followed.events} - {session.request_id}
        assert [each.text for each in source.sent(below, followed) or ()] == ["Be quick.", "Look."]
        assert [each.text for each in source.sent(session.request_id, followed) or ()] == ["Begin", ""]


async def test_the_messages_that_were_sent_last_are_those_after_the_last_that_was_shortened():
    steps = [*SCENES["long"]()[:2], calls(("echo", {"text": "short"})), text("Done.")]
    async with Runtime(ScriptedProvider([]), tools=TOOLS, drain_seconds=0) as runtime:
        source = LiveSource(runtime)
        provider = ScriptedProvider(steps)
        result = await runtime.run("Read.", provider=provider, max_result_chars=200)
        await anyio.sleep(100)  # The runtime has forgotten it.
        followed = await source.follow(result.request_id)
        sent = [each.text for each in source.sent(result.request_id, followed) or ()]
        assert sent == [each.text for each in provider.requests[-1].messages]


async def test_what_a_sub_request_shortens_is_no_message_of_the_request_above():
    reader = sub_request_tool(
        "read", "Read.", provider=ScriptedProvider(SCENES["long"]()), tools=TOOLS, max_result_chars=200
    )
    async with Runtime(ScriptedProvider([]), tools=[reader], drain_seconds=0) as runtime:
        source = LiveSource(runtime)
        result = await runtime.run(
            "Ask.", provider=ScriptedProvider([calls(("read", {"task": "All."})), text("Done.")])
        )
        await anyio.sleep(100)
        followed = await source.follow(result.request_id)
        await followed.update()
        sent = [each.text for each in source.sent(result.request_id, followed) or ()]
        assert (sent[0], sent[-1]) == ("Ask.", "Done.")


async def test_the_present_and_the_numbers_are_those_of_the_source(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_sources, "wall_time", lambda: 5.0)
    store = MemoryStore(journal=True)
    async with quick(store=store) as runtime:
        await runtime.run("Hello?")
        live, stored = LiveSource(runtime), StoreSource(store, "store")
        assert (live.now(), stored.now()) == (5.0, 5.0)
        assert (await stored.statistics())["requests"] == 1
        assert (await live.statistics())["requests_watched"] == 0


async def test_the_messages_of_a_running_request_begin_with_its_instructions():
    async with quick() as runtime:
        source = LiveSource(runtime)
        session = await begun(runtime, hang(), instructions="Be brief.")
        followed = await source.follow(session.request_id)
        assert [each.text for each in source.sent(session.request_id, followed) or ()] == ["Be brief.", "Begin"]
        session.cancel()
        await session.result()
        other = await begun(runtime, hang())
        followed = await source.follow(other.request_id)
        assert [each.text for each in source.sent(other.request_id, followed) or ()] == ["Begin"]


async def test_a_recording_has_the_tools_that_the_request_had():
    own: Tool = Tool(name="sign", description="Sign it.", schema={"type": "object"}, external=True)
    async with quick(tools=[PAYMENT], store=MemoryStore(journal=True)) as runtime:
        source = LiveSource(runtime)
        session = await begun(runtime, calls(("sign", {})), hang(), tools=[own])
        [found] = await source.recorded(session.request_id)
        assert [each["name"] for each in found.agreed["tools"]] == ["sign"]
        session.cancel()
        await session.result()
        await anyio.sleep(100)  # The runtime has forgotten it.
        [found] = await source.recorded(session.request_id)
        assert [each["name"] for each in found.agreed["tools"]] == ["wait_for_payment"]
        with pytest.raises(Exception, match="not in memory"):
            await source.recorded("none")
    with pytest.raises(UnknownRequest, match="the store has no request 'none'"):
        await StoreSource(runtime.store, "store").recorded("none")


# ------------------------------------------------------------------------------------------------------ recordings


async def recorded_trip(path: Path) -> str:
    """Record a request with a sub-request beside another request, and return its id."""
    async with Runtime(ScriptedProvider([]), tools=[*TOOLS, RESEARCH], drain_seconds=0) as runtime:
        runtime.bus.connect((ApprovalRequested,), lambda _event: None)
        with record(path, runtime):
            await runtime.run("Beside it", provider=ScriptedProvider(SCENES["plain"]()))
            session = await begun(runtime, *trip())
            session.approve(session.pending_approvals[0])
            await session.result()
    return str(session.request_id)


async def test_a_recording_is_read_once_and_ends_with_its_newest_event(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    request_id = await recorded_trip(path)
    source = RecordingSource(str(path))
    assert (source.name, source.can_act) == ("r.jsonl", False)
    with pytest.raises(RecordingError, match=r"/r\.jsonl: the file was not read yet"):
        await source.statistics()
    await source.open()
    whole = read_recording(path)
    path.unlink()
    await source.open()  # It is in memory.
    moments = [each.at for request in whole.requests for each in request.facts]
    assert source.now() == max(*moments, *(each.at for each in whole.signals))
    found = await source.statistics()
    assert found == {
        "written_by": whole.toolbus,
        "requests": 3,
        "facts": len(moments),
        "signals": len(whole.signals),
    }
    followed = await source.follow(request_id)
    await followed.update()
    names = [type(each).__name__ for each in followed.events]
    [below] = [place for place, each in enumerate(names) if each == "RequestStarted" and place]
    assert names.index("ToolCallRequested") < below < len(names) - 8  # in the order of time
    assert (names[0], names[-1]) == ("RequestStarted", "RequestCompleted")
    assert followed.fold.summary()["state"] == "completed"
    assert [each.text for each in source.sent(request_id, followed) or ()][:1] == ["Begin"]


async def test_a_recorded_request_has_the_requests_below_it_and_no_others(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    request_id = await recorded_trip(path)
    source = RecordingSource(path)
    await source.open()
    found = await source.recorded(request_id)
    assert [each.is_sub_request for each in found] == [False, True]
    begun = found[1].facts[0]
    assert isinstance(begun, RequestStarted)
    assert (found[0].request_id, begun.parent_request_id) == (request_id, request_id)
    assert [each.request_id for each in await source.recorded(found[1].request_id)] == [found[1].request_id]
    with pytest.raises(UnknownRequest, match="the recording has no request 'none'"):
        await source.recorded("none")


async def test_a_request_without_an_ending_is_shown_as_it_was_left(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    async with Runtime(ScriptedProvider([]), tools=TOOLS, drain_seconds=0) as runtime:
        with record(path, runtime):
            session = await begun(runtime, calls(("wait_for_payment", {})), hang())
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[: whole.index('"released"')], encoding="utf-8")  # It was cut off while it was written.
    source = RecordingSource(path)
    assert source.now() == 0.0
    await source.open()
    [row] = await source.requests()
    assert (row["prompt"], row["request_id"]) == ("Begin", session.request_id)
    followed = await source.follow(session.request_id)
    await followed.update()
    [call] = followed.fold.view()["open_calls"]
    assert (call["name"], call["external"], len(followed.fold.messages)) == ("wait_for_payment", False, 2)
    path.write_text(whole[: whole.index('"request_started"')], encoding="utf-8")
    source = RecordingSource(path)
    await source.open()
    assert await source.requests() == []


@pytest.mark.parametrize("edited", [{"limits": "x"}, {"metadata": [1]}, {"prices": 7}, {"history_stored": "x"}])
async def test_a_recording_that_somebody_has_edited_is_shown_without_its_messages(edited: Any, tmp_path: Path):
    path = tmp_path / "r.jsonl"
    async with Runtime(ScriptedProvider([text("Yes.")])) as runtime:
        with record(path, runtime):
            await runtime.run("Well?")
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    del lines[-1]["sha256"]
    lines[1].update(edited)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    source = RecordingSource(path)
    await source.open()
    [row] = await source.requests()
    assert (row["prompt"], row["state"]) == ("Well?", "completed")


async def test_a_recorded_request_has_the_requests_of_each_depth_below(tmp_path: Path):
    def ask(name: str) -> ScriptedProvider:
        return ScriptedProvider([calls((name, {"task": "Go on."})), text("Done.")])

    deep = sub_request_tool("deep", "Go on.", provider=ScriptedProvider([text("Deep.")]))
    middle = sub_request_tool("middle", "Go on.", provider=ask("deep"), tools=[deep])
    path = tmp_path / "r.jsonl"
    async with Runtime(ask("middle"), tools=[middle], drain_seconds=0) as runtime:
        with record(path, runtime):
            result = await runtime.run("Now")
    source = RecordingSource(path)
    await source.open()
    assert len(await source.recorded(result.request_id)) == 3


@pytest.mark.parametrize(("reply", "messages"), [(text("[7]"), 2), (calls(("final_answer", {"value": [7]})), 3)])
async def test_a_recorded_request_with_a_structured_answer_has_all_of_its_messages(
    reply: Any, messages: int, tmp_path: Path
):
    path = tmp_path / "r.jsonl"
    async with Runtime(ScriptedProvider([reply])) as runtime:
        with record(path, runtime):
            result = await runtime.run("How many?", output=list[int])
    source = RecordingSource(path)
    await source.open()
    followed = await source.follow(result.request_id)
    await followed.update()
    assert (result.output, len(followed.fold.messages)) == ([7], messages)


async def test_facts_that_make_no_messages_are_shown_without_them(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    async with quick() as runtime:
        with record(path, runtime):
            result = await runtime.run("Hello?")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
    path.write_text("".join(each for each in lines if "round_started" not in each), encoding="utf-8")
    source = RecordingSource(path)
    await source.open()
    followed = await source.follow(result.request_id)
    await followed.update()
    assert (len(followed.fold.messages), followed.fold.summary()["state"]) == (1, "completed")  # only the prompt
