"""Samples that a store has to keep: each kind of message, each type of fact with every field filled, and odd texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from ....events import FACT_TYPES, Event, MessageAppended, RequestCompleted
from ....messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ....records import Record

ODD_TEXT: Final = " \ufeffZürich 😀 \x00 \r\n\t\u2028 'a' \"b\" \\c %d _e $1 ?2 :f {g} \x7f\uffff\U0010ffff "
"""A text that is kept unchanged: it has NUL, emoji, and characters with a meaning in databases and formats."""
HALVES: Final = "half of a pair: \ud83d, and the other half: \ude00."
"""Halves of a surrogate pair, which JSON cannot carry: a store may keep them, or replace them with question marks."""
ODD_IDS: Final = (
    "plain",
    "PLAIN",
    " plain",
    "plain ",
    "caf\xe9",
    "cafe\u0301",
    "it's",
    'a "b" \\ c',
    "100%",
    "1000",
    "a_b",
    "axb",
    "$gt",
    "a.b",
    "../../etc/passwd",
    "😀",
    "line\nbreak",
    "x" * 500,
    "x" * 499,
    "null",
    "0",
    "",
)
"""Ids of conversations that a store has to keep apart, though they look alike."""
UNUSUAL_IDS: Final = ("a\x00b", "a\x00c", "a\ud83db")
"""Ids that not every database can hold: they are kept apart, or refused."""

_VALUE: Final[dict[str, Any]] = {
    "city": ODD_TEXT,
    "numbers": [0, -1, 2**53 + 1, 0.1, 1e300, -2.5],
    "rest": [None, True, False, {}, [], "", {"": {"$a.b": 1}}],
}
_PARTS: Final = (
    TextPart(text=ODD_TEXT),
    ImagePart(url="data:image/png;base64,aGVsbG8="),
    FilePart(url="https://example.com/a.pdf", media_type="application/pdf", name=f"{ODD_TEXT}.pdf"),
)
_VALUES: Final[dict[Any, Any]] = {
    int: 5_000_000_000,
    float: 1_750_000_000.123456,
    dict[str, Any]: _VALUE,
    Mapping[str, Any]: _VALUE,
    Any: _VALUE,
    tuple[Part, ...]: _PARTS,
}
"""The values of fields by their types."""


def all_messages() -> list[Message]:
    """Return each kind of message, with every field filled, and without each field that can be left out."""
    calls = (
        ToolCall(name="get_weather", arguments='{"city": "Zürich 😀"}', call_id="r_0_0", provider_call_id="call 1"),
        ToolCall(name="get_weather", arguments='{"city": ', call_id="r_0_1", provider_call_id=""),
    )
    return [
        SystemMessage(text=ODD_TEXT, message_id="m 0"),
        UserMessage(content=ODD_TEXT, message_id="m 1"),
        UserMessage(content=_PARTS, message_id="m 2"),
        AssistantMessage(
            text=ODD_TEXT, tool_calls=calls, reasoning=ODD_TEXT, message_id="m 3", vendor_data={"vendor": _VALUE}
        ),
        ToolMessage(call_id="r_0_0", name="get_weather", content=ODD_TEXT, parts=_PARTS[1:], message_id="m 4"),
        ToolMessage(call_id="r_0_1", name="get_weather", content="", is_error=True, message_id="m 5"),
        AssistantMessage(text="In Zürich it is", message_id="m 6", interrupted=True),
        SystemMessage(text=""),
        UserMessage(content=""),
        UserMessage(content=()),
        AssistantMessage(),
    ]


def facts_of_all_types(**ids: Any) -> list[Event]:
    """Return a fact of each type with every field filled, and some without the fields that can be left out."""
    facts = [_filled(kind, **ids) for kind in FACT_TYPES if kind is not MessageAppended]
    facts += [_filled(MessageAppended, message=message, **ids) for message in all_messages()]
    return [*facts, RequestCompleted(**ids)]


def _filled(kind: type[Any], **given: Any) -> Any:
    """Return a record with a value in each field: the given one, or one that is not its default. Its id is new."""
    fields = [each for each in msgspec.structs.fields(kind) if each.name not in ("event_id", *given)]
    return kind(**{each.name: _value_of(each.type, each.name, each.default) for each in fields}, **given)


def _value_of(kind: Any, name: str, default: object = None) -> Any:
    """Return a value of the type of a field. Each field with a text has another text."""
    if kind is str:
        return name + ODD_TEXT
    if kind is bool:
        return default is not True
    if kind in _VALUES:
        return _VALUES[kind]
    if isinstance(kind, type) and issubclass(kind, Record):
        return _filled(kind)
    kinds = get_args(kind)
    if get_origin(kind) is Literal:
        return kinds[-1]
    value = _value_of(kinds[0], name)  # of the first type of a union, or of the elements
    return (value,) if get_origin(kind) is tuple else value
