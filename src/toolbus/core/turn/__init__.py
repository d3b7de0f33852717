"""The turn machine: the only code that decides what a request (one run of the agent) does next. It has three functions.

    facts, own = advance(state, inputs, now)    a step: decides on the inputs, then on what follows from the state
    state      = apply(state, fact)             the only way to change a state; illegal facts raise `ProtocolViolation`
    command    = pending(state)                 the work to do now: call the model, await tool calls, or finish;
                                                after a replay it says how to continue

A step emits facts: each is applied where it is decided, by the same functions as in a replay, and appended to the list
of the step. The session performs steps and commands, and decides nothing: it writes a step to the journal, publishes
it, and carries out the command. `now` is seconds on the session's clock. A round is one call of the model and the tool
calls in its reply. Nothing here does I/O, waits, or reads a clock.

Knows events, messages, limits and tool definitions. Must not know the bus, sessions, the journal, providers or how a
tool is run.

Invariants:

1. The state changes only by facts: a decision reads it and emits them. So replaying a journal is nothing but `apply`,
   and a resumed request continues with the input `Resume`. A change without a fact would be lost in a crash.
   (The session sets only what no fact carries, for example the tools as they are now, the size of the journal, and the
   pieces of a reply that is arriving.)
2. Equal inputs give equal facts. Ids are made from `request_id` and positions (`_f3`, `_r0`, `_0_1`), waits from a
   seed. Otherwise a replay would name its calls differently, and no executor could recognise one that has already run.
3. A fact is legal only in the phases that the table in `_apply` lists. A journal that was damaged or written by hand is
   refused at the first impossible fact. Without that, the state would go wrong in silence and start calls.
4. A `ToolCallRequested` means that the call may run: executors do not check it again. A call that may not run (unknown
   tool, invalid arguments, a limit, a denied approval) gets a `ToolCallFailed` without a `ToolCallRequested`, and no
   executor ever sees it. Otherwise each executor would need the limits and the approvals.
5. Each call gets exactly one terminal event (G06). The first one settles it; inputs for a call that is not open mean
   nothing and give no facts (G07). A second one would put two results into the transcript, or overwrite a result that
   listeners have already acted on.
6. The verdicts on all calls that can be judged now are known before the first of them becomes a fact. So a call that
   ends the request at once (`on_failure`, `stop_on`) keeps its siblings from starting. Judged one by one, an earlier
   sibling would already run, and could have an effect that the ending does not report.
7. Results join the transcript with the fact that settles the last call of the round, in call order, and before
   anything else may happen: notes, steering and prompts wait. So the transcript is valid at every round's start and at
   every ending (G08). A message between a call and its result is refused by model providers. A background call is as
   good as settled once it is requested: if it is still open when the others are settled, its result is a ticket, and
   the outcome is a note before the next round, or before the ending (G33). So the model reads each outcome once.
8. The transcript grows only at its end, and `TurnState.open_calls` is always the same dictionary. Views of the
   transcript and executors keep references to them, and would otherwise see old data.
9. A call's deadline is not later than the request's, except while a person is asked: then the request's clock is
   paused, and `approval_timeout_seconds` counts. It is also paused while the model has answered and background calls
   are open, whose deadlines are their own. The deadline that passes first settles the call (G12). Otherwise a
   slow tool could hold a request beyond `timeout_seconds`, or a slow person could use up its time.
10. A call that a dead process had requested is requested again only if its tool is idempotent, external or of a pool,
    and unchanged, and the request has time left: under the same id and idempotency key, with `resumed`. Any other call
    ends as `interrupted`, with its outcome unknown (G19). Otherwise a crash could make a tool act twice. An external
    call, or one on a worker, may not have ended with the process, so giving it up would throw its answer away; whoever
    runs a pool must not run such a call a second time.

Example:
    from toolbus.core.turn import CallModel, Finish, ModelReplied, Start, TurnState, advance, apply_all, pending
    from toolbus.messages import AssistantMessage, UserMessage
    from toolbus.protocols import ModelReply

    state = TurnState("r1", "k1")
    begun, _ = advance(state, [Start(UserMessage(content="Hello?"))], 0.0)  # facts, and inputs that came too late
    print(isinstance(pending(state), CallModel))  # True
    ended, _ = advance(state, [ModelReplied(ModelReply(message=AssistantMessage(text="Hello.")))], 1.0)
    print(isinstance(pending(state), Finish))  # True
    again = TurnState("r1", "k1")
    apply_all(again, [*begun, *ended])  # a replay has the same state
    print(again.messages == state.messages)  # True
"""

from __future__ import annotations

from ._apply import add_spent, apply, apply_all, asks_for_repair, ends_at_once, steering_id, was_steered
from ._control_tools import UPDATE_PLAN, plan_in, plan_text
from ._decide import advance, pending
from ._facts import spent_in_all, spent_so_far
from ._remaining_limits import exceeded_in_all, remaining_limits
from ._state import MODEL, NEW, CallState, CallStatus, Phase, RoundState, TurnState
from ._steps import (
    AwaitCalls,
    CallModel,
    Command,
    Elapsed,
    Finish,
    HistoryShaped,
    Input,
    LostReplies,
    ModelFailed,
    ModelReplied,
    OutOfBudget,
    Resume,
    Start,
)
from ._transcript import result_message, with_messages

__all__ = [
    "MODEL",
    "NEW",
    "UPDATE_PLAN",
    "AwaitCalls",
    "CallModel",
    "CallState",
    "CallStatus",
    "Command",
    "Elapsed",
    "Finish",
    "HistoryShaped",
    "Input",
    "LostReplies",
    "ModelFailed",
    "ModelReplied",
    "OutOfBudget",
    "Phase",
    "Resume",
    "RoundState",
    "Start",
    "TurnState",
    "add_spent",
    "advance",
    "apply",
    "apply_all",
    "asks_for_repair",
    "ends_at_once",
    "exceeded_in_all",
    "pending",
    "plan_in",
    "plan_text",
    "remaining_limits",
    "result_message",
    "spent_in_all",
    "spent_so_far",
    "steering_id",
    "was_steered",
    "with_messages",
]
