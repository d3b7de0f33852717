"""A position in the events of one request, which any process that has the request's journal understands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigurationError
from ..events import (
    Event,
    ModelResponded,
    ModelRetrying,
    ReasoningDelta,
    RequestResumed,
    SubscriberLagged,
    TextDelta,
)
from ..records import replace

_FORM = re.compile(r"(\d{1,9})\.(\d{1,12})(?:\.(\d{1,12}))?")
# After one of these, the next pieces are those of another reply.
_ENDS_REPLY = (ModelResponded, ModelRetrying, RequestResumed)


class UnknownCursor(ConfigurationError):
    """A text is not a cursor, or is the cursor of another request.

    Example:
        from toolbus.bus import Cursor, UnknownCursor

        try:
            Cursor.read("r1", "yesterday")
        except UnknownCursor as exc:
            print(exc)  # after is 'yesterday'; pass a cursor of `events()`, such as "17.250", or "now"
    """


class Cursor:
    """The number of the request's facts that a reader has, derived ones included, and of characters after them.

    The characters are those of the reply that is arriving: of its text, and of its reasoning. As text, it is for
    example "17.250" or, with 80 characters of reasoning, "17.250.80".

    Example:
        from toolbus.bus import Cursor
        from toolbus.events import RequestStarted, TextDelta

        started = RequestStarted(request_id="r1", prompt="Hello?", timeout_seconds=600)
        delta = TextDelta(request_id="r1", message_id="m1", text="Hel")
        cursor = Cursor("r1")
        for event in [started, delta]:
            cursor.move(event)
        print(cursor)  # 1.3
        print(Cursor.read("r1", "1.3").facts)  # 1
    """

    __slots__ = ("_has_gap", "chars", "facts", "reasoning_chars", "request_id")

    def __init__(self, request_id: str, facts: int = 0, chars: int = 0, reasoning_chars: int = 0) -> None:
        self.request_id = request_id
        self.facts = facts
        self.chars = chars
        self.reasoning_chars = reasoning_chars
        self._has_gap = False  # whether some of the reply that is arriving may be missing, so that it has to come again

    @classmethod
    def read(cls, request_id: str, text: str) -> Cursor:
        """Return the cursor that `text` stands for. Raises `UnknownCursor`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UnknownCursor(f'after is {text[:40]!r}; pass a cursor of `events()`, such as "17.250", or "now"')
        return cls(request_id, int(found[1]), int(found[2]), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.facts}.{self.chars}" + (f".{self.reasoning_chars}" if self.reasoning_chars else "")

    def move(self, event: Event) -> None:
        """Take an event into account that the reader gets now."""
        if isinstance(event, SubscriberLagged):
            self.chars, self.reasoning_chars, self._has_gap = 0, 0, True
        elif event.request_id == self.request_id:
            if event.is_fact:
                self.facts += 1
                if isinstance(event, _ENDS_REPLY):
                    self.chars, self.reasoning_chars, self._has_gap = 0, 0, False
            elif isinstance(event, TextDelta) and not self._has_gap:
                self.chars += len(event.text)
            elif isinstance(event, ReasoningDelta) and not self._has_gap:
                self.reasoning_chars += len(event.text)

    def after(self, events: Sequence[Event]) -> list[Event]:
        """Return those of the request's events from its beginning that the reader does not have.

        `events` are facts, and at their end the reasoning and the text that have arrived, each as one piece. Raises
        `UnknownCursor` if the reader has more facts than there are.
        """
        facts = [each for each in events if each.is_fact]
        if self.facts > len(facts):
            raise UnknownCursor(
                f"the cursor {self} is not one of request {self.request_id}, which has {len(facts)} facts until now"
            )
        rest = facts[self.facts :]
        is_new = any(isinstance(each, _ENDS_REPLY) for each in rest)
        for each in events:
            if isinstance(each, (ReasoningDelta, TextDelta)):
                seen = self.chars if isinstance(each, TextDelta) else self.reasoning_chars
                if text := each.text[0 if is_new else seen :]:
                    rest.append(replace(each, text=text))
        return rest
