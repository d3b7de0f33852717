"""Bugs that are planted into toolbus, one at a time, to see whether the simulation finds them.

Each is a small change of one function, of the kind that is made by hand: a line that is missing, a bound that is off.
"""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# Bugs are planted in what is private.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from toolbus.bus import Arbitration, Mailbox
from toolbus.bus._broadcast import Broadcast
from toolbus.bus._buffer import EventBuffer
from toolbus.clock import SessionClock
from toolbus.core.approval import needs_approval
from toolbus.core.output import OutputType
from toolbus.core.turn import Phase
from toolbus.core.turn import _apply as reducer
from toolbus.core.turn import _call_verdicts as judging
from toolbus.core.turn import _decide as deciding
from toolbus.core.turn import _facts as facting
from toolbus.core.turn import _replies as replying
from toolbus.core.turn import _resumed as resuming
from toolbus.dispatcher import ToolDispatcher
from toolbus.dispatcher import _dispatcher as dispatcher_module
from toolbus.dispatcher import _retries as retries
from toolbus.dispatcher._schedule import Schedule
from toolbus.durability import REPLACED, InboxReader, JournalWriter, ReadAlong
from toolbus.events import (
    Event,
    RequestResumed,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.handles._exchange import LiveEvents
from toolbus.interceptors import screened
from toolbus.records import replace
from toolbus.remote import _executor as remote_executor
from toolbus.remote import nats as over_nats
from toolbus.remote._worker import Worker
from toolbus.runtime import _conversations as conversations
from toolbus.runtime._admission import Admission
from toolbus.runtime._running import RunningRequests
from toolbus.runtime._turns import Turns
from toolbus.secrets import _log_filter as log_filter
from toolbus.secrets._text_mask import PieceMask
from toolbus.session import RequestSession
from toolbus.session import _session as session_module
from toolbus.session._crash import settle_broken
from toolbus.session._model_call import ModelCall
from toolbus.session._model_request import Asker
from toolbus.session._start import Earlier, RequestBeginning
from toolbus.storage import Entry
from toolbus.stores.memory._journal import MemoryJournal

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A bug: how it is planted, which guarantees it may break, and the seed with which the search for it begins."""

    plant: Plant
    breaks: frozenset[str]
    first_seed: int


PLANTED: dict[str, Planted] = {}


def bug(*breaks: str, first_seed: int = 0) -> Callable[[Plant], Plant]:
    """Register a bug that breaks one of these guarantees.

    `first_seed` is the seed that has found the bug, so that the suite need not search each time. When the simulation has
    changed and that seed does not find it any more, the search continues from there.
    """

    def register(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = Planted(plant, frozenset(breaks), first_seed)
        return plant

    return register


# ----------------------------------------------------------------------------------------------- waking and waiting


@bug("G04", "G10", "G12", first_seed=29)
def a_wake_up_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """A failed call does not wake its session."""
    put = Mailbox.put

    def forgetful(self: Mailbox, event: Event, cause: BaseException | None = None) -> None:
        if isinstance(event, ToolCallFailed):
            woken, self._woken = self._woken, None
            put(self, event, cause)
            self._woken = woken
        else:
            put(self, event, cause)

    patch.setattr(Mailbox, "put", forgetful)


@bug("G12", "G10", first_seed=7)
def a_timer_is_not_reset(patch: pytest.MonkeyPatch) -> None:
    """The deadline of an earlier wait stays the deadline of later ones, if it is later."""
    on_loop = SessionClock.on_loop
    newest: dict[int, float] = {}

    def stale(self: SessionClock, moment: float) -> float:
        deadline = on_loop(self, moment)
        newest[id(self)] = max(deadline, newest.get(id(self), 0.0)) if deadline != float("inf") else deadline
        return newest[id(self)]

    patch.setattr(SessionClock, "on_loop", stale)


@bug("G17")
def a_cancel_is_swallowed(patch: pytest.MonkeyPatch) -> None:
    """A handler whose call was settled by somebody else runs on."""

    def deaf(self: Any, job: Any) -> None:
        job.settled = True
        if job.worker is None:
            self._schedule.unqueue(job)

    patch.setattr(ToolDispatcher, "_on_settled", deaf)


@bug("G16", first_seed=1)
def a_model_is_not_given_up(patch: pytest.MonkeyPatch) -> None:
    """A cancelled request waits for its model."""
    patch.setattr(ModelCall, "on_put", lambda self, event: None)


# -------------------------------------------------------------------------------------------------------- results


@bug("G06", "G07", first_seed=11)
def a_second_result_counts(patch: pytest.MonkeyPatch) -> None:
    """What comes late goes out as a second terminal event."""

    def lenient(self: Any, event: Any) -> bool:
        self.announce(event)
        return True

    patch.setattr(Arbitration, "_refuse_terminal", lenient)


@bug("G07", "G09", first_seed=21)
def a_late_result_is_appended(patch: pytest.MonkeyPatch) -> None:
    """A result that lost the race takes the place of the one that won it."""
    refuse = Arbitration._refuse_terminal

    def overwriting(self: Any, event: Any) -> bool:
        mailbox = self.mailboxes.get(event.request_id)
        if mailbox is not None and (event.request_id, event.call_id) in self._settled:
            for each in mailbox.view.state.calls:
                if each.call.call_id == event.call_id and each.outcome is not None:
                    each.outcome = event
        return refuse(self, event)

    patch.setattr(Arbitration, "_refuse_terminal", overwriting)


@bug("G04", "G06", "G09", "G10", "G12", first_seed=17)
def a_sibling_s_result_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Of two results that come together only the first is looked at."""
    drain = Mailbox.drain

    def hasty(self: Mailbox) -> list[Any]:
        events = drain(self)
        results: list[Event] = [each for each in events if isinstance(each, (ToolCallCompleted, ToolCallFailed))]
        return [each for each in events if each not in results[1:]]

    patch.setattr(Mailbox, "drain", hasty)


@bug("G08", "G06", "G34")
def results_join_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The transcript gets a round's results from the last call to the first."""
    append = reducer._append_results

    def reversing(state: Any, last: Any) -> None:
        state.calls.reverse()
        append(state, last)
        state.calls.reverse()

    patch.setattr(reducer, "_append_results", reversing)


@bug("G05", first_seed=27)
def a_dead_letter_vanishes(patch: pytest.MonkeyPatch) -> None:
    """An event that is addressed to nobody is dropped."""
    patch.setattr(Arbitration, "dead_letter", lambda self, event, reason: False)


# ------------------------------------------------------------------------------------------------ leaks and bounds


@bug("G10", "G06", first_seed=6)
def a_mailbox_leaks(patch: pytest.MonkeyPatch) -> None:
    """A request that fails keeps its mailbox."""
    close = Arbitration.close_mailbox

    def leaking(self: Arbitration, mailbox: Mailbox) -> None:
        if not mailbox._causes:
            close(self, mailbox)

    patch.setattr(Arbitration, "close_mailbox", leaking)


@bug("G02", first_seed=1)
def a_buffer_has_no_bound(patch: pytest.MonkeyPatch) -> None:
    """A subscription keeps all that its reader does not take."""
    patch.setattr(EventBuffer, "_free_slot", lambda self, position, event: True)


@bug("G17", "G10", "G12", first_seed=235)
def a_place_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A call that fails keeps its place among the handlers."""
    leave = Schedule.leave

    def keeping(self: Schedule, job: Any, *, thread_still_runs: bool = False) -> None:
        if job.attempt < 2:
            leave(self, job, thread_still_runs=thread_still_runs)

    patch.setattr(Schedule, "leave", keeping)


@bug("G13", first_seed=45)
def a_retry_passes_its_deadline(patch: pytest.MonkeyPatch) -> None:
    """Whether the next attempt comes before the deadline is not looked at."""

    def patient(job: Any, exc: BaseException, now: float) -> float | None:
        request = replace(job.request, timeout_seconds=job.request.timeout_seconds + 100)
        return retries.retry_delay(_WithRequest(job, request), exc, now)  # type: ignore[arg-type]

    patch.setattr(dispatcher_module, "retry_delay", patient)


class _WithRequest:
    def __init__(self, job: Any, request: ToolCallRequested) -> None:
        self.attempt, self.tool, self.request = job.attempt, job.tool, request


@bug("G10")
def a_limit_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """One call more than `max_tool_calls` may run."""
    barred = judging._barred

    def generous(state: Any, index: int, spec: Any, made: int, now: float) -> Any:
        return barred(state, index, spec, made - 1, now)

    patch.setattr(judging, "_barred", generous)


# ----------------------------------------------------------------------------------------- people, order, journal


@bug("G26", first_seed=5)
def an_approval_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Some calls of a tool that needs a person's word run without it."""
    needs = needs_approval

    def trusting(policy: Any, spec: Any, arguments: Any) -> bool:
        return needs(policy, spec, arguments) and arguments.get("n") != 0

    patch.setattr(judging, "needs_approval", trusting)


@bug("G03", "G01", "G06")
def events_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    """What a receiver publishes is delivered at once, in the middle of the event that it was told of."""
    deliver = Broadcast._deliver

    def eager(self: Any, event: Event) -> None:
        self.is_delivering = False
        deliver(self, event)

    patch.setattr(Broadcast, "_deliver", eager)


@bug("G11", "G31", first_seed=2)
def an_effect_comes_before_its_fact(patch: pytest.MonkeyPatch) -> None:
    """Calls are requested while the journal still writes that they are."""

    async def eager(self: Any, inputs: Sequence[Any], now: float) -> None:
        facts, own = self._advance(inputs, now)
        if facts:
            self._publish(facts, facts if self._journal is not None else own)
            if self._journal is not None:
                await self._write(self._journal, facts)

    patch.setattr(RequestSession, "_step", eager)


@bug("G31", first_seed=2)
def what_others_publish_is_heard_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Results, decisions and cancels are broadcast when they are published, as they are without a journal."""
    put = Mailbox.put

    def eager(self: Mailbox, event: Event, cause: BaseException | None = None) -> None:
        self.publishes_inputs = False
        put(self, event, cause)

    patch.setattr(Mailbox, "put", eager)


@bug("G31", "G19", first_seed=12)
def what_the_journal_did_not_take_is_reported(patch: pytest.MonkeyPatch) -> None:
    """A request whose journal fails reports how its calls ended all the same, and another process does so again."""

    def talkative(self: Any) -> None:
        settle_broken(self._bus, self._state, self._mailbox, self._clock(), announces=True)

    patch.setattr(RequestSession, "_settle_broken", talkative)


# ------------------------------------------------------------------------------------------------ dying and going on


@bug("G19", first_seed=5)
def what_may_have_run_runs_again(patch: pytest.MonkeyPatch) -> None:
    """A request that goes on has its calls run once more, whatever their tools say."""
    patch.setattr(resuming, "_why_not", lambda state, each, spec, now: "")


@bug("G19", first_seed=223)
def an_open_external_call_ends_with_its_process(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: a request that goes on gives up what is still being answered elsewhere."""
    why_not = resuming._why_not

    def forgetful(state: Any, each: Any, spec: Any, now: float) -> str:
        return "; it may have had its effect." if spec and not spec.idempotent else why_not(state, each, spec, now)

    patch.setattr(resuming, "_why_not", forgetful)


@bug("G19", first_seed=6)
def a_committed_result_is_told_again(patch: pytest.MonkeyPatch) -> None:
    """A request that goes on tells all its results from the beginning."""
    continue_from, publish = RequestBeginning.continue_from, RequestSession._publish
    committed: dict[str, list[Event]] = {}

    def remembering(self: RequestBeginning, resumed: Any, state: Any, tools: Any) -> None:
        continue_from(self, resumed, state, tools)
        results: list[Event] = [each for each in resumed.facts if isinstance(each, (ToolCallCompleted, ToolCallFailed))]
        committed[state.request_id] = results

    def talkative(self: RequestSession, facts: Sequence[Event], own: Sequence[Event]) -> None:
        publish(self, facts, own)
        if self._state.ending is None and isinstance(facts[0], RequestResumed):
            self._bus.arbitration.announce(*committed[self.request_id])

    patch.setattr(RequestBeginning, "continue_from", remembering)
    patch.setattr(RequestSession, "_publish", talkative)


@bug("G26", first_seed=171)
def a_question_dies_with_its_process(patch: pytest.MonkeyPatch) -> None:
    """A request that goes on waits for an answer to what nobody is asked."""
    continue_from = RequestBeginning.continue_from

    def silent(self: RequestBeginning, *everything: Any) -> None:
        continue_from(self, *everything)
        self.asked = ()

    patch.setattr(RequestBeginning, "continue_from", silent)


@bug("G18", "G19", first_seed=5)
def a_lease_s_epoch_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request that goes on writes as if nobody had held it before."""
    register = JournalWriter.register

    def forgetful(self: JournalWriter, session: RequestSession, **known: Any) -> None:
        register(self, session, **known)
        self._requests[session.request_id].epoch = 1

    patch.setattr(JournalWriter, "register", forgetful)


@bug("G11", "G20", first_seed=129)
def a_lost_lease_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A process whose request is another's by now tells that it has failed."""
    patch.setattr(session_module, "LeaseLost", ZeroDivisionError)


@bug("G11", "G31", first_seed=2)
def a_cancelled_request_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """What the host's cancellation means is told, and never written."""

    async def hasty(self: Any, inputs: Sequence[Any]) -> None:
        facts, own = self._advance(inputs, self._clock())
        if facts and not self._view.released:
            self._publish(facts, own)

    patch.setattr(RequestSession, "_last_step", hasty)


@bug("G01", "G11", "G19", first_seed=26)
def what_could_not_be_written_is_lost(patch: pytest.MonkeyPatch) -> None:
    """With `on_store_failure="warn"` facts that the store did not take are forgotten, and the next ones written."""
    append = JournalWriter.append

    async def forgetful(self: JournalWriter, request_id: str, seq: int, facts: Sequence[Event]) -> int | None:
        request = self._requests[request_id]
        request.unwritten = None
        return await append(self, request_id, request.written, facts)

    patch.setattr(JournalWriter, "append", forgetful)


@bug("G19", first_seed=2)
def a_turn_is_remembered_beside_its_journal(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before the simulation found it: a turn whose ending is not known joins its conversation twice."""
    release = JournalWriter.release

    async def forgetful(self: JournalWriter, session: RequestSession, *others: Any) -> bool:
        has_turn = await release(self, session, *others)
        return has_turn and (session.snapshot().view.released != "" or self._on_failure == "warn")

    patch.setattr(JournalWriter, "release", forgetful)


@bug("G34", first_seed=25)
def a_turn_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: each process puts only its own turns of a conversation into an order."""

    async def hasty(self: JournalWriter, request_id: str, conversation_id: str, *others: object) -> None:
        del self, request_id, conversation_id, others

    patch.setattr(JournalWriter, "take_turn", hasty)


@bug("G34", first_seed=1519)
def a_first_step_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: a process that was paused begins in a turn that another one has been given meanwhile."""
    make = JournalWriter._entry

    def careless(self: JournalWriter, request: Any, *others: Any) -> Entry:
        entry = make(self, request, *others)
        entry.has_turn = False
        return entry

    patch.setattr(JournalWriter, "_entry", careless)


@bug("G18", first_seed=52)
def a_call_ends_with_its_runtime(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before an application found it: what a cancelled runtime stops is told, and counts as a result."""
    patch.setattr(ToolDispatcher, "_begin_closing", lambda self: None)


@bug("G18", "G11", first_seed=5)
def a_request_ends_with_its_runtime(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before an application found it: a request whose task is cancelled first, is cancelled."""

    def carried(self: Any, session: RequestSession, ticket: Any) -> None:
        self.group.start_soon(self.carry_out, session, ticket)

    patch.setattr(RunningRequests, "spawn", carried)


# ------------------------------------------------------------------------------------------------ background calls


@bug("G33", first_seed=143)
def a_request_ends_before_its_background_calls(patch: pytest.MonkeyPatch) -> None:
    """A request that has answered does not wait for calls in the background."""
    patch.setattr(deciding, "is_waiting", lambda _state: False)


@bug("G33", first_seed=25)
def the_model_never_reads_a_result_from_the_background(patch: pytest.MonkeyPatch) -> None:
    """The result of a background call is not put before the next round."""
    settle = reducer._apply_settled

    def forgetful(state: Any, fact: Any) -> None:
        settle(state, fact)
        state.news.clear()

    for phase in Phase:
        patch.setitem(phase.changes, ToolCallCompleted, forgetful)


# -------------------------------------------------------------------------------------------- providers


@bug("G28", first_seed=14)
def a_refusal_is_asked_again(patch: pytest.MonkeyPatch) -> None:
    """A provider is asked once more, whatever its error says."""
    asked_again = replying._asked_again

    def stubborn(state: Any, failed: Any, facts: Any, now: float) -> Any:
        return asked_again(state, replace(failed, retryable=True), facts, now)

    patch.setattr(replying, "_asked_again", stubborn)


@bug("G28", first_seed=7)
def a_failover_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The first provider is asked, also after the request has turned to another one."""

    def first(self: Any, command: Any) -> Any:
        del command
        return self.providers[0]

    patch.setattr(Asker, "_provider", first)


@bug("G10", first_seed=49)
def what_a_model_costs_is_not_limited(patch: pytest.MonkeyPatch) -> None:
    """The limits of tokens and cost are not looked at after a reply with calls."""
    patch.setattr(reducer, "over_budget", lambda limits, usage, cost: None)


@bug("G10", first_seed=117)
def what_a_sub_request_spends_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The limits of a request do not count what the requests of its tools have used."""
    patch.setattr(reducer, "add_spent", lambda state, spent: None)


# -------------------------------------------------------------------------------------------- secrets


@bug("G36", first_seed=5)
def a_secret_is_streamed_in_pieces(patch: pytest.MonkeyPatch) -> None:
    """Nothing is held back of a text that streams, though it may be the beginning of a secret."""
    patch.setattr(PieceMask, "feed", lambda self, text: text)


@bug("G36", first_seed=29)
def a_traceback_has_a_secret(patch: pytest.MonkeyPatch) -> None:
    """The log is written as it is."""
    patch.setattr(log_filter, "_without_secrets", lambda request_id, text: None)


@bug("G36", first_seed=55)
def an_interceptor_sees_a_secret(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: interceptors are given the results of tools as these return them."""

    async def hasty(self: Any, job: Any, rendered: Any) -> Any:
        return await screened(job.view.interceptors, job.request, rendered, self._tool_context(job))

    patch.setattr(ToolDispatcher, "_screened", hasty)


# -------------------------------------------------------------------------------------------- structured output


@bug("G35", first_seed=432)
def a_wrong_answer_is_sent_back_without_end(patch: pytest.MonkeyPatch) -> None:
    """The requests to repair a structured output are not counted."""

    def another(state: Any) -> str:
        return f"{state.request_id}_o{state.facts}"

    patch.setattr(deciding, "repair_id", another)


@bug("G35", first_seed=26)
def any_json_is_an_output(patch: pytest.MonkeyPatch) -> None:
    """A structured output is not checked before the request ends."""
    patch.setattr(OutputType, "_check", lambda self, arguments: None)


# -------------------------------------------------------------------------------------------- interceptors


@bug("G08", first_seed=31)
def a_result_is_screened_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Interceptors may deny a result, and what they return instead of it is not used."""

    async def deaf(interceptors: Sequence[Any], call: Any, result: Any, context: Any) -> Any:
        await screened(interceptors, call, result, context)
        return result

    patch.setattr(dispatcher_module, "screened", deaf)


# ------------------------------------------------------------------------------------------- conversations


@bug("G34")
def a_history_is_read_once(patch: pytest.MonkeyPatch) -> None:
    """A runtime keeps the history of a conversation that it has read, and uses it for all later turns."""
    begin = Turns.begin
    known: dict[tuple[int, str], Sequence[Any]] = {}

    async def stale(self: Turns, request_id: str, conversation_id: str, *others: Any, **more: Any) -> Earlier:
        found = await begin(self, request_id, conversation_id, *others, **more)
        return dataclasses.replace(found, messages=known.setdefault((id(self), conversation_id), found.messages))

    patch.setattr(Turns, "begin", stale)


@bug("G21", "G34", first_seed=7890)
def a_conversation_is_deleted_before_a_turn_begins(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: the store deletes a conversation between reading it for a turn and its beginning."""
    forget = MemoryJournal.forget

    def hasty(self: MemoryJournal, conversation_id: str) -> bool:
        self._turns.pop(conversation_id, None)
        return forget(self, conversation_id)

    patch.setattr(MemoryJournal, "forget", hasty)


@bug("G26", first_seed=775)
def an_approval_outlives_its_conversation(patch: pytest.MonkeyPatch) -> None:
    """As toolbus was before: a person's decision is remembered for all conversations that ever have the same id."""
    patch.setattr(conversations, "_key", lambda conversation_id, messages: conversation_id)


@bug("G10", first_seed=28)
def an_answer_by_tools_is_read_by_the_model(patch: pytest.MonkeyPatch) -> None:
    """A request continues although all results of a reply are to be returned directly."""
    ends = deciding._complete_by_call

    def asking(state: Any, *others: Any) -> bool:
        specs = [state.tools.get(each.call.name) for each in state.calls]
        return not any(each is not None and each.return_direct for each in specs) and ends(state, *others)

    patch.setattr(deciding, "_complete_by_call", asking)


# ------------------------------------------------------------------------------------------- other processes


@bug("G32")
def what_a_person_said_last_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What the model has not read when a request ends does not join the transcript."""
    end = facting.Facts.end

    def forgets(self: facting.Facts, kind: Callable[..., Event], **fields: Any) -> None:
        self._state.steering.clear()
        end(self, kind, **fields)

    patch.setattr(facting.Facts, "end", forgets)


@bug("G32", first_seed=436)
def a_command_is_refused_too_early(patch: pytest.MonkeyPatch) -> None:
    """A command is refused for a fact that is not in the journal yet."""

    def hasty(self: RequestSession, event: Event) -> bool:
        if self._mailbox is not None and event in self._mailbox:
            return True
        return any(each.event_id == event.event_id for step in self._unpublished for each in step)

    patch.setattr(RequestSession, "_is_pending", hasty)


@bug("G32", first_seed=119)
def a_queued_command_is_not_given(patch: pytest.MonkeyPatch) -> None:
    """An input that a session cannot have yet is settled."""
    settle = InboxReader._settle

    async def hasty(self: InboxReader, session: Any, given: Event, *others: Any) -> None:
        await self._inbox.settle(given.request_id, given.event_id, "taken", "")
        await settle(self, session, given, *others)

    patch.setattr(InboxReader, "_settle", hasty)


@bug("G31", first_seed=5)
def a_reader_misses_a_fact(patch: pytest.MonkeyPatch) -> None:
    """A reader in another process skips the first fact of each look at the store but the first."""
    read = ReadAlong.read

    async def forgetful(self: ReadAlong) -> list[Event]:
        is_first = self._restored is None
        events = await read(self)
        return events if is_first else events[1:]

    patch.setattr(ReadAlong, "read", forgetful)


@bug("G31", first_seed=25)
def a_lost_message_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A reader over a relay continues with whatever comes next."""
    hear = LiveEvents.hear

    def deaf(self: LiveEvents, message: Any, rest: bytes) -> None:
        message.n = self._next
        hear(self, message, rest)

    patch.setattr(LiveEvents, "hear", deaf)


# ------------------------------------------------------------------------------------------------------ turns


@bug("G34", first_seed=585)
def a_turn_that_was_replaced_continues(patch: pytest.MonkeyPatch) -> None:
    """A turn that replaces those before it waits for them."""
    patch.setattr(RunningRequests, "replace", lambda self, conversation_id: None)


@bug("G34", first_seed=132)
def a_turn_replaces_those_of_all_conversations(patch: pytest.MonkeyPatch) -> None:
    def replace_all(self: RunningRequests, conversation_id: str) -> None:
        del conversation_id
        for each in [*self.sessions.values()]:
            each.cancel(REPLACED)

    patch.setattr(RunningRequests, "replace", replace_all)


@bug("G34", first_seed=14)
def a_turn_that_refuses_to_wait_waits(patch: pytest.MonkeyPatch) -> None:
    take = Admission.take

    def patient(self: Admission, conversation_id: str, *, queue: bool = True, **options: Any) -> Any:
        del queue
        return take(self, conversation_id, **options)

    patch.setattr(Admission, "take", patient)


# ------------------------------------------------------------------------------------------- machines


@bug("G24", first_seed=108)
def a_lease_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """A worker has the lease with which a call was delivered, however long its handler takes."""

    async def idle(self: Worker) -> None:
        del self

    patch.setattr(Worker, "_renew", idle)


@bug("G24", first_seed=269)
def a_mark_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Each delivery of a call that must not run twice may begin it."""

    async def hasty(self: Any) -> str:
        del self
        return "mine"

    patch.setattr(over_nats._Delivery, "begin", hasty)


@bug("G17", first_seed=11)
def a_worker_is_not_told_to_stop(patch: pytest.MonkeyPatch) -> None:
    """A call that was settled elsewhere is deleted from the broker only."""

    async def silent(self: Any, key: Any, *, never_again: bool) -> None:
        del never_again
        await self._connection.purge(self._broker.calls, self._broker.subject("call", key))

    patch.setattr(over_nats._SessionLink, "stop", silent)


@bug("G24", first_seed=113)
def an_answer_that_was_lost_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A session waits for a message that will not come."""
    patch.setattr(remote_executor, "_LOOK_SECONDS", 1_000.0)


@bug("G25", first_seed=116)
def a_call_waits_for_a_broker_that_is_away(patch: pytest.MonkeyPatch) -> None:
    """A call is sent again until its session gives it up."""
    patch.setattr(remote_executor, "_LOST_SECONDS", -1.0)
