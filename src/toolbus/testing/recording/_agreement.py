"""The line of a recording before a request's facts: its agreement (the options that it runs with), tools and history.

Data only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ...durability import FUNCTION, agreed_options, messages_from, messages_to_json
from ...messages import Message
from ...protocols import ToolSpec
from ...session import SessionView

_SPEC_FIELDS = tuple(each.name for each in dataclasses.fields(ToolSpec) if each.name != "validate")


def agreement_of(view: SessionView, history_count: int) -> dict[str, Any]:
    """Return the agreement as JSON values, at the request's first facts; its history is `history_count` messages."""
    state = view.state
    agreed: dict[str, Any] = {
        "request_id": view.request_id,
        "conversation_id": view.conversation_id,
        "tools": specs_of(tools_now(view).values()),
        "output": None if state.output is None else specs_of([state.output.spec])[0],
        **agreed_options(view),
        "history": messages_to_json(list(view.messages)[:history_count]),
    }
    return {name: value for name, value in agreed.items() if value not in (None, [])}


def tools_now(view: SessionView) -> Mapping[str, ToolSpec]:
    """Return the tools against which calls are checked, without the tool of the structured output."""
    known = view.state.tools or view.tools.specs
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
