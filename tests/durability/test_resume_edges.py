"""Going on with requests, one thing at a time: people, changed tools, options, leases, what cannot go on, and recalling."""

from __future__ import annotations

import logging
import math
import os
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

from endings.ended_well import assert_valid, listen
from support.journaled import JournaledStore
from support.resuming import PROMPT, Lab, Scene, Wall, cut_off, facts_of, model, virtual_walls
from toolbus import Compression, Limits, ModelSettings, Runtime, Tool, ToolContext, tool
from toolbus.durability import journal_writer_of
from toolbus.errors import (
    ApplicationError,
    ConfigurationError,
    Overloaded,
    ProviderUnavailable,
    ResumeMismatch,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from toolbus.events import (
    ApprovalRequested,
    DeadLetter,
    Event,
    MessageAppended,
    RequestCompleted,
    RequestResumed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallLate,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, SystemMessage, UserMessage
from toolbus.providers.scripted import Step
from toolbus.records import replace
from toolbus.remote import Client
from toolbus.storage import Entry, RequestRecord
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, error, hang, settle, text, virtual_backends

anyio_backend = virtual_backends()
wall = virtual_walls()


def scene(*steps: Step, **options: Any) -> Scene:
    return Scene(lambda: [model(*steps)], **options)


async def cut_behind(scene: Scene, kind: str) -> tuple[MemoryStore, str]:
    """A store with the scene's request up to the first step that has a fact of this kind, and the request's id."""
    whole = await scene.whole()
    steps = next(at for at, entry in enumerate(whole.entries, 1) if any(fact.type == kind for fact in entry.facts))
    return await cut_off(whole, steps), whole.result.request_id


WIPES = (calls(("wipe", {"n": 1}), ("look", {"n": 2})), text("Done."))


# ------------------------------------------------------------------------------------------------- people


@pytest.mark.guarantee("G26")
async def test_a_question_is_asked_again_as_the_same_event_and_its_answer_counts(wall: Wall) -> None:
    asked: list[ApprovalRequested] = []

    def people(runtime: Runtime) -> None:
        runtime.bus.connect(ApprovalRequested, asked.append)

    async def answer(runtime: Runtime, _session: Any) -> None:
        await settle()
        runtime.bus.publish(asked[-1].decided(approved=True))

    wipes = scene(*WIPES, people=people, meddle=answer)
    store, request_id = await cut_behind(wipes, "approval_requested")
    lab = Lab()
    async with wipes.runtime(store, lab) as runtime:
        (session,) = await runtime.resume()
        await advance(600)
        assert asked[1:] == [asked[0]]
        assert lab.keys("wipe") == {}
        assert runtime.bus.publish(asked[1].decided(approved=True, by="Ada"))
        assert not runtime.bus.publish(asked[1].decided(approved=False))
        result = await session.result()
    assert (result.outcome, [call.ok for call in result.tool_calls]) == ("completed", [True, True])
    assert len(lab.keys("wipe")) == 1
    facts = await facts_of(store, request_id)
    assert [fact.type for fact in facts].count("approval_requested") == 1


@pytest.mark.guarantee("G26")
async def test_a_question_that_expired_while_nobody_ran_is_denied(wall: Wall) -> None:
    async def give_up(_runtime: Runtime, session: Any) -> None:
        await advance(1)
        session.cancel()

    wipes = scene(*WIPES, meddle=give_up, options={"limits": Limits(approval_timeout_seconds=60)})
    store, request_id = await cut_behind(wipes, "approval_requested")
    wall.put_to((await facts_of(store, request_id))[-1].at + 3_600)
    lab = Lab()
    async with wipes.runtime(store, lab) as runtime:
        (session,) = await runtime.resume()
        result = await session.result()
    assert [call.reason for call in result.tool_calls] == ["denied", ""]
    assert "approval_timeout_seconds=60" in result.tool_calls[0].error
    assert lab.keys("wipe") == {}
    assert result.outcome == "completed"  # its own clock stood still while it waited


# ------------------------------------------------------------------------------------------------- tools


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize(
    ("now", "why"),
    [
        ("another", "its definition has changed, so it was not run again"),
        ("gone", "the tool does not exist any more"),
        ("no longer idempotent", "it may have had its effect"),
    ],
)
async def test_a_call_of_a_tool_that_has_changed_is_not_run_again(now: str, why: str) -> None:
    looks = scene(calls(("look", {"n": 1}), ("pay", {"n": 2})), text("Done."))
    store, _ = await cut_behind(looks, "tool_call_requested")
    lab = Lab()
    tools = [each for each in lab.standard() if each.name != "look"]
    if now == "another":

        @tool(name="look", idempotent=True)
        async def look(n: int, depth: int = 1) -> str:
            """Look deeper."""
            raise AssertionError

        tools.append(look)
    elif now != "gone":
        tools.append(lab.tool("look"))
    async with Runtime(model(text("?"), text("Well.")), tools=tools, store=store) as runtime:
        (session,) = await runtime.resume()
        result = await session.result()
    first, second = result.tool_calls
    assert (first.reason, second.reason) == ("interrupted", "interrupted")
    assert why in first.error
    assert lab.runs == []
    assert_valid(result.messages)


async def test_a_runtime_that_is_entered_again_runs_calls_that_it_gave_up_itself() -> None:
    lab, store = Lab(), MemoryStore(journal=True)
    runtime = scene(calls(("look", {"n": 1}), ("pay", {"n": 2})), text("Done.")).runtime(store, lab, drain_seconds=0)
    async with runtime:
        session = runtime.start(PROMPT)
        await settle()
    assert (await session.result()).resumable
    async with runtime:
        (again,) = await runtime.resume()
        result = await again.result()
    assert [(call.name, call.ok, call.reason) for call in result.tool_calls] == [
        ("look", True, ""),
        ("pay", False, "interrupted"),
    ]
    key = again.request_id
    assert [(name, found.startswith(key)) for name, found in lab.runs] == [
        ("look", True),
        ("pay", True),
        ("look", True),
    ]
    assert lab.runs[0][1] == lab.runs[2][1]


@pytest.mark.guarantee("G19")
async def test_an_answer_that_comes_while_the_request_waits_for_its_turn_is_reported_once() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    waits: Tool = Tool("wait", "", schema, external=True, validate=lambda _arguments: None)

    def tools(lab: Lab) -> list[Any]:
        return [waits, lab.tool("look")]

    script = scene(calls(("wait", {})), text("Done."), tools=tools)

    async def answer(runtime: Runtime, session: Any) -> None:
        await settle()
        requested = runtime.bus.statistics().open_calls
        assert requested == 1
        session.cancel()

    script.meddle = answer
    store, request_id = await cut_behind(script, "tool_call_requested")
    lab = Lab()
    async with script.runtime(store, lab, max_sessions=1) as runtime:
        heard = listen(runtime.bus)
        busy = runtime.start("Something else.", provider=ScriptedProvider([calls(("look", {"n": 1})), text("Yes.")]))
        (session,) = await runtime.resume()
        await settle()
        (requested,) = [each for each in await facts_of(store, request_id) if isinstance(each, ToolCallRequested)]
        answer_again = requested.completed("early")
        assert session.inject(answer_again)
        await busy.result()
        assert (await session.result()).tool_calls[0].content == "early"
        assert session.inject(answer_again)
    reported = [each for each in heard if isinstance(each, (ToolCallCompleted, ToolCallFailed, ToolCallLate))]
    assert [each.event_id for each in reported if each.request_id == request_id] == [answer_again.event_id]
    assert not [each for each in heard if isinstance(each, DeadLetter)]


# ----------------------------------------------------------------------------------------------- options


class Answer(BaseModel):
    sum: int


async def test_what_was_agreed_is_taken_from_the_journal_and_the_rest_is_given_again() -> None:
    seen: list[tuple[Any, Any]] = []

    def tools(_lab: Lab) -> list[Any]:
        @tool(idempotent=True)
        async def note(context: ToolContext[Any]) -> str:
            """Note."""
            seen.append((context.deps, context.metadata))
            return "noted"

        return [note]

    agreed = scene(
        calls(("note", {})),
        text("Noted."),
        tools=tools,
        options={
            "metadata": {"tenant": "t1"},
            "limits": Limits(max_rounds=2, timeout_seconds=77),
            "settings": ModelSettings(temperature=0.25, max_output_tokens=99),
            "instructions": "As agreed.",
            "deps": "first deps",
        },
    )
    store, request_id = await cut_behind(agreed, "request_started")
    given: list[RequestRecord] = []

    def options(record: RequestRecord) -> dict[str, Any]:
        given.append(record)
        return {"deps": "second deps"}

    other = {"instructions": "Something else.", "limits": Limits(max_rounds=1), "metadata": {"host": "h2"}}
    async with agreed.runtime(store, Lab(), **other) as runtime:
        (session,) = await runtime.resume(options=options)
        result = await session.result()
        provider: Any = runtime.provider
        (asked, *_) = provider.requests
    assert (given[0].request_id, given[0].conversation_id) == (request_id, "c")
    assert result.outcome == "completed"
    assert session.snapshot().view.state.limits == Limits(max_rounds=2, timeout_seconds=77)
    assert isinstance(asked.messages[0], SystemMessage)
    assert asked.messages[0].text == "As agreed."
    assert (asked.settings.temperature, asked.settings.max_output_tokens) == (0.25, 99)
    assert seen[-1][0] == "second deps"
    assert seen[-1][1]["tenant"] == "t1"
    assert {fact.metadata == {"tenant": "t1"} for fact in await facts_of(store, request_id)} == {True}


async def test_a_request_without_the_type_of_its_output_waits_for_it() -> None:
    sums = scene(calls(("look", {"n": 1})), calls(("final_answer", {"sum": 42})), options={"output": Answer})
    store, request_id = await cut_behind(sums, "tool_call_requested")
    async with sums.runtime(store, Lab()) as runtime:
        resumption = await runtime.resume()
        (problem,) = resumption.problems
        assert (len(resumption), problem.request.request_id) == (0, request_id)
        assert isinstance(problem.error, ResumeMismatch)
        assert "options=lambda" in str(problem.error)
        (session,) = await runtime.resume(options=lambda _record: {"output": Answer})
        result = await session.result()
    assert result.output == Answer(sum=42)


async def test_a_request_whose_journal_does_not_begin_with_its_start_is_a_problem_with_its_id() -> None:
    plain = scene(text("Done."))
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    started = (await plain.whole()).entries[0]
    await journal.append(replace(started, facts=[*started.facts[1:2]], lease_seconds=0, has_turn=False))
    async with plain.runtime(store, Lab()) as runtime:
        (problem,) = (await runtime.resume()).problems
    assert isinstance(problem.error, ResumeMismatch)
    assert str(problem.error) == f"request {started.request_id} cannot continue: its first fact is not request_started"


async def test_what_the_options_function_raises_is_that_requests_problem_and_an_unknown_option_is_the_callers() -> None:
    store, request_id = await cut_behind(scene(text("Done.")), "request_started")
    assert store.journal is not None
    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        resumption = await runtime.resume(options=lambda record: {"deps": {}[record.request_id]})
        assert [type(each.error) for each in resumption.problems] == [ApplicationError]
        with pytest.raises(TypeError, match="dependencies"):
            await runtime.resume(options=lambda _record: {"dependencies": 1})
        record = await store.journal.request(request_id)
        assert record is not None
        assert record.owner == ""
        (session,) = await runtime.resume()
        assert (await session.result()).text == "Done."


async def given_later(_record: object) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    "given",
    [{"output": Answer}, Answer, given_later, anyio.sleep_forever],
    ids=["dictionary", "type", "async", "no arguments"],
)
async def test_options_that_are_no_function_of_the_record_are_refused_before_anything_is_read(given: Any) -> None:
    async with scene(text("Done.")).runtime(MemoryStore(journal=True), Lab()) as runtime:
        advice = (
            r"^options is .*; pass a function that takes the record of a request, such as lambda request: \{'output'"
        )
        with pytest.raises(ConfigurationError, match=advice):
            await runtime.resume(options=given)
        with pytest.raises(ConfigurationError, match=advice):
            runtime.request("unknown", options=given)


async def test_options_that_return_no_dictionary_are_that_requests_problem() -> None:
    store, _ = await cut_behind(scene(text("Done.")), "request_started")

    def wrong(_record: object) -> Any:
        return Answer

    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        (problem,) = (await runtime.resume(options=wrong)).problems
    assert str(problem.error) == "options returned the class Answer; return a dictionary, such as {'output': Answer}"


async def test_a_request_that_had_turned_to_a_second_provider_needs_it() -> None:
    down = error(ProviderUnavailable("busy", retryable=True))
    both = Scene(
        lambda: [
            model(down, vendor="first"),
            model(calls(("look", {"n": 1})), text("Done."), vendor="second"),
            model(vendor="third"),
        ],
        options={"limits": Limits(max_model_attempts=1)},
    )
    store, request_id = await cut_behind(both, "tool_call_completed")
    one = Scene(lambda: [model(text("?"), text("Done."), vendor="first")])
    async with one.runtime(store, Lab()) as runtime:
        (problem,) = (await runtime.resume()).problems
        assert "had turned to second, which is number 2 of its providers" in str(problem.error)
    async with both.runtime(store, Lab()) as runtime:
        (session,) = await runtime.resume()
        assert (await session.result()).outcome == "completed"
    async with one.runtime(store, Lab()) as runtime:
        recalled = await runtime.recall(request_id)  # nobody is asked any more
    assert recalled is not None
    assert recalled.text == "Done."


@pytest.mark.guarantee("G32")
@pytest.mark.parametrize("kind", ["tool_call_requested", "round_started"])
async def test_a_cancellation_that_waited_comes_before_calls_run_again_and_before_the_model_is_asked(kind: str) -> None:
    store, request_id = await cut_behind(scene(calls(("look", {"n": 1})), text("Done.")), kind)
    lab = Lab()
    async with scene().runtime(store, lab) as runtime:
        handle = runtime.request(request_id)
        assert await handle.cancel("enough") == "queued"
        (session,) = await runtime.resume()
        result = await session.result()
        assert await handle.cancel() == "ended"
    assert (result.outcome, result.reason, lab.runs) == ("cancelled", "enough", [])
    assert [each.type for each in await facts_of(store, request_id)].count("cancel_requested") == 1


@pytest.mark.guarantee("G32")
async def test_a_request_that_was_cancelled_ends_without_what_it_would_need_to_continue() -> None:
    sums = scene(calls(("look", {"n": 1})), calls(("final_answer", {"sum": 42})), options={"output": Answer})
    down = error(ProviderUnavailable("busy", retryable=True))
    both = Scene(
        lambda: [model(down, vendor="first"), model(calls(("look", {"n": 1})), vendor="second")],
        options={"limits": Limits(max_model_attempts=1)},
    )
    lost: dict[str, Any] = {}

    def lose(record: RequestRecord) -> dict[str, Any]:
        return lost[record.request_id]

    for begun, options in ((sums, None), (both, None), (scene(calls(("look", {"n": 1}))), lose)):
        store, request_id = await cut_behind(begun, "tool_call_requested")
        async with scene().runtime(store, Lab()) as runtime:
            assert len((await runtime.resume(options=options)).problems) == 1
            assert await runtime.request(request_id).cancel("enough") == "queued"
            (session,) = await runtime.resume(options=options)
            result = await session.result()
        assert (result.outcome, result.reason) == ("cancelled", "enough")


@pytest.mark.guarantee("G32")
async def test_a_request_that_the_application_leaves_to_others_is_not_ended_here() -> None:
    def leave(_record: RequestRecord) -> dict[str, Any]:
        raise ResumeMismatch("it was begun by a newer release")

    store, request_id = await cut_behind(scene(text("Done.")), "request_started")
    async with scene().runtime(store, Lab()) as runtime:
        assert await runtime.request(request_id).cancel("enough") == "queued"
        assert len((await runtime.resume(options=leave)).problems) == 1
        assert not await runtime.request(request_id).has_ended()


@pytest.mark.guarantee("G32")
async def test_a_request_that_was_cancelled_and_cannot_be_restored_is_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "toolbus")
    store = MemoryStore(journal=True)
    journal: Any = store.journal
    started = (await scene(text("Done.")).whole()).entries[0]
    await journal.append(replace(started, facts=[*started.facts[1:2]], lease_seconds=0, has_turn=False))
    facts = journal.facts

    async def away(*_args: Any) -> Any:
        raise StoreError("some failure")

    async with scene().runtime(store, Lab()) as runtime:
        handle = runtime.request(started.request_id)
        assert len((await runtime.resume()).problems) == 1
        assert await handle.cancel() == "queued"
        journal.facts = away
        with pytest.raises(StoreError, match="some failure"):
            raise (await runtime.resume()).problems[0].error
        assert not await handle.has_ended()  # Another attempt may still end it as it should.
        journal.facts = facts
        assert len((await runtime.resume()).problems) == 1
        assert (await handle.record()).ending == "abandoned"
        assert await handle.cancel() == "ended"
        assert not (await runtime.resume()).problems
    assert [each.message for each in caplog.records].count(
        f"request {started.request_id} was cancelled, and is abandoned"
    ) == 1


