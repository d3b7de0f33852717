"""Samples that a store has to keep: each kind of message, each type of fact with every field filled, and odd texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ....events import (
    ApprovalDecided,
    ApprovalRequested,
    Artifact,
    CallOutcome,
    CancelRequested,
    Event,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    PlanStep,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    Spent,
    SteeringAdded,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from ....messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)

ODD_TEXT: Final = " \ufeffZürich 😀 \x00 \r\n\t\u2028 'a' \"b\" \\c %d _e $1 ?2 :f {g} \x7f\uffff\U0010ffff "
"""A text that is kept unchanged: it has NUL, emoji, and characters with a meaning in databases and formats."""
HALVES: Final = "half of a pair: \ud83d, and the other half: \ude00."
"""Halves of a surrogate pair, which JSON cannot carry: a store may keep them, or replace them with question marks."""
ODD_IDS: Final = (
    "plain",
    "PLAIN",
    " plain",
    "plain ",
    "caf\xe9",
    "cafe\u0301",
    "it's",
    'a "b" \\ c',
    "100%",
    "1000",
    "a_b",
    "axb",
    "$gt",
    "a.b",
    "../../etc/passwd",
    "😀",
    "line\nbreak",
    "x" * 500,
    "x" * 499,
    "null",
    "0",
    "",
)
"""Ids of conversations that a store has to keep apart, though they look alike."""
UNUSUAL_IDS: Final = ("a\x00b", "a\x00c", "a\ud83db")
"""Ids that not every database can hold: they are kept apart, or refused."""

_VALUE: Final[dict[str, Any]] = {
    "city": ODD_TEXT,
    "numbers": [0, -1, 2**53 + 1, 0.1, 1e300, -2.5],
    "rest": [None, True, False, {}, [], "", {"": {"$a.b": 1}}],
}
_USAGE: Final = Usage(
    input_tokens=1, output_tokens=2, cached_tokens=3, reasoning_tokens=4, cache_write_tokens=5_000_000_000
)
_SPENT: Final = Spent(usage=_USAGE, tool_calls=3, cost=0.25)
_PARTS: Final = (
    TextPart(text=ODD_TEXT),
    ImagePart(url="data:image/png;base64,aGVsbG8="),
    FilePart(url="https://example.com/a.pdf", media_type="application/pdf", name=f"{ODD_TEXT}.pdf"),
)


def all_messages() -> list[Message]:
    """Return each kind of message, with every field filled, and without each field that can be left out."""
    calls = (
        ToolCall(name="get_weather", arguments='{"city": "Zürich 😀"}', call_id="r_0_0", provider_call_id="call 1"),
        ToolCall(name="get_weather", arguments='{"city": ', call_id="r_0_1", provider_call_id=""),
    )
    return [
        SystemMessage(text=ODD_TEXT, message_id="m 0"),
        UserMessage(content=ODD_TEXT, message_id="m 1"),
        UserMessage(content=_PARTS, message_id="m 2"),
        AssistantMessage(
            text=ODD_TEXT, tool_calls=calls, reasoning=ODD_TEXT, message_id="m 3", vendor_data={"vendor": _VALUE}
        ),
        ToolMessage(call_id="r_0_0", name="get_weather", content=ODD_TEXT, parts=_PARTS[1:], message_id="m 4"),
        ToolMessage(call_id="r_0_1", name="get_weather", content="", is_error=True, message_id="m 5"),
        AssistantMessage(text="In Zürich it is", message_id="m 6", interrupted=True),
        SystemMessage(text=""),
        UserMessage(content=""),
        UserMessage(content=()),
        AssistantMessage(),
    ]


def facts_of_all_types(**ids: Any) -> list[Event]:
    """Return a fact of each type with every field filled, and some without the fields that can be left out."""
    common: dict[str, Any] = {
        **ids,
        "parent_id": "m 1",
        "at": 1_750_000_000.123456,
        "metadata": {"tenant": "Zürich 😀", "value": _VALUE},
    }
    return [
        RequestStarted(
            prompt=ODD_TEXT,
            history_count=2,
            timeout_seconds=1.5,
            parent_request_id="parent",
            parent_call_id="parent_0_0",
            **common,
        ),
        RequestResumed(resumption=2, **common),
        *(MessageAppended(message=message, **common) for message in all_messages()),
        *_about_a_round(common),
        *_about_calls(common),
        SteeringAdded(text=ODD_TEXT, **common),
        CancelRequested(reason=ODD_TEXT, **common),
        PlanChanged(steps=(PlanStep(text=ODD_TEXT, status="done"), PlanStep(text="")), **common),
        HistoryCompressed(
            before_tokens=10,
            after_tokens=5,
            results_shortened=2,
            turns_omitted=1,
            summary=ODD_TEXT,
            usage=_USAGE,
            vendor="stub",
            model="stub-model",
            cost=0.1,
            **common,
        ),
        RequestCompleted(
            outcome="stopped", reason="max_rounds=8", text=ODD_TEXT, output=_VALUE, usage=_USAGE, **common
        ),
        RequestFailed(reason="store_error", error=ODD_TEXT, retryable=True, usage=_USAGE, **common),
        RequestCancelled(reason=ODD_TEXT, usage=_USAGE, **common),
        RequestCompleted(**ids),
    ]


def _about_a_round(common: dict[str, Any]) -> Iterator[Event]:
    yield RoundStarted(
        round=1,
        message_count=3,
        call_outcomes=(CallOutcome(name="a", ok=True), CallOutcome(name="b", ok=False)),
        tools_offered=False,
        **common,
    )
    yield ModelResponded(
        round=1,
        message=next(each for each in all_messages() if isinstance(each, AssistantMessage) and each.tool_calls),
        finish_reason="tool_calls",
        usage=_USAGE,
        vendor="stub",
        model="stub-model",
        cost=0.1,
        **common,
    )
    yield ModelRetrying(
        round=1,
        reason="provider_unavailable",
        error=ODD_TEXT,
        delay_seconds=0.5,
        provider_index=1,
        usage=_USAGE,
        vendor="stub",
        model="stub-model",
        cost=0.1,
        **common,
    )


def _about_calls(common: dict[str, Any]) -> Iterator[Event]:
    call: dict[str, Any] = {**common, "call_id": "r_0_0", "name": "get_weather"}
    yield ToolCallRequested(
        provider_call_id="call 1",
        vendor="stub",
        arguments=_VALUE,
        round=0,
        timeout_seconds=30.0,
        idempotency_key="r:0:0",
        definition="d1",
        **call,
    )
    yield ToolCallCompleted(
        content=ODD_TEXT,
        parts=_PARTS[1:],
        data=_VALUE,
        artifacts=(
            Artifact(name="a.txt", content=ODD_TEXT),
            Artifact(name="b.png", content="aGVsbG8=", media_type="image/png", encoding="base64"),
        ),
        affected=("a.txt", ODD_TEXT),
        duration_seconds=0.25,
        spent=_SPENT,
        **call,
    )
    yield ToolCallFailed(
        reason="limit",
        error=ODD_TEXT,
        retryable=True,
        outcome_unknown=True,
        limit="max_tool_calls=100",
        duration_seconds=0.25,
        spent=_SPENT,
        **call,
    )
    yield ApprovalRequested(arguments=_VALUE, timeout_seconds=60.0, definition="d1", **call)
    asked: dict[str, Any] = {**common, "call_id": "r_0_0"}
    yield ApprovalDecided(
        definition="d1", approved=True, arguments=_VALUE, by="Zoë", reason=ODD_TEXT, remember=True, **asked
    )
    yield ToolCallPaused(**asked)
    yield ToolCallResumed(**asked)
