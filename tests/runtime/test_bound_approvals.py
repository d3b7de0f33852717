"""What was shown is what runs: whatever anybody does to the dictionaries of events that they were given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from toolbus import Limits, Runtime, Tool, ToolRegistry, tool
from toolbus.events import ApprovalDecided, ApprovalRequested, ToolCallCompleted, ToolCallRequested
from toolbus.storage import Store
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ScriptedProvider, calls, settle, text, virtual_backends
from toolbus.toolsets.control import task_complete

anyio_backend = virtual_backends()
pytestmark = pytest.mark.guarantee("G26")

ASKED: dict[str, Any] = {"amount": 1, "to": {"iban": "DE1", "lines": [{"text": "rent"}]}}


def scribble(event: ApprovalRequested | ToolCallRequested) -> None:
    """Change all that can be changed in what everybody was given."""
    event.arguments["amount"] = 999_999
    event.arguments["to"]["iban"] = "XX9"
    event.arguments["to"]["lines"][0]["text"] = "a car"
    event.arguments["to"]["lines"].append({"text": "a boat"})


class Bank:
    """A tool that pays, and what it was given."""

    def __init__(
        self, *, needs_approval: bool = True, cache_seconds: float | None = None, description: str | None = None
    ) -> None:
        self.paid: list[dict[str, Any]] = []

        async def pay(amount: int, to: dict[str, Any]) -> str:
            """Pay an amount."""
            self.paid.append({"amount": amount, "to": to})
            return "paid"

        self.tool: Tool = tool(needs_approval=needs_approval, cache_seconds=cache_seconds, description=description)(pay)

    def runtime(self, times: int = 1, tools: ToolRegistry | None = None, store: Store | None = None) -> Runtime:
        script = [*([calls(("pay", copy.deepcopy(ASKED)))] * times), text("Done.")]
        return Runtime(ScriptedProvider(script), tools=tools or [self.tool], store=store)


def approving(runtime: Runtime, **decision: Any) -> Callable[[ApprovalRequested], None]:
    def approve(question: ApprovalRequested) -> None:
        runtime.bus.publish(question.decided(approved=True, **decision))

    return approve


# ------------------------------------------------------------------------------------------------ what was shown


async def test_a_listener_that_changes_the_arguments_of_a_question_changes_nothing_that_runs() -> None:
    bank = Bank()
    async with bank.runtime() as runtime:
        runtime.bus.connect(ApprovalRequested, scribble)
        runtime.bus.connect(ApprovalRequested, approving(runtime))
        result = await runtime.run("Pay my rent.")
    assert bank.paid == [ASKED]
    assert result.tool_calls[0].arguments == ASKED


async def test_an_approver_that_changes_the_question_and_then_approves_changes_nothing_that_runs() -> None:
    bank = Bank()
    async with bank.runtime() as runtime:
        session = runtime.start("Pay my rent.")
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        await settle()
        assert runtime.bus.publish(asked[0].decided(approved=True))
        scribble(asked[0])
        assert (await session.result()).ok
    assert bank.paid == [ASKED]


@pytest.mark.parametrize("first", [True, False], ids=["before the dispatcher", "behind the dispatcher"])
@pytest.mark.parametrize(
    "options", [{}, {"needs_approval": False}, {"needs_approval": False, "cache_seconds": 60}], ids=repr
)
async def test_a_listener_that_changes_the_arguments_of_a_request_changes_nothing_that_runs(
    options: dict[str, Any], first: bool
) -> None:
    bank = Bank(**options)
    runtime = bank.runtime()
    if first:
        runtime.bus.connect(ToolCallRequested, scribble)
    async with runtime:
        runtime.bus.connect(ToolCallRequested, scribble)
        runtime.bus.connect(ApprovalRequested, approving(runtime))
        result = await runtime.run("Pay my rent.")
    assert bank.paid == [ASKED]
    assert result.tool_calls[0].arguments == ASKED


async def test_a_result_is_kept_for_the_arguments_that_it_was_made_with() -> None:
    bank = Bank(needs_approval=False, cache_seconds=60)
    runtime = bank.runtime(times=2)
    disconnect = runtime.bus.connect(ToolCallRequested, scribble)
    runtime.bus.connect(ToolCallCompleted, lambda _: disconnect())
    async with runtime:
        await runtime.run("Pay my rent.")
        assert bank.paid == [ASKED]
        assert runtime.dispatcher.statistics().cache_hits == 1


async def test_edits_are_those_that_were_published_whatever_becomes_of_them_afterwards() -> None:
    edits: dict[str, Any] = {"amount": 2, "to": {"iban": "DE2"}}

    def change(decided: ApprovalDecided) -> None:
        assert decided.arguments is not None
        decided.arguments["amount"] = 999_999
        decided.arguments["to"]["iban"] = "XX9"

    bank = Bank()
    async with bank.runtime() as runtime:
        runtime.bus.connect(ApprovalDecided, change)
        runtime.bus.connect(ApprovalRequested, approving(runtime, arguments=edits))
        runtime.bus.connect(ApprovalRequested, lambda _: edits.update(amount=7))
        assert (await runtime.run("Pay my rent.")).ok
    assert bank.paid == [{"amount": 2, "to": {"iban": "DE2"}}]


async def test_a_question_that_is_asked_again_shows_what_the_model_has_asked_for() -> None:
    bank = Bank()
    asked: list[ApprovalRequested] = []
    shown: list[dict[str, Any]] = []

    def hear(question: ApprovalRequested) -> None:
        asked.append(question)
        shown.append(copy.deepcopy(question.arguments))
        scribble(question)

    registry = ToolRegistry([bank.tool])
    async with bank.runtime(tools=registry) as runtime:
        runtime.bus.connect(ApprovalRequested, hear)
        session = runtime.start("Pay my rent.")
        await settle()
        registry.remove("pay")
        changed = Bank(description="Pay it by another bank.")
        changed.paid = bank.paid
        registry.add(changed.tool)
        for _ in range(2):
            runtime.bus.publish(asked[-1].decided(approved=True))
            await settle()
        assert (await session.result()).ok
    assert shown == [ASKED, ASKED]
    assert bank.paid == [ASKED]


async def test_a_question_that_another_process_asks_again_binds_what_it_was_for() -> None:
    store = MemoryStore(journal=True)
    bank = Bank()
    async with bank.runtime(store=store) as runtime:
        runtime.bus.connect(ApprovalRequested, scribble)
        session = runtime.start("Pay my rent.")
        await settle()
        session.release("for the other process")
        await session.result()
    shown: list[dict[str, Any]] = []
    async with Runtime(ScriptedProvider([text("Done.")]), tools=[bank.tool], store=store) as runtime:
        runtime.bus.connect(ApprovalRequested, lambda question: shown.append(copy.deepcopy(question.arguments)))
        runtime.bus.connect(ApprovalRequested, scribble)
        runtime.bus.connect(ApprovalRequested, approving(runtime))
        (resumed,) = (await runtime.resume()).sessions
        assert (await resumed.result()).ok
    assert shown == [ASKED]
    assert bank.paid == [ASKED]


# -------------------------------------------------------------------------------------------- what is decided by it


@pytest.mark.guarantee("G10")
async def test_calls_are_counted_as_repeated_whatever_listeners_make_of_them() -> None:
    bank = Bank(needs_approval=False)
    async with bank.runtime(times=3) as runtime:
        runtime.bus.connect(ToolCallRequested, scribble)
        result = await runtime.run("Pay my rent.", limits=Limits(max_repeats=2))
    assert [each.reason for each in result.tool_calls] == ["", "", "limit"]
    assert bank.paid == [ASKED, ASKED]


async def test_a_call_that_ends_the_request_ends_it_with_the_answer_that_the_model_gave() -> None:
    @tool(timeout_seconds=100)
    async def wait() -> str:
        """Take some time."""
        await anyio.sleep(10)
        return "waited"

    def hear(event: ToolCallCompleted) -> None:
        if event.name == "task_complete":
            event.data["answer"] = "something else"

    script = [calls(("task_complete", {"answer": "as it is"}), ("wait", {}))]
    async with Runtime(ScriptedProvider(script), tools=[task_complete, wait]) as runtime:
        runtime.bus.connect(ToolCallCompleted, hear)
        result = await runtime.run("Answer.")
    assert result.text == "as it is"


async def test_a_request_of_a_call_that_waits_for_a_person_runs_nothing_when_somebody_else_publishes_it() -> None:
    bank = Bank()
    async with bank.runtime() as runtime:
        asked: list[ApprovalRequested] = []
        runtime.bus.connect(ApprovalRequested, asked.append)
        session = runtime.start("Pay my rent.")
        await settle()
        forged = ToolCallRequested(
            request_id=session.request_id,
            call_id=asked[0].call_id,
            name="pay",
            arguments={"amount": 999_999, "to": {}},
            round=0,
            timeout_seconds=30,
            idempotency_key="forged",
        )
        runtime.bus.publish(forged)
        await settle()
        assert bank.paid == []
        runtime.bus.publish(asked[0].decided(approved=True))
        runtime.bus.publish(forged)
        assert (await session.result()).ok
    assert bank.paid == [ASKED]