@pytest.mark.guarantee("G32")
@pytest.mark.parametrize("description", ["Ask.", "Ask somebody else."])
async def test_an_answer_that_waited_is_taken_although_its_tool_has_changed_and_no_call_is_requested_again(
    description: str,
) -> None:
    def ask(description: str) -> Tool:
        @tool(external=True, description=description)
        async def ask() -> str:
            raise AssertionError

        return ask

    store = MemoryStore(journal=True)
    model = ScriptedProvider([calls(("ask", {})), text("Done.")])
    async with Runtime(model, tools=[ask("Ask.")], store=store, drain_seconds=0) as runtime:
        before = listen(runtime.bus)
        runtime.start(PROMPT)
        await settle()
    (requested,) = [each for each in before if isinstance(each, ToolCallRequested)]
    async with Runtime(model, tools=[ask(description)], store=store) as runtime:
        heard = listen(runtime.bus)
        assert await runtime.request(requested.request_id).inject(requested.completed("42")) == "queued"
        (session,) = await runtime.resume()
        result = await session.result()
    assert (result.text, [call.content for call in result.tool_calls]) == ("Done.", ["42"])
    assert not [each for each in heard if isinstance(each, ToolCallRequested)]


@pytest.mark.guarantee("G32")
async def test_no_call_is_requested_again_however_many_answers_wait_and_each_is_read_once() -> None:
    @tool(external=True)
    async def ask() -> str:
        """Ask."""
        raise AssertionError

    store = MemoryStore(journal=True)
    journal: Any = store.journal
    asks = ScriptedProvider([calls(("ask", {}))] * 41)
    async with Runtime(asks, tools=[ask], store=store, drain_seconds=0, max_sessions=41) as runtime:
        before = listen(runtime.bus)
        for _ in range(41):
            runtime.start(PROMPT)
        await settle()
    waiting, read = journal.waiting, list[Event]()

    async def counted(*given: Any, **options: Any) -> Any:
        found = await waiting(*given, **options)
        read.extend(found)
        return found

    async with Client(store) as client:
        for each in [each for each in before if isinstance(each, ToolCallRequested)]:
            assert await client.request(each.request_id).inject(each.completed("42")) == "queued"
    journal.waiting = counted
    done = ScriptedProvider([text("Done.")] * 41)
    async with Runtime(done, tools=[ask], store=store, inbox_poll_seconds=600, max_sessions=41) as runtime:
        heard = listen(runtime.bus)
        resumed = await runtime.resume()
        results = [await each.result() for each in resumed]
    assert [each.text for each in results] == ["Done."] * 41
    assert not [each for each in heard if isinstance(each, ToolCallRequested)]
    assert len(read) == 41


