"""Turns of one conversation: who may begin, what comes late, and what a person's approval is remembered for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from toolbus import EventBus, Limits, RequestResult, RequestSession, Runtime, Tool, tool
from toolbus.core.transcript import validate
from toolbus.errors import ConversationBusy, StoreUnavailable
from toolbus.events import ApprovalDecided, ApprovalRequested, Event, ToolCallLate
from toolbus.messages import AssistantMessage, Message, SystemMessage, UserMessage, to_anthropic
from toolbus.protocols import Emit, LateResults, ModelReply, ModelRequest
from toolbus.runtime._conversations import BoundedMapping, LateResultNotes
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, advance, calls, settle, text, virtual_backends

anyio_backend = virtual_backends()

HASTY = Limits(tool_timeout_seconds=5)
REPORT = ("make_report", {"month": 3})


def roles(messages: Any) -> list[str]:
    return [message.role for message in messages]


def notes_in(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, SystemMessage)]


# ------------------------------------------------------------------------------------------------- a busy conversation


class Gate:
    """A model that waits until it is let go."""

    vendor = "gate"

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.asked: list[list[Message]] = []

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.asked.append(list(request.messages))
        await self.open.wait()
        return ModelReply(message=AssistantMessage(text="done"))


async def test_a_turn_of_a_busy_conversation_is_refused_where_that_is_asked_for_and_nothing_is_started() -> None:
    gate = Gate()
    heard: list[Event] = []
    async with Runtime(gate, on_busy="refuse") as runtime:
        first = runtime.start("one", conversation_id="c")
        await settle()
        runtime.bus.connect(Event, heard.append)
        with pytest.raises(ConversationBusy, match="'c' has a turn that has not ended yet") as caught:
            runtime.start("two", conversation_id="c")
        with pytest.raises(ConversationBusy):
            await runtime.run("two", conversation_id="c")
        await settle()
        assert (heard, runtime.bus.statistics().mailboxes, len(gate.asked)) == ([], 1, 1)
        elsewhere = runtime.start("two", conversation_id="d")
        gate.open.set()
        result = await first.result()
        assert (await elsewhere.result()).ok
        after = await runtime.run("three", conversation_id="c")
    assert caught.value.retryable
    assert caught.value.code == "conversation_busy"
    assert result.ok
    assert roles(after.messages) == ["user", "assistant"] * 2
    assert "two" not in repr(after.messages)


async def test_each_request_may_say_itself_whether_it_waits() -> None:
    gate = Gate()
    async with Runtime(gate) as runtime:
        first = runtime.start("one", conversation_id="c")
        with pytest.raises(ConversationBusy):
            runtime.start("two", conversation_id="c", on_busy="refuse")
        waits = runtime.start("three", conversation_id="c")
        gate.open.set()
        assert (await first.result()).ok
        third = await waits.result()
        assert (await runtime.run("four", conversation_id="c", on_busy="refuse")).history_count == 4
    assert [each.text for each in third.messages if isinstance(each, UserMessage)] == ["one", "three"]


async def test_none_is_the_option_of_the_runtime_as_for_every_other_option() -> None:
    gate, given = Gate(), dict[str, Any](on_busy=None)
    async with Runtime(gate, on_busy="refuse") as runtime:
        first = runtime.start("one", conversation_id="c")
        with pytest.raises(ConversationBusy):
            runtime.start("two", conversation_id="c", **given)
        gate.open.set()
        assert (await first.result()).ok


async def test_a_turn_that_waits_makes_its_conversation_busy_too() -> None:
    gate = Gate()
    async with Runtime(gate, max_sessions=1) as runtime:
        running = runtime.start("elsewhere", conversation_id="a")
        waiting = runtime.start("one", conversation_id="c")
        await settle()
        with pytest.raises(ConversationBusy):
            runtime.start("two", conversation_id="c", on_busy="refuse")
        waiting.cancel()
        await waiting.result()
        again = runtime.start("two", conversation_id="c", on_busy="refuse")
        gate.open.set()
        assert (await running.result()).ok
        assert (await again.result()).ok


# ------------------------------------------------------------------------------------------------- late results


async def until(happened: Callable[[], bool]) -> None:
    """Wait for what comes from a thread, without letting virtual time pass."""
    for _ in range(1_000_000):
        if happened():
            return
        await anyio.lowlevel.checkpoint()
    raise AssertionError("it does not happen")


class Reports:
    """A tool that is too slow for its deadline, and ends when it is told to."""

    def __init__(self, kind: Literal["async", "thread"]) -> None:
        self.kind = kind
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.woken = anyio.Event()
        self.fails = False

    def tool(self) -> Tool:
        if self.kind == "thread":

            def make_report(month: int) -> str:
                """Make the month's report."""
                self.begun.set()
                assert self.let_go.wait(60)
                return self.made(month)

            return Tool(handler=make_report)

        async def make_report_(month: int) -> str:
            """Make the month's report, whatever happens."""
            self.begun.set()
            with anyio.CancelScope(shield=True):
                await self.woken.wait()
            return self.made(month)

        return Tool("make_report", handler=make_report_)

    def made(self, month: int) -> str:
        if self.fails:
            raise OSError("the disk is full")
        return f"report of month {month}"

    async def outlive(self, session: RequestSession) -> RequestResult[Any]:
        """Let the call's deadline pass while the handler runs, and the request end."""
        await until(self.begun.is_set)
        await advance(6, wait_for_threads=False)
        return await session.result()

    async def end(self, late: list[Event] | None) -> None:
        """Let the handler end, and wait until its result has come in, where anybody can tell."""
        self.let_go.set()
        self.woken.set()
        if late is not None:
            await until(lambda: bool(late))


