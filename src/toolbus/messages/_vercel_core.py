"""Parts of the messages for models of Vercel's AI SDK, in all its versions, and the form of version 4. Pure.

Since version 5, `args` is `input`, `mimeType` is `mediaType`, a result has an `output` with a type, and what a vendor
needs back with its reasoning is in `providerOptions`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..schemas import as_object
from .wire import data_url, image_type, label, mapping_at, text_at

_NEW_NAMES = {"args": "input", "mimeType": "mediaType", "experimental_providerMetadata": "providerOptions"}
_OLD_NAMES = {"tool-call": {"input": "args"}, "file": {"mediaType": "mimeType"}}
_KINDS = frozenset({"text", "image", "file", "reasoning", "tool-call", "tool-result"})
_OF_CALLS = frozenset({"tool-call", "tool-result"})  # the only parts whose `toolCallId` is checked
_REDACTED = "redacted-reasoning"


def current_part(index: int, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of any version as a fresh one of version 5 and later. Raises `InvalidHistory`."""
    found: dict[str, Any] = {_NEW_NAMES.get(name, name): value for name, value in part.items()}
    kind = label(found.get("type"))
    if found.get("providerOptions") is None:
        found.pop("providerOptions", None)
    else:
        mapping_at(index, found["providerOptions"], "the provider options of a part")
    if kind in _OF_CALLS:
        found |= {name: text_at(index, found.get(name), f"a {name}") for name in ("toolCallId", "toolName")}
    if kind == _REDACTED:
        found = {"type": "reasoning", "text": "", "providerOptions": {"anthropic": {"redactedData": found.get("data")}}}
    elif kind == "reasoning" and found.get("signature"):
        own = {"signature": found.pop("signature"), **_anthropic(found)}
        found["providerOptions"] = {**found.get("providerOptions", {}), "anthropic": own}
    elif kind == "tool-result" and "output" not in found:
        result, content = found.pop("result", None), found.pop("experimental_content", None)
        value = "text" if isinstance(result, str) else "json"
        found["output"] = {"type": f"error-{value}" if found.pop("isError", False) else value, "value": result}
        if content:
            found["output"] = {"type": "content", "value": content}
    if kind == "tool-result":
        output = mapping_at(index, found["output"], "the output of a result")
        found["output"] = {**output, "type": label(output.get("type")) or ""}
    return found


def _anthropic(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what Anthropic needs back with a part."""
    return as_object(part.get("providerOptions", {}).get("anthropic"))


def file_url(data: object, media_type: str) -> str:
    """Return the URL of a file's data: a URL, base64, or an object that says which of them it has.

    It is empty for data of another kind: a reference to a file that the vendor has, or bytes.
    """
    if isinstance(data, Mapping):
        tagged = cast("Mapping[str, object]", data)
        kind, text = label(tagged.get("type")), tagged.get("text")
        if kind == "text" and isinstance(text, str):
            return data_url("text/plain", base64.b64encode(text.encode("utf-8", "replace")).decode())
        data = tagged.get(kind) if kind in {"data", "url"} else None
    if not isinstance(data, str) or ":" in data or not data:
        return data if isinstance(data, str) else ""
    # A media type may be only "image", or end in "/*".
    if "/" not in media_type or media_type.endswith("*"):
        is_image = media_type.startswith("image")
        media_type = (image_type(data) or "image/png") if is_image else "application/octet-stream"
    return data_url(media_type, data)


def to_core(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of version 5 and later as those of version 4, without the parts that version 4 does not have."""
    return [
        message if isinstance(message["content"], str) else {**message, "content": _core_parts(message)}
        for message in messages
    ]


def _core_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = [part for part in message["content"] if part["type"] in _OF_CALLS]
    in_reply = message["role"] == "assistant"
    by_vendor = {
        part["toolCallId"]
        for part in calls
        if part.get("providerExecuted") or (in_reply and part["type"] == "tool-result")
    }
    parts = [
        part
        for part in message["content"]
        if part["type"] in _KINDS and not (part["type"] in _OF_CALLS and part["toolCallId"] in by_vendor)
    ]
    return [_core_part(part) for part in parts]


def _core_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind == "tool-result":
        return _core_result(part)
    found = {_OLD_NAMES.get(kind, {}).get(name, name): value for name, value in part.items()}
    own = _anthropic(part)
    if kind == "reasoning" and "redactedData" in own:
        return {"type": _REDACTED, "data": own["redactedData"]}
    if kind == "reasoning" and "signature" in own:
        found["signature"] = own["signature"]
    return found


def _core_result(part: Mapping[str, Any]) -> dict[str, Any]:
    output = part["output"]
    found = {name: part[name] for name in ("type", "toolCallId", "toolName")} | {"result": output.get("value")}
    if output["type"].startswith("error-"):
        found["isError"] = True
    if output["type"] == "content":
        found["experimental_content"] = [_core_content(each) for each in output["value"]]
    return found


def _core_content(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a result: version 4 has text and images in the message itself, and a line replaces others."""
    kind = part["type"]
    if kind == "text":
        return dict(part)
    if kind == "image-data":
        return {"type": "image", "data": part["data"], "mimeType": part["mediaType"]}
    kind = "an image" if kind == "image-url" else f"a file of type {part.get('mediaType')}"
    return {"type": "text", "text": f"[{kind} at {part['url']}]" if "url" in part else f"[{kind}]"}
