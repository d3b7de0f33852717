"""The view of a request, for its handlers, interceptors and executors, and the sub-requests that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .._logs import logger
from ..bus import EventBus
from ..core.limits import Budget, Limits
from ..core.message_list import Messages
from ..core.turn import CallState, CallStatus, LostReplies, TurnState, remaining_limits, spent_in_all, spent_so_far
from ..errors import LimitReached
from ..events import Spent, StatusChanged, ToolCallPaused, ToolCallResumed
from ..messages import Message, PromptLike
from ..protocols import CallView, Provider, ToolSource
from ..secrets import NamedSecret, RequestSecrets, Vault
from ..status import StatusPublisher
from ..storage import Journal
from ._context_window import ContextWindow
from ._inputs import MessagesLike, ToolsLike, read_messages, read_prompt, tool_source
from ._options import SessionOptions, budgets_in, check_options
from ._start import SessionStart

if TYPE_CHECKING:
    from ..instrumentation import Instrumentation
    from ..interceptors import Interceptor
    from ._model_call import ModelCall

_INHERITED = (
    "deps",
    "metadata",
    "needs_approval",
    "on_approval",
    "interceptors",
    "instrumentation",
    "budget",
    "prices",
    "compression",
    "max_result_chars",
    "include_data",
    "output_mode",
)
# Each level of nesting holds a session, and a model that calls itself has to end.
_MAX_DEPTH = 8


class SessionView:
    """The `RequestView` of a session. It holds no session, so that keeping the view does not keep the session alive.

    `state` is the turn's state, which the session still changes; others only read it. `released` is the reason why the
    request is left for another process, and "" for a request that is not left. `waits` says whether the request waits
    for a person, as last reported to the request above, whose view is `above`.
    """

    __slots__ = (
        "__weakref__",
        "_bus",
        "_check_tools",
        "_depth",
        "_has_left_open",
        "_journal",
        "above",
        "budgets",
        "call_above",
        "calls",
        "conversation_id",
        "deps",
        "instrumentation",
        "interceptors",
        "is_stopping",
        "metadata",
        "model_call",
        "options",
        "original_metadata",
        "parked",
        "providers",
        "released",
        "request_id",
        "secrets",
        "state",
        "status_line",
        "tools",
        "waits",
        "window",
    )

    def __init__(
        self,
        bus: EventBus,
        state: TurnState,
        providers: Sequence[Provider],
        tools: ToolSource,
        options: SessionOptions,
        window: ContextWindow,
        interceptors: Sequence[Interceptor],
        journal: Journal | None,
        start: SessionStart,
    ) -> None:
        self.request_id = state.request_id
        self.conversation_id = state.conversation_id
        self.calls: Mapping[str, CallView] = state.open_calls
        self.deps: Any = options.get("deps")
        self.metadata: Mapping[str, Any] | None = options.get("metadata")
        self.tools = tools
        self.options: SessionOptions = options
        self.budgets: Sequence[Budget] = () if options.get("budget") is None else budgets_in(options)
        self.providers = providers
        self.interceptors = interceptors
        self.instrumentation: Sequence[Instrumentation] = options.get("instrumentation") or ()
        self.original_metadata: Mapping[str, Any] | None = None
        self.window = window
        self.is_stopping = False
        self.released = ""
        self.parked: tuple[int, float] | None = None  # the number of facts when it was parked, and for how many seconds
        self.waits = False
        self.model_call: ModelCall | None = None  # the call of the model that is in flight, or was cut short
        self.secrets = RequestSecrets(state)
        self._bus = bus
        self.state = state
        self._journal = journal
        self._check_tools = start.check_tools
        self._depth = start.depth
        self._has_left_open = False
        self.above = start.above
        self.call_above = start.call_above
        self.status_line: StatusPublisher | None = None  # None until somebody wants the status
        named: Sequence[NamedSecret] | None = options.get("secrets")
        if named:
            self.secrets.share(Vault(named, self.conversation_id))
        if start.above is not None:
            self.secrets.join(start.above.secrets)

    @property
    def is_released(self) -> bool:
        """True if the request stops here so that another process continues it."""
        return bool(self.released)

    @property
    def only_waits(self) -> bool:
        """True if every open call waits for a person's decision, and nothing else happens."""
        calls = self.state.open_calls
        return bool(calls) and all(each.status is CallStatus.WAITING for each in calls.values())

    @property
    def phase(self) -> str:
        """Return "people" if every open call waits for a person, otherwise the phase of the turn machine.

        A request that has answered, and waits for its background calls, is in the phase "tools".
        """
        state = self.state
        calls = [*state.open_calls.values()] if state.waiting else []
        if calls and all(map(_waits_for_a_person, calls)):
            return "people"
        return "tools" if calls and state.is_idle else state.phase.value

    @property
    def waits_for_inputs(self) -> bool:
        """True if every open call waits for a person, or for an answer from outside, and nothing else happens.

        False while the application's `on_approval` decides: it runs in this process, and nobody would ask it again.
        """
        state, decides_here = self.state, callable(self.options.get("on_approval"))
        external = {name for name, spec in state.tools.items() if spec.external}
        return bool(state.open_calls) and all(
            each.call.name in external
            if each.status is CallStatus.REQUESTED
            else each.status is CallStatus.WAITING and not decides_here
            for each in state.open_calls.values()
        )

    @property
    def parks_for(self) -> float:
        """The seconds for which nobody has to run the request that is left here; 0 if it has to continue at once."""
        return self.parked[1] if self.parked is not None and self.parked[0] == self.state.facts else 0.0

    @property
    def messages(self) -> Sequence[Message]:
        """The transcript so far: a read-only view that does not grow."""
        return Messages(self.state.messages)

    @property
    def spent(self) -> Spent:
        """The usage, tool calls and cost of the request so far, with those of its sub-requests.

        Replies that interceptors still hold count, because the request above may be about to give this one up.
        """
        state, held = self.state, LostReplies() if self.model_call is None else self.model_call.lost()
        total = spent_in_all(state, state.open_calls.values())
        return total + Spent(usage=held.usage, tool_calls=0, cost=held.cost)

    # -------------------------------------------------------------------------------------------------- status

    @property
    def status(self) -> StatusPublisher:
        """The publisher of the status line, which is made when somebody first wants the status."""
        if self.status_line is None:
            tools = self.tools
            self.status_line = StatusPublisher(self._bus, self.state, lambda: tools.specs)
            for kind in () if self.model_call is None else self.model_call.piece_kinds:
                self.status_line.take_piece(kind, self.request_id)
        return self.status_line

    def status_if_wanted(self) -> StatusPublisher | None:
        """Return the publisher of the status line if anybody wants the status, otherwise None."""
        wanted = self.status_line is not None or self._bus.arbitration.wants(StatusChanged, self.request_id)
        return self.status if wanted else None

    def narrate(self, call_id: str, text: str) -> None:
        """Use `text` as the status of a call that runs. For a `Narrator`."""
        self.status.narrate(self.request_id, call_id, text)

    # ---------------------------------------------------------------------------------------------------- faults

    def report_left_open(self) -> None:
        """Log, once, that code of the application has left a scope or a task group open in the request's task."""
        if not self._has_left_open:
            self._has_left_open = True
            logger.error(
                "request %s: a provider, an interceptor or a store has left a cancel scope or a task group open in its "
                "task; open a client in the application's lifespan, or with `async with` inside the method",
                self.request_id,
                extra={"request_id": self.request_id, "conversation_id": self.conversation_id},
            )

    # -------------------------------------------------------------------------------------------- sub-requests

    def child(
        self,
        call_id: str,
        prompt: PromptLike,
        *,
        provider: Provider | Sequence[Provider] | None = None,
        tools: ToolsLike = (),
        output: Any = None,
        history: MessagesLike = (),
        **options: Any,
    ) -> Any:
        """Return a new sub-request that works for call `call_id` of this request, on the same bus.

        It is to be run in the call's own task. It inherits this request's provider, deps, metadata, approvals, prices
        and interceptors unless others are given, and its budgets in any case. Its limits are at most what is left of
        this request's limits. Raises `LimitReached` if nothing is left, or if requests are nested too deep, and
        `ConfigurationError`.
        """
        from ._session import RequestSession  # noqa: PLC0415 -- that module imports this one

        check_options(options, SessionOptions, "ask()", beside=("provider", "tools", "output", "history"))
        source = tool_source(tools)
        if self._check_tools is not None:
            self._check_tools(source.specs)
        messages = read_messages(history)
        if messages and any(each.call_id == call_id for each in getattr(messages[-1], "tool_calls", ())):
            del messages[-1]  # The reply that made this call has no results yet.
        state = self.state
        options["limits"] = _limits_of(state, call_id, self._bus.clock(), self._depth, options.get("limits"))
        call = state.open_calls.get(call_id)
        used = spent_in_all(state, () if call is None else (call,)).tool_calls
        start = SessionStart(
            parent=(self.request_id, call_id),
            depth=self._depth + 1,
            calibration=self.window.calibration,
            check_tools=self._check_tools,
            granted=state.granted,
            above=self,
            call_above=call,
        )
        child = RequestSession(
            self._bus,
            provider or self.providers,
            [*messages, read_prompt(prompt)],
            tools=() if used >= state.limits.max_tool_calls else source,
            output=output,
            start=start,
            **_inherited(self.options, self._journal, cast("SessionOptions", options)),
        )
        if call is not None:
            call.sub_requests += (child.snapshot().view,)
            self._bus.arbitration.mailboxes[self.request_id].spent = self._spent_below
        return child

    def _spent_below(self, call_id: str) -> Spent | None:
        call = self.state.open_calls.get(call_id)
        return None if call is None else spent_so_far(call)

    def report_end(self) -> None:
        """Leave the call above, which runs on and must not keep this request, with what was spent."""
        self.report_waiting()
        if (call := self.call_above) is not None and self in call.sub_requests:
            call.sub_requests = tuple([each for each in call.sub_requests if each is not self])
            call.spent = self.spent if call.spent is None else call.spent + self.spent

    def report_waiting(self) -> None:
        """Pause the call above while this request waits for a person, and resume it afterwards.

        The call is paused until none of its sub-requests waits. When their questions change, it is paused anew, so that
        the journal of the request above has those that are open.
        """
        above, call = self.above, self.call_above
        if above is None or call is None or not (self.waits or self.state.waiting):
            return
        state = above.state
        self.waits = self.state.waiting > 0
        arbitration = self._bus.arbitration
        waiting = [each.request_id for each in call.sub_requests if each.waits]
        questions = tuple(found for each in waiting for found in arbitration.pending_approvals(each))
        before, call.asked = call.asked, tuple(each.event_id for each in questions) if waiting else None
        if before == call.asked or not arbitration.is_open(state.request_id, call.call.call_id):
            return
        ids: dict[str, Any] = {**state.envelope(self._bus.clock()), "call_id": call.call.call_id}
        if before is not None:
            self._bus.publish(ToolCallResumed(**ids))
        if waiting:
            self._bus.publish(ToolCallPaused(**ids, pending_approvals=questions))


