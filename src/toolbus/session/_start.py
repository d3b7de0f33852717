"""The beginning of a request: the preparation it waits for, the guardrails on its prompt, and its first step.

For a request that another process has begun, it applies the facts that are in the journal. It knows the turn's state
and the session's `Asker`. It publishes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..bus import Mailbox
from ..clock import SessionClock
from ..core.history import History, Memo
from ..core.limits import Limits
from ..core.message_list import Messages
from ..core.output import OutputType
from ..core.result_size import DEFAULT_RESULT_CHARS
from ..core.tokens import Calibration
from ..core.transcript import repair
from ..core.turn import (
    UPDATE_PLAN,
    CallState,
    CallStatus,
    ModelFailed,
    Resume,
    Start,
    TurnState,
    apply,
    apply_all,
    plan_in,
)
from ..errors import ApplicationError, ProtocolViolation, ResumeMismatch, ToolbusError
from ..events import ApprovalRequested, CancelRequested, Event, RequestStarted, encode
from ..interceptors import Interceptor, screens_prompts
from ..messages import Message, SystemMessage, UserMessage
from ..protocols import ToolSource, ToolSpec
from ..secrets import RequestSecrets, Vault
from ._context_window import ContextWindow
from ._model_request import Asker
from ._options import SessionOptions, budgets_in

if TYPE_CHECKING:
    from ._view import SessionView


@dataclass(slots=True, kw_only=True, frozen=True)
class Earlier:
    """The data that a conversation hands to its next turn.

    `messages` is its history, and `notes` are late results that the model is shown before the prompt. `granted` are
    remembered approvals, by a tool's definition. `memo` describes what an earlier turn has left out of what it sent,
    and `folded` is its fold, if it is still in memory. `vault` holds the conversation's secrets.
    """

    messages: Sequence[Message] = ()
    notes: Sequence[SystemMessage] = ()
    granted: Mapping[str, bool] = field(default_factory=dict[str, bool])
    memo: Memo | None = None
    folded: History | None = None
    vault: Vault | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class Resumed:
    """The record of a request that another process has begun, from its journal.

    `facts` are all facts that were written, in order, and `size_bytes` is their size in the journal. `history` are the
    messages of the conversation that the request began with, as the store has them. `seconds` is the request's time
    limit, if it was given a new one. `instructions` are the present ones and the ones that were sent before: secrets in
    them are recognised by their positions.
    """

    facts: Sequence[Event]
    history: Sequence[Message]
    size_bytes: int = 0
    granted: Mapping[str, bool] = field(default_factory=dict[str, bool])
    memo: Memo | None = None
    seconds: float | None = None
    instructions: tuple[str, str] | None = None


Prepare: TypeAlias = Callable[[], Awaitable[Earlier]]
"""A function that is awaited before a request begins, while the clocks of the request do not run yet."""

Parent: TypeAlias = tuple[str, str]
"""The request and the call that a sub-request works for: `request_id` and `call_id`."""


@dataclass(slots=True, kw_only=True, frozen=True)
class SessionStart:
    """The inputs of a session that only the runtime, resuming, sub-requests and recordings give.

    `prepare` is awaited before the request begins. `resumed` is set for a request that another process has begun.
    `calibration` is shared by all sessions that ask the same models. `window` makes a context window instead of the
    usual one. `check_tools` raises `ConfigurationError` for tools of a sub-request that nobody can run. The rest is for
    sub-requests: the `parent` whose call it works for, the number of requests above it
    (`depth`), the approvals of the conversation (`granted`), and the view and the call of the request above.
    """

    prepare: Prepare | None = None
    resumed: Resumed | None = None
    calibration: Calibration | None = None
    window: Callable[[TurnState], ContextWindow] | None = None
    check_tools: Callable[[Mapping[str, ToolSpec]], None] | None = None
    parent: Parent | None = None
    depth: int = 0
    granted: dict[str, bool] | None = None
    above: SessionView | None = None
    call_above: CallState | None = None


NO_START = SessionStart()

_DEFAULT_LIMITS = Limits()


def identified(prompt: UserMessage | None, request_id: str) -> UserMessage | None:
    """Return the prompt with an id: its own, or one that is derived from the request's id."""
    if prompt is None or prompt.message_id:
        return prompt
    return UserMessage(content=prompt.content, message_id=f"{request_id}_u")


