"""The events of a request (one run of an agent) as data, with their encoding to JSON and decoding from it.

The package knows messages. It must not know the bus, the clock or the stores: an event does not contain its position
on the bus (`position`) or in the journal (`seq`).

Ids: `request_id` names one request, served by one session; `conversation_id` the thread of turns; `parent_id` the user
message that started the request; `call_id` one tool call. `at` is in seconds since the epoch, on a clock that is set
once and then runs monotonically, so differences between events of one process can be trusted.

Invariants:

1. An event is never changed after it was made. All listeners and the journal share one object, and a change by one
   listener would reach the others. The classes are records (`toolbus.records`), and Python
   itself refuses to set a field of one.
2. An event is either a fact or a signal. Facts change the state of a session and are journalled in order; signals
   only report progress. If state depended on a signal, a replay would not reproduce it.
3. `type` is the class name in snake case and selects the class when JSON is decoded. After a class was renamed,
   events that an older version wrote could no longer be read.

Example:
    from toolbus import Runtime
    from toolbus.events import RequestEnding, TextDelta, ToolCallFailed, ToolCallRequested, decode, encode, json_schema
    from toolbus.events import problem_in
    from toolbus.testing import ScriptedProvider, text

    async with Runtime(ScriptedProvider([text("Hello.", pieces=1)])) as runtime:
        session = runtime.start("Hello?")
        async for event in session.events():  # all of this request's events, up to its ending
            match event:
                case TextDelta():
                    print(event.text)  # Hello.
                case ToolCallRequested() | ToolCallFailed():
                    print(event.name, event.call_id)
                case _ if isinstance(event, RequestEnding):
                    print(event.type, event.request_id == session.request_id)  # request_completed True
    print(decode(encode(event)) == event, "anyOf" in json_schema())  # True True
    print(problem_in(TextDelta(message_id="m", text=7, round=1)))  # event.text: Expected str, got int
"""

from ._base import Event
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
    ApprovalOverdue,
    DeadLetter,
    LoopBlocked,
    ReasoningDelta,
    ReceiverFailed,
    RequestTakenOver,
    Stage,
    StatusChanged,
    SubscriberLagged,
    SubscriptionFull,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallLate,
    ToolCallOverdue,
    ToolCallProgress,
    ToolCallRetrying,
    ToolCallStarted,
)
from .ids import new_id

# isort: split
from ._coding import EVENT_TYPES, FACT_TYPES, decode, encode, json_schema, problem_in

__all__ = [
    "EVENT_TYPES",
    "FACT_TYPES",
    "ApprovalDecided",
    "ApprovalOverdue",
    "ApprovalRequested",
    "Artifact",
    "CallOutcome",
    "CancelRequested",
    "DeadLetter",
    "Event",
    "FailureReason",
    "HistoryCompressed",
    "LoopBlocked",
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
    "RequestTakenOver",
    "RoundStarted",
    "Spent",
    "Stage",
    "StatusChanged",
    "SteeringAdded",
    "SubscriberLagged",
    "SubscriptionFull",
    "TerminalEvent",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallLate",
    "ToolCallOverdue",
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
    "problem_in",
]
