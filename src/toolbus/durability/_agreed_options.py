"""The options that were agreed for a request, as JSON values: another process or a replay needs them to continue it.

A function cannot be written as JSON. `FUNCTION` stands for it here, and its decisions are in the request's facts.
Knows sessions and their options. Must not know stores or recordings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, cast

import orjson

from .._option_checks import shown
from ..core.history import Memo
from ..core.limits import Limits
from ..core.prices import Price
from ..errors import ConfigurationError, DecodeError
from ..messages import Message
from ..protocols import ModelSettings, Provider
from ..records import JsonForm, asdict, event_json
from ..session import SessionView

FUNCTION = "function"
"""The value of an option that is a function of the application."""

_history = JsonForm[list[Message]](list[Message], "history")
_PLAIN = ("metadata", "guidance", "note_failures", "max_result_chars", "include_data", "late_results", "output_mode")


def agreed_options(view: SessionView) -> dict[str, Any]:
    """Return the options of a request as JSON values. Options without a value and empty ones are left out."""
    state = view.state
    options = cast("Mapping[str, Any]", view.options)
    instructions, approval, prices = options.get("instructions"), options.get("needs_approval"), options.get("prices")
    agreed: dict[str, Any] = {
        "limits": fields_of(state.limits),
        "settings": fields_of(options.get("settings")),
        "instructions": instructions if instructions is None or isinstance(instructions, str) else FUNCTION,
        "needs_approval": approval if approval is None or isinstance(approval, bool) else FUNCTION,
        "interceptors": [type(each).__name__ for each in view.interceptors],
        "prices": None if prices is None else {name: fields_of(price) for name, price in prices.items()},
        "granted": dict(state.granted),
        **{name: options.get(name) for name in _PLAIN},
    }
    # The output mode is written even if it is the default, because another runtime may have another default.
    if state.output is not None:
        agreed["output_mode"] = options.get("output_mode") or "auto"
    agreed = {name: value for name, value in agreed.items() if value not in (None, [], {})}
    return agreed if view.secrets.vault is None else view.secrets.vault.shown_json(agreed)


def limits_in(agreed: Mapping[str, Any]) -> Limits:
    """Return the request's limits, with the defaults for those that were not written. Raises `ConfigurationError`."""
    return Limits(**_known(Limits, agreed.get("limits") or {}))


def options_in(agreed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are data, as `RequestOptions` have them. Raises `ConfigurationError`."""
    options: dict[str, Any] = {name: agreed[name] for name in _PLAIN if name in agreed}
    if settings := agreed.get("settings"):
        options["settings"] = ModelSettings(**_known(ModelSettings, settings))
    if (instructions := agreed.get("instructions")) not in (None, FUNCTION):
        options["instructions"] = instructions
    if prices := agreed.get("prices"):
        options["prices"] = {name: Price(**_known(Price, price)) for name, price in prices.items()}
    return options


def memo_in(agreed: Mapping[str, Any]) -> Memo | None:
    """Return the record of what an earlier turn of the conversation left out of its model calls, if there is one."""
    memo = agreed.get("memo")
    return Memo(**_known(Memo, memo)) if memo else None


def messages_to_json(messages: Sequence[Message]) -> list[Any]:
    """Return messages as JSON values. Raises `ConfigurationError` for one that holds anything else."""
    try:
        return [asdict(each) for each in messages]
    except TypeError:
        # Some value has no JSON form, or is of a subclass of `str` or `int`, whose JSON form is that of its base class.
        return [_message_to_json(index, each) for index, each in enumerate(messages)]


def _message_to_json(index: int, message: Message) -> Any:
    try:
        return orjson.loads(event_json(message))
    except TypeError as exc:
        raise ConfigurationError(f"history[{index}] is not JSON, so the journal cannot keep it: {exc}") from exc


def messages_from(written: Any) -> list[Message]:
    """Return messages that were written as JSON values. Raises `ConfigurationError` for any other value."""
    try:
        return _history.read_values(written) if written else []
    except DecodeError as exc:
        raise ConfigurationError(str(exc)) from exc


def provider_name(provider: Provider) -> str:
    """Return the vendor, and the model if the provider names it: `vendor:model`."""
    model = getattr(provider, "model", "")
    return f"{provider.vendor}:{model}" if model else provider.vendor


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return all fields of a dataclass, also those with default values: a later version may have other defaults."""
    if value is None:
        return None
    names = _names(cast("type[Any]", type(value)))
    written = dict(zip(names, attrgetter(*names)(value), strict=True))
    if "stop_on" in written:
        written["stop_on"] = sorted(cast("frozenset[str]", written["stop_on"]))
    return written


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def _known(kind: type[Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in `written` for which this version of `kind` has a field. Raises `ConfigurationError`."""
    if not isinstance(cast("object", written), Mapping):
        raise ConfigurationError(f"{kind.__name__} was written as {shown(written)}, which is not an object")
    return {name: value for name, value in written.items() if name in _names(kind)}
