"""What has to hold of every journal, whatever has happened: checked by reading the facts, and nothing of the machine.

The stateful test asks these after each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.core.limits import Limits
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    RequestEnding,
    RoundStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from toolbus.messages import AssistantMessage, SystemMessage, Usage
from toolbus.tool_results import failure_content

BEGUN = (ToolCallRequested, ApprovalRequested)
SETTLED = (ToolCallCompleted, ToolCallFailed)


def is_own(fact: Event) -> bool:
    """Whether the machine has made it, and nobody outside."""
    return fact.event_id.startswith("r_f")


def is_answer(fact: ModelResponded) -> bool:
    return bool(fact.message.text.strip()) and not fact.message.tool_calls


def check_approvals(facts: Sequence[Event]) -> None:
    """A call that waits is requested only as it was shown or decided, by a decision on the newest question."""
    asked: dict[str, ApprovalRequested] = {}
    allowed: dict[str, Mapping[str, Any]] = {}
    settled: set[str] = set()
    for fact in facts:
        if isinstance(fact, ApprovalRequested):
            assert fact.call_id not in settled
            asked[fact.call_id] = fact
            allowed.pop(fact.call_id, None)
        elif isinstance(fact, ApprovalDecided):
            question = asked[fact.call_id]
            assert fact.call_id not in settled
            if fact.approved:
                allowed[fact.call_id] = question.arguments if fact.arguments is None else fact.arguments
        elif isinstance(fact, ToolCallRequested):
            assert fact.call_id not in settled
            if fact.call_id in asked:
                assert fact.arguments == allowed[fact.call_id]
        elif isinstance(fact, SETTLED):
            settled.add(fact.call_id)


def check_order(facts: Sequence[Event], sequential: set[str]) -> None:
    """Calls of sequential tools begin in call order, each when the one before has ended."""
    under_way = ""
    last = -1
    for fact in facts:
        if isinstance(fact, RoundStarted):
            assert not under_way
            last = -1
        elif isinstance(fact, BEGUN) and fact.name in sequential and fact.call_id != under_way:
            assert not under_way, f"{fact.call_id} began while {under_way} was under way"
            place = int(fact.call_id.rpartition("_")[2])
            assert place > last
            last, under_way = place, fact.call_id
        elif isinstance(fact, SETTLED) and fact.call_id == under_way:
            under_way = ""


def tickets_of(facts: Sequence[Event]) -> set[str]:
    """The background calls that were not settled when the other calls of their reply were."""
    tickets: set[str] = set()
    open_calls: set[str] = set()
    runs: set[str] = set()
    for fact in facts:
        if isinstance(fact, ModelResponded):
            open_calls = {each.call_id for each in fact.message.tool_calls}
        elif isinstance(fact, ToolCallRequested) and fact.background:
            runs.add(fact.call_id)
        elif isinstance(fact, SETTLED):
            open_calls.discard(fact.call_id)
        if open_calls and open_calls <= runs:
            tickets |= open_calls
            open_calls = set()
    return tickets


def paused_seconds(facts: Sequence[Event], limits: Limits) -> tuple[float, bool]:
    """How long the request stood still in all, while it does not; and whether it stands still now.

    It does while anything waits for a person, and after an answer to which the result of a background call comes.
    """
    deadlines: dict[str, float] = {}  # of calls that run
    left: dict[str, float] = {}  # seconds of those that stand still
    waiting: dict[str, float] = {}  # until when
    total = since = 0.0
    tickets, unread, offered = tickets_of(facts), set[str](), True
    background = {each.call_id for each in facts if isinstance(each, ToolCallRequested) and each.background}
    for fact in facts:
        if isinstance(fact, RoundStarted):
            offered = fact.tools_offered
            if waiting.pop("idle", None) is not None:
                total += 0.0 if waiting else fact.at - since
        elif isinstance(fact, ToolCallRequested) and fact.call_id in tickets:
            unread.add(fact.call_id)
        elif isinstance(fact, MessageAppended):
            unread.discard(fact.message.message_id.removesuffix("_b"))
        elif isinstance(fact, ModelResponded) and is_answer(fact) and offered and unread:
            since = since if waiting else fact.at
            waiting["idle"] = math.inf
        if isinstance(fact, (ToolCallPaused, ToolCallResumed)) and fact.call_id in background:
            continue
        if isinstance(fact, ApprovalRequested):
            since = since if waiting else fact.at
            waiting[fact.call_id] = fact.at + fact.timeout_seconds
        elif isinstance(fact, ToolCallPaused):
            at = min(fact.at, deadlines[fact.call_id])  # an overdue call has no time left, and no less
            since = since if waiting else at
            left[fact.call_id] = deadlines[fact.call_id] - at
            waiting[fact.call_id] = at + limits.approval_timeout_seconds + left[fact.call_id]
        elif isinstance(fact, (ToolCallRequested, ToolCallResumed, *SETTLED)) and fact.call_id in waiting:
            until = waiting.pop(fact.call_id)
            at = fact.at if is_own(fact) else min(fact.at, until)  # an overdue one has waited no longer than it might
            total += 0.0 if waiting else at - since
            if isinstance(fact, ToolCallResumed):
                deadlines[fact.call_id] = at + left[fact.call_id]
        if isinstance(fact, ToolCallRequested):
            deadlines[fact.call_id] = fact.at + fact.timeout_seconds
    return total, bool(waiting)


def check_pauses(facts: Sequence[Event]) -> None:
    """Only a call that runs is paused, and none twice; only a paused one is resumed."""
    running: set[str] = set()
    paused: set[str] = set()
    for fact in facts:
        if isinstance(fact, ToolCallRequested):
            running.add(fact.call_id)
        elif isinstance(fact, ToolCallPaused):
            assert fact.call_id in running - paused
            paused.add(fact.call_id)
        elif isinstance(fact, ToolCallResumed):
            paused.remove(fact.call_id)
        elif isinstance(fact, SETTLED):
            running.discard(fact.call_id)
            paused.discard(fact.call_id)


def check_nothing_begins_after_the_end(facts: Sequence[Event], limits: Limits) -> None:
    """No call is requested nor put to a person, and no round begins, once the request is to end at once."""
    over = False
    for fact in facts:
        if over:
            assert not isinstance(fact, (*BEGUN, RoundStarted, ModelRetrying)), fact
        if isinstance(fact, CancelRequested):
            over = True
        elif isinstance(fact, ToolCallFailed):
            ignored = ("limit", "cancelled") if is_own(fact) else ()
            fails = limits.on_failure == "fail_fast" and fact.reason not in ignored
            over = over or fails or (fact.reason in limits.stop_on and fact.reason not in ignored[1:])


def check_budget(facts: Sequence[Event], limits: Limits) -> tuple[Usage, float]:
    """The model is not called again past a limit of tokens or money. Gives what was spent."""
    usage, cost = Usage(), 0.0
    for fact in facts:
        if isinstance(fact, (RoundStarted, ModelRetrying)):
            assert usage.input_tokens <= limits.max_input_tokens
            assert usage.output_tokens <= limits.max_output_tokens
            assert limits.max_cost is None or cost <= limits.max_cost
        elif isinstance(fact, (ModelResponded, HistoryCompressed)):
            usage += fact.usage
            cost += fact.cost or 0.0
        elif isinstance(fact, SETTLED) and fact.spent is not None:
            usage += fact.spent.usage
            cost += fact.spent.cost
    return usage, cost


def check_overflows(facts: Sequence[Event], providers: int) -> None:
    """In each round, each provider is asked once more for what was too long, then the next one; none is gone back to."""
    refused: set[int] = set()
    provider = 0
    for fact in facts:
        if isinstance(fact, RoundStarted):
            refused = set()
        elif isinstance(fact, ModelRetrying):
            assert provider <= fact.provider_index <= provider + 1
            assert fact.provider_index < providers
            if fact.reason == "context_overflow":
                assert (fact.provider_index == provider) is (provider not in refused)
                refused.add(provider)
                assert fact.delay_seconds == 0
            provider = fact.provider_index


def refused_in(facts: Sequence[Event]) -> set[int]:
    """Which providers have said in the newest round that what they were sent is too long, and were asked once more."""
    refused: set[int] = set()
    provider = 0
    for fact in facts:
        if isinstance(fact, RoundStarted):
            refused = set()
        elif isinstance(fact, ModelRetrying):
            if fact.reason == "context_overflow" and fact.provider_index == provider:
                refused.add(provider)
            provider = fact.provider_index
    return refused


def check_repeats(facts: Sequence[Event], limits: Limits) -> None:
    """No call begins after as many replies as the limit says have made only this call, and have got one result."""
    replies: list[list[str]] = []
    written: dict[str, tuple[str, str]] = {}
    tickets = tickets_of(facts)
    results: dict[str, str] = dict.fromkeys(tickets, "ticket")
    for fact in facts:
        if isinstance(fact, ModelResponded) and fact.message.tool_calls:
            replies.append([call.call_id for call in fact.message.tool_calls])
            written |= {call.call_id: (call.name, call.arguments) for call in fact.message.tool_calls}
        elif isinstance(fact, BEGUN) or (isinstance(fact, ToolCallCompleted) and is_own(fact)):
            before = replies[:-1][-limits.max_repeats :]
            row = {(written[each], results[each]) for reply in before for each in reply}
            is_full = len(before) == limits.max_repeats and len(row) == 1
            assert not is_full or written[fact.call_id] != row.pop()[0]
        if isinstance(fact, SETTLED) and fact.call_id in tickets:
            continue
        if isinstance(fact, ToolCallCompleted):
            results[fact.call_id] = repr((fact.content, fact.parts))
        elif isinstance(fact, ToolCallFailed):
            results[fact.call_id] = repr((fact.reason, fact.error))


def check_interrupted(facts: Sequence[Event]) -> None:
    """A reply that was cut off has only text and reasoning, and the ending follows it at once.

    Only the background calls come between the two: they are given up, and noted.
    """
    for place, fact in enumerate(facts):
        if isinstance(fact, ModelResponded) and fact.message.interrupted:
            assert (fact.message.tool_calls, fact.message.vendor_data) == ((), None)
            *between, ending = facts[place + 1 :]
            assert isinstance(ending, RequestEnding)
            assert all(is_own(each) and isinstance(each, (ToolCallFailed, MessageAppended)) for each in between)


def check_background(facts: Sequence[Event]) -> None:
    """The result of a background call is noted once, after it has come; at the end there is none without its note."""
    tickets, ended = tickets_of(facts), dict[str, str]()
    noted: list[str] = []
    for fact in facts:
        if isinstance(fact, SETTLED):
            is_success = isinstance(fact, ToolCallCompleted)
            ended[fact.call_id] = fact.content if is_success else failure_content(fact.reason, fact.error)
        elif isinstance(fact, MessageAppended) and (fact.message.message_id or "").endswith("_b"):
            assert isinstance(fact.message, SystemMessage)
            call_id = fact.message.message_id.removesuffix("_b")
            assert call_id in tickets
            assert fact.message.text.endswith(ended[call_id])
            noted.append(call_id)
        elif isinstance(fact, RoundStarted) and fact.tools_offered:
            assert set(noted) >= tickets & set(ended), f"round {fact.round} begins without a result that has come"
    assert len(set(noted)) == len(noted)
    if isinstance(facts[-1], RequestEnding):
        assert set(noted) == tickets


def check_answers_by_tools(facts: Sequence[Event], direct: set[str]) -> None:
    """An answer by tools is made of the results of all calls of its reply: all are of such tools, and completed."""
    ends: dict[str, ToolCallCompleted] = {}
    reply: ModelResponded | None = None
    for fact in facts:
        if isinstance(fact, ModelResponded):
            reply = fact
        elif isinstance(fact, ToolCallCompleted):
            ends[fact.call_id] = fact
        elif isinstance(fact, MessageAppended) and isinstance(fact.message, AssistantMessage):
            assert reply is not None
            made = [each for each in reply.message.tool_calls if each.name != "update_plan"]
            assert {each.name for each in made} <= direct
            assert fact.message.text == "\n\n".join(ends[each.call_id].content for each in made)


def plan_of(facts: Sequence[Event]) -> tuple[Any, ...]:
    return next((fact.steps for fact in reversed(facts) if isinstance(fact, PlanChanged)), ())
