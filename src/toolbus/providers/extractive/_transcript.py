"""The turn so far: the question, the searches and reads that were asked for, and the text that they returned.

The module reads messages and the JSON of the workspace tools' results; it decides nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from ...messages import AssistantMessage, Message, ToolMessage, UserMessage
from ...schemas import as_object

_NUMBERED = re.compile(r"^(\d+)\t(.*)$")


@dataclass(slots=True, frozen=True)
class Location:
    """A line that a search found."""

    path: str
    line: int
    text: str


@dataclass(slots=True)
class Search:
    """A search and its results. `round` is the number of its round of calls in the turn, from 1."""

    arguments: Mapping[str, Any]
    round: int
    locations: list[Location] = field(default_factory=list[Location])
    files_with_word: dict[str, int] = field(default_factory=dict[str, int])
    files_searched: int = 0

    @property
    def mode(self) -> str:
        """The search's mode, by default "text"."""
        return str(self.arguments.get("mode", "text"))


@dataclass(slots=True)
class Turn:
    """The turn after the last user message. `rounds` counts the replies with tool calls in it."""

    question: str = ""
    earlier: list[str] = field(default_factory=list[str])
    rounds: int = 0
    searches: list[Search] = field(default_factory=list[Search])
    read_rounds: int = 0
    lines: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    failures: list[str] = field(default_factory=list[str])

    @property
    def search_rounds(self) -> int:
        """The number of rounds with searches: each round either searches or reads."""
        return self.rounds - self.read_rounds


def read_turn(messages: Sequence[Message], search_tool: str, read_tool: str) -> Turn:
    """Collect the turn from messages. Results that are not JSON, or not of these tools, are skipped."""
    turn = Turn()
    asked = [message.text for message in messages if isinstance(message, UserMessage)]
    if not asked:
        return turn
    turn.question, turn.earlier = asked[-1], asked[-2::-1]
    last = max(index for index, message in enumerate(messages) if isinstance(message, UserMessage))
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in messages[last + 1 :]:
        if isinstance(message, AssistantMessage) and message.tool_calls:
            turn.rounds += 1
            turn.read_rounds += any(call.name == read_tool for call in message.tool_calls)
            calls |= {call.call_id: (call.name, _object(call.arguments)) for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            name, arguments = calls.get(message.call_id, (message.name, {}))
            content = _object(message.content)
            if message.is_error or content.get("ok") is not True:
                turn.failures.append(f"{name}: {content.get('error') or message.content[:200]}")
            elif name == search_tool:
                turn.searches.append(_search(arguments, turn.rounds, as_object(content.get("data"))))
            elif name == read_tool:
                _keep_lines(turn, as_object(content.get("data")))
    return turn


def _object(text: str) -> Mapping[str, Any]:
    try:
        return as_object(orjson.loads(text))
    except ValueError:
        return {}


def _search(arguments: Mapping[str, Any], number: int, data: Mapping[str, Any]) -> Search:
    search = Search(arguments, number)
    matches = data.get("matches")
    for match in cast("list[Any]", matches) if isinstance(matches, list) else []:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            search.locations.append(Location(str(match["path"]), int(match["line"]), str(match["text"])))
    counts = as_object(data.get("files_with_word"))
    search.files_with_word = {word: count for word, count in counts.items() if isinstance(count, int)}
    if isinstance(searched := data.get("files_searched"), int):
        search.files_searched = searched
    return search


def _keep_lines(turn: Turn, data: Mapping[str, Any]) -> None:
    path, text = data.get("path"), data.get("text")
    if not isinstance(path, str) or not isinstance(text, str):
        return
    known = turn.lines.setdefault(path, {})
    for line in text.split("\n"):
        if match := _NUMBERED.match(line):
            known[int(match[1])] = match[2]
