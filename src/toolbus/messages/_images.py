"""Messages for models that cannot see: a line of text stands where an image was. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ._model import FilePart, ImagePart, Message, Part, TextPart, ToolMessage, UserMessage

__all__ = ["IMAGE_MARK", "without_images"]

IMAGE_MARK = "[an image, which this model cannot see]"
"""What a model that cannot see reads in the place of an image."""


def without_images(messages: Iterable[Message]) -> list[Message]:
    """The messages with `IMAGE_MARK` in the place of each image, for models that take none.

    An image is an `ImagePart`, or a `FilePart` of a type `image/...`. In a tool message the marks stand behind its
    text, each on a line of its own. A user message that then has nothing but text becomes plain text, its parts joined
    by line breaks, as servers of such models like it best. Messages without an image are passed on as they are.
    """
    return [_blind(message) for message in messages]


def _blind(message: Message) -> Message:
    if isinstance(message, UserMessage) and not isinstance(message.content, str) and _sees(message.content):
        parts = tuple(TextPart(text=IMAGE_MARK) if _is_image(part) else part for part in message.content)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        return replace(message, content="\n".join(texts) if len(texts) == len(parts) else parts)
    if isinstance(message, ToolMessage) and _sees(message.parts):
        rest = tuple(part for part in message.parts if not _is_image(part))
        marks = [IMAGE_MARK] * (len(message.parts) - len(rest))
        return replace(message, content="\n".join(filter(None, [message.content, *marks])), parts=rest)
    return message


def _sees(parts: tuple[Part, ...]) -> bool:
    return any(_is_image(part) for part in parts)


def _is_image(part: Part) -> bool:
    return isinstance(part, ImagePart) or (isinstance(part, FilePart) and part.media_type.startswith("image/"))
