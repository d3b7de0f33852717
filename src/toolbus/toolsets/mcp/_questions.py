"""Ready-made answers to what a server asks back: people answer its questions, and the model its prompts.

Each is a sub-request of the call that the server works for. A question to people is a call in it that needs approval,
so it is published as `ApprovalRequested`, and decided, like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

from ...errors import InvalidArguments, ToolError
from ...protocols import ModelSettings
from ...providers.scripted import ScriptedProvider, calls, text
from ...schemas import JsonSchema, never_null, without_nulls
from ...tool_results import clean
from ...tools import Tool, ToolContext

if TYPE_CHECKING:
    from mcp import types


# The largest question: it has to fit on a screen.
_MAX_BYTES = 65_536
# The code by which the specification has a client report that the user has refused.
_REFUSED = -1


async def ask_people(context: ToolContext[Any], params: types.ElicitRequestParams) -> types.ElicitResult:
    """Ask a person what the server wants to know, for `McpServer(on_elicitation=ask_people)`.

    The question is an `ApprovalRequested` with the name `mcp_question`, whatever the request's policy for approvals is.
    Its arguments are the `tool` that asks and the `message`; and for a form its `fields`, as the server describes them,
    and the `answer`, with the default of each field, or null. The person approves it, with an edited `answer`. For an
    address to visit there is its `url` instead, and approval means that the person agrees to visit it.

    A denial, also because nobody has decided in time, is `decline`; an answer that does not fit the form is `cancel`.
    Raises `ToolError` for a question that is too large, and `ConfigurationError` for an invalid form.
    """
    from mcp import types  # noqa: PLC0415 -- an extra

    if isinstance(params, types.ElicitRequestURLParams):
        action, _ = await _decided(context, "mcp_question", params.message, {"url": params.url})
        return types.ElicitResult(action=action)
    form = params.requested_schema
    fields: dict[str, Any] = form.get("properties", {})
    schema, optional = JsonSchema(form), never_null(form)
    # A field's schema may be a boolean.
    answer = {
        name: cast("Mapping[str, Any]", each).get("default") if isinstance(each, Mapping) else None
        for name, each in fields.items()
    }

    def read(given: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(given["answer"], Mapping):
            raise InvalidArguments("the answer is not an object")
        answered = without_nulls(cast("Mapping[str, Any]", given["answer"]), optional)
        schema.check(answered)
        return answered

    shown = {"fields": fields, "answer": answer}
    action, content = await _decided(context, "mcp_question", params.message, shown, read)
    return types.ElicitResult(action=action, content=content)


async def ask_model(
    context: ToolContext[Any], params: types.CreateMessageRequestParams
) -> types.CreateMessageResult | types.ErrorData:
    """Ask the request's model what the server wants it to answer, for `McpServer(on_sampling=ask_model)`.

    A person decides first: `ApprovalRequested` with the name `mcp_sampling`, as for `ask_people`. Its arguments are the
    `tool` that asks, the `system_prompt` and the `messages`, which the person may edit. The model gets no tools, and
    what it spends counts for the request. Of the server's settings only `max_tokens` is used: the temperature, for
    example, fits another model than the request's, and some models refuse a request with it. Raises `ToolError` for
    messages with anything but text, or that do not end with one of the user, for a `max_tokens` below 1, and if the
    model gives no answer.
    """
    from mcp import types  # noqa: PLC0415 -- an extra

    if params.max_tokens < 1:
        raise ToolError(f"max_tokens is {params.max_tokens}; it has to be at least 1")
    messages = [{"role": each.role, "content": _text_of(each)} for each in params.messages]
    shown = {"system_prompt": params.system_prompt or "", "messages": messages}
    message = "The server wants to ask the model."
    action, given = await _decided(context, "mcp_sampling", message, shown, dict[str, Any])
    if given is None:
        reason = "The user has refused to ask the model." if action == "decline" else "The model was not asked."
        return types.ErrorData(code=_REFUSED, message=reason)
    if not (_are_messages(given["messages"]) and isinstance(given["system_prompt"], str)):
        raise ToolError("the messages for the model were edited into another form")
    *earlier, newest = given["messages"] or [{"role": ""}]
    if newest["role"] != "user":
        raise ToolError("the last message for the model is not one of the user")
    result = await context.ask(
        newest["content"],
        history=earlier,
        instructions=given["system_prompt"] or None,
        settings=ModelSettings(max_output_tokens=params.max_tokens),
    )
    if result.outcome != "completed":
        raise ToolError(f"the model gave no answer: {result.outcome}: {result.reason}")
    asked = result.trace[-1]
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(text=result.text),
        model=asked.model or "unknown",
        stop_reason="maxTokens" if asked.finish_reason == "length" else "endTurn",
    )


def _text_of(message: types.SamplingMessage) -> str:
    parts = message.content_as_list
    if any(each.type != "text" for each in parts):
        raise ToolError("the server sends more than text to the model, which is not supported")
    return clean("\n".join(cast("types.TextContent", each).text for each in parts))


def _are_messages(edited: object) -> bool:
    """Return whether a person has left the messages in their form: a list of objects with a role and a text."""
    if not isinstance(edited, list):
        return False
    for each in cast("list[object]", edited):
        message: Mapping[str, object] = cast("Any", each) if isinstance(each, Mapping) else {}
        if not (isinstance(message.get("role"), str) and isinstance(message.get("content"), str)):
            return False
    return True


def _nothing(_given: Mapping[str, Any]) -> None:
    return None


async def _decided(
    context: ToolContext[Any],
    name: str,
    message: str,
    shown: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], dict[str, Any] | None] = _nothing,
) -> tuple[Literal["accept", "decline", "cancel"], dict[str, Any] | None]:
    """Have a person decide on a call with these arguments; return the decision, and what `read` makes of the arguments.

    `read` gets them as the person leaves them, and raises `InvalidArguments` to have the question count as dismissed.
    """
    arguments = {"tool": context.name, "message": clean(message), **shown}
    written = orjson.dumps(arguments)
    if len(written) > _MAX_BYTES:
        raise ToolError(f"the server's question has more than {_MAX_BYTES} bytes")
    answers: list[dict[str, Any] | None] = []

    async def take(**given: Any) -> str:
        answers.append(read({**arguments, **given}))
        return "answered"

    # All of it is a part of the definition, so that a decision which is remembered is for this question only.
    question = Tool(name, written.decode(), {"type": "object"}, take, needs_approval=True)
    result = await context.ask(
        f"A server asks: {message}",
        provider=ScriptedProvider([calls((name, arguments)), text("The question was asked.")]),
        tools=[question],
        needs_approval=True,
        interceptors=(),
    )
    if answers:
        return "accept", answers[0]
    # A limit may have ended it before anybody was asked.
    denied = [call.reason for call in result.tool_calls] == ["denied"]
    return ("decline" if denied else "cancel"), None
