"""What was agreed for a request, to JSON and back: what another process, or a replay, has to know to go on with it.

Functions cannot be written down: of these stands here that there was one, and what they decided stands in the facts.
Knows sessions and their options, and neither stores nor recordings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from ..core.history import Memo
from ..core.limits import Limits
from ..core.prices import Price
from ..errors import ConfigurationError
from ..messages import Message
from ..protocols import ModelSettings, Provider
from ..session import SessionView

__all__ = [
    "FUNCTION",
    "agreed_by",
    "fields_of",
    "limits_in",
    "memo_in",
    "messages_from",
    "messages_to_json",
    "options_in",
    "provider_name",
]

FUNCTION = "function"
"""Stands for what is a function of the application."""

_PLAIN = ("metadata", "guidance", "note_failures", "max_result_chars", "include_data", "late_results", "output_mode")


@cache
def _messages() -> TypeAdapter[list[Message]]:
    """Made when it is first needed: most requests bring no history along, and a command has to start soon."""
    return TypeAdapter(list[Message])


def agreed_by(view: SessionView) -> dict[str, Any]:
    """The options of a request as JSON values, those that are None or empty left out."""
    state = view.state
    options = cast("Mapping[str, Any]", view.options)
    instructions, approval, prices = options.get("instructions"), options.get("approval"), options.get("prices")
    agreed: dict[str, Any] = {
        "limits": fields_of(state.limits),
        "settings": fields_of(options.get("settings")),
        "instructions": instructions if instructions is None or isinstance(instructions, str) else FUNCTION,
        "approval": approval if approval is None or isinstance(approval, bool) else FUNCTION,
        "interceptors": [type(each).__name__ for each in view.interceptors],
        "prices": None if prices is None else {name: fields_of(price) for name, price in prices.items()},
        "granted": dict(state.granted),
        **{name: options.get(name) for name in _PLAIN},
    }
    if state.output is not None:  # said even where it is the default: that of another runtime may be another
        agreed["output_mode"] = options.get("output_mode") or "auto"
    agreed = {name: value for name, value in agreed.items() if value not in (None, [], {})}
    return agreed if view.secrets.vault is None else view.secrets.vault.shown_json(agreed)


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


def memo_in(agreed: Mapping[str, Any]) -> Memo | None:
    """What an earlier turn of the conversation had left out of what it sent."""
    memo = agreed.get("memo")
    return Memo(**_known(Memo, memo)) if memo else None


def messages_to_json(messages: Sequence[Message]) -> list[Any]:
    """Messages as JSON values."""
    return _messages().dump_python(list(messages), mode="json") if messages else []


def messages_from(written: Any) -> list[Message]:
    """Messages that were written as JSON values. Raises `ConfigurationError` for what are none."""
    try:
        return _messages().validate_python(written) if written else []
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"history.{where}: {first['msg']}") from exc


def provider_name(provider: Provider) -> str:
    """The vendor and the model, as far as a provider tells its model."""
    model = getattr(provider, "model", "")
    return f"{provider.vendor}:{model}" if model else provider.vendor


def fields_of(value: Any) -> dict[str, Any] | None:
    """All fields of a dataclass, since a later version may have other defaults."""
    if value is None:
        return None
    written = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return {name: sorted(cast("frozenset[str]", each)) if name == "stop_on" else each for name, each in written.items()}


def _known(kind: type[Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """What of `written` this version has a field for."""
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in written.items() if name in names}
