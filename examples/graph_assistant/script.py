"""A script that plays the model: it understands a few questions, and answers from the results of tools.

It never sees the graph. Everything in its answers is in the messages that it was sent; it decides only what to call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from toolbus.messages import ToolMessage, UserMessage
from toolbus.protocols import ModelRequest
from toolbus.providers.scripted import Step
from toolbus.testing import calls, text

__all__ = ["play"]

_COLORS = {"blue": "#0000ff", "red": "#ff0000", "green": "#00aa00", "yellow": "#ffff00"}
_COUNT = re.compile(r"how many (node|edge)s", re.IGNORECASE)
_SAMPLE = re.compile(r"(\d+)? ?sample (nodes|edges)", re.IGNORECASE)
_STYLE = re.compile(rf"all (\w+?)s\b(?: older than (\d+))?.*?\b({'|'.join(_COLORS)})", re.IGNORECASE)
_HELP = (
    "I am a script, not a language model. I understand: How many nodes (or edges) are there? What are some sample "
    f"nodes? Find all cats and make them blue (or {', '.join(list(_COLORS)[1:])}). "
    "With --provider a real model answers."
)


def play(request: ModelRequest) -> Step:
    """The next reply: a call, or the answer."""
    last = max(place for place, each in enumerate(request.messages) if isinstance(each, UserMessage))
    asked = request.messages[last]
    assert isinstance(asked, UserMessage)
    question = asked.text
    results = [each for each in request.messages[last:] if isinstance(each, ToolMessage)]
    if match := _STYLE.search(question):
        step = _find_and_style(match, results, with_edges="edges" in question)
        if step.calls and not request.tools:  # no rounds are left
            return text(f"I have to stop here. The last result: {_message(results[-1])}")
        return step
    if match := _COUNT.search(question):
        if results:
            return text(_message(results[-1]))
        return calls(("query_graph", {"query": f"{match[1].lower()}_count"}))
    if match := _SAMPLE.search(question):
        if results:
            return text(_samples(match[2].lower(), results[-1]))
        return calls(("sample_data", {"target": match[2].lower(), "count": int(match[1] or 3)}))
    return text(_HELP)


def _answer(result: ToolMessage) -> dict[str, Any]:
    return json.loads(result.content)


def _message(result: ToolMessage) -> str:
    """The message of a success, or the error."""
    answer = _answer(result)
    return str(answer.get("message") or answer.get("error"))


def _samples(target: str, result: ToolMessage) -> str:
    """The samples in words, or, without data, the message of the result."""
    given: list[Any] = _answer(result).get("data", {}).get(target, [])
    if not given:
        return _message(result)
    samples = [cast("dict[str, Any]", each) for each in given if isinstance(each, dict)]
    # If a list was cut, its last item is a text that says how many items are missing.
    lines = [f"{number}. {_described(each)}" for number, each in enumerate(samples, 1)]
    lines += [each for each in given if isinstance(each, str)]
    names = list(dict.fromkeys(str(name) for each in samples for name in each["data"]))
    ending = f"\n\nEach {target[:-1]} has properties: {_listed(names)}." if names else ""
    return f"Here are {len(samples)} sample {target} from your graph:\n\n" + "\n".join(lines) + ending


def _described(sample: dict[str, Any]) -> str:
    data = sample["data"]
    if "id" not in sample:
        return f"**{sample['from']}** {data['relation']} **{sample['to']}**"
    what = f"A {data['breed']} {data['type']}" if "breed" in data else f"A {data['type']} of {data['age']}"
    return f"**{data['name']}** ({sample['id']}) - {what}"


def _find_and_style(match: re.Match[str], results: Sequence[ToolMessage], *, with_edges: bool) -> Step:
    kind, age, color = match[1].lower(), match[2], match[3].lower()
    if not results:
        # The script gets long selectors wrong at first, as models do: here the quotes are missing.
        return calls(("find_nodes", {"selector": f"type == {kind} and age > {age}" if age else f"type == '{kind}'"}))
    newest = _answer(results[-1])
    if newest.get("ok") is False:
        if len(results) > 1 or "quotes" not in newest["error"]:
            return text(f"That did not work: {_message(results[-1])}")
        return calls(("find_nodes", {"selector": f"type == '{kind}' and age > {age}"}))
    if "data" not in newest:
        return text(_message(results[-1]))
    if results[-1].name == "find_nodes":
        if newest["data"]["count"] == 0:
            wanted = f"type '{kind}'" + (f" and an age over {age}" if age else "")
            return text(_nothing_found(wanted, newest["data"]["available"]))
        styling = {"node_ids": newest["data"]["node_ids"], "color": _COLORS[color]}
        return calls(("style_nodes", {**styling, "with_edges": True} if with_edges else styling))
    found = next(_answer(each) for each in reversed(results) if each.name == "find_nodes")
    edges = f", with {newest.get('affected_edges', 0)} edges" if with_edges else ""
    styled = f"I found {found['data']['count']} {kind} nodes and styled them {color}{edges}"
    return text(f"{styled}: {_listed(found['data']['names'])}.")


def _nothing_found(wanted: str, available: dict[str, list[Any]]) -> str:
    return (
        f"I couldn't find any nodes with {wanted} in your graph.\n"
        f"The available node types are: {', '.join(available['type'])}. "
        "Would you like me to style one of those instead?"
    )


def _listed(words: Sequence[str]) -> str:
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"