@pytest.fixture(params=["async", "thread"])
def reports(request: pytest.FixtureRequest) -> Iterator[Reports]:
    made = Reports(request.param)
    yield made
    made.let_go.set()


def hears_late(bus: EventBus) -> list[Event]:
    late: list[Event] = []
    bus.connect(ToolCallLate, late.append)
    return late


@pytest.mark.guarantee("G07")
async def test_a_late_success_is_put_in_front_of_the_next_turn_once(reports: Reports) -> None:
    script = ScriptedProvider([calls(REPORT), text("It takes too long."), text("Here it is."), text("Bye.")])
    async with Runtime(script, tools=[reports.tool()], limits=HASTY, late_results="next_turn") as runtime:
        late = hears_late(runtime.bus)
        first = await reports.outlive(runtime.start("The report, please", conversation_id="c"))
        assert [call.reason for call in first.tool_calls] == ["timeout"]
        await reports.end(late)
        second = await runtime.run("And?", conversation_id="c")
        third = await runtime.run("Thanks", conversation_id="c")
    assert [(event.type, getattr(event, "for_next_turn", None)) for event in late] == [("tool_call_late", True)]
    assert roles(second.new_messages) == ["system", "user", "assistant"]
    (note,) = notes_in(second.messages)
    assert 'make_report({"month":3}) gave: report of month 3' in note
    assert notes_in(script.requests[1].messages) == []
    assert notes_in(script.requests[2].messages) == [note]
    assert (notes_in(third.messages), roles(third.new_messages)) == ([note], ["user", "assistant"])
    validate(third.messages)
    assert [message["role"] for message in to_anthropic(second.messages)["messages"]][-1] == "assistant"


async def test_a_late_success_belongs_to_its_own_conversation(reports: Reports) -> None:
    script = ScriptedProvider([calls(REPORT), text("Too long."), text("Hello."), text("Here it is.")])
    async with Runtime(script, tools=[reports.tool()], limits=HASTY, late_results="next_turn") as runtime:
        late = hears_late(runtime.bus)
        first = await reports.outlive(runtime.start("The report, please"))
        await reports.end(late)
        elsewhere = await runtime.run("Hello")
        second = await runtime.run("And?", conversation_id=first.conversation_id)
    assert notes_in(elsewhere.messages) == []
    assert len(notes_in(second.messages)) == 1


async def test_a_late_failure_is_no_news_for_the_next_turn(reports: Reports) -> None:
    reports.fails = True
    script = ScriptedProvider([calls(REPORT), text("Too long."), text("No.")])
    async with Runtime(script, tools=[reports.tool()], limits=HASTY, late_results="next_turn") as runtime:
        late = hears_late(runtime.bus)
        await reports.outlive(runtime.start("The report, please", conversation_id="c"))
        await reports.end(late)
        second = await runtime.run("And?", conversation_id="c")
    assert [getattr(event, "event_type", "") for event in late] == ["tool_call_failed"]
    assert notes_in(second.messages) == []


@pytest.mark.parametrize(("policy", "reported"), [("drop", 0), ("event", 1), (None, 1)])
async def test_a_late_result_is_reported_or_dropped_and_stays_out_of_the_conversation(
    policy: LateResults | None, reported: int, reports: Reports
) -> None:
    script = ScriptedProvider([calls(REPORT), text("Too long."), text("No.")])
    options: dict[str, Any] = {} if policy is None else {"late_results": policy}
    async with Runtime(script, tools=[reports.tool()], limits=HASTY, **options) as runtime:
        late = hears_late(runtime.bus)
        await reports.outlive(runtime.start("The report, please", conversation_id="c"))
        await reports.end(late if reported else None)
        await until(lambda: runtime.bus.statistics().late_results == 1)
        second = await runtime.run("And?", conversation_id="c")
    assert len(late) == reported
    assert notes_in(second.messages) == []
    assert "report of month" not in repr(script.requests)


