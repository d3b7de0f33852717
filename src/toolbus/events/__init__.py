"""The events: what happens to a request, as data, and their coding to and from JSON.

An event is a slotted dataclass, keyword-only, read-only by contract: the type checker refuses to assign to it, and
with `TOOLBUS_DEBUG=1` in the environment (the test suite sets it) so does Python. `type` on the wire is the class
name in snake case. Facts change what a session is and are journalled; signals only tell what is going on.

Ids: `request_id` is one request, served by one session; `conversation_id` the thread of turns; `parent_id` the user
message that started it; `call_id` one tool call. `at` is seconds since the epoch, on a clock that is set once and
then runs monotonically, so differences between events of one process can be trusted.

This module knows messages, and neither bus nor clocks: an event does not know its place (`seq`, `position`).
"""

from ._base import Event, new_id
from ._facts import (
    ApprovalDecided,
    ApprovalRequested,
    Artifact,
    CallOutcome,
    CancelRequested,
    FailureReason,
    HistoryCompressed,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    Outcome,
    PlanChanged,
    PlanStep,
    RequestCancelled,
    RequestCompleted,
    RequestEnding,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    RoundStarted,
    Spent,
    SteeringAdded,
    TerminalEvent,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallPaused,
    ToolCallRequested,
    ToolCallResumed,
)
from ._signals import (
    DeadLetter,
    ReasoningDelta,
    ReceiverFailed,
    Stage,
    StatusChanged,
    SubscriberLagged,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallLate,
    ToolCallProgress,
    ToolCallRetrying,
    ToolCallStarted,
)

# isort: split
from ._coding import EVENT_TYPES, FACT_TYPES, decode, encode, json_schema

__all__ = [
    "EVENT_TYPES",
    "FACT_TYPES",
    "ApprovalDecided",
    "ApprovalRequested",
    "Artifact",
    "CallOutcome",
    "CancelRequested",
    "DeadLetter",
    "Event",
    "FailureReason",
    "HistoryCompressed",
    "MessageAppended",
    "ModelResponded",
    "ModelRetrying",
    "Outcome",
    "PlanChanged",
    "PlanStep",
    "ReasoningDelta",
    "ReceiverFailed",
    "RequestCancelled",
    "RequestCompleted",
    "RequestEnding",
    "RequestFailed",
    "RequestResumed",
    "RequestStarted",
    "RoundStarted",
    "Spent",
    "Stage",
    "StatusChanged",
    "SteeringAdded",
    "SubscriberLagged",
    "TerminalEvent",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallLate",
    "ToolCallPaused",
    "ToolCallProgress",
    "ToolCallRequested",
    "ToolCallResumed",
    "ToolCallRetrying",
    "ToolCallStarted",
    "decode",
    "encode",
    "json_schema",
    "new_id",
]
