"""How a request comes to its first step: what has to be waited for, and the guardrails on its prompt.

Or, for one that another process has begun, the facts that are there already. Belongs to `toolbus.session`. Knows the
turn's state and who asks the model, and no bus.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from .._records import maker
from ..bus import Mailbox
from ..clock import SessionClock
from ..core.limits import Limits
from ..core.message_list import Messages
from ..core.result_size import DEFAULT_RESULT_CHARS
from ..core.transcript import repair
from ..core.turn import UPDATE_PLAN, CallStatus, ModelFailed, Resume, Start, TurnState, apply, apply_all, plan_in
from ..errors import ApplicationError, ProtocolViolation, ResumeMismatch, ToolbusError
from ..events import ApprovalRequested, CancelRequested, Event, RequestStarted, encode
from ..interceptors import Interceptor, screens_prompts
from ..messages import Message, SystemMessage, UserMessage
from ..protocols import RequestView, ToolSource
from ._asker import Asker
from ._options import SessionOptions

__all__ = ["Beginning", "Parent", "Prepare", "identified", "new_state"]

Prepare: TypeAlias = Callable[[], Awaitable[Sequence[Message]]]
"""What has to be waited for before a request begins; gives the history of its conversation."""

Parent: TypeAlias = tuple[str, str]
"""The request and the call that a sub-session works for: `request_id` and `call_id`."""


_turn_state = maker(TurnState)
_DEFAULT_LIMITS = Limits()


def identified(prompt: UserMessage | None, request_id: str) -> UserMessage | None:
    """The prompt under an id: its own, or one that follows from the request's."""
    if prompt is None or prompt.message_id:
        return prompt
    return UserMessage(content=prompt.content, message_id=f"{request_id}_u")


def new_state(
    options: SessionOptions,
    request_id: str,
    conversation_id: str,
    history: list[Message],
    prompt: UserMessage | None,
) -> TurnState:
    """The state that a request with these options begins with. `history` becomes its transcript."""
    get = options.get
    return _turn_state(
        request_id=request_id,
        conversation_id=conversation_id,
        parent_id=prompt.message_id if prompt else "",
        metadata=get("metadata"),
        limits=get("limits") or _DEFAULT_LIMITS,
        messages=history,
        approval=get("approval"),
        prices=get("prices"),
        note_failures=get("note_failures", False),
        output_mode=get("output_mode") or "auto",
        max_result_chars=get("max_result_chars") or DEFAULT_RESULT_CHARS,
    )