def _waits_for_a_person(call: CallState) -> bool:
    """Return whether a call waits for a person, and not only for background calls of its sub-requests."""
    return call.status is CallStatus.WAITING or (call.remaining_seconds is not None and call.asked != ())


def _inherited(options: SessionOptions, journal: Journal | None, own: SessionOptions) -> dict[str, Any]:
    """Return the options of a sub-request: its `own` ones over those that it inherits from the request above.

    A journal is inherited only if it records sub-requests too. Where the request above has one, a question may wait.
    """
    above: Mapping[str, Any] = dict(options)
    taken = {key: above[key] for key in _INHERITED if key in above}
    if "budget" in own:  # It is added to those above, also where it is None.
        own["budget"] = budgets_in(above, own)
    if journal is not None and taken.get("on_approval") is None:
        taken["on_approval"] = "wait"
    if getattr(journal, "with_sub_requests", False):
        taken["journal"] = journal
    return {**taken, **{name: value for name, value in own.items() if value is not None}}


def _limits_of(state: TurnState, call_id: str, now: float, depth: int, wanted: Limits | None) -> Limits:
    """Return the limits of a sub-request of call `call_id`.

    Raises `LimitReached` if nothing is left, or if requests are nested too deep.
    """
    if depth >= _MAX_DEPTH:
        raise LimitReached(f"sub-requests may be nested at most {_MAX_DEPTH} deep")
    limits = remaining_limits(state, call_id, now, wanted)
    if limits is None:
        raise LimitReached("the request that asks has used up its limits")
    return limits