async def test_what_comes_late_while_the_next_turn_runs_is_for_the_one_after_it(reports: Reports) -> None:
    gate = Gate()
    script = ScriptedProvider([calls(REPORT), text("Too long.")])
    async with Runtime(gate, tools=[reports.tool()], limits=HASTY, late_results="next_turn") as runtime:
        late = hears_late(runtime.bus)
        await reports.outlive(runtime.start("The report, please", conversation_id="c", provider=script))
        second = runtime.start("And?", conversation_id="c")
        await advance(1, wait_for_threads=False)
        await reports.end(late)
        gate.open.set()
        assert notes_in((await second.result()).messages) == []
        third = await runtime.run("And now?", conversation_id="c")
    assert roles(third.new_messages) == ["system", "user", "assistant"]
    assert notes_in(gate.asked[1]) == notes_in(third.messages)


# ------------------------------------------------------------------------------------------------- remembered approvals


@tool(needs_approval=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


MAIL = ("send_mail", {"to": "ada"})


def mails(request: ModelRequest) -> Any:
    return calls(("send_mail", {"to": request.request_id})) if request.messages[-1].role == "user" else text("Done.")


class Desk:
    """A person who decides on every question likewise."""

    def __init__(self, bus: EventBus, *, approved: bool, remember: bool) -> None:
        self.asked: list[ApprovalRequested] = []
        self.decided: list[ApprovalDecided] = []
        self._bus = bus
        self._approved, self._remember = approved, remember
        bus.connect(ApprovalRequested, self._on_asked)
        bus.connect(ApprovalDecided, self.decided.append)

    def _on_asked(self, event: ApprovalRequested) -> None:
        self.asked.append(event)
        self._bus.publish(event.decided(approved=self._approved, remember=self._remember, by="ada"))


async def test_an_approval_that_is_remembered_holds_for_the_conversation_and_no_other() -> None:
    async with Runtime(ScriptedProvider(mails), tools=[send_mail]) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=True)
        first = await runtime.run("Write to me")
        for _ in range(2):
            again = await runtime.run("Once more", conversation_id=first.conversation_id)
            assert [call.ok for call in again.tool_calls] == [True]
        assert len(desk.asked) == 1
        await runtime.run("Write to me")
        await runtime.run("Write to me", conversation_id="elsewhere")
    assert len(desk.asked) == 3
    assert len({event.conversation_id for event in desk.asked}) == 3


async def test_an_approval_that_is_not_remembered_is_for_one_call() -> None:
    async with Runtime(ScriptedProvider(mails), tools=[send_mail]) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=False)
        first = await runtime.run("Write to me")
        await runtime.run("Once more", conversation_id=first.conversation_id)
    assert len(desk.asked) == 2


async def test_a_denial_that_is_remembered_needs_no_person_either() -> None:
    async with Runtime(ScriptedProvider(mails), tools=[send_mail]) as runtime:
        desk = Desk(runtime.bus, approved=False, remember=True)
        first = await runtime.run("Write to me")
        second = await runtime.run("Once more", conversation_id=first.conversation_id)
    assert len(desk.asked) == 1
    assert [call.reason for call in [*first.tool_calls, *second.tool_calls]] == ["denied", "denied"]
    assert "ada denied the call" in first.tool_calls[0].error


async def test_a_remembered_approval_is_for_the_tool_as_it_was_shown() -> None:
    def send_mail_to_all(to: str) -> str:
        """Send a mail to everybody."""
        return "sent"

    other = Tool("send_mail", handler=send_mail_to_all, needs_approval=True)
    async with Runtime(ScriptedProvider(mails), tools=[send_mail]) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=True)
        first = await runtime.run("Write to me")
        await runtime.run("Once more", conversation_id=first.conversation_id, tools=[other])
    assert len(desk.asked) == 2


async def test_a_remembered_approval_counts_within_the_turn_as_well() -> None:
    script = ScriptedProvider([calls(MAIL), calls(("send_mail", {"to": "bob"})), text("Done.")])
    async with Runtime(script, tools=[send_mail]) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=True)
        result = await runtime.run("Write to both")
    assert [event.arguments for event in desk.asked] == [{"to": "ada"}]
    assert [call.content for call in result.tool_calls] == ["sent to ada", "sent to bob"]


