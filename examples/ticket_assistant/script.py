"""A script that replaces the model when there is no key: it calls tools by the prompt, and answers from results.

No language model takes part. Like a model, the script knows only the messages: it knows earlier tickets from results of
earlier calls, which toolbus has put back into the history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from toolbus.messages import ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.testing import ScriptedProvider, calls, text

__all__ = ["scripted_model"]

_ASKED = [  # patterns of prompts, and the tools to call; groups are arguments
    (r"tickets for project (?P<project>\w+)", "get_tickets"),
    (r"create a ticket in project (?P<project>\w+): (?P<summary>.+)", "create_ticket"),
    (r"comment on (?P<ticket>\w+): (?P<text>.+)", "add_comment"),
    (r"move (?P<ticket>\w+) to (?P<status>\w+)", "move_ticket"),
    (r"close (?P<ticket>\w+)", "close_ticket"),
]
_HELP = 'I am a script. Try "Show me tickets for project X.", "Close T1." or "Which was the oldest I saw?"'


def scripted_model() -> ScriptedProvider:
    """The scripted provider, for any number of conversations."""
    return ScriptedProvider(_step, record=False)


def _step(request: ModelRequest) -> Any:
    messages = request.messages
    last = max(place for place, each in enumerate(messages) if isinstance(each, UserMessage))
    question = messages[last]
    assert isinstance(question, UserMessage)
    asked = question.text
    results = [each for each in messages[last:] if isinstance(each, ToolMessage)]
    if results:
        return text(" ".join(map(_summary, results)))
    if "oldest" in asked.lower():
        return text(_oldest(each for each in messages if isinstance(each, ToolMessage)))
    for pattern, name in _ASKED:
        if found := re.search(pattern, asked, re.IGNORECASE):
            arguments = {key: _value(key, value) for key, value in found.groupdict().items()}
            number = 1 + sum(isinstance(each, ToolMessage) for each in messages)
            return calls((name, arguments), ids=[f"call{number}"])
    return text(_HELP)


def _value(name: str, said: str) -> str:
    return said.upper() if name in ("project", "ticket") else said


def _tickets(result: ToolMessage) -> list[dict[str, Any]]:
    """The tickets in a result: a list of them, one, or nothing."""
    try:
        found: Any = json.loads(result.content)
    except ValueError:
        return []
    listed = cast("list[Any]", found if isinstance(found, list) else [found])
    return [each for each in listed if isinstance(each, dict) and "id" in each]


def _summary(result: ToolMessage) -> str:
    if result.is_error:
        return f"That was not done: {json.loads(result.content)['error'].rstrip('.')}."
    tickets = _tickets(result)
    match result.name:
        case "create_ticket":
            return f"Created {_named(tickets)}."
        case "get_tickets" if len(tickets) == 1:
            return f"Here is ticket {_named(tickets)}."
        case "get_tickets":
            return f"Here are {len(tickets)} tickets: {_named(tickets)}."
        case _:
            return f"Done. {tickets[0]['id']} is {tickets[0]['status']} and has {len(tickets[0]['comments'])} comments."


def _named(tickets: Iterable[dict[str, Any]]) -> str:
    return "; ".join(f"{each['id']}: {each['summary']} ({each['status']})" for each in tickets)


def _oldest(results: Iterable[ToolMessage]) -> str:
    seen = {each["id"]: each for result in results for each in _tickets(result) if "created" in each}
    if not seen:
        return "I have not seen any ticket yet."
    oldest = min(seen.values(), key=lambda each: str(each["created"]))
    of = f" of project {oldest['project']}" if "project" in oldest else ""
    named = f"{oldest['id']}{of}: {oldest['summary']}, from {oldest['created']}"
    return f"The oldest of the {len(seen)} that I saw is {named}."
