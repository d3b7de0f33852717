"""The line of a recording before a request's facts: its agreement, its tools, its history. Data only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ...durability import FUNCTION, agreed_by, limits_in, messages_from, messages_to_json, options_in
from ...messages import Message
from ...protocols import ToolSpec
from ...session import RequestSession
from ._inside import state_of

__all__ = ["FUNCTION", "agreement_of", "history_in", "limits_in", "options_in", "spec_from", "specs_of", "tools_now"]

_SPEC_FIELDS = tuple(each.name for each in dataclasses.fields(ToolSpec) if each.name != "validate")


def agreement_of(session: RequestSession, history_count: int) -> dict[str, Any]:
    """Return the agreement as JSON values, at the request's first facts; its history is `history_count` messages."""
    state = state_of(session)
    agreed: dict[str, Any] = {
        "request_id": session.request_id,
        "conversation_id": session.conversation_id,
        "tools": specs_of(tools_now(session).values()),
        "output": None if state.output is None else specs_of([state.output.spec])[0],
        **agreed_by(session, state.limits),
        "history": messages_to_json(list(session.messages)[:history_count]),
    }
    return {name: value for name, value in agreed.items() if value not in (None, [])}


def tools_now(session: RequestSession) -> Mapping[str, ToolSpec]:
    """Return the tools against which calls are checked, without the tool of the structured output."""
    state = state_of(session)
    known = state.tools or session.tools.specs
    return {name: spec for name, spec in known.items() if spec.control != "output"}


def specs_of(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools as JSON values, without the fields that have their default."""
    return [
        {
            name: FUNCTION if callable(value) else value
            for name in _SPEC_FIELDS
            if (value := getattr(spec, name)) not in (None, "", False)
        }
        for spec in specs
    ]


def spec_from(written: Mapping[str, Any], **functions: Any) -> ToolSpec:
    """Return a tool as it was recorded. `functions` replace the functions that it had."""
    known = {name: value for name, value in written.items() if name in _SPEC_FIELDS}
    return ToolSpec(**{**known, **functions})


def history_in(agreed: Mapping[str, Any]) -> list[Message]:
    """Return the messages of earlier turns. Raises `ConfigurationError` if they are not messages."""
    return messages_from(agreed.get("history"))
