"""The turn machine: the only place that decides what a request does next. Three pure functions.

    facts   = decide(state, input, now)     what an input means; with `None`, what follows from the state itself
    state   = apply(state, fact)            the only way that a state changes (see `core.reducer`)
    command = pending(state)                what has to be done now; resuming is asking this after a replay

A step, `advance`, is: decide on the inputs and apply their facts, then decide on `None` and apply, until nothing
follows. The session performs steps and commands, and decides nothing. `now` is seconds on the session's clock; ids
come from `request_id` and places, so equal inputs give equal facts.

Rounds. A round is one call of the model and the calls in its reply. A call that cannot run is refused here, by a
`ToolCallFailed` without a `ToolCallRequested`; what is on the bus may run. When the last call of a round is settled,
the results join the transcript in call order, and only then may anything else happen: so the transcript is valid at
every round's start and at every ending (G08).
"""

from __future__ import annotations

from ._apply import add_spent, apply, apply_all, ends_at_once, used_up
from ._control_tools import UPDATE_PLAN, plan_in, plan_text
from ._decide import advance, decide, pending
from ._facts import result_message, spent_so_far
from ._limits_left import limits_left
from ._state import MODEL, NEW, CallState, CallStatus, Phase, RoundState, TurnState
from ._steps import (
    AwaitCalls,
    CallModel,
    Command,
    Elapsed,
    Finish,
    HistoryShaped,
    Input,
    ModelFailed,
    ModelReplied,
    Resume,
    Start,
    reply_id,
)

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
    "ModelFailed",
    "ModelReplied",
    "Phase",
    "Resume",
    "RoundState",
    "Start",
    "TurnState",
    "add_spent",
    "advance",
    "apply",
    "apply_all",
    "decide",
    "ends_at_once",
    "limits_left",
    "pending",
    "plan_in",
    "plan_text",
    "reply_id",
    "result_message",
    "spent_so_far",
    "used_up",
]
