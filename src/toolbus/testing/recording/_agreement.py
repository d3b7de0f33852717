"""What a recording says of a request in front of its facts: what was agreed, its tools, its history. Data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ...durability import FUNCTION, agreed_by, limits_in, messages_from, messages_to_json, options_in
from ...messages import Message
from ...protocols import ToolSpec
from ...session import SessionView

__all__ = ["FUNCTION", "agreement_of", "history_in", "limits_in", "options_in", "spec_from", "specs_of", "tools_now"]

_SPEC_FIELDS = tuple(each.name for each in dataclasses.fields(ToolSpec) if each.name != "validate")


def agreement_of(view: SessionView, history_count: int) -> dict[str, Any]:
    """The agreement as JSON values, at the request's first facts. `history_count` messages were there before these."""
    state = view.state
    agreed: dict[str, Any] = {
        "request_id": view.request_id,
        "conversation_id": view.conversation_id,
        "tools": specs_of(tools_now(view).values()),
        "output": None if state.output is None else specs_of([state.output.spec])[0],
        **agreed_by(view),
        "history": messages_to_json(list(view.messages)[:history_count]),
    }
    return {name: value for name, value in agreed.items() if value not in (None, [])}


def tools_now(view: SessionView) -> Mapping[str, ToolSpec]:
    """The tools that calls are judged by, without that of the structured output."""
    known = view.state.tools or view.tools.specs
    return {name: spec for name, spec in known.items() if spec.control != "output"}


def specs_of(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tools as JSON values, without what they are by default."""
    return [
        {
            name: FUNCTION if callable(value) else value
            for name in _SPEC_FIELDS
            if (value := getattr(spec, name)) not in (None, "", False)
        }
        for spec in specs
    ]


def spec_from(written: Mapping[str, Any], **functions: Any) -> ToolSpec:
    """A tool as it was. `functions` stand in for those that it had."""
    known = {name: value for name, value in written.items() if name in _SPEC_FIELDS}
    return ToolSpec(**{**known, **functions})


def history_in(agreed: Mapping[str, Any]) -> list[Message]:
    """The messages of earlier turns. Raises `ConfigurationError` for what are none."""
    return messages_from(agreed.get("history"))
