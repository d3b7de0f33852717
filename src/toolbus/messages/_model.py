"""The provider-neutral messages of a conversation, with tool calls and token usage. Plain data, no I/O."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from ..errors import ConfigurationError
from ..records import HandlerRecord, Record


class ToolCall(Record, kw_only=True, gc=False, frozen=True):
    """One tool call in a model's reply.

    `arguments` is the JSON text exactly as the model wrote it, which may be malformed: the turn machine parses it,
    once. Empty text means an empty object. In a reply that was cut off, the text may be incomplete, and the call does
    not run. `call_id` is made by toolbus and unique; `provider_call_id` is the id that the provider sent, which may be
    repeated or empty, and is used again on the wire. A provider leaves `call_id` empty.
    """

    name: str
    arguments: str = "{}"
    call_id: str = ""
    provider_call_id: str = ""


class TextPart(HandlerRecord, kw_only=True, tag_field="type", tag="text", gc=False, frozen=True):
    """A text among the parts of a message."""

    text: str
    type: ClassVar[Literal["text"]] = "text"


class ImagePart(HandlerRecord, kw_only=True, tag_field="type", tag="image", gc=False, frozen=True):
    """An image, given by an `http(s):` or `data:` URL that the provider accepts."""

    url: str
    type: ClassVar[Literal["image"]] = "image"

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, media_type: str) -> ImagePart:
        """Make an image that is contained in the message itself: `ImagePart.from_bytes(png, "image/png")`.

        Raises `ConfigurationError` for a media type that does not begin with `image/`.
        """
        if not media_type.startswith("image/"):
            raise ConfigurationError(
                f"{media_type!r} is not a media type of images; pass one that begins with 'image/', such as 'image/png'"
            )
        return cls(url=_data_url(data, media_type))


class FilePart(HandlerRecord, kw_only=True, tag_field="type", tag="file", gc=False, frozen=True):
    """A file, given by its media type and a `data:` or `http(s):` URL."""

    url: str
    media_type: str
    name: str = ""
    type: ClassVar[Literal["file"]] = "file"

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, media_type: str, name: str = "") -> FilePart:
        """Make a file that is contained in the message itself: `FilePart.from_bytes(pdf, "application/pdf", "a.pdf")`.

        Raises `ConfigurationError` for a malformed media type.
        """
        return cls(url=_data_url(data, media_type), media_type=media_type, name=name)


_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")


def _data_url(data: bytes | bytearray | memoryview, media_type: str) -> str:
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise ConfigurationError(f"{media_type!r} is not a media type; pass one such as 'application/pdf'")
    return f"data:{media_type};base64,{b64encode(data).decode()}"


Part: TypeAlias = TextPart | ImagePart | FilePart


class SystemMessage(Record, kw_only=True, tag_field="role", tag="system", frozen=True):
    """Instructions for the model. toolbus keeps at most one at the start; later ones are notes of the application."""

    text: str
    message_id: str = ""
    role: ClassVar[Literal["system"]] = "system"


class UserMessage(Record, kw_only=True, tag_field="role", tag="user", frozen=True):
    """A message of the user: text, or a tuple of parts."""

    content: str | tuple[Part, ...]
    message_id: str = ""
    role: ClassVar[Literal["user"]] = "user"

    @property
    def text(self) -> str:
        """The text; several text parts are joined by line breaks, and images and files are left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class AssistantMessage(Record, kw_only=True, tag_field="role", tag="assistant", frozen=True):
    """A whole reply of the model: text, tool calls in call order, and reasoning where the provider shows it.

    `vendor_data` holds data, by vendor, that this vendor must get back unchanged, for example the signatures of its
    reasoning. Other vendors' adapters ignore it. `interrupted` is true for a reply that was cut off because its request
    ended: it has only the text and the reasoning that had been streamed until then.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    message_id: str = ""
    vendor_data: dict[str, Any] | None = None
    interrupted: bool = False
    role: ClassVar[Literal["assistant"]] = "assistant"


class ToolMessage(Record, kw_only=True, tag_field="role", tag="tool", frozen=True):
    """The result of one tool call: `content` is the text that the model reads, `parts` are its images and files.

    `is_error` marks a failed call.
    """

    call_id: str
    name: str
    content: str
    parts: tuple[Part, ...] = ()
    is_error: bool = False
    message_id: str = ""
    role: ClassVar[Literal["tool"]] = "tool"

    @property
    def text(self) -> str:
        """The text that the model reads: `content`, under the name that it has in all messages."""
        return self.content


PromptLike: TypeAlias = str | UserMessage | Sequence[str | TextPart | ImagePart | FilePart]
"""A prompt: text, a message, or a list of texts, images and files, such as `["Describe this.", ImagePart(url=...)]`."""

Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Usage(Record, kw_only=True, gc=False, frozen=True):
    """The tokens of one or more replies, as the provider counted them.

    `cached_tokens` and `cache_write_tokens` are part of the input: the former were read from the provider's cache, the
    latter written to it, where the provider bills writing separately. `reasoning_tokens` are part of the output.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )
