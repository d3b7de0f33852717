"""Turns of one conversation: a tool that makes a turn last, and the prompts of a history."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from toolbus import tool
from toolbus.messages import Message

__all__ = ["look", "prompts"]


@tool(idempotent=True)
async def look(seconds: float) -> str:
    """Take some seconds."""
    await anyio.sleep(seconds)
    return "seen"


def prompts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the users' messages, in order."""
    return [each.text for each in messages if each.role == "user"]
