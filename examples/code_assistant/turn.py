"""A question and its answer for display, computed from the events of the request, without any screen or runtime.

The screen draws the whole `Turn` after each event; `--ask` prints the lines that `take` returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolbus.core.endings import explain
from toolbus.core.plain_text import clean, clip, one_line
from toolbus.events import (
    Event,
    MessageAppended,
    ModelResponded,
    ModelRetrying,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RoundStarted,
    StatusChanged,
    TextDelta,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import SystemMessage, ToolMessage, Usage

__all__ = ["Line", "Turn"]

_PLACES = 5  # how many of the results are shown
_LONGEST = 300  # how many characters of a foreign text are shown on one line


@dataclass
class Line:
    """One line under the answer's heading: a tool call, which changes in place, or a note of the system."""

    mark: str
    text: str
    places: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return "\n".join([f"  {self.mark} {self.text}", *(f"      {place}" for place in self.places)])


@dataclass
class Turn:
    """A question, and its answer so far. `status` is pending until the request ends, then its outcome."""

    question: str
    status: str = "pending"
    reason: str = ""
    doing: str = ""
    lines: list[Line] = field(default_factory=list[Line])
    round: int = 0
    usage: Usage = field(default_factory=Usage)
    calls: dict[str, Line] = field(default_factory=dict[str, Line])
    _text: str = ""
    _message_id: str = ""

    @property
    def head(self) -> str:
        """The heading: the speaker, the status, and the reason of an early end."""
        return f"Assistant ({self.status}{f': {self.reason}' if self.reason else ''})"

    @property
    def text(self) -> str:
        """The answer so far, without control sequences of terminals."""
        return clean(self._text)

    @property
    def figures(self) -> str:
        """The rounds, tool calls and tokens so far."""
        tokens = f"{self.usage.input_tokens:,} in, {self.usage.output_tokens:,} out"
        return f"rounds: {self.round}; tool calls: {len(self.calls)}; tokens: {tokens}"

    def take(self, event: Event) -> list[Line]:
        """Take the request's next event into account, and return the lines that are new or have changed."""
        match event:
            case StatusChanged():
                self.doing = event.text
            case RoundStarted():
                self.round = event.round + 1
            case TextDelta():
                if event.message_id != self._message_id:
                    self._message_id, self._text = event.message_id, ""
                self._text += event.text
            case ModelRetrying():  # the pieces of this reply so far are void
                self._text = ""
                return self._add("!", f"asking the model again: {event.error or event.reason}")
            case ModelResponded():
                return self._responded(event)
            case ToolCallRequested():
                self.calls[event.call_id] = Line("…", f"{event.name} {_arguments(event.arguments)}")
                self.lines.append(self.calls[event.call_id])
                return [self.calls[event.call_id]]
            case ToolCallCompleted() | ToolCallFailed():
                return [self._settled(event)]
            case MessageAppended():
                return self._sent(event)
            case RequestCompleted():
                self._end(event.outcome, explain(event))
                self._text = event.text or self._text
            case RequestFailed():
                self._end("failed", explain(event))
            case RequestCancelled():
                self._end("cancelled", event.reason)
            case _:
                pass
        return []

    def _responded(self, event: ModelResponded) -> list[Line]:
        """Take the whole reply, which is complete even if pieces of it were missed."""
        self.usage += event.usage
        said = self._text = getattr(event.message, "text", "")
        if not getattr(event.message, "tool_calls", ()):
            return []
        self._text = ""  # text before a call is not the answer
        return self._add("·", said) if said.strip() else []

    def _settled(self, event: ToolCallCompleted | ToolCallFailed) -> Line:
        # A refused call was never requested, for example because its arguments break the tool's schema.
        if event.call_id not in self.calls:
            self.lines.append(self.calls.setdefault(event.call_id, Line("…", event.name)))
        line = self.calls[event.call_id]
        if isinstance(event, ToolCallFailed):
            line.mark, line.text = "✗", f"{line.text}: {_shown(event.error)} ({event.reason})"
        elif event.name == "request_code_context":
            found: dict[str, Any] = event.data
            ids = [f"{each['id']}  {each['score']:.2f}" for each in found["results"]]
            more = [f"and {len(ids) - _PLACES} more"] if len(ids) > _PLACES else []
            line.text = f"{event.name} query={_shown(found['query'])!r} top_k={found['top_k']}: found {len(ids)}"
            line.mark, line.places = "✓", [*map(one_line, ids[:_PLACES]), *more]
        else:
            line.mark = "✓"
        return line

    def _sent(self, event: MessageAppended) -> list[Line]:
        """The lines on what the model is sent about a failure."""
        match event.message:
            case ToolMessage(is_error=True, content=content):
                return self._add("!", f"the model reads: {content}")
            case SystemMessage(text=text):
                return self._add("!", f"system: {text}")
            case _:
                return []

    def _end(self, status: str, reason: str) -> None:
        self.status, self.reason, self.doing = status, _shown(reason), ""

    def _add(self, mark: str, text: str) -> list[Line]:
        self.lines.append(Line(mark, _shown(text)))
        return self.lines[-1:]


def _arguments(arguments: dict[str, Any]) -> str:
    return _shown(" ".join(f"{name}={value!r}" for name, value in arguments.items()))


def _shown(text: str) -> str:
    return clip(one_line(text), _LONGEST)
