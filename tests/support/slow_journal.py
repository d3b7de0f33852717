"""A journal that is slow or fails when a test says so, and a tool whose calls wait for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from toolbus import Tool
from toolbus.events import Event

__all__ = ["SlowJournal", "waiting_tool"]


class SlowJournal:
    """A journal that takes `seconds` for each append with a fact of `kind`, and then raises `failure`, if given."""

    with_sub_requests = False

    def __init__(self, kind: str = "", seconds: float = 0, failure: Exception | None = None) -> None:
        self.kind, self.seconds, self.failure = kind, seconds, failure
        self.facts: list[Event] = []

    async def append(self, request_id: str, seq: int, facts: Sequence[Event]) -> None:
        if any(fact.type == self.kind for fact in facts):
            await anyio.sleep(self.seconds)
            if self.failure is not None:
                raise self.failure
        self.facts += facts

    @property
    def written(self) -> list[str]:
        """The types of the written facts, in order."""
        return [fact.type for fact in self.facts]


def waiting_tool(**options: Any) -> Tool:
    """Return the external tool `wait`, whose calls the test answers."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return Tool("wait", "", schema, external=True, validate=lambda _arguments: None, **options)