def new_state(
    options: SessionOptions,
    request_id: str,
    conversation_id: str,
    history: list[Message],
    prompt: UserMessage | None,
    granted: dict[str, bool] | None,
    output: Any,
    providers: int,
) -> TurnState:
    """Return the state that a request with these options begins with. `history` becomes its transcript.

    `granted` is not copied, because a remembered approval holds for all of the conversation. `output` is the type of
    the answer, if it has one, and `providers` the number of providers.
    """
    get = options.get
    budget = get("budget")
    typed: OutputType[Any] | None = output
    if output is not None and not isinstance(output, OutputType):
        typed = OutputType(output, get("deps"))
    return TurnState(
        request_id=request_id,
        conversation_id=conversation_id,
        parent_id=prompt.message_id if prompt else "",
        metadata=get("metadata"),
        limits=get("limits") or _DEFAULT_LIMITS,
        messages=history,
        history_count=len(history),
        needs_approval=get("needs_approval"),
        prices=get("prices"),
        has_cost_budget=budget is not None and any(each.max_cost is not None for each in budgets_in(options)),
        note_failures=get("note_failures", False),
        output_mode=get("output_mode") or "auto",
        max_result_chars=get("max_result_chars") or DEFAULT_RESULT_CHARS,
        granted={} if granted is None else granted,
        output=typed,
        providers=providers,
    )


