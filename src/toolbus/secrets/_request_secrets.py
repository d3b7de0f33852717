"""How one request keeps its secrets: its vault, the marks of its tools, and what is told on the bus and in the log.

Knows a turn's state, and no session. Executors reach it by way of the request's view (`secrecy_of`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from .._logs import hide_in_logs
from ..errors import ToolbusError
from ..events import ApprovalDecided, Event
from ..protocols import Emit, ToolSource, ToolSpec
from ..tool_results import Rendered, settled
from ._marks import Marks, find_marks, revealed
from ._masking import ReplyMask, hidden, hidden_arguments
from ._redaction import MASK
from ._vault import Vault

if TYPE_CHECKING:
    from ..core.turn import TurnState

__all__ = ["Secrecy", "SecretKeeper", "delivered", "marked_in", "secrecy_of", "vault_of", "with_references"]

_NO_MARKS: Mapping[str, Marks] = {}


class Secrecy:
    """Of one request. `marked` are the marks of those of its tools that have any, and `answer` those of its output."""

    __slots__ = ("__weakref__", "_guarded", "_state", "answer", "is_lenient", "marked", "vault")

    def __init__(self, state: TurnState, vault: Vault | None = None) -> None:
        self._state = state
        self.vault = Vault() if vault is None else vault
        self.marked: Mapping[str, Marks] = _NO_MARKS
        self.answer: Marks | None = None
        self.is_lenient = False  # whether the tools are run by who knows what, so that references may be known there
        self._guarded: tuple[Mapping[str, ToolSpec], Mapping[str, ToolSpec]] | None = None
        _behind[state.request_id] = self
        hide_in_logs(_shown_in_log)

    def share(self, vault: Vault) -> None:
        """Keep the secrets in `vault` from now on, which is the conversation's; what was named is named there.

        Hides what the request was given: its metadata, and a history that comes from the application.
        """
        if vault is not self.vault:
            vault.take_names(self.vault)
            self.vault = vault
            self._guarded = None
        state = self._state
        if vault:
            state.metadata = vault.shown_json(state.metadata)
            state.messages[:] = [hidden(each, vault) for each in state.messages]

    def told(self, event: Event) -> Event:
        """An event of somebody else on the bus as all may hear it, edited arguments of an approval included."""
        if isinstance(event, ApprovalDecided) and event.arguments is not None and self.marked:
            each = self._state.open_calls.get(event.call_id)
            marks = None if each is None else self.marked.get(each.call.name)
            if marks is not None and isinstance(event.arguments, dict):  # pyright: ignore[reportUnnecessaryIsInstance] -- anybody's
                event = dataclasses.replace(event, arguments=hidden_arguments(event.arguments, marks, self.vault))
        return hidden(event, self.vault) if self.vault else event

    def facts(self, made: Sequence[Event], told: object) -> Sequence[Event]:
        """What the turn machine has decided, as it may be written and told; `told` was told already, and stays."""
        vault = self.vault
        return [each if each is told else hidden(each, vault) for each in made] if vault else made

    def words(self, exc: ToolbusError) -> ToolbusError:
        """An error of the request's with its own words masked, in place."""
        if self.vault:
            exc.args = tuple([self.vault.shown(each) if isinstance(each, str) else each for each in exc.args])
        return exc

    def guarded(self, specs: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
        """The tools, of which those with marks check the values behind the references that they are given."""
        if not self.marked:
            return specs
        if self._guarded is None or self._guarded[0] is not specs:
            vault = self.vault  # and not this, which knows the state that will hold them
            guarded = {
                name: dataclasses.replace(spec, validate=_checks(spec, self.marked[name], vault, self.is_lenient))
                for name, spec in specs.items()
                if name in self.marked
            }
            self._guarded = specs, {**specs, **guarded}
        return self._guarded[1]

    def reply(
        self, specs: Mapping[str, ToolSpec], *, emit: Emit, feed: Emit, hear: Callable[[type[Event]], None]
    ) -> ReplyMask:
        """For one reply of the model."""
        marked = self.marked
        if self.answer is not None and self._state.output is not None:
            marked = {**marked, self._state.output.spec.name: self.answer}
        return ReplyMask(self.vault, marked, specs, self.answer, emit=emit, feed=feed, hear=hear)

    def open_output(self) -> None:
        """Have the request's structured output validated, and given, with the values behind its references."""
        output, answer = self._state.output, self.answer
        if output is not None and answer is not None:
            vault = self.vault
            output.deliver = lambda arguments: revealed(arguments, answer, vault.value_of)


def _checks(
    spec: ToolSpec,
    marks: Marks,
    vault: Vault,
    is_lenient: bool,  # noqa: FBT001 -- ours alone
) -> Callable[[Mapping[str, Any]], None]:
    validate, lenient = spec.validate, is_lenient or spec.external

    def check(arguments: Mapping[str, Any]) -> None:
        validate(revealed(arguments, marks, vault.value_of, lenient=lenient))

    return check


class SecretKeeper(Protocol):
    """Who has secrets to keep: a session. `secrecy` is None until there are any."""

    secrecy: Secrecy | None

    def keep_secrets(self) -> Secrecy:
        """How they are kept, made when it is first needed."""
        ...


def secrecy_of(view: object) -> Secrecy | None:
    """How a request keeps its secrets; None where it has none (yet), or does not run in this process."""
    return getattr(view, "secrecy", None)


def vault_of(view: object) -> Vault | None:
    """The vault of a request; None where it has none (yet), or does not run in this process."""
    secrecy = secrecy_of(view)
    return None if secrecy is None else secrecy.vault


def delivered(arguments: Mapping[str, Any], marks: Marks, view: object) -> dict[str, Any]:
    """Arguments as a handler gets them, with the values of marked fields. Raises `InvalidArguments`."""
    vault = vault_of(view)
    return revealed(arguments, marks, _nothing if vault is None else vault.value_of)


def with_references(rendered: Rendered, view: object) -> Rendered:
    """A result with references in the place of the secrets in it; of a request from elsewhere, with a mask."""
    if not hasattr(view, "keep_secrets"):
        return settled(rendered, lambda _value: MASK)
    return settled(rendered, cast("SecretKeeper", view).keep_secrets().vault.hide)


def marked_in(tools: ToolSource) -> Mapping[str, Marks]:
    """The marks of the tools that have any. A registry knows them; of another source, each schema is looked through."""
    known: Mapping[str, Marks] | None = getattr(tools, "marked", None)
    if known is not None:
        return known
    found = {name: find_marks(spec.parameters) for name, spec in tools.specs.items()}
    return {name: marks for name, marks in found.items() if marks is not None}


def _nothing(_reference: str) -> None:
    """Of a request from elsewhere no secret is known."""


# ------------------------------------------------------------------------------------------------- the log

_behind: weakref.WeakValueDictionary[str, Secrecy] = weakref.WeakValueDictionary()


def _shown_in_log(request_id: str, text: str) -> str | None:
    """A line about a request without its secrets, without any that there are where it names none; None for no change.

    The text comes back, changed or not, where there is anything to hide: what an exception carries, nobody can mask.
    """
    if request_id:
        mine = _behind.get(request_id)
        keepers = [] if mine is None else [mine]
    else:
        keepers = list(_behind.values())
    vaults = {id(each.vault): each.vault for each in keepers if each.vault}
    for vault in vaults.values():
        text = vault.shown(text)
    return text if vaults else None
