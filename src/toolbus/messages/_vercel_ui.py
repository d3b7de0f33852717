"""The messages for pages of Vercel's AI SDK (`UIMessage`), from and to its messages for models since version 5. Pure.

A message of a page holds a whole turn of the model: its steps, each begun by a `step-start`, with the calls and their
results in one part. Parts that only the page shows (sources, `data-...`) are not part of what a model reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import orjson

from ..errors import InvalidHistory
from ._vercel_core import file_url
from .wire import label, list_at, mapping_at, split_data_url

_Wire = dict[str, Any]

_SOURCES = frozenset({"source", "source-url", "source-document"})
_OF_REPLIES = ("text", "reasoning", "file", "reasoning-file", "custom", "tool-NAME", "dynamic-tool", "tool-invocation")
_DETAILS = {"text": "reasoning", "redacted": "redacted-reasoning"}
_OPEN = ("input-streaming", "input-available", "approval-requested", "partial-call", "call")
_STATES = ("output-available", "output-error", "output-denied", "approval-responded", "result")


def is_only_shown(kind: str) -> bool:
    """Return whether parts of this type are for the page only: sources, and data of the application."""
    return kind in _SOURCES or kind.startswith("data-")


def is_content(value: object) -> bool:
    """Return whether a value is the output of a result that consists of parts."""
    if not isinstance(value, Mapping):
        return False
    fields = cast("Mapping[str, Any]", value)
    return set(fields) == {"type", "value"} and fields["type"] == "content" and isinstance(fields["value"], list)


# -------------------------------------------------------------------------------------------------- back


def from_ui(index: int, wire: Mapping[str, Any]) -> Iterator[_Wire]:
    """Yield the messages for models that a message of a page stands for: for each step a reply, and its results.

    A reply that has nothing for a model is left out. Raises `InvalidHistory`, which names the path of a part of an
    unknown type.
    """
    parts = [
        (f"parts[{position}]", mapping_at(index, part, "a part"))
        for position, part in enumerate(list_at(index, wire.get("parts"), "parts"))
    ]
    role = label(wire.get("role"))
    if role == "assistant":
        for content, results in _steps(index, parts):
            yield {"role": role, "content": content}
            if results:
                yield {"role": "tool", "content": results}
        return
    known = ("text", "file") if role == "user" else ("text",)
    content = [each for path, part in parts for each in _shown(index, path, part, known)]
    plain = len(content) == 1 and set(content[0]) == {"type", "text"}
    yield {**wire, "role": role, "content": content[0]["text"] if plain else content}


def _steps(index: int, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[list[_Wire], list[_Wire]]]:
    """Return the steps of a turn: what the model wrote, and the results of its calls."""
    steps: list[tuple[list[_Wire], list[_Wire]]] = []
    content: list[_Wire] = []
    results: list[_Wire] = []
    called = False
    for path, part in parts:
        kind = label(part.get("type")) or ""
        # Version 4 does not mark the beginning of a step: text comes before the calls of its step.
        if kind == "step-start" or (called and kind in _OF_REPLIES[:3]):
            if any(_is_for_models(each) for each in content):
                steps.append((content, results))
                content, results = [], []
            called = False
        if kind.startswith("tool-") or kind == "dynamic-tool":
            call, result = _tool(index, path, part)
            content.append(call)
            if result:
                (content if call.get("providerExecuted") else results).append(result)
            called = kind == "tool-invocation"
        elif kind != "step-start":
            content += _shown(index, path, part, _OF_REPLIES)
    if any(_is_for_models(each) for each in content):
        steps.append((content, results))
    elif steps:
        steps[-1][0].extend(content)
    return steps


def _is_for_models(part: Mapping[str, Any]) -> bool:
    return not is_only_shown(part["type"]) and part.get("text") != ""


def _shown(index: int, path: str, part: Mapping[str, Any], known: Sequence[str]) -> list[_Wire]:
    """Return a part that is not a call, as the part or the parts that messages for models have instead."""
    kind = label(part.get("type")) or ""
    if is_only_shown(kind) and known is _OF_REPLIES:
        return [dict(part)]
    if kind not in known:
        raise InvalidHistory(index, f"{path} is a part of type {kind!r}, not one of {', '.join(known)}")
    if part.get("providerReference"):
        raise InvalidHistory(index, f"{path} is a file that only its vendor has, which cannot be carried")
    if kind == "reasoning" and "details" in part:  # version 4
        details = [mapping_at(index, each, "a detail") for each in list_at(index, part["details"], "details")]
        return [{**each, "type": _DETAILS.get(label(each.get("type")) or "", "")} for each in details]
    found = {name: value for name, value in part.items() if name not in {"state", "id", "url", "providerMetadata"}}
    if part.get("providerMetadata"):
        found["providerOptions"] = part["providerMetadata"]
    if "url" in part:
        found["data"] = part["url"]
    return [found]


def _tool(index: int, path: str, part: Mapping[str, Any]) -> tuple[_Wire, _Wire | None]:
    """Return the call of a part, and its result, if there is one."""
    kind = str(part["type"])
    name: object = part.get("toolName") if kind == "dynamic-tool" else kind.removeprefix("tool-")
    if kind == "tool-invocation":
        part = mapping_at(index, part.get("toolInvocation"), "toolInvocation")
        name = part.get("toolName")
    about = {"toolCallId": part.get("toolCallId"), "toolName": name}
    written = part.get("args") if kind == "tool-invocation" else part.get("input")
    call = {"type": "tool-call", **about, "input": part.get("rawInput") if written is None else written}
    if part.get("providerExecuted"):
        call["providerExecuted"] = True
    if part.get("callProviderMetadata"):
        call["providerOptions"] = part["callProviderMetadata"]
    output = _output(index, path, part)
    return call, {"type": "tool-result", **about, "output": output} if output else None


def _output(index: int, path: str, part: Mapping[str, Any]) -> _Wire | None:
    state = label(part.get("state"))
    approval = mapping_at(index, part.get("approval") or {}, f"{path}.approval")
    if state == "output-denied" or (state == "approval-responded" and approval.get("approved") is False):
        return {"type": "execution-denied", "reason": approval.get("reason")}
    if state in _OPEN or state == "approval-responded":
        return None
    if state == "output-error":
        return {"type": "error-text", "value": part.get("errorText")}
    if state not in _STATES:
        raise InvalidHistory(index, f"{path} has the state {state!r}, not one of {', '.join([*_OPEN, *_STATES])}")
    value: Any = part.get("result" if state == "result" else "output")
    if is_content(value):
        return dict(value)
    return {"type": "text" if isinstance(value, str) else "json", "value": value}


# --------------------------------------------------------------------------------------------------- out


def to_ui(messages: Sequence[Mapping[str, Any]], message_ids: Sequence[str]) -> list[_Wire]:
    """Return the messages of a page for messages for models. A result without a call gets its own part."""
    found: list[_Wire] = []
    calls: dict[str, _Wire] = {}
    for position, (message, message_id) in enumerate(zip(messages, message_ids, strict=True)):
        role, content = message["role"], message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        in_reply = role in {"assistant", "tool"}
        if not (in_reply and found and found[-1]["role"] == "assistant"):
            shown = "assistant" if in_reply else role
            found.append({"id": message_id or f"message-{position}", "role": shown, "parts": []})
        page = found[-1]["parts"]
        if role == "assistant":
            page.append({"type": "step-start"})
        for part in parts:
            if part["type"] == "tool-result":
                page += _answer(part, calls)
            else:
                page.append(_ui_part(part))
                if part["type"] == "tool-call":
                    calls[part["toolCallId"]] = page[-1]
    return found


def _answer(result: Mapping[str, Any], calls: Mapping[str, _Wire]) -> list[_Wire]:
    """Put a result into the part of its call. Without such a call, return a part for the result."""
    output = result["output"]
    kind, value = output["type"], output.get("value")
    state: _Wire = {"state": "output-available", "output": value}
    if kind == "content":
        state["output"] = {"type": kind, "value": value}
    elif kind not in {"text", "json"}:
        value = output.get("reason") or kind if value is None else value
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        state = {"state": "output-error", "errorText": text}
    if call := calls.get(result["toolCallId"]):
        call.update(state)
        return []
    about = {name: result[name] for name in ("toolName", "toolCallId")}
    return [{"type": "dynamic-tool", **about, "input": {}, **state}]


def _ui_part(part: Mapping[str, Any]) -> _Wire:
    kind = part["type"]
    if is_only_shown(kind):
        return dict(part)
    if kind == "tool-call":
        about = {name: part[name] for name in ("toolName", "toolCallId", "providerExecuted") if name in part}
        found = {"type": "dynamic-tool", **about, "state": "input-available", "input": part.get("input")}
        return found | ({"callProviderMetadata": part["providerOptions"]} if part.get("providerOptions") else {})
    found = {name: value for name, value in part.items() if name not in {"data", "image", "providerOptions"}}
    if part.get("providerOptions"):
        found["providerMetadata"] = part["providerOptions"]
    if kind in {"image", "file", "reasoning-file"}:
        found |= _file(part)
    return found


def _file(part: Mapping[str, Any]) -> _Wire:
    data: object = part.get("image" if part["type"] == "image" else "data")
    media_type = str(part.get("mediaType") or "image/*")
    kind = "file" if part["type"] == "image" else part["type"]
    url = file_url(data, media_type)
    inline = split_data_url(url)
    exact = inline[0] if inline and media_type.endswith("*") else media_type
    found = {"type": kind, "mediaType": exact, "url": url}
    reference: object = cast("Mapping[str, Any]", data).get("reference", data) if isinstance(data, Mapping) else data
    return found if url else {**found, "providerReference": reference}
