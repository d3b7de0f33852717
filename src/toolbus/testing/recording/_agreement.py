"""What was agreed for a request, to JSON and back: options, tools, history. Data.

Functions cannot be written down: of these stands here that there was one, and what they decided stands in the facts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from ...core.limits import Limits
from ...core.prices import Price
from ...errors import ConfigurationError
from ...messages import Message
from ...protocols import ModelSettings, ToolSpec
from ...session import RequestSession
from ._inside import state_of

__all__ = ["FUNCTION", "agreement_of", "history_in", "limits_in", "options_in", "spec_from", "specs_of", "tools_now"]

FUNCTION = "function"
"""Stands for what is a function of the application."""

_SPEC_FIELDS = tuple(each.name for each in dataclasses.fields(ToolSpec) if each.name != "validate")
_PLAIN = ("metadata", "guidance", "note_failures", "max_result_chars", "include_data", "late_results")
_messages = TypeAdapter(list[Message])


def agreement_of(session: RequestSession, history_count: int) -> dict[str, Any]:
    """The agreement as JSON values, at the request's first facts. `history_count` messages were there before these."""
    state, options = state_of(session), cast("Mapping[str, Any]", session.options)
    instructions, approval, prices = options.get("instructions"), options.get("approval"), options.get("prices")
    agreed: dict[str, Any] = {
        "request_id": session.request_id,
        "conversation_id": session.conversation_id,
        "limits": _fields(state.limits),
        "tools": specs_of(tools_now(session).values()),
        "settings": _fields(options.get("settings")),
        "instructions": instructions if instructions is None or isinstance(instructions, str) else FUNCTION,
        "approval": approval if approval is None or isinstance(approval, bool) else FUNCTION,
        "interceptors": [type(each).__name__ for each in session.interceptors],
        "prices": None if prices is None else {name: _fields(price) for name, price in prices.items()},
        "output": None if state.output is None else specs_of([state.output.spec])[0],
        "granted": dict(session.granted),
        **{name: options.get(name) for name in _PLAIN},
        "history": _messages.dump_python(list(session.messages)[:history_count], mode="json"),
    }
    return {name: value for name, value in agreed.items() if value not in (None, [], {})}


def tools_now(session: RequestSession) -> Mapping[str, ToolSpec]:
    """The tools that calls are judged by, without that of the structured output."""
    state = state_of(session)
    known = state.tools or session.tools.specs
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


def limits_in(agreed: Mapping[str, Any]) -> Limits:
    """The request's limits; those that it was written without are the defaults. Raises `ConfigurationError`."""
    return Limits(**_known(Limits, agreed.get("limits") or {}))


def options_in(agreed: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a request can be given again as they were. Raises `ConfigurationError`."""
    options: dict[str, Any] = {name: agreed[name] for name in _PLAIN if name in agreed}
    if settings := agreed.get("settings"):
        options["settings"] = ModelSettings(**_known(ModelSettings, settings))
    if (instructions := agreed.get("instructions")) not in (None, FUNCTION):
        options["instructions"] = instructions
    if prices := agreed.get("prices"):
        options["prices"] = {name: Price(**_known(Price, price)) for name, price in prices.items()}
    return options


def history_in(agreed: Mapping[str, Any]) -> list[Message]:
    """The messages of earlier turns. Raises `ConfigurationError` for what are none."""
    try:
        return _messages.validate_python(agreed.get("history") or [])
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"history.{where}: {first['msg']}") from exc


def _fields(value: Any) -> dict[str, Any] | None:
    """All fields of a dataclass, since a later version may have other defaults."""
    if value is None:
        return None
    written = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return {name: sorted(cast("frozenset[str]", each)) if name == "stop_on" else each for name, each in written.items()}


def _known(kind: type[Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """What of `written` this version has a field for."""
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in written.items() if name in names}
