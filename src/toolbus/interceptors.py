"""Interceptors: the application's own functions around a request's model and tool calls; they can be its guardrails.

A listener on the bus only receives events; an interceptor can deny, edit and redact. This module knows messages and
tools. The session and the dispatcher call interceptors in the order in which they were given.

Example:
    from toolbus import Denied, Interceptor, Runtime
    from toolbus.interceptors import Ask, edits_replies, screens_results
    from toolbus.protocols import ModelReply, ModelRequest
    from toolbus.testing import ScriptedProvider, text

    class Guard(Interceptor):
        edits_replies = False  # so that answers stream

        async def on_prompt(self, prompt, context):
            if "password" in prompt.content:
                raise Denied("Please do not write passwords here.")
            return prompt

        async def around_model(self, request: ModelRequest, context, ask: Ask) -> ModelReply:
            return await ask(request)

    print(edits_replies([Guard()]), screens_results([Guard()]))  # False False
    async with Runtime(ScriptedProvider([text("Hello.")]), interceptors=[Guard()]) as runtime:
        print((await runtime.run("Hello?")).text)  # Hello.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from ._option_checks import kind_of, takes
from .errors import ApplicationError, ConfigurationError, Denied
from .events import ToolCallRequested
from .messages import UserMessage
from .protocols import ModelReply, ModelRequest
from .records import event_json
from .tool_results import RenderedResult
from .tools import ToolContext

__all__ = ["Ask", "Denied", "Interceptor", "edits_replies", "screened", "screens_results"]

Ask: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply]]


class Interceptor:
    """The base class of interceptors. Override the methods that you need; by default each returns what it was given.

    Raise `Denied("why")` to forbid something. Any other exception ends the request as `failed` (in `after_tool`, the
    call). Methods run inside the request's task and its deadlines; they may await, and must let cancellation pass. One
    object may serve many requests at once.

    A subclass raises `ConfigurationError` if one of the methods is not async or has other parameters, or if it has an
    async method whose name only looks like one of theirs: nothing would call it, so the guardrail would be missing.
    """

    edits_replies: bool = True
    """Whether `around_model` and `on_answer` may change what the model replies.

    If they may, the text of a reply arrives whole, after all interceptors have seen it. With False it streams
    meanwhile. Then `around_model` asks at most once, and returns the reply that it got, and `on_answer` returns the
    same text; otherwise the request ends as `failed`. Both may still raise `Denied`, but people may have read the text
    by then.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in vars(cls).items():
            if not inspect.isfunction(method):
                continue
            is_async = inspect.iscoroutinefunction(method)
            if name in _METHODS and not is_async and not hasattr(method, "__wrapped__"):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is not async; write `async def {name}`; "
                    "if a decorator made it, write @functools.wraps in the decorator"
                )
            if name in _METHODS and not takes(method, len(given := inspect.signature(_METHODS[name]).parameters)):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} has other parameters; write `async def {name}({', '.join(given)})`"
                )
            if name not in _METHODS and is_async and name.startswith(_PREFIXES):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is not a method of Interceptor, so nothing would call it; "
                    f"the methods are {', '.join(_METHODS)}; if your own code calls it, give it another name"
                )

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        """Return the user's message as it is to be used. Called first of all.

        `Denied`: the request ends as `failed`, and the message is not kept.
        """
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        """Wrap each call of the model: edit the request, `await ask(request)`, edit the reply.

        An interceptor that was given later is called inside of one that was given earlier. Changes of the request reach
        only the model; the transcript stays as it is. Where it asks more than once, the usage of all replies counts,
        unless the reply that it returns has its own usage. `Denied`: the request fails.
        """
        return await ask(request)

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        """Return the arguments of a tool call. Called before they are validated and before a person approves the call.

        Called for each call in a reply whose arguments are an object, also of an unknown tool, and not for arguments
        that the person edits. The transcript has the returned arguments as the model's own. `Denied`: the call fails as
        `denied` with that text, and the request continues.
        """
        return arguments

    async def after_tool(
        self, call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
    ) -> RenderedResult:
        """Return the result of a successful call that ran in this process, before it is published.

        `Denied`: the call fails. Called for late results too, but not for results that other executors publish on the
        bus. A request with such an interceptor does not use or fill the cache of `cache_seconds`.
        """
        return result

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        """Return the text of a reply without tool calls, before it joins the transcript. `Denied`: the request fails.

        A request with such an interceptor, or one with `around_model`, does not stream: see `edits_replies`.
        """
        return text


_METHODS = {name: each for name, each in vars(Interceptor).items() if inspect.iscoroutinefunction(each)}
_PREFIXES = ("on_", "around_", "before_", "after_")


def screens_prompts(interceptors: Sequence[Interceptor]) -> bool:
    """Return whether an interceptor screens prompts, so that a prompt must not be kept before."""
    return any(type(each).on_prompt is not Interceptor.on_prompt for each in interceptors)


def screens_results(interceptors: Sequence[Interceptor]) -> bool:
    """Return whether an interceptor screens results, so that a result must not be published before."""
    return any(type(each).after_tool is not Interceptor.after_tool for each in interceptors)


async def screened(
    interceptors: Sequence[Interceptor], call: ToolCallRequested, result: RenderedResult, context: ToolContext[Any]
) -> RenderedResult:
    """Return the result after all of `interceptors`. Raises `Denied`, anything that they raise, and `ApplicationError`.

    The latter is for an interceptor that does not return a `RenderedResult`, or one whose content is no text or whose
    data is not JSON.
    """
    for each in interceptors:
        given = cast("object", await each.after_tool(call, result, context))
        # The usual mistake is a method without a return statement.
        if not isinstance(given, RenderedResult):
            name = f"{type(each).__name__}.after_tool"
            raise ApplicationError(f"{name} returned {kind_of(given)}; it has to return a RenderedResult")
        if given is not result:
            _check_edited(f"{type(each).__name__}.after_tool", given)
        result = given
    return result


def _check_edited(name: str, edited: RenderedResult) -> None:
    if not isinstance(cast("object", edited.content), str):
        raise ApplicationError(f"{name} returned content of type {type(edited.content).__name__}; it has to be a text")
    try:
        event_json(edited.data)
    except TypeError as exc:
        raise ApplicationError(f"{name} returned data that is not JSON: {exc}") from exc


def edits_replies(interceptors: Sequence[Interceptor]) -> bool:
    """Return whether streaming must hold back the pieces of a reply, because an interceptor may still change it."""
    return any(
        each.edits_replies
        and (
            type(each).on_answer is not Interceptor.on_answer or type(each).around_model is not Interceptor.around_model
        )
        for each in interceptors
    )
