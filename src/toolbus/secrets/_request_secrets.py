"""The secrets of one request: its vault, the marks of its tools, and what is published and logged instead of them.

Knows a turn's state, and no session. Executors reach a request's secrets through its view: `RequestView.secrets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidArguments, ToolbusError
from ..events import ApprovalDecided, Event
from ..protocols import Emit, KnowsMarks, RecordT, RequestView, SecretHandling, ToolSource, ToolSpec
from ..records import replace
from ..tool_results import RenderedResult, settled
from ._event_masking import ReplyMask, hidden, hidden_arguments
from ._log_filter import hide_in_log
from ._marks import REFERENCE, Marks, find_marks, revealed
from ._redaction import MASK
from ._vault import NamedSecret, Vault

if TYPE_CHECKING:
    from ..core.turn import TurnState

_NO_MARKS: Mapping[str, Marks] = {}


class Masks(Protocol):
    """The part of a mailbox that masks the events which are published for its request; without a function, none are."""

    masked: Callable[[Event], Event] | None


class RequestSecrets:
    """The secrets of one request.

    `vault` is set once there is a secret to keep; a sub-request joins the vault of the request above it. `marked` are
    the marks of the tools that have any, and `answer` those of the structured output. From the first secret on, the
    `mailbox` masks the events that are published for the request.
    """

    __slots__ = (
        "__weakref__",
        "_above",
        "_guarded",
        "_in_log",
        "_state",
        "answer",
        "is_lenient",
        "mailbox",
        "marked",
        "vault",
    )

    def __init__(self, state: TurnState) -> None:
        self._state = state
        self._above: RequestSecrets | None = None
        self.vault: Vault | None = None
        self.marked: Mapping[str, Marks] = _NO_MARKS
        self.answer: Marks | None = None
        # True if an unknown executor runs the tools, which may know references that this vault does not.
        self.is_lenient = False
        self._guarded: tuple[Mapping[str, ToolSpec], Mapping[str, ToolSpec]] | None = None
        self.mailbox: Masks | None = None

    def keep(self) -> Vault:
        """Return the vault, which is made when it is first needed."""
        if self.vault is None:
            self.vault = Vault() if self._above is None else self._above.keep()
            if self.mailbox is not None:
                self.mailbox.masked = self.mask
            self._in_log = hide_in_log(self._state.request_id, self)
        return self.vault

    def share(self, vault: Vault | None) -> None:
        """Keep the secrets in the conversation's `vault` from now on; named secrets keep their names.

        The request's metadata, and a history that comes from the application, are masked at once.
        """
        if vault is None:
            return
        own = self.keep()
        if vault is not own:
            vault.take_names(own)
            self.vault = vault
            self._guarded = None
        state = self._state
        if vault:
            state.metadata = vault.shown_json(state.metadata)
            state.messages[:] = [hidden(each, vault) for each in state.messages]

    def join(self, above: RequestSecrets) -> None:
        """Keep secrets in the vault of the request that this one works for, once either of them has any."""
        self._above = above
        if self.vault is not None or above.vault is not None:
            self.share(above.keep())

    # ------------------------------------------------------------------------------------------- for executors

    def deliver(self, arguments: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        """Return arguments as a handler gets them, with the values of marked fields.

        Raises `InvalidArguments` for a reference that is not known any more.
        """
        return revealed(arguments, marks, _nothing if self.vault is None else self.vault.value_of)

    def hide(self, rendered: RenderedResult) -> RenderedResult:
        """Return a result with references instead of the secrets in it."""
        return settled(rendered, self.keep().hide)

    def digest(self, arguments: bytes) -> bytes:
        """Return a digest of arguments under the vault's key, or the arguments themselves without a vault.

        The key is needed because a reference has its value only in its own conversation.
        """
        return arguments if self.vault is None else self.vault.digest(arguments)

    def mask(self, given: RecordT) -> RecordT:
        """Return a record without secrets, also in the edited arguments of an approval."""
        vault = self.vault
        if vault is None:
            return given
        if isinstance(given, ApprovalDecided) and given.arguments is not None and self.marked:
            each = self._state.open_calls.get(given.call_id)
            marks = None if each is None else self.marked.get(each.call.name)
            if marks is not None and isinstance(given.arguments, dict):  # pyright: ignore[reportUnnecessaryIsInstance] -- anybody's
                given = replace(given, arguments=hidden_arguments(given.arguments, marks, vault))
        return hidden(given, vault) if vault else given

    # -------------------------------------------------------------------------------------------- for sessions

    def words(self, exc: ToolbusError) -> ToolbusError:
        """Mask the text of an error of the request, in place, and return the error."""
        if self.vault:
            exc.args = tuple([self.vault.shown(each) if isinstance(each, str) else each for each in exc.args])
        return exc

    def guarded(self, specs: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
        """Return the tools. Those with marked fields validate the values behind the references in their arguments."""
        if not self.marked:
            return specs
        if self._guarded is None or self._guarded[0] is not specs:
            # The validators hold the vault and not this object: this object holds the state, which will hold them.
            vault = self.keep()
            guarded = {
                name: replace(spec, validate=_checks(spec, self.marked[name], vault, self.is_lenient))
                for name, spec in specs.items()
                if name in self.marked
            }
            self._guarded = specs, {**specs, **guarded}
        return self._guarded[1]

    def reply(
        self, specs: Mapping[str, ToolSpec], *, emit: Emit, feed: Emit, note_kind: Callable[[type[Event]], None]
    ) -> ReplyMask:
        """Return the mask for one reply of the model."""
        marked = self.marked
        if self.answer is not None and self._state.output is not None:
            marked = {**marked, self._state.output.spec.name: self.answer}
        return ReplyMask(self.keep(), marked, specs, self.answer, emit=emit, feed=feed, note_kind=note_kind)

    def open_output(self) -> None:
        """Have the structured output validated and returned with values instead of references."""
        output, answer = self._state.output, self.answer
        if output is not None and answer is not None:
            vault = self.keep()
            output.deliver = lambda arguments: revealed(arguments, answer, vault.value_of)


def _checks(
    spec: ToolSpec,
    marks: Marks,
    vault: Vault,
    is_lenient: bool,  # noqa: FBT001 -- only this module calls it
) -> Callable[[Mapping[str, Any]], None]:
    validate, lenient = spec.validate, is_lenient or spec.external

    def check(arguments: Mapping[str, Any]) -> None:
        validate(revealed(arguments, marks, vault.value_of, lenient=lenient))

    return check


class _NoSecrets:
    """The secrets of a request that does not run in this process: no value is known, and results are masked."""

    def deliver(self, arguments: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        return revealed(arguments, marks, _nothing)

    def hide(self, rendered: RenderedResult) -> RenderedResult:
        return settled(rendered, lambda _value: MASK)

    def digest(self, arguments: bytes) -> bytes:
        return arguments

    def mask(self, given: RecordT) -> RecordT:
        return given


class GivenSecrets:
    """The secrets of a request that runs in another process, as far as this process was given them.

    References to values with a name have the values that this process has for the names; others have none. A secret in
    a result that is not such a value is masked, because nobody could look up a reference to it.
    """

    __slots__ = ("__weakref__", "_in_log", "vault")

    def __init__(self, named: Iterable[NamedSecret], request_id: str, conversation_id: str) -> None:
        self.vault: Vault | None = Vault(named, conversation_id)
        self._in_log = hide_in_log(request_id, self)

    def deliver(self, arguments: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        """Return arguments with the values of references. Raises `InvalidArguments`, worded for the model."""
        return revealed(arguments, marks, self._value_of)

    def _value_of(self, reference: str) -> float | str:
        assert self.vault is not None
        if (value := self.vault.value_of(reference)) is None:
            raise InvalidArguments(f"the worker that runs the tool was not given the secret of {reference}")
        return value

    def hide(self, rendered: RenderedResult) -> RenderedResult:
        """Return a result with references, or masks, instead of the secrets in it."""
        return settled(rendered, self._hidden)

    def _hidden(self, value: float | str) -> str:
        assert self.vault is not None
        shown = self.vault.shown(str(value))
        return shown if REFERENCE.fullmatch(shown) else MASK

    def digest(self, arguments: bytes) -> bytes:
        """Return the arguments themselves: a reference to a name is one conversation's anyway."""
        return arguments

    def mask(self, given: RecordT) -> RecordT:
        """Return a record without secrets."""
        return hidden(given, self.vault) if self.vault else given


NO_SECRETS: SecretHandling = _NoSecrets()
"""The secrets of every request that does not run in this process."""


def secrets_of(view: RequestView | None) -> SecretHandling:
    """Return the secrets of a request, or `NO_SECRETS` if it does not run in this process."""
    return NO_SECRETS if view is None else view.secrets


def marked_in(tools: ToolSource) -> Mapping[str, Marks]:
    """Return the marks of the tools that have any. A registry knows them; other schemas are searched."""
    if isinstance(tools, KnowsMarks):
        return tools.marked
    found = {name: find_marks(spec.parameters) for name, spec in tools.specs.items()}
    return {name: marks for name, marks in found.items() if marks is not None}


def _nothing(_reference: str) -> None:
    """Return None for every reference: no secret is known."""
