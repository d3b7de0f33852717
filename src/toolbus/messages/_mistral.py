"""The checks of Mistral's API that OpenAI's chat completions do not have, and what satisfies them. Pure.

The source is the validator that the API uses: mistral_common/protocol/instruct/validator.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

_ID = re.compile("[a-zA-Z0-9]{9}")
_BETWEEN = {"role": "assistant", "content": "Understood."}


def mistral_id(wire_id: str) -> str:
    """Return the id if it has nine letters and digits, as the API requires, and otherwise one that is made from it."""
    return wire_id if _ID.fullmatch(wire_id) else hashlib.sha256(wire_id.encode("utf-8", "replace")).hexdigest()[:9]


def in_mistrals_order(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield chat-completions messages in an order of roles that the API accepts.

    After results it accepts only a reply, and after a reply no system message.
    """
    before = "system"
    for message in messages:
        role = message["role"]
        is_note = role == "system" and before != "system"
        role = "user" if is_note else role
        if before == "tool" and role == "user":
            yield dict(_BETWEEN)
        yield {"role": role, "content": f"<system>\n{message['content']}\n</system>"} if is_note else message
        before = role
