"""The decisions on a request that continues after its process is gone: the calls that are requested again. Pure.

A call that had been requested may have run completely, partly or not at all; nobody can know. The tool decides: a call
of an `idempotent` tool is requested again, under the same key. So is a call of an `external` tool, or of one that runs
in a pool: whoever answers it may not have ended with the process, recognises the key, and decides. Any other call ends
as `interrupted`, with its outcome unknown, and the model or a person decides how to continue.
"""

from __future__ import annotations

from ...events import RequestResumed
from ...protocols import ToolSpec
from ..approval import definition_of
from ..arguments import own_arguments
from ._apply import ends_at_once
from ._call_verdicts import is_time_over, request_call
from ._facts import Facts
from ._state import INTERRUPTED, NEW, CallState, TurnState
from ._steps import Resume

_ENDS = ", and another call ended the request, so it was not run again; it may have had its effect."


def decide_resume(state: TurnState, resume: Resume, facts: Facts, _now: float) -> None:
    """Add the fact that the request continues. The decisions on its calls follow from the state after that fact."""
    if state.phase is not NEW:
        facts.emit(RequestResumed, resumption=state.resumptions + 1, timeout_seconds=resume.seconds)


def decide_interrupted(state: TurnState, facts: Facts, now: float) -> None:
    """Request again, or give up, the calls that had been requested by a process that is gone.

    All verdicts are reached before the first becomes a fact, so that a call which ends the request at once keeps the
    others from running.
    """
    gone = [each for each in state.open_calls.values() if each.status is INTERRUPTED]
    verdicts = [(each, spec := state.tools.get(each.call.name), _why_not(state, each, spec, now)) for each in gone]
    ends = any(why for _, _, why in verdicts) and ends_at_once(state.limits, "interrupted")
    for each, spec, why in verdicts:
        if not why and not ends and spec is not None:
            request_call(state, each.call, spec, own_arguments(each.arguments or {}), facts, now, before=each)
        else:
            facts.give_up(each, "interrupted", f"The process ended while {each.call.name} ran{why or _ENDS}")


def _why_not(state: TurnState, each: CallState, spec: ToolSpec | None, now: float) -> str:
    """Return why a call cannot be requested again, as the end of a sentence; an empty text if it can."""
    if spec is None:
        return ", and the tool does not exist any more; it may have had its effect."
    if not (spec.idempotent or spec.external or spec.pool):
        return "; it may have had its effect."
    if each.definition and each.definition != definition_of(spec):
        return ", and its definition has changed, so it was not run again; it may have had its effect."
    if is_time_over(state, now):
        return ", and the request's time is over; it may have had its effect."
    return ""