async def test_an_approval_is_kept_of_a_turn_that_was_cancelled_afterwards() -> None:
    started = anyio.Event()

    @tool(needs_approval=True)
    async def dig() -> str:
        """Dig a hole."""
        started.set()
        await anyio.sleep_forever()
        return ""

    script = ScriptedProvider(lambda _request: calls(("dig", {})))
    async with Runtime(script, tools=[dig]) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=True)
        for _ in range(2):
            session = runtime.start("Dig", conversation_id="c")
            await started.wait()
            session.cancel()
            assert (await session.result()).outcome == "cancelled"
            started = anyio.Event()
    assert len(desk.asked) == 1


async def test_a_long_result_that_came_late_is_cut_in_the_note_that_tells_of_it() -> None:
    late_notes = LateResultNotes()
    late = ToolCallLate(
        request_id="r", conversation_id="c", call_id="1", name="t", event_type="tool_call_completed", content="x" * 9000,
        for_next_turn=True,
    )  # fmt: skip
    late_notes(late)
    (note,) = late_notes.take("c", (), late_notes.of("c"))
    assert "of 9000 characters are missing" in note.text
    assert len(note.text) < 4200


async def test_a_conversation_that_was_deleted_hands_no_late_result_to_the_one_that_begins_under_its_id(
    reports: Reports,
) -> None:
    script = ScriptedProvider([calls(REPORT), text("It takes too long."), text("Hello."), text("Hello again.")])
    async with Runtime(script, tools=[reports.tool()], limits=HASTY, late_results="next_turn") as runtime:
        late = hears_late(runtime.bus)
        await reports.outlive(runtime.start("The report, please", conversation_id="c"))
        await reports.end(late)
        assert await runtime.store.forget("c")
        for _ in range(2):
            result = await runtime.run("Hello?", conversation_id="c")
    assert notes_in(result.messages) == []


async def test_a_conversation_that_was_deleted_hands_no_approval_to_the_one_that_begins_under_its_id() -> None:
    @tool(destructive=True)
    async def dig() -> str:
        """Dig."""
        return "dug"

    store = MemoryStore()
    script = ScriptedProvider(
        [calls(("dig", {})), text("Dug."), text("Hello."), calls(("dig", {})), text("Dug again.")]
    )
    async with Runtime(script, tools=[dig], store=store) as runtime:
        desk = Desk(runtime.bus, approved=True, remember=True)
        await runtime.run("Dig", conversation_id="c")
        assert await store.forget("c")
        await runtime.run("Hello?", conversation_id="c")
        await runtime.run("Dig", conversation_id="c")
    assert len(desk.asked) == 2


async def test_a_history_that_was_given_is_no_part_of_a_turn_that_fails_before_it_has_begun() -> None:
    class Away(MemoryStore):
        async def history(self, conversation_id: str) -> Sequence[Message]:
            raise StoreUnavailable("the store is away")

    history = [UserMessage(content="Hi"), AssistantMessage(text="Hello.")]
    async with Runtime(ScriptedProvider([]), store=Away()) as runtime:
        result = await runtime.start("And now?", history=history, conversation_id="c").result()
    assert (result.outcome, result.history_count, result.new_messages) == ("failed", 2, [])


@pytest.mark.parametrize("journal", [False, True])
async def test_a_turn_that_is_cancelled_while_it_waits_leaves_nothing_in_its_conversation(journal: bool) -> None:
    store = MemoryStore(journal=journal)
    async with Runtime(ScriptedProvider([text("One.", delays=1.0), text("Three.")]), store=store) as runtime:
        first, second = [runtime.start(words, conversation_id="c") for words in ("first", "second")]
        await settle()
        assert second.cancel("changed my mind")
        assert (await second.result()).outcome == "cancelled"
        assert (await first.result()).text == "One."
        result = await runtime.run("third", conversation_id="c")
    assert [each.text for each in result.messages] == ["first", "One.", "third", "Three."]
    assert [*await store.history("c")] == result.messages


def test_what_is_kept_of_conversations_is_bounded_by_its_weight_and_the_oldest_goes_first() -> None:
    kept = BoundedMapping[str](10, len)
    kept.put("a", "1234")
    kept.put("b", "1234")
    kept.put("a", "12345")
    assert (kept.get("a"), kept.get("b")) == ("12345", "1234"), "it replaces its earlier value, and is the newest now"
    kept.put("c", "12")
    assert [kept.get(each) for each in "abc"] == ["12345", None, "12"]
    kept.put("d", "1234567890")
    assert [kept.get(each) for each in "acd"] == [None, None, "1234567890"]
    kept.put("d", None)
    kept.put("e", "1234567890")
    assert [kept.get(each) for each in "de"] == [None, "1234567890"]
    assert [kept.pop("e"), kept.pop("e")] == ["1234567890", None]
