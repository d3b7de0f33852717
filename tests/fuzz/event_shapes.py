"""An event of each kind that has some depth: what there is to break."""

from __future__ import annotations

from toolbus.events import (
    ApprovalDecided,
    Artifact,
    CallOutcome,
    Event,
    MessageAppended,
    ModelResponded,
    PlanChanged,
    PlanStep,
    RequestCompleted,
    RoundStarted,
    Spent,
    StatusChanged,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, ImagePart, TextPart, ToolCall, ToolMessage, Usage, UserMessage

CALL = ToolCall(name="get_weather", arguments='{"city": "Zürich"}', call_id="r_0_0", provider_call_id="call_0")
PARTS = (TextPart(text="look"), ImagePart(url="data:image/png;base64,aGVsbG8="))

EVENTS: list[Event] = [
    MessageAppended(request_id="r", message=UserMessage(content=PARTS), metadata={"tenant": "t"}),
    MessageAppended(request_id="r", message=ToolMessage(call_id="c", name="n", content="", parts=PARTS[1:])),
    ModelResponded(
        request_id="r",
        round=0,
        message=AssistantMessage(text="😀", tool_calls=(CALL, CALL), vendor_data={"openai": {"message": {"a": [1]}}}),
        usage=Usage(input_tokens=3),
        cost=0.5,
    ),
    ToolCallRequested(
        call_id="c", name="n", arguments={"a": {"b": [None]}}, round=1, timeout_seconds=2.5, idempotency_key="k"
    ),
    ToolCallCompleted(
        call_id="c",
        name="n",
        content="x",
        data=[1, {"a": "b"}],
        parts=PARTS,
        artifacts=(Artifact(name="a", content="b"),),
        affected=("a", "b"),
        spent=Spent(usage=Usage(output_tokens=1), cost=1.0),
    ),
    ToolCallFailed(call_id="c", name="n", reason="timeout", error="late", retryable=True),
    PlanChanged(steps=(PlanStep(text="look"), PlanStep(text="tell", status="done"))),
    RoundStarted(round=1, message_count=3, call_outcomes=(CallOutcome(name="n", ok=False),)),
    ApprovalDecided(call_id="c", approved=True, arguments={"a": 1}),
    RequestCompleted(text="done", output={"a": [1.5]}, usage=Usage(cached_tokens=2)),
    StatusChanged(stage="executing", text="x"),
]
