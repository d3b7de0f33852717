"""Requests that a server refuses because of the number of images and documents in their whole history.

Pure. A conversation with a screenshot in each round exceeds such a limit after some time, and every later request of it
would be refused as well. A shorter history has fewer images, so the refusal is treated as a history that is too long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import ContextOverflow, ProviderError, ProviderRejected
from ...messages import FilePart, ImagePart, Message, ToolMessage, UserMessage

# Anthropic (which takes only images of up to 2,000 pixels from the 21st on, and 100 at most), and vLLM.
_REFUSED = re.compile(
    r"max allowed size for many-image requests|too many images and documents: \d|too much media: \d"
    r"|at most \d+ image\(s\) may be provided",
    re.IGNORECASE,
)


def of_whole_history(messages: Sequence[Message], error: ProviderError) -> ProviderError:
    """Return the error, as a `ContextOverflow` if it refuses images of which some are not in the newest message."""
    if not isinstance(error, ProviderRejected) or not _REFUSED.search(str(error)):
        return error
    newest = next((each for each in reversed(messages) if isinstance(each, UserMessage)), None)
    if not any(_has_images(each) for each in messages if each is not newest):
        return error
    return ContextOverflow(str(error), vendor=error.vendor, status=error.status)


def _has_images(message: Message) -> bool:
    if isinstance(message, ToolMessage):
        parts = message.parts
    else:
        parts = message.content if isinstance(message, UserMessage) else ()
    return any(isinstance(part, ImagePart | FilePart) for part in parts)
