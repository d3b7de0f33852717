"""The output for the user: a line for each event of interest, and the effect of compression."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from toolbus import Interceptor, ToolContext
from toolbus.core.endings import explain
from toolbus.core.plain_text import clip, one_line
from toolbus.core.tokens import estimate_message
from toolbus.events import (
    Event,
    HistoryCompressed,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
)
from toolbus.interceptors import Ask
from toolbus.messages import AssistantMessage
from toolbus.protocols import ModelReply, ModelRequest

__all__ = ["SHOWN", "Screen", "TokenCounter"]

SHOWN = (
    RequestStarted,
    RequestResumed,
    ModelResponded,
    ModelRetrying,
    ToolCallCompleted,
    ToolCallFailed,
    HistoryCompressed,
    RequestCompleted,
    RequestFailed,
    RequestCancelled,
)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Screen:
    """A receiver on the bus. Turns of one conversation run one at a time, so their lines never mix."""

    def __init__(self, show: Callable[[str], None] = _print) -> None:
        self.show = show
        self._arguments: dict[str, str] = {}  # those of unanswered calls, by the call's id
        self._is_busy = False
        self._gone: OSError | None = None

    @property
    def is_gone(self) -> bool:
        """True once nobody reads the output any more."""
        return self._gone is not None

    def check(self) -> None:
        """Raise the error from showing an event, since the bus contains the errors of receivers."""
        if self._gone is not None:
            raise self._gone

    def heard(self, line: str) -> None:
        """Take note of a typed line."""
        if self._is_busy:
            self.show(f"   … {cut(line)!r} comes next, when this turn is over")

    def on_event(self, event: Event) -> None:
        """Show the event, if it is of interest."""
        try:
            self._show(event)
        except OSError as exc:  # for example because nobody reads the output any more
            self._gone = exc

    def _show(self, event: Event) -> None:
        match event:
            case RequestStarted():
                self._is_busy = True
                self.show(f"\n── {(event.metadata or {}).get('who', '')}: {cut(event.prompt)}")
            case RequestResumed():
                self._is_busy = True
                self.show("\n── a turn that was cut off continues")
            case ModelResponded(message=AssistantMessage(tool_calls=asked)):
                self._arguments |= {each.call_id: each.arguments for each in asked}
            case ModelRetrying():
                self.show(f"   … the model is asked again: {cut(event.error)}")
            case ToolCallCompleted() | ToolCallFailed():
                mark, said = ("✓", event.content) if isinstance(event, ToolCallCompleted) else ("✗", event.error)
                arguments = self._arguments.pop(event.call_id, "")  # they are unknown for calls before a restart
                self.show(f"   {mark} {cut(event.name)} {cut(arguments, 44)} → {cut(said)}".replace("  →", " →"))
            case HistoryCompressed():
                saved = 1 - event.after_tokens / event.before_tokens
                self.show(
                    f"   ▾ history: {event.before_tokens:,} tokens stored, {event.after_tokens:,} sent, {saved:.0%} "
                    f"saved ({event.results_shortened} results shortened, {event.turns_omitted} turns left out)"
                )
            case _:
                self._ending(event)

    def _ending(self, event: Event) -> None:
        self._is_busy = False
        match event:
            case RequestCompleted(outcome="completed"):
                self.show(f"   {cut(event.text, 300)}")
            case RequestCompleted() | RequestFailed() | RequestCancelled():
                self.show(f"   ✗ {explain(event)}")
            case _:
                pass


def cut(text: str, chars: int = 72) -> str:
    """The beginning of a foreign text on one line, without control sequences of terminals."""
    return clip(one_line(text), chars)


class TokenCounter(Interceptor):
    """An interceptor that compares, at each call of the model, the conversation's stored tokens with those sent."""

    def __init__(self) -> None:
        self.calls = self.stored = self.sent = 0
        self.last = "nothing was asked"

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        """See `Interceptor`."""
        whole = [*request.messages[:1], *context.messages]  # the first message has the instructions
        stored, sent = (sum(map(estimate_message, each)) for each in (whole, request.messages))
        self.calls, self.stored, self.sent = self.calls + 1, self.stored + stored, self.sent + sent
        self.last = (
            f"{len(whole)} messages are stored ({stored:,} tokens), "
            f"and {len(request.messages)} were sent ({sent:,} tokens, {1 - sent / stored:.0%} saved)"
        )
        return await ask(request)

    def report(self) -> str:
        """Summarise the comparison in two lines."""
        saved = 1 - self.sent / self.stored if self.stored else 0.0
        return (
            f"At the last call of the model: {self.last}.\n"
            f"Over all {self.calls} calls: {self.stored:,} tokens without compression, {self.sent:,} with it, "
            f"{saved:.0%} saved."
        )
