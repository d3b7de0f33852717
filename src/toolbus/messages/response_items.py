"""The items of one reply of the OpenAI Responses API, and the part of them that has to be kept. Pure.

The items of a reply are kept without the data that the message itself has: the item of a call without name, id and
arguments, and instead of each text the number of its characters. So nothing is stored twice, and a reply that was
edited (for example, a redacted text) does not contain the old words any more.

Example:
    from toolbus.messages.response_items import is_reply_item, read_reply

    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    print(is_reply_item(item), read_reply([item]).text)  # True Hello.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from .wire import arguments_text, label, mapping_at, text_at

__all__ = ["Item", "Reply", "WireCall", "is_reply_item", "read_reply", "restored_items"]

Item: TypeAlias = dict[str, Any]

_SEPARATOR = "\n\n"  # between the texts of two messages in one reply
_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal", "input_text": "text", "text": "text"}
_OF_A_CALL = frozenset({"type", "call_id", "name", "arguments"})
_OF_A_MESSAGE = frozenset({"type", "role", "content"})
_OF_OTHERS = frozenset({"function_call_output", "item_reference"})


@dataclass(slots=True, frozen=True)
class WireCall:
    """A function call of an item. `arguments` may be empty."""

    name: str
    arguments: str
    wire_id: str


@dataclass(slots=True, frozen=True)
class Reply:
    """The contents of the items of one reply.

    `kept` has the items without their text and calls; it is empty where the items contain nothing else.
    """

    text: str
    calls: tuple[WireCall, ...]
    reasoning: str
    refused: bool
    kept: list[Item]


def is_reply_item(item: Mapping[str, Any]) -> bool:
    """Return whether an item comes from the model, and is not a result, a prompt or instructions."""
    kind = label(item.get("type", "message"))
    return item.get("role") == "assistant" if kind == "message" else kind not in _OF_OTHERS


def read_reply(items: Sequence[Mapping[str, Any]], index: int = 0) -> Reply:
    """Return the contents of the items of one reply.

    The texts of its messages are joined by an empty line, and so are those of its reasoning. A refusal counts as text.
    Raises `InvalidHistory` with `index` for a wrongly typed field.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[WireCall] = []
    refused = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            texts.append("".join(text for _, text in _texts(index, item)))
            refused = refused or any(part.get("type") == "refusal" for part, _ in _texts(index, item))
        elif kind == "function_call":
            calls.append(
                WireCall(
                    name=text_at(index, item.get("name"), "a call's name"),
                    arguments=arguments_text(index, item.get("arguments")),
                    wire_id=text_at(index, item.get("call_id"), "call_id"),
                )
            )
        elif kind == "reasoning":
            thoughts += reasoning_texts(item)
    return Reply(
        text=_SEPARATOR.join(filter(None, texts)),
        calls=tuple(calls),
        reasoning=_SEPARATOR.join(filter(None, thoughts)),
        refused=refused,
        kept=[] if _is_plain(items) else [_kept(index, item) for item in items],
    )


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """Return the parts of a reasoning item that people may read: its summary, or without one its content."""
    for field in ("summary", "content"):
        parts: Any = item.get(field)
        if isinstance(parts, list):
            found = [cast("Mapping[str, Any]", part) for part in cast("list[Any]", parts) if isinstance(part, Mapping)]
            if texts := [text for part in found if isinstance(text := part.get("text"), str)]:
                return texts
    return []


def _texts(index: int, item: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the parts of a message that have text, each with its text; plain content is one part."""
    content = item.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        yield {}, text_at(index, content, "content")
        return
    for each in cast("Sequence[Any]", content):
        part = mapping_at(index, each, "a part")
        if field := _TEXT_FIELDS.get(str(part.get("type"))):
            yield part, text_at(index, part.get(field), "a part's text")


def _is_plain(items: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a reply consists only of plain text, if any, then calls, without ids of items."""
    for position, item in enumerate(items):
        if item.get("type", "message") == "message":
            plain = position == 0 and isinstance(item.get("content"), str) and item.keys() <= _OF_A_MESSAGE
        else:
            plain = item.get("type") == "function_call" and item.keys() <= _OF_A_CALL
        if not plain:
            return False
    return True


def _kept(index: int, item: Mapping[str, Any]) -> Item:
    """Return an item as it is kept, without empty fields, and others that the API sends itself but refuses to get."""
    kept = {key: value for key, value in item.items() if value is not None}
    kind = kept.get("type", "message")
    if kind == "function_call":
        return {key: value for key, value in kept.items() if key == "type" or key not in _OF_A_CALL}
    if kind == "reasoning":
        kept.pop("status", None)  # "Unknown parameter: 'input[1].status'"
    if kind != "message":
        return kept
    content = kept.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        kept["content"] = len(text_at(index, content, "content"))
        return kept
    parts: list[Item] = []
    for each in cast("Sequence[Any]", content):
        part = dict(mapping_at(index, each, "a part"))
        if field := _TEXT_FIELDS.get(str(part.get("type"))):
            part[field] = len(text_at(index, part.get(field), "a part's text"))
        parts.append(part)
    kept["content"] = parts
    return kept


def restored_items(kept: Sequence[Item], text: str, calls: Sequence[Item]) -> list[Item] | None:
    """Return the kept items with text and calls put back in; None if text or calls were edited since."""
    if sum(item.get("type") == "function_call" for item in kept) != len(calls):
        return None
    fresh = iter(calls)
    cutter = _Cutter(text)
    items: list[Item] = []
    for item in kept:
        kind = item.get("type", "message")
        if kind == "function_call":
            items.append({**item, **next(fresh)})
        elif kind == "message":
            items.append({"type": "message", **item, "content": cutter.content(item.get("content"))})
        else:
            items.append(item)
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items if cutter.at == len(text) and not cutter.failed else None


class _Cutter:
    """A cutter of a reply's text into the parts that it was joined from."""

    __slots__ = ("_is_new", "_text", "at", "failed")

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self.failed = False

    def content(self, kept: object) -> Any:
        """Return the content of the next message with its text put back in."""
        self._is_new = True  # No text of the message was cut yet.
        if isinstance(kept, int):
            return self._cut(kept)
        parts: list[Item] = []
        for each in cast("list[Item]", kept or []):
            field = _TEXT_FIELDS.get(str(each.get("type")))
            parts.append({**each, field: self._cut(each[field])} if field else each)
        return parts

    def _cut(self, size: int) -> str:
        if size and self._is_new:
            if self.at:
                self.failed = self.failed or not self._text.startswith(_SEPARATOR, self.at)
                self.at += len(_SEPARATOR)
            self._is_new = False
        piece = self._text[self.at : self.at + size]
        self.at += size
        return piece
