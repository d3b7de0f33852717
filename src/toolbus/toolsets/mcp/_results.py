"""The conversion of an MCP server's answer to a tool result. Knows the SDK's types only by their fields."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson
from pydantic import Secret, SecretStr

from ...errors import ConfigurationError, InvalidArguments, ToolError
from ...events import Artifact
from ...failures import Failure, ReportedFailure
from ...messages import ImagePart
from ...messages.wire import data_url, image_type
from ...schemas import JsonSchema, TooCostly
from ...secrets import MASK, Marks, TextMask, find_marks, replaced
from ...tool_results import ToolResult, clean

if TYPE_CHECKING:
    from mcp.types import CallToolResult, Tool

_MAX_ERROR_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Form:
    """The form of one tool's answers.

    `is_wrapped` says that its value, which is not an object, is sent as the "result" of an object. `secrets` are the
    marks of its output schema, and `schema` checks its values.
    """

    tool: str
    is_wrapped: bool = False
    secrets: Marks | None = None
    schema: JsonSchema | None = None


def form_of(definition: Tool) -> Form:
    """Return the form of a tool's answers from its definition.

    Raises `ConfigurationError` for an output schema that cannot be checked.
    """
    schema = definition.output_schema
    if schema is None:
        return Form(definition.name)
    try:
        checked = JsonSchema(schema)
    except ConfigurationError as exc:
        raise ConfigurationError(f"in its output schema, {exc}") from exc
    return Form(definition.name, _says_wrapped(definition.name, schema), find_marks(schema), checked)


def _says_wrapped(tool: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is that of a wrapped value.

    FastMCP marks such a schema. The SDK, 1.x and 2.x, does not, and its client unwraps nothing; but its schema has one
    property and the title `<tool>Output`, which no other schema gets (mcp/server/mcpserver/utilities/func_metadata.py).
    """
    properties: object = schema.get("properties")
    if not isinstance(properties, dict) or "result" not in properties:
        return False
    if schema.get("x-fastmcp-wrap-result") is True:
        return True
    return schema.get("title") == f"{tool}Output" and len(cast("dict[str, Any]", properties)) == 1


def check_answer(answer: CallToolResult, form: Form, server: str, *, unknown: bool) -> None:
    """Raise `ReportedFailure` if an answer does not match the tool's output schema, or is too costly to check.

    The SDK's own check is switched off, because its library may block the event loop forever: see `Connection`.
    `unknown` says that the call may have changed something.
    """
    if form.schema is None or answer.is_error:
        return
    error = f"The result of {form.tool!r} breaks what the MCP server {server!r} promises of it: "
    if answer.structured_content is None and "structured_content" not in answer.model_fields_set:
        error += "it did not return structured content"
    else:
        try:
            form.schema.check(answer.structured_content)
            return
        except TooCostly as exc:
            error = f"The result of {form.tool!r} of the MCP server {server!r} is not used: {exc}"
        except InvalidArguments as exc:
            error += str(exc)
    raise ReportedFailure(Failure("error", clean(error)[:2_000], unknown=unknown), error)


def result_of(answer: CallToolResult, form: Form) -> Any:
    """Return the value for the model. Raises `ToolError`, with the server's text, if the server says that it failed.

    Structured content is the data, with a `SecretStr` for each value that is marked; a text that only repeats the data
    is left out. An image of a type that models accept is passed on. All other content that is not text is an artifact,
    whose name the model reads. The text of an embedded resource is both an artifact and a text for the model, because
    servers return in this way the resource that they were asked to read.
    """
    contents = _Contents(answer.content)
    text = "\n".join(each for each, _ in contents.texts)
    data = _written(answer.structured_content)
    if answer.is_error:
        raise ToolError(_error(text, data, form)[:_MAX_ERROR_CHARS])
    if data is not None and _repeats([each for each, is_note in contents.texts if not is_note], data):
        text = "\n".join(each for each, is_note in contents.texts if is_note)
    try:
        data = _value(data, form)
    except InvalidArguments as exc:
        raise ToolError(f"The result is not shown: {exc}.") from exc
    if contents.artifacts:
        return ToolResult(message=text, data=data, parts=contents.images, artifacts=contents.artifacts)
    if contents.images and data is None:
        return [text, *contents.images] if text else contents.images
    if contents.images or (text and data is not None):
        return ToolResult(message=text, data=data, parts=contents.images)
    if data is None and answer.structured_content is not None:
        # The server has sent a wrapped null.
        return text or None
    return text if data is None else data


