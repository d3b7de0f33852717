"""Interceptors: the application's own functions around a request's model and tool calls, and its guardrails.

A listener on the bus only hears; an interceptor can deny, edit and redact. This module knows messages and tools; the
session and the dispatcher call what is in here, in the order in which the interceptors were given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from .errors import ApplicationError, Denied
from .events import ToolCallRequested
from .messages import UserMessage
from .protocols import ModelReply, ModelRequest
from .tool_results import Rendered
from .tools import ToolContext

__all__ = ["Ask", "Denied", "Interceptor", "edits_replies", "screened", "screens_results"]

Ask: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply]]


class Interceptor:
    """Override what you need; each method passes on what it got. Raise `Denied("why")` to forbid it.

    Any other exception ends the request `failed` (in `after_tool`, the call). Methods run inside the request's task
    and its deadlines; they may await, and must let cancellation pass. One object may serve many requests at once.
    """

    async def on_prompt(self, prompt: UserMessage, context: ToolContext[Any]) -> UserMessage:
        """The user's message, before anything else. Denied: the request ends `failed`, and the message is not kept."""
        return prompt

    async def around_model(self, request: ModelRequest, context: ToolContext[Any], ask: Ask) -> ModelReply:
        """Around each call of the model: edit the request, `await ask(request)`, edit the reply. Inner ones are later.

        What the request holds goes to the model alone; the transcript stays as it is. Denied: the request fails.
        """
        return await ask(request)

    async def before_tool(self, name: str, arguments: dict[str, Any], context: ToolContext[Any]) -> dict[str, Any]:
        """Each call in a reply whose arguments are an object, before they are validated and before people are asked.

        The arguments that are returned stand in the transcript as the model's own. Denied: the call fails as
        `denied` with that text, and the request goes on. Called for unknown tools too.
        """
        return arguments

    async def after_tool(self, call: ToolCallRequested, result: Rendered, context: ToolContext[Any]) -> Rendered:
        """The success of a call that ran in this process, before anybody hears of it. Denied: the call fails.

        Late results come by here as well; those that others publish on the bus do not. A request with such an
        interceptor takes no part in `cache_seconds`.
        """
        return result

    async def on_answer(self, text: str, context: ToolContext[Any]) -> str:
        """The text of a reply without calls, before it joins the transcript. Denied: the request fails.

        A request with such an interceptor, or one with `around_model`, does not stream: its text arrives whole.
        """
        return text


def screens_prompts(interceptors: Sequence[Interceptor]) -> bool:
    """Whether a prompt has to be shown to anybody before it is kept."""
    return any(type(each).on_prompt is not Interceptor.on_prompt for each in interceptors)


def screens_results(interceptors: Sequence[Interceptor]) -> bool:
    """Whether results have to be shown to anybody before they are told."""
    return any(type(each).after_tool is not Interceptor.after_tool for each in interceptors)


async def screened(
    interceptors: Sequence[Interceptor], call: ToolCallRequested, result: Rendered, context: ToolContext[Any]
) -> Rendered:
    """The result as all of `interceptors` leave it. Raises `Denied`, what they raise, and `ApplicationError`."""
    for each in interceptors:
        given = cast("object", await each.after_tool(call, result, context))
        if not isinstance(given, Rendered):  # it forgot its return, mostly
            name = f"{type(each).__name__}.after_tool"
            raise ApplicationError(f"{name} gave a {type(given).__name__}; it has to return a Rendered")
        result = given
    return result


def edits_replies(interceptors: Sequence[Interceptor]) -> bool:
    """Whether pieces of a reply must be held back, because the reply may still change."""
    return any(
        type(each).on_answer is not Interceptor.on_answer or type(each).around_model is not Interceptor.around_model
        for each in interceptors
    )
