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
    RoundStarted,
    SubscriberLagged,
    TextDelta,
)
from ..records import replace

_FORM = re.compile(r"(\d{1,9})\.(\d{1,12})")
# After one of these, the text of a message begins anew.
_ENDS_TEXT = (ModelResponded, ModelRetrying, RequestResumed)
# After one of these, a reply begins to arrive.
_BEGINS_REPLY = (RoundStarted, ModelRetrying, RequestResumed)


class UnknownCursor(ConfigurationError):
    """A text is no cursor, or is one of another request.

    Example:
        from toolbus.bus import Cursor, UnknownCursor

        try:
            Cursor.read("r1", "yesterday")
        except UnknownCursor as exc:
            print(exc)  # after is 'yesterday'; pass a cursor of `events()`, such as "17.250", or "now"
    """


class Cursor:
    """The number of the request's facts that a reader has, derived ones included, and of characters after them.

    The characters are those of the reply that is arriving. As text, it is for example "17.250".

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

    __slots__ = ("_has_gap", "chars", "facts", "request_id")

    def __init__(self, request_id: str, facts: int = 0, chars: int = 0) -> None:
        self.request_id = request_id
        self.facts = facts
        self.chars = chars
        self._has_gap = False  # whether some of the text that is arriving may be missing, so that it has to come again

    @classmethod
    def read(cls, request_id: str, text: str) -> Cursor:
        """Return the cursor that `text` stands for. Raises `UnknownCursor`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UnknownCursor(f'after is {text[:40]!r}; pass a cursor of `events()`, such as "17.250", or "now"')
        return cls(request_id, int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.facts}.{self.chars}"

    def move(self, event: Event) -> None:
        """Take an event into account that the reader gets now."""
        if isinstance(event, SubscriberLagged):
            self.chars, self._has_gap = 0, True
        elif event.request_id == self.request_id:
            if event.is_fact:
                self.facts += 1
                if isinstance(event, _ENDS_TEXT):
                    self.chars, self._has_gap = 0, False
            elif isinstance(event, TextDelta) and not self._has_gap:
                self.chars += len(event.text)

    def after(self, events: Sequence[Event]) -> list[Event]:
        """Return those of the request's events from its beginning that the reader does not have.

        `events` are facts, and at their end the reasoning and the text that have arrived, each as one piece. A reader
        that has the beginning of the reply may have some of the reasoning, and does not get it again. Raises
        `UnknownCursor` if the reader has more facts than there are.
        """
        facts = [each for each in events if each.is_fact]
        if self.facts > len(facts):
            raise UnknownCursor(
                f"the cursor {self} is not one of request {self.request_id}, which has {len(facts)} facts until now"
            )
        rest = facts[self.facts :]
        seen = 0 if any(isinstance(each, _ENDS_TEXT) for each in rest) else self.chars
        is_new = any(isinstance(each, _BEGINS_REPLY) for each in rest)
        reasoning = [each for each in events if isinstance(each, ReasoningDelta) and is_new]
        texts = [each for each in events if isinstance(each, TextDelta)]
        return [*rest, *reasoning, *[replace(each, text=each.text[seen:]) for each in texts if each.text[seen:]]]