def _error(text: str, data: Any, form: Form) -> str:
    """Return the server's text about a failed call, without the prefix that the Python SDK adds."""
    said = text.removeprefix(f"Error executing tool {form.tool}: ")
    said = said or ("" if data is None else orjson.dumps(data, default=str).decode())
    if form.secrets is not None:
        # Only the text of an exception is kept, so its secrets are masked and cannot become references.
        mask = TextMask()
        try:
            replaced(data, form.secrets, lambda value: mask.add(str(value), MASK))
            said = mask.mask(said)
        except InvalidArguments:
            said = ""
    return said or "The tool failed, and its server does not say why."


def _written(data: Any) -> Any:
    """Return structured content with each integer of more than 64 bits as a text of its digits."""
    try:
        orjson.dumps(data)
    except TypeError:
        return _with_digits(data)
    return data


def _with_digits(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _with_digits(each) for name, each in cast("dict[str, Any]", data).items()}
    if isinstance(data, list):
        return [_with_digits(each) for each in cast("list[Any]", data)]
    return str(data) if type(data) is int and not -(2**63) <= data < 2**64 else data


def _value(data: Any, form: Form) -> Any:
    """Return structured content without its wrapper, and with a `SecretStr` for each value that is marked."""
    if form.secrets is not None:
        data = replaced(data, form.secrets, _secret)
    if form.is_wrapped and isinstance(data, dict) and cast("dict[str, Any]", data).keys() == {"result"}:
        return cast("dict[str, Any]", data)["result"]
    return cast("Any", data)


def _secret(value: float | str) -> Any:
    """Return a marked value as a handler would. Asterisks stay: pydantic makes a server send them for a secret."""
    if isinstance(value, str):
        return SecretStr(value) if value.strip("*") else value
    return Secret(value)


def _repeats(texts: list[str], data: Any) -> bool:
    """Return whether the texts only repeat `data`. For a list, some servers send one text per item."""
    wrapped: Any = data
    if isinstance(data, dict) and len(cast("dict[str, Any]", data)) == 1:
        # A value that is not an object is sent in one.
        (wrapped,) = cast("dict[str, Any]", data).values()
    # The texts are compared before they are parsed, because a text may happen to be JSON, such as that of a file.
    if texts in ([wrapped], wrapped):
        return True
    try:
        read = [orjson.loads(each) for each in texts]
    except orjson.JSONDecodeError:
        return False
    return read in ([data], [wrapped], wrapped, data)


class _Contents:
    """The content of an answer, sorted into texts, images and artifacts."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        self.texts: list[tuple[str, bool]] = []  # each with True if it stands in for content that is not text
        self.images: list[ImagePart] = []
        self.artifacts: list[Artifact] = []
        for block in blocks:
            getattr(self, f"_take_{block.type}")(block)

    def _take_text(self, block: Any) -> None:
        self.texts.append((block.text, False))

    def _take_image(self, block: Any) -> None:
        data = _base64(block.data)
        # Servers often name another type, and a vendor refuses the whole conversation then.
        if data and (media_type := image_type(data)):
            self.images.append(ImagePart(url=data_url(media_type, data)))
        else:
            self._keep_binary("image", block.data, block.mime_type)

    def _take_audio(self, block: Any) -> None:
        self._keep_binary("audio", block.data, block.mime_type)

    def _take_resource(self, block: Any) -> None:
        resource = block.resource
        if hasattr(resource, "text"):
            self.texts.append((resource.text, True))
            media_type = resource.mime_type or "text/plain"
            self.artifacts.append(Artifact(name=str(resource.uri), content=resource.text, media_type=media_type))
        else:
            media_type = resource.mime_type or "application/octet-stream"
            self._keep_binary("resource", resource.blob, media_type, str(resource.uri))

    def _take_resource_link(self, block: Any) -> None:
        uri = str(block.uri)
        self.artifacts.append(Artifact(name=block.name, content=uri, media_type="text/uri-list"))
        description = f": {block.description}" if block.description else ""
        self.texts.append((f"[resource {block.name}, {uri}{description}]", True))

    def _keep_binary(self, kind: str, data: str, media_type: str, name: str = "") -> None:
        if not name:
            name = f"{kind}-{len(self.artifacts) + 1}{mimetypes.guess_extension(media_type) or ''}"
        found = _base64(data)
        if found is not None:
            self.artifacts.append(Artifact(name=name, content=found, media_type=media_type, encoding="base64"))
        else:
            # The server says that the data is base64, and it is not.
            self.artifacts.append(Artifact(name=name, content=data, media_type=media_type))
        self.texts.append((f"[{kind} {name}, {media_type}, kept for the user]", True))


def _base64(text: str) -> str | None:
    """Return base64 without the line breaks that some encoders add; None if it is not base64."""
    text = text.replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return text