async def test_turns_that_were_added_meanwhile_are_not_what_the_request_has_seen() -> None:
    async def before(store: MemoryStore) -> None:
        await store.remember("c", [UserMessage(content="Hello."), AssistantMessage(text="Hello!")])

    looks = scene(calls(("look", {"n": 1})), text("Done."), before=before)
    store, _ = await cut_behind(looks, "tool_call_requested")
    await store.remember("c", [UserMessage(content="Quick."), AssistantMessage(text="Yes?")])
    async with looks.runtime(store, Lab()) as runtime:
        (session,) = await runtime.resume()
        result = await session.result()
        history = await store.history("c")
    texts = [each.content for each in result.messages if isinstance(each, UserMessage)]
    assert texts == ["Hello.", PROMPT]
    assert [each.content for each in history if isinstance(each, UserMessage)] == ["Hello.", "Quick.", PROMPT]
    assert_valid(history)


async def test_turns_that_earlier_requests_have_left_out_stay_out_when_a_request_is_resumed() -> None:
    store = MemoryStore(journal=True)
    provider = ScriptedProvider([*[text("word " * 90)] * 4, hang()])
    compression = Compression(max_context_tokens=300)
    async with Runtime(provider, store=store, compression=compression, drain_seconds=0) as runtime:
        for turn in range(4):
            await runtime.run(f"question {turn}", conversation_id="c")
        runtime.start("and now?", conversation_id="c")
        await settle()
    provider = ScriptedProvider([text("Done.")])
    async with Runtime(provider, store=store) as runtime:  # with a window that is wide enough for all turns
        [session] = await runtime.resume()
        await session.result()
    note, *_, prompt = provider.requests[-1].messages
    assert (note.text, prompt.text) == ("[1 earlier turn of this conversation left out here.]", "and now?")