class Beginning:
    """The way to a request's first step.

    `notes` is what `prepare` found for the model to know before the prompt, `earlier` how many messages it has put in
    front, `stored` how many a store had. `asked` are the questions that a person has still to answer, of a request that
    goes on; `error` is why the prompt was refused.
    """

    __slots__ = (
        "_prompt",
        "asked",
        "earlier",
        "error",
        "is_resumed",
        "notes",
        "parent",
        "prepare",
        "seconds",
        "stored",
    )

    def __init__(self, prompt: UserMessage | None, parent: Parent | None, prepare: Prepare | None) -> None:
        self._prompt = prompt
        self.parent = parent
        self.prepare = prepare
        self.notes: Sequence[SystemMessage] = ()
        self.earlier = 0
        self.stored = 0
        self.error: ToolbusError | None = None
        self.is_resumed = False
        self.seconds: float | None = None  # the time of a request that goes on, where it was given anew
        self.asked: Sequence[ApprovalRequested] = ()

    async def make_ready(self, state: TurnState, mailbox: Mailbox) -> None:
        """Wait for what has to come first, unless somebody cancels the request meanwhile."""
        if self.prepare is None:
            return
        with mailbox.unless_cancelled():
            try:
                given = await self.prepare()
            except Exception:
                if mailbox.has(CancelRequested):  # that is why it was given up, whatever was made of it
                    return
                raise
            if not self.is_resumed:
                earlier = repair(given)
                state.messages[:0] = earlier
                self.earlier, self.stored = len(earlier), len(given)

    def go_on_from(
        self,
        facts: Sequence[Event],
        earlier: Sequence[Message],
        state: TurnState,
        tools: ToolSource,
        size_bytes: int,
    ) -> None:
        """Bring the state to where another process has left it: `facts` are all that it has written.

        `size_bytes` is what they take in the journal.

        `earlier` are the messages of the conversation that it began with, as a store has them; what `history=` gave is
        in the state already. Raises `ResumeMismatch`.
        """
        if not facts or not isinstance(facts[0], RequestStarted):
            raise ResumeMismatch(f"request {state.request_id} cannot go on: its first fact is not request_started")
        repaired = repair(earlier)
        state.messages[:0] = repaired
        self.is_resumed, self.earlier, self.stored = True, len(repaired), len(earlier)
        if len(state.messages) != facts[0].history_count:
            raise ResumeMismatch(
                f"request {state.request_id} cannot go on: it began with {facts[0].history_count} earlier messages, "
                f"and the store has {len(state.messages)} now"
            )
        state.parent_id, state.metadata = facts[0].parent_id, facts[0].metadata
        state.tools = tools.specs
        _take_plan(state, tools)
        try:
            _apply_again(state, facts, size_bytes)
        except ProtocolViolation as exc:
            at = f"fact {state.facts} of request {state.request_id}"
            raise ResumeMismatch(f"{at} cannot be applied: {exc}") from exc
        waiting = {each.call.call_id for each in state.open_calls.values() if each.status is CallStatus.WAITING}
        asked = {fact.call_id: fact for fact in facts if isinstance(fact, ApprovalRequested)}  # the newest of each
        self.asked = [fact for call_id, fact in asked.items() if call_id in waiting]

    def without_guardrails(self, state: TurnState, tools: ToolSource, refused: ToolbusError | None = None) -> Start:
        """The request begins now. With `refused`, it ends at once, and its prompt does not join the transcript."""
        _take_plan(state, tools)
        start = Start(self._prompt, Messages(state.messages), self.notes)
        start.parent_request_id, start.parent_call_id = self.parent or ("", "")
        if refused is not None:
            self.error = refused
            start.refused = ModelFailed(refused.code, str(refused) or "the prompt was denied")
        return start

    def given_up(self, state: TurnState, tools: ToolSource, interceptors: Sequence[Interceptor]) -> Start:
        """The request ends before it has begun. A prompt that its guardrails have not let pass is not kept."""
        if screens_prompts(interceptors):
            self._prompt = None
        return self.without_guardrails(state, tools)

    async def first_input(
        self, state: TurnState, view: RequestView, asker: Asker, clock: SessionClock, mailbox: Mailbox
    ) -> Start | Resume:
        """The beginning, as the guardrails on the prompt allow it, in the time of the request."""
        if self.is_resumed:
            return Resume(self.seconds)
        prompt, tools = self._prompt, view.tools
        if prompt is None or not asker.interceptors:
            return self.without_guardrails(state, tools)
        seconds = state.limits.timeout_seconds
        with mailbox.unless_cancelled(clock.loop_time() + seconds):
            admitted = await asker.admit(prompt, view)
            if isinstance(admitted, ToolbusError) and mailbox.has(CancelRequested):
                return self.given_up(state, tools, asker.interceptors)  # whatever was made of that
            if isinstance(admitted, ToolbusError):
                return self.without_guardrails(state, tools, admitted)
            self._prompt = admitted
            return self.without_guardrails(state, tools)
        if mailbox.has(CancelRequested):
            return self.given_up(state, tools, asker.interceptors)
        refused = ApplicationError(f"on_prompt did not return in timeout_seconds={seconds:g}")
        return self.without_guardrails(state, tools, refused)


def _apply_again(state: TurnState, facts: Sequence[Event], size_bytes: int) -> None:
    """Apply what a journal of that size has. Replies are judged by what it took when they came."""
    if size_bytes < state.limits.max_journal_bytes:
        apply_all(state, facts)
    else:
        for fact in facts:
            apply(state, fact)
            state.journal_bytes += len(encode(fact))
    state.journal_bytes = size_bytes


def _take_plan(state: TurnState, tools: ToolSource) -> None:
    """The plan that the conversation's earlier turns have left."""
    plan = tools.specs.get(UPDATE_PLAN)
    if plan is not None and plan.control == "plan":
        state.plan = plan_in(state.messages)
