"""Messages for models that do not accept images: a line of text replaces each image. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..records import replace
from ._model import FilePart, ImagePart, Message, Part, TextPart, ToolMessage, UserMessage

IMAGE_MARK = "[an image, which this model cannot see]"
"""The text that a model without vision reads instead of an image."""


def without_images(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with `IMAGE_MARK` instead of each image, for models that do not accept images.

    An image is an `ImagePart`, or a `FilePart` of a type `image/...`. In a tool message the marks follow its text, each
    on its own line. A user message that has only text afterwards becomes plain text, its parts joined by line
    breaks, the form that servers of such models handle best. Messages without an image are returned unchanged.
    """
    return [_without_images(message) for message in messages]


def _without_images(message: Message) -> Message:
    if isinstance(message, UserMessage) and not isinstance(message.content, str) and _has_image(message.content):
        parts = tuple(TextPart(text=IMAGE_MARK) if _is_image(part) else part for part in message.content)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        return replace(message, content="\n".join(texts) if len(texts) == len(parts) else parts)
    if isinstance(message, ToolMessage) and _has_image(message.parts):
        rest = tuple(part for part in message.parts if not _is_image(part))
        marks = [IMAGE_MARK] * (len(message.parts) - len(rest))
        return replace(message, content="\n".join(filter(None, [message.content, *marks])), parts=rest)
    return message


def _has_image(parts: tuple[Part, ...]) -> bool:
    return any(_is_image(part) for part in parts)


def _is_image(part: Part) -> bool:
    return isinstance(part, ImagePart) or (isinstance(part, FilePart) and part.media_type.startswith("image/"))
