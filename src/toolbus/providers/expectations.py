"""The expectations of a scripted model about its requests, and the display of a request that differs. Pure.

Example:
    from toolbus import Runtime
    from toolbus.providers.expectations import Expectation, asked, shown_message, shown_request
    from toolbus.testing import ScriptedProvider, text

    expected: Expectation = asked(last_user="Hello?")
    model = ScriptedProvider([text("Hello.", expect=expected)])
    async with Runtime(model) as runtime:
        await runtime.run("Hello?")
    print("Hello?" in shown_request(model.requests[0]))  # True
    print(shown_message(model.requests[0].messages[-1]))  # user 'Hello?'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import orjson

from ..core.plain_text import clip
from ..errors import ConfigurationError
from ..messages import AssistantMessage, ImagePart, Message, SystemMessage, ToolMessage, UserMessage
from ..protocols import ModelRequest

__all__ = ["Expectation", "asked", "shown_message", "shown_request"]

Expectation: TypeAlias = Callable[[ModelRequest], object]
"""A check of a request: for a wrong one it raises `AssertionError`, or returns a false value other than None."""

TextLike: TypeAlias = str | re.Pattern[str] | Callable[[str], object]
"""The exact text, a pattern that is searched in it, or a function of the text that returns whether it is right."""

_MAX_SHOWN_CHARS = 200


def asked(
    *,
    last_user: TextLike | None = None,
    instructions: TextLike | None = None,
    tools: Iterable[str] | None = None,
    results: Mapping[str, Any] | None = None,
    images: int | None = None,
    native_output: bool | None = None,
    round: int | None = None,  # noqa: A002 -- as the request calls it
) -> Expectation:
    """Make an expectation for a step of a script: `text("Sunny.", expect=asked(tools=["search"]))`.

    `last_user` is the text of the newest user message, `instructions` the system prompt, `images` the number of images
    in the newest user message, `native_output` whether the reply has to be JSON of a schema, and `round` the number of
    the call of the model in its request, from 0. `tools` are the names of all tools that are offered, in any order;
    `[]` for no tools. `results` has the newest result of each tool, by the tool's name: text, a pattern or a function
    of the text; for results in JSON also any other value, of which an object may have only the keys that matter:
    `results={"get_weather": {"reason": "timeout"}}`; and None if the tool must have no result. A property that is not
    given is not checked.

    Raises `ConfigurationError` if nothing is given.
    """
    if all(given is None for given in (last_user, instructions, tools, results, images, native_output, round)):
        raise ConfigurationError("asked() expects nothing; pass at least one of last_user=, tools=, results=, ...")
    offered = None if tools is None else sorted(tools)

    def expectation(request: ModelRequest) -> None:
        newest = next((each for each in reversed(request.messages) if isinstance(each, UserMessage)), None)
        system = next((each.text for each in request.messages[:1] if isinstance(each, SystemMessage)), "")
        wrong: list[str] = []
        if last_user is not None:
            wrong += _text("the newest user message", "" if newest is None else newest.text, last_user)
        if instructions is not None:
            wrong += _text("the instructions", system, instructions)
        if offered is not None and (found := sorted(tool.name for tool in request.tools)) != offered:
            wrong.append(f"the tools offered are {found}, not {offered}")
        for name, value in (results or {}).items():
            wrong += _result(request.messages, name, value)
        if images is not None and (count := _images(newest)) != images:
            wrong.append(f"the newest user message has {count} images, not {images}")
        if native_output is not None and (request.output_schema is not None) is not native_output:
            wrong.append(f"the reply {'does not have' if native_output else 'has'} to be JSON of a schema")
        if round is not None and request.round != round:
            wrong.append(f"it is round {request.round}, not {round}")
        if wrong:
            raise AssertionError("; ".join(wrong))

    return expectation


def shown_request(request: ModelRequest) -> str:
    """Return the request as text for people: a line for the round and the tools, and one for every message."""
    tools = ", ".join(tool.name for tool in request.tools) or "none"
    held = "" if request.output_schema is None else ", the reply has to be JSON of a schema"
    head = f"round {request.round}, tools offered: {tools}{held}"
    return "\n".join([head, *(f"  {clip(shown_message(each), _MAX_SHOWN_CHARS)}" for each in request.messages)])


def shown_message(message: Message) -> str:
    """Return a message of a transcript as a line of text for people."""
    if isinstance(message, SystemMessage):
        return f"system {message.text!r}"
    if isinstance(message, UserMessage):
        seen = _images(message)
        return f"user {message.text!r}" + (f" and {seen} image(s)" if seen else "")
    if isinstance(message, ToolMessage):
        return f"tool {message.name} {message.content!r}"
    called = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return f"assistant {message.text!r}" + (f" calls {called}" if called else "")


def _images(message: UserMessage | AssistantMessage | None) -> int:
    content = message.content if isinstance(message, UserMessage) else ""
    return 0 if isinstance(content, str) else sum(isinstance(part, ImagePart) for part in content)


def _result(messages: Sequence[Message], name: str, value: Any) -> list[str]:
    newest = next((each for each in reversed(messages) if isinstance(each, ToolMessage) and each.name == name), None)
    what = f"the newest result of {name}"
    if newest is None or value is None:
        problem = f"there is {'no' if newest is None else 'a'} result of {name}"
        return [] if newest is value else [problem]
    if isinstance(value, (str, re.Pattern)) or callable(value):
        return _text(what, newest.content, cast("TextLike", value))
    try:
        found = orjson.loads(newest.content)
    except orjson.JSONDecodeError:
        return [f"{what} is {clip(repr(newest.content), _MAX_SHOWN_CHARS)}, which is not JSON, and not {value!r}"]
    return [] if _holds(found, value) else [f"{what} is {clip(repr(found), _MAX_SHOWN_CHARS)}, not {value!r}"]


def _holds(found: Any, value: Any) -> bool:
    """Return whether `found` equals `value`, or is an object that contains all keys and values of it."""
    if isinstance(found, dict) and isinstance(value, Mapping):
        items = cast("dict[str, Any]", found)
        return all(key in items and _holds(items[key], each) for key, each in cast("Mapping[str, Any]", value).items())
    return found == value


def _text(what: str, found: str, wanted: TextLike) -> list[str]:
    if isinstance(wanted, str):
        right = found == wanted
    else:
        right = bool(wanted.search(found) if isinstance(wanted, re.Pattern) else wanted(found))
    if right:
        return []
    instead = "what the function expects" if callable(wanted) else repr(wanted)
    return [f"{what}: {clip(repr(found), _MAX_SHOWN_CHARS)}, not {instead}"]
