"""Reasoning that a server refuses, because it comes from another organisation or resource of the same vendor.

Pure. The server would refuse every later request of the conversation as well ("The encrypted content gAAA... could not
be verified", "Invalid `signature` in `thinking` block"), for example after a change of the key or of a gateway. So the
model is asked again without the reasoning that the refused request had, and its replies are sent as their text and
calls. The same holds for reasoning without its encrypted form, as in a history from elsewhere, once the server no
longer has it ("Item with id 'rs_...' not found").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import ProviderError, ProviderUnavailable
from ...messages import AssistantMessage, Message
from ...records import replace
from ...schemas import as_object, as_objects

_REFUSED = re.compile(
    r"encrypted content .{0,200}could not be|created under a different Azure OpenAI resource"
    r"|not persisted when `store`|invalid `signature` in `thinking` block|`thinking` .{0,80} cannot be modified",
    re.DOTALL | re.IGNORECASE,
)
_MAX_HASHES = 10_000


class UnreadableReasoning:
    """The encrypted texts, signatures or ids of reasoning that a server has refused, by their hashes.

    `key` is that of the server's data in the `vendor_data` of messages.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._hashes: set[int] = set()

    def left_out(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages without the items of replies whose reasoning was refused."""
        if not self._hashes:
            return messages
        return [self._plain(each) if self._hashes.intersection(self._in(each)) else each for each in messages]

    def classified(self, messages: Sequence[Message], error: ProviderError) -> ProviderError:
        """Return the error, as retryable if it refuses reasoning that the next request will not have."""
        if not _REFUSED.search(str(error)):
            return error
        sent = {each for message in messages for each in self._in(message)}
        if not sent:
            return error
        if len(self._hashes) > _MAX_HASHES:
            self._hashes.clear()
        self._hashes |= sent
        text = f"{error}; the model is asked again without that reasoning"
        return ProviderUnavailable(text, vendor=error.vendor, status=error.status, retryable=True)

    def _in(self, message: Message) -> Iterator[int]:
        data: Mapping[str, Any] = (isinstance(message, AssistantMessage) and message.vendor_data) or {}
        kept = as_object(data.get(self._key))
        for item in as_objects(kept.get("responses")):
            if text := item.get("encrypted_content") or (item.get("type") == "reasoning" and item.get("id")):
                yield hash(str(text))
        for block in as_objects(kept.get("content")):
            if "thinking" in str(block.get("type")) and (text := block.get("signature") or block.get("data")):
                yield hash(str(text))

    def _plain(self, message: Message) -> Message:
        assert isinstance(message, AssistantMessage)
        return replace(message, vendor_data={**(message.vendor_data or {}), self._key: {}})