class RequestBeginning:
    """The beginning of a request, up to its first step.

    `prompt` is None while interceptors screen it. `notes` are the messages from `prepare` that the model is shown
    before the prompt, `earlier` is the number of messages that it has put in front, and `stored` the number that the
    store had before they were repaired. `asked` are the approvals of a resumed request that a person has still to
    decide. `has_joined` is whether its turn in its conversation has come, in any process, and `error` the reason why
    the prompt was refused.
    """

    __slots__ = (
        "asked",
        "earlier",
        "error",
        "has_joined",
        "is_resumed",
        "notes",
        "parent",
        "prepare",
        "prompt",
        "seconds",
        "stored",
    )

    def __init__(self, prompt: UserMessage | None, start: SessionStart) -> None:
        self.prompt = prompt
        self.parent = start.parent
        self.prepare = start.prepare
        self.has_joined = start.prepare is None
        self.notes: Sequence[SystemMessage] = ()
        self.earlier = 0
        self.stored = 0
        self.error: ToolbusError | None = None
        self.is_resumed = False
        self.seconds: float | None = None  # the new time limit of a resumed request, if it was given one
        self.asked: Sequence[ApprovalRequested] = ()

    async def make_ready(
        self, state: TurnState, mailbox: Mailbox, window: ContextWindow, secrets: RequestSecrets
    ) -> None:
        """Await `prepare` and take what it returns, unless somebody cancels the request meanwhile."""
        if self.prepare is None or mailbox.has(CancelRequested):
            return
        with mailbox.unless_cancelled():
            try:
                found = await self.prepare()
            except Exception:
                # The cancellation is the reason why it was given up, whatever exception it was turned into.
                if mailbox.has(CancelRequested):
                    return
                raise
            self.has_joined = True
            secrets.share(found.vault)
            if not self.is_resumed:
                earlier = repair(found.messages)
                state.messages[:0] = earlier
                self.earlier, self.stored = len(earlier), len(found.messages)
                self.notes = found.notes
                state.granted.update(found.granted)
                window.memo, window.earlier = found.memo, found.folded
            if secrets.vault is not None:  # A process that does not know the secrets may have written a note.
                messages = state.messages
                messages[:] = [secrets.mask(each) if isinstance(each, SystemMessage) else each for each in messages]

    def continue_from(self, resumed: Resumed, state: TurnState, tools: ToolSource) -> None:
        """Bring the state to the point where another process has left the request.

        The messages of the option `history` are in the state already, and the first fact is `RequestStarted`. Raises
        `ResumeMismatch` if the facts do not fit the state.
        """
        facts, earlier, size_bytes = resumed.facts, resumed.history, resumed.size_bytes
        self.seconds = resumed.seconds
        state.granted.update(resumed.granted)
        started = facts[0]
        assert isinstance(started, RequestStarted)
        repaired = repair(earlier)
        state.messages[:0] = repaired
        self.is_resumed = self.has_joined = True
        self.earlier, self.stored = len(repaired), len(earlier)
        if len(state.messages) != started.history_count:
            raise ResumeMismatch(
                f"request {state.request_id} cannot be resumed: it began with {started.history_count} earlier "
                f"messages, and the store has {len(state.messages)} now; bring these messages back, or give the "
                "request up: `toolbus resume --abandon`, or `store.journal.take` and then `store.journal.abandon`"
            )
        state.parent_id, state.metadata = started.parent_id, started.metadata
        state.tools = tools.specs
        _take_plan(state, tools)
        try:
            _apply_again(state, facts, size_bytes)
        except ProtocolViolation as exc:
            at = f"fact {state.facts} of request {state.request_id}"
            raise ResumeMismatch(f"{at} cannot be applied: {exc}") from exc
        waiting = {each.call.call_id for each in state.open_calls.values() if each.status is CallStatus.WAITING}
        # A later question about the same call replaces an earlier one.
        asked = {fact.call_id: fact for fact in facts if isinstance(fact, ApprovalRequested)}
        self.asked = [fact for call_id, fact in asked.items() if call_id in waiting]

    def without_guardrails(self, state: TurnState, tools: ToolSource, refused: ToolbusError | None = None) -> Start:
        """Return the first input of a request whose prompt is not screened (any more).

        With `refused`, the request ends at once, and its prompt does not join the transcript.
        """
        _take_plan(state, tools)
        failed = None
        if refused is not None:
            self.error = refused
            failed = ModelFailed(refused.code, str(refused) or "the prompt was denied")
        return Start(self.prompt, Messages(state.messages), self.notes, failed, *(self.parent or ("", "")))

    def given_up(self, state: TurnState, tools: ToolSource, interceptors: Sequence[Interceptor]) -> Start:
        """Return the first input of a request that ends before it has begun.

        A prompt that the guardrails have not let pass is not kept.
        """
        if screens_prompts(interceptors):
            self.prompt = None
        return self.without_guardrails(state, tools)

    async def first_input(
        self, state: TurnState, view: SessionView, asker: Asker, clock: SessionClock, mailbox: Mailbox
    ) -> Start | Resume:
        """Return the first input, after the guardrails on the prompt have run within the time of the request."""
        if self.is_resumed:
            return Resume(self.seconds)
        prompt, tools = self.prompt, view.tools
        if prompt is None or not asker.interceptors:
            return self.without_guardrails(state, tools)
        seconds = state.limits.timeout_seconds
        with mailbox.unless_cancelled(clock.loop_time() + seconds):
            admitted = await asker.admit(prompt, view)
            if isinstance(admitted, ToolbusError) and mailbox.has(CancelRequested):
                # The cancellation is the reason, whatever error the guardrail has turned it into.
                return self.given_up(state, tools, asker.interceptors)
            if isinstance(admitted, ToolbusError):
                return self.without_guardrails(state, tools, admitted)
            self.prompt = admitted
            return self.without_guardrails(state, tools)
        if mailbox.has(CancelRequested):
            return self.given_up(state, tools, asker.interceptors)
        refused = ApplicationError(f"on_prompt did not return in timeout_seconds={seconds:g}")
        return self.without_guardrails(state, tools, refused)


def _apply_again(state: TurnState, facts: Sequence[Event], size_bytes: int) -> None:
    """Apply the facts of a journal of `size_bytes`. Each reply is judged by the journal's size when it came."""
    if size_bytes < state.limits.max_journal_bytes:
        apply_all(state, facts)
    else:
        for fact in facts:
            apply(state, fact)
            state.journal_bytes += len(encode(fact))
    state.journal_bytes = size_bytes


def _take_plan(state: TurnState, tools: ToolSource) -> None:
    """Take the plan that the conversation's earlier turns have left, if the request has the tool for plans."""
    plan = tools.specs.get(UPDATE_PLAN)
    if plan is not None and plan.control == "plan":
        state.plan = plan_in(state.messages)