async def test_a_history_that_is_shorter_than_it_was_is_a_mismatch() -> None:
    async def before(store: MemoryStore) -> None:
        await store.remember("c", [UserMessage(content="Hello."), AssistantMessage(text="Hello!")])

    whole = await scene(text("Done."), before=before).whole()
    store = await cut_off(replace(whole, earlier=()), 1)
    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        (problem,) = (await runtime.resume()).problems
    assert "began with 2 earlier messages" in str(problem.error)
    assert "give the request up: `toolbus resume --abandon`, or `store.journal.take`" in str(problem.error)


async def test_what_came_late_stays_a_note_of_the_request() -> None:
    async def before(store: MemoryStore) -> None:
        await store.remember("c", [UserMessage(content="Hello."), AssistantMessage(text="Hello!")])

    noted = scene(calls(("look", {"n": 1})), text("Done."), before=before)
    whole = await noted.whole()
    first = whole.entries[0]
    said: Any = first.facts[1]
    note = replace(said, message=SystemMessage(text="It has ended since.", message_id="n1"))
    whole.entries[0] = replace(first, facts=[first.facts[0], note, *first.facts[1:]])
    whole.entries[1:] = [replace(each, seq=each.seq + 1) for each in whole.entries[1:]]
    store = await cut_off(whole, 2)
    async with noted.runtime(store, Lab()) as runtime:
        (session,) = await runtime.resume()
        result = await session.result()
    assert [each.role for each in result.messages] == [
        "user",
        "assistant",
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [*await store.history("c")] == result.messages


# ------------------------------------------------------------------------------------------------ leases


async def test_a_runtime_that_was_made_before_a_fork_holds_leases_under_another_name_in_each_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, names = MemoryStore(journal=True), set[str]()
    runtime = scene(hang(), hang()).runtime(store, Lab())
    for process in (4711, 4712):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        async with runtime:
            session = runtime.start(PROMPT)
            await session.accepted()
            (record,) = await runtime.requests(is_unfinished=True, limit=1)
            assert f":{process}:" in record.owner
            names.add(record.owner)
            session.cancel()
    assert len(names) == 2


async def test_children_of_a_fork_look_for_requests_at_different_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = journal_writer_of(MemoryStore(journal=True), 30.0, "stop")
    assert writer is not None
    copied, moments = writer.chance.getstate(), set[float]()
    for process in (4711, 4712):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        writer.chance.setstate(copied)
        writer.open()
        moments.add(writer.chance.random())
    assert len(moments) == 2


@pytest.mark.guarantee("G20")
async def test_of_two_runtimes_one_gets_each_request() -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store = MemoryStore(journal=True)
    for _ in range(4):
        await cut_off(await looks.whole(), 2, store)
    async with looks.runtime(store, Lab()) as first, looks.runtime(store, Lab()) as second:
        taken = await first.resume(limit=3)
        rest = await second.resume()
        assert (len(taken), len(rest)) == (3, 1)
        assert (len(await first.resume()), len(await second.resume())) == (0, 0)
        for session in (*taken, *rest):
            assert (await session.result()).outcome == "completed"


async def test_a_runtime_leaves_alone_what_it_runs_itself(wall: Wall) -> None:
    lab = Lab()
    store = MemoryStore(journal=True)
    async with scene(calls(("pay", {"n": 1})), text("Done.")).runtime(store, lab) as runtime:
        session = runtime.start(PROMPT)
        await settle()
        wall.put_to(wall() + 3_600)  # as if it had been stopped for an hour
        resumption = await runtime.resume()
        assert (len(resumption), resumption.held, resumption.problems) == (0, 1, ())
        assert (await session.result()).outcome == "completed"
    assert len(lab.runs) == 1


@pytest.mark.guarantee("G20")
async def test_a_request_of_this_runtime_takes_the_place_of_no_other_in_the_limit(wall: Wall) -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    others = [await looks.whole() for _ in range(2)]
    store = MemoryStore(journal=True)
    async with scene(calls(("pay", {"n": 1})), text("Done.")).runtime(store, Lab()) as runtime:
        own = runtime.start(PROMPT)
        await settle()
        for each in others:
            await cut_off(each, 2, store)
        wall.put_to(wall() + 3_600)  # as if it had been stopped for an hour
        resumption = await runtime.resume(limit=2)
        assert (len(resumption), resumption.held, resumption.problems) == (2, 1, ())
        for session in (own, *resumption):
            assert (await session.result()).outcome == "completed"


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("finds_out", ["at a step", "at a renewal"])
async def test_who_has_lost_a_lease_stops_its_handlers_and_tells_no_ending(
    wall: Wall, finds_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[str] = []

    def tools(lab: Lab) -> list[Any]:
        @tool
        async def hang_on() -> str:
            """Wait for ever."""
            try:
                await anyio.sleep_forever()
            finally:
                stopped.append("hang_on")
            raise AssertionError

        return [hang_on, lab.tool("pay", 1 if finds_out == "at a step" else 20)]

    hangs = scene(calls(("hang_on", {}), ("pay", {"n": 1})), text("Done."), tools=tools)
    store, lab = JournaledStore(), Lab()
    seconds = 30 if finds_out == "at a step" else 3
    async with hangs.runtime(store, lab, lease_seconds=seconds) as stale, hangs.runtime(store, Lab()) as fresh:
        heard = listen(stale.bus)
        session = stale.start(PROMPT)
        events = session.events()
        await settle()
        wall.put_to(wall() + 3_600)
        (again,) = await fresh.resume()
        await settle()
        before = len(heard)
        await advance(1.5)
        assert stopped[:1] == ["hang_on"]
        result = await session.result()
        assert result.resumable
        assert not result.journaled
        assert "taken over by another process" in result.reason or "lease" in str(result.error)
        assert [each.type async for each in events][-1] != "request_completed"
        assert [each.type for each in heard].count("request_taken_over") == 1
        line = f"request {session.request_id} stops here: another process has taken it over"
        assert [each.levelname for each in caplog.records if each.getMessage() == line] == ["WARNING"]
        assert "its store failed" not in caplog.text
        reported = {each.type for each in heard[before:]} - {"tool_call_late", "request_taken_over"}
        assert reported <= ({"tool_call_completed"} if finds_out == "at a step" else set())
        assert (await again.result()).outcome == "completed"
    facts = await facts_of(store, session.request_id)
    assert [each.type for each in facts].count("request_completed") == 1
    assert len(lab.runs) == 1
    refused = [each.seq for each in store.entries if each.epoch == 1]
    assert len(refused) == len({*refused})  # A step that was refused is not sent again.


@pytest.mark.guarantee("G20")
async def test_a_lease_lost_between_its_taking_and_the_reading_of_the_facts_is_not_reported_as_damage(
    wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(looks, "tool_call_requested")
    journal: Any = store.journal
    facts = journal.facts

    async with looks.runtime(store, Lab()) as stale, looks.runtime(store, Lab()) as fresh:

        async def facts_after_a_suspension(*args: Any) -> Any:
            journal.facts = facts
            wall.put_to(wall() + 3_600)
            (again,) = await fresh.resume()
            assert (await again.result()).outcome == "completed"
            return await facts(*args)

        journal.facts = facts_after_a_suspension
        found = await stale.resume()
        assert (len(found), found.problems, found.held) == (0, (), 1)
    assert "cannot continue" not in caplog.text
    assert (await journal.request(request_id)).ending == "completed"


async def test_leases_of_requests_that_cannot_go_on_are_given_back_whatever_fails() -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(looks, "tool_call_requested")
    journal: Any = store.journal
    release, facts = journal.release, journal.facts
    failing = [True]

    async def release_later(*args: Any) -> bool:
        await anyio.lowlevel.checkpoint()  # here a cancellation would take effect
        if failing[0]:
            raise StoreUnavailable("it is locked")
        return await release(*args)

    async def facts_never(*args: Any) -> Any:
        await anyio.sleep_forever()

    async with looks.runtime(store, Lab()) as runtime:
        journal.release, journal.facts = release_later, facts_never
        with anyio.move_on_after(1):
            await runtime.resume()
        assert (await journal.request(request_id)).owner != ""
        journal.facts, failing[0] = facts, False
        await advance(5)
        assert (await journal.request(request_id)).owner == ""
        (session,) = await runtime.resume()
        assert (await session.result()).outcome == "completed"


async def test_a_lease_that_is_taken_while_its_resumption_is_cancelled_is_given_back() -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(looks, "tool_call_requested")
    journal: Any = store.journal
    take, facts = journal.take, journal.facts

    async def take_slowly(*args: Any) -> Any:
        taken = await take(*args)
        await anyio.sleep(1)
        return taken

    async def facts_later(*args: Any) -> Any:
        await anyio.lowlevel.checkpoint()  # here the cancellation takes effect
        return await facts(*args)

    journal.take, journal.facts = take_slowly, facts_later
    async with looks.runtime(store, Lab()) as runtime:
        with anyio.move_on_after(0.5):
            await runtime.resume()
        assert (await journal.request(request_id)).owner == ""
        (session,) = await runtime.resume()
        assert (await session.result()).outcome == "completed"


@pytest.mark.parametrize("taken_by", ["this process", "another", "nobody"])
async def test_a_lease_whose_taking_failed_is_given_back_if_this_process_has_it(taken_by: str) -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(looks, "tool_call_requested")
    journal: Any = store.journal
    take = journal.take

    async def loses_the_answer(request_id: str, owner: str, seconds: float) -> None:
        if taken_by != "nobody":
            await take(request_id, owner if taken_by == "this process" else "another", seconds)
        raise StoreUnavailable("no answer")

    async with looks.runtime(store, Lab()) as runtime:
        journal.take = loses_the_answer
        with pytest.raises(StoreUnavailable):
            await runtime.resume()
        await advance(5)
        assert (await journal.request(request_id)).owner == ("another" if taken_by == "another" else "")


async def test_a_full_runtime_leaves_the_rest_for_another_attempt() -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store = MemoryStore(journal=True)
    for _ in range(3):
        await cut_off(await looks.whole(), 2, store)
    async with looks.runtime(store, Lab(), max_sessions=1, max_queued=1) as runtime:
        resumption = await runtime.resume()
        assert [type(each.error) for each in resumption.problems] == [Overloaded]
        for session in resumption:
            await session.result()
        (last,) = await runtime.resume()
        assert (await last.result()).outcome == "completed"


# ------------------------------------------------------------------------------------------- draining


@pytest.mark.guarantee("G18", "G19")
async def test_draining_leaves_what_runs_with_all_that_was_asked_of_it() -> None:
    lab, store = Lab(), MemoryStore(journal=True)
    work = scene(
        calls(("pay", {"n": 1}), ("look", {"n": 2}), ("step_on", {"n": 3}), ("step_on", {"n": 4})), text("Done.")
    )
    async with work.runtime(store, lab) as runtime:
        heard = listen(runtime.bus)
        working, cancelled = runtime.start(PROMPT, conversation_id="c"), runtime.start(PROMPT)
        await advance(1)  # step_on is done just now, in the same moment as the grace ends
        working.steer("And be quick.")
        cancelled.cancel("enough")
        requested = [each for each in heard if isinstance(each, ToolCallRequested)]
        pay = next(each for each in requested if (each.request_id, each.name) == (working.request_id, "pay"))
        assert runtime.bus.publish(pay.completed("by hand"))
        assert await runtime.drain(timeout_seconds=0) >= 1
        result = await working.result()
    assert (result.outcome, result.reason, result.resumable) == ("cancelled", "the runtime is closing", True)
    assert result.explanation == "I stopped here because the work continues elsewhere."
    assert [each.type for each in heard].count("request_cancelled") <= 1
    assert await store.history("c") == ()
    async with work.runtime(store, Lab()) as runtime:
        resumed = {each.request_id: await each.result() for each in await runtime.resume()}
    done = resumed[working.request_id]
    by_name = [(call.name, call.ok, call.reason) for call in done.tool_calls]
    assert by_name[0] == ("pay", True, "")
    assert done.tool_calls[0].content == "by hand"
    assert [*map(type, done.messages)].count(UserMessage) == 2
    assert done.outcome == "completed"
    other = resumed.get(cancelled.request_id) or await cancelled.result()
    assert (other.outcome, other.reason) == ("cancelled", "enough")


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("moment", ["at once", "while they run"])
async def test_leaving_by_an_exception_leaves_resumed_requests_resumable(moment: str) -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(looks, "tool_call_requested")

    class Accident(Exception):
        pass

    sessions: list[Any] = []
    with pytest.raises(Accident):
        async with looks.runtime(store, Lab()) as runtime:
            sessions += await runtime.resume()
            if moment != "at once":
                await settle()
            raise Accident
    result = await sessions[0].result()
    assert (result.outcome, result.resumable) == ("cancelled", True)
    async with looks.runtime(store, Lab()) as runtime:
        (session,) = await runtime.resume()
        assert (await session.result()).outcome == "completed"
    resumptions = [each.type for each in await facts_of(store, request_id)].count("request_resumed")
    assert resumptions == (1 if moment == "at once" else 2)


async def test_a_host_that_cancels_run_ends_the_request_for_good() -> None:
    store = MemoryStore(journal=True)
    assert store.journal is not None
    async with scene(calls(("look", {"n": 1})), text("Done.")).runtime(store, Lab()) as runtime:
        with anyio.move_on_after(1):
            await runtime.run(PROMPT, conversation_id="c")
        assert await store.journal.unfinished() == []
        assert len(await runtime.resume()) == 0
        (record,) = await store.conversations()
    assert record.message_count == 3  # prompt, call, and that it was cancelled


async def test_a_runtime_with_a_journal_that_is_left_at_once_is_left() -> None:
    with anyio.fail_after(1):
        for _ in range(2):
            async with Runtime(ScriptedProvider([]), store=MemoryStore(journal=True)):
                pass


async def test_a_resumption_that_is_overtaken_by_the_end_leaves_the_rest() -> None:
    looks = scene(calls(("look", {"n": 1})), text("Done."))
    store = MemoryStore(journal=True)
    for _ in range(2):
        await cut_off(await looks.whole(), 2, store)
    journal: Any = store.journal
    facts = journal.facts
    taken: list[str] = []

    async def slow_facts(request_id: str) -> Any:
        taken.append(request_id)
        await anyio.sleep(1)
        return await facts(request_id)

    journal.facts = slow_facts
    problems: list[Any] = []
    async with looks.runtime(store, Lab(), drain_seconds=0) as runtime:

        async def resume() -> None:
            problems.extend((await runtime.resume()).problems)

        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            await advance(0.5)
            await runtime.drain(timeout_seconds=0)
    assert len(problems) == 2
    assert len(await journal.unfinished()) == 2


# ---------------------------------------------------------------------------------------------- recalling


async def test_how_a_request_ended_can_be_asked_for_anywhere() -> None:
    store = MemoryStore(journal=True)
    assert store.journal is not None
    async with scene(calls(("look", {"n": 1})), text("Done.")).runtime(store, Lab()) as runtime:
        result = await runtime.run(PROMPT, conversation_id="c")
        await runtime.run("And then?", conversation_id="c", provider=ScriptedProvider([text("Nothing.")]))
        running = runtime.start("Wait.", provider=ScriptedProvider([hang()]))
        await settle()
        assert await runtime.recall(running.request_id) is None
        assert await runtime.recall("nobody") is None
        running.cancel()
        await running.result()
    async with scene(text("?")).runtime(store, Lab()) as runtime:
        recalled = await runtime.recall(result.request_id)
    assert recalled is not None
    assert recalled.journaled
    assert recalled.messages == result.messages
    assert recalled.timeline() == result.timeline()


async def test_a_request_that_is_deleted_while_it_is_read_is_unknown() -> None:
    store = JournaledStore()
    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        result = await runtime.run(PROMPT)
    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        journal = cast("Any", store.journal)
        facts = journal.facts

        async def deleted(request_id: str) -> Any:
            await journal.prune(before=math.inf)
            return await facts(request_id)

        journal.facts = deleted
        assert await runtime.recall(result.request_id) is None


async def test_a_reader_of_facts_that_cannot_follow_says_at_which_one_it_stops() -> None:
    store = JournaledStore()
    async with scene(hang()).runtime(store, Lab()) as runtime:
        session = runtime.start(PROMPT)
        await settle()
        journal = cast("Any", store.journal)
        events = Client(store).request(session.request_id).events()
        assert (await anext(aiter(events))).type == "request_started"
        [record] = await journal.requests()
        odd = ToolCallCompleted(request_id=session.request_id, call_id="none", name="look", content="")
        await journal.append(
            Entry(request_id=session.request_id, conversation_id="", epoch=1, seq=record.fact_count, facts=[odd])
        )
        with pytest.raises(ResumeMismatch, match=f"fact .* of request {session.request_id} cannot be applied"):
            async for _ in events:
                pass


async def test_a_request_that_was_abandoned_is_neither_gone_on_with_nor_recalled() -> None:
    store, request_id = await cut_behind(scene(text("Done.")), "request_started")
    assert store.journal is not None
    await store.journal.abandon(request_id, 1)
    async with scene(text("Done.")).runtime(store, Lab()) as runtime:
        assert len(await runtime.resume()) == 0
        assert await runtime.recall(request_id) is None


async def test_without_a_journal_there_is_nothing_to_resume() -> None:
    async with Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(ConfigurationError, match="no journal"):
            await runtime.resume()
        assert await runtime.recall("r") is None


def forge(journal: Any, ending: str | None) -> None:
    """Write another ending into the journal's one record."""
    inside: Any = journal
    for request in inside._requests.values():
        request.record.ending = ending
        if ending is None:
            inside._leases.park(request, 0.0)


@pytest.mark.guarantee("G22")
async def test_a_record_that_does_not_agree_with_its_facts_is_damage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    store = JournaledStore()
    async with scene(text("Done.")).runtime(store, Lab(), keep_ended_seconds=0) as runtime:
        result = await runtime.run(PROMPT)
        journal: Any = store.journal
        forge(journal, None)
        (problem,) = (await runtime.resume()).problems
        assert isinstance(problem.error, StoreDamaged)
        assert problem.error.request_id == result.request_id
        forge(journal, "failed")
        with pytest.raises(StoreDamaged, match="the ending failed, and its last fact is request_completed"):
            await runtime.recall(result.request_id)


@pytest.mark.guarantee("G10")
async def test_the_time_of_a_request_goes_on_while_nobody_runs(wall: Wall) -> None:
    pays = scene(calls(("step_on", {"n": 1}), ("step_on", {"n": 2})), text("Done."))
    store, request_id = await cut_behind(pays, "tool_call_requested")
    wall.put_to((await facts_of(store, request_id))[-1].at + 601)
    lab = Lab()
    async with pays.runtime(store, lab) as runtime:
        heard = listen(runtime.bus)
        (session,) = await runtime.resume()
        result = await session.result()
    assert (result.outcome, result.reason) == ("stopped", "timeout_seconds=600")
    assert [call.reason for call in result.tool_calls] == ["interrupted", "limit"]
    assert lab.runs == []
    assert isinstance(heard[0], RequestResumed)
    assert isinstance(heard[-1], RequestCompleted)


async def test_nothing_took_less_than_no_time_where_the_clock_was_put_back(wall: Wall) -> None:
    pays = scene(calls(("step_on", {"n": 1})), text("Done."))
    store, request_id = await cut_behind(pays, "tool_call_requested")
    wall.put_to((await facts_of(store, request_id))[-1].at - 18_000)
    async with pays.runtime(store, Lab()) as runtime:
        (session,) = await runtime.resume()
        result = await session.result()
    assert ([call.reason for call in result.tool_calls], result.outcome) == (["interrupted"], "completed")
    assert (result.tool_calls[0].duration_seconds, result.duration_seconds) == (0.0, 0.0)


@pytest.mark.parametrize("vendor", ["scripted", "other"])
async def test_another_model_than_before_is_logged(vendor: str, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = await cut_behind(scene(text("Done.")), "request_started")
    async with Runtime(model(text("Done."), vendor=vendor), store=store) as runtime:
        (session,) = await runtime.resume()
        assert (await session.result()).outcome == "completed"
    assert ("was begun with scripted, and continues" in caplog.text) == (vendor == "other")


async def test_a_reader_elsewhere_that_has_read_only_the_beginning_gets_the_messages_of_all_rounds_at_once() -> None:
    two = scene(calls(("look", {"n": 1})), calls(("look", {"n": 2})), text("Done."))
    whole = await two.whole()
    beginning, *rest = whole.entries
    store = MemoryStore(journal=True)
    assert store.journal is not None
    await store.journal.append(replace(beginning, facts=beginning.facts[:1], has_turn=False))
    rest = [replace(rest[0], seq=1, facts=[*beginning.facts[1:], *rest[0].facts]), *rest[1:]]
    reads = Client(store).request(whole.result.request_id).events()
    found: list[Event] = [await anext(reads)]
    for each in rest:
        await store.journal.append(each)
    found += [each async for each in reads]
    messages = [each.message for each in found if isinstance(each, MessageAppended)]
    assert messages == [*whole.result.messages]
