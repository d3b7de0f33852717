"""Providers that are wrong in one way each: a right one, and what comes between it and its caller or its server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, cast

import anyio
import anyio.lowlevel
import httpx2
import openai
import orjson

from toolbus.errors import (
    ContextOverflow,
    EmptyReply,
    NativeOutputUnsupported,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnavailable,
)
from toolbus.messages import AssistantMessage, TextPart, ToolCall, ToolMessage, UserMessage
from toolbus.protocols import Delta, Emit, ModelReply, ModelRequest, NativeOutput, Provider, ReasoningPiece, TextPiece
from toolbus.providers import OpenAIProvider
from toolbus.records import replace

KEY = "sk-a-key-of-the-tests"
LIMIT_BYTES = 128 * 1024


class Right:
    """Does what the provider inside does. Those below differ in one thing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def vendor(self) -> str:
        return self.inner.vendor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def native_output(self, schema: Any) -> NativeOutput:
        return self.inner.native_output(schema)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        try:
            return self.reply(await self.inner.respond(self.request(request), self._passing(emit)))
        except Exception as exc:
            return self.error(exc)

    def _passing(self, emit: Emit) -> Emit:
        return lambda delta: self.emit(delta, emit)

    def request(self, request: ModelRequest) -> ModelRequest:
        return request

    def emit(self, delta: Delta, emit: Emit) -> None:
        emit(delta)

    def reply(self, reply: ModelReply) -> ModelReply:
        return reply

    def error(self, error: Exception) -> ModelReply:
        raise error

    async def aclose(self) -> None:
        await self.inner.aclose()


def with_calls(reply: ModelReply, calls: list[ToolCall]) -> ModelReply:
    return replace(reply, message=replace(reply.message, tool_calls=tuple(calls)))


def is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def said(text: str) -> ModelReply:
    return ModelReply(message=AssistantMessage(text=text), vendor="openai", model="m", finish_reason="stop")


# ------------------------------------------------------------------------------------------------- replies


class DropsPieces(Right):
    def emit(self, delta: Delta, emit: Emit) -> None:
        if not isinstance(delta, TextPiece) or delta.text.isascii():
            emit(delta)


class LosesReasoning(Right):
    def emit(self, delta: Delta, emit: Emit) -> None:
        if not isinstance(delta, ReasoningPiece):
            emit(delta)

    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, message=replace(reply.message, reasoning=""))


class EmitsAtTheEnd(Right):
    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        kept: list[Delta] = []
        reply = await self.inner.respond(request, kept.append)
        for each in kept:
            emit(each)
        return reply


class SortsCalls(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return with_calls(reply, sorted(reply.message.tool_calls, key=lambda call: call.name))


class MixesSplitArguments(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        calls = [*reply.message.tool_calls]
        if len(calls) > 1 and calls[0].arguments == calls[1].arguments and "😀" in calls[0].arguments:
            calls[1] = replace(calls[1], arguments=calls[1].arguments * 2)
        return with_calls(reply, calls)


class KeepsOneCallOfAnId(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        kept: dict[Any, ToolCall] = {}
        for place, call in enumerate(reply.message.tool_calls):
            kept.setdefault(call.provider_call_id or place, call)
        return with_calls(reply, [*kept.values()])


class SkipsCallsWithoutId(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return with_calls(reply, [call for call in reply.message.tool_calls if call.provider_call_id])


class WritesNullForNoArguments(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        calls = reply.message.tool_calls
        return with_calls(reply, [c if len(c.arguments) > 2 else replace(c, arguments="null") for c in calls])


class MendsArguments(Right):
    reason = ("tool_calls",)

    def reply(self, reply: ModelReply) -> ModelReply:
        if reply.finish_reason not in self.reason:
            return reply
        calls = reply.message.tool_calls
        return with_calls(reply, [c if is_object(c.arguments) else replace(c, arguments="{}") for c in calls])


class MendsWhatWasCut(MendsArguments):
    reason = ("length",)


class CountsNoCache(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, usage=replace(reply.usage, cached_tokens=0))


class CallsAreAStop(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, finish_reason="stop") if reply.finish_reason == "tool_calls" else reply


class RefusalsAreAStop(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, finish_reason="stop") if reply.finish_reason == "refusal" else reply


class NamesNobody(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, vendor="")


# ------------------------------------------------------------------------------------------------- errors


class ForgetsRetryAfter(Right):
    def error(self, error: Exception) -> ModelReply:
        if isinstance(error, ProviderError):
            error.retry_after_seconds = None
        raise error


class GivesUpOnServerErrors(Right):
    def error(self, error: Exception) -> ModelReply:
        if isinstance(error, ProviderError) and error.status == 500:
            error.retryable = False
        raise error


class HopesAgainstRejections(Right):
    def error(self, error: Exception) -> ModelReply:
        if type(error) is ProviderRejected and error.status == 401:
            raise ProviderUnavailable(str(error), vendor=error.vendor, status=error.status, retryable=True)
        raise error


class DoesNotKnowOverflows(Right):
    def error(self, error: Exception) -> ModelReply:
        if isinstance(error, ContextOverflow):
            raise ProviderRejected(str(error), vendor=error.vendor, status=error.status)
        raise error


class TakesWebPagesForReplies(Right):
    def error(self, error: Exception) -> ModelReply:
        if "text/html" in str(error):
            return said("")
        raise error


class PassesForeignErrors(Right):
    def error(self, error: Exception) -> ModelReply:
        if "could not reach" in str(error):
            raise ConnectionRefusedError
        raise error


class SaysErrorsInStreams(Right):
    def error(self, error: Exception) -> ModelReply:
        if "broke its reply off" in str(error):
            return said(str(error))
        raise error


class ReadsOverGarbage(Right):
    def error(self, error: Exception) -> ModelReply:
        if "not a JSON object" in str(error):
            return said("One moment.")
        raise error


class GivesPartsOfReplies(Right):
    def error(self, error: Exception) -> ModelReply:
        if "before the reply was whole" in str(error) and "reset" not in str(error) and "without" not in str(error):
            return said("One mo")
        raise error


class PassesResets(Right):
    def error(self, error: Exception) -> ModelReply:
        if "reset" in str(error):
            raise ConnectionResetError
        raise error


class CallsWithheldEmpty(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        if reply.finish_reason == "content_filter" and not reply.message.text:
            raise EmptyReply("nothing came", vendor="openai")
        return reply

    def error(self, error: Exception) -> ModelReply:
        if type(error).__name__ == "ContentFiltered":
            raise EmptyReply("nothing came", vendor="openai")
        raise error


class TriesAgain(Right):
    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        try:
            return await self.inner.respond(request, emit)
        except ProviderError as exc:
            if exc.status != 429:
                raise
        return await self.inner.respond(request, emit)


class TellsItsKey(Right):
    def error(self, error: Exception) -> ModelReply:
        error.add_note(f"sent with Authorization: Bearer {KEY}")
        raise error


# ------------------------------------------------------------------------------------------------- life


class SwallowsCancellation(Right):
    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        with anyio.CancelScope() as scope:
            try:
                return await super().respond(request, emit)
            except anyio.get_cancelled_exc_class():
                scope.cancel()
                raise ProviderTimeout("it took too long", vendor="openai") from None
        raise AssertionError


class ShieldsItself(Right):
    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        with anyio.CancelScope(shield=True):
            return await super().respond(request, emit)
        raise AssertionError


class OneAtATime(Right):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._lock = anyio.Lock()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        async with self._lock:
            return await super().respond(request, emit)


class KeepsTheLastRequest(Right):
    """State between calls: with several at once, each gets the answer to the last one's question."""

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelReply:
        self.last = request
        await anyio.lowlevel.checkpoint()
        return await super().respond(self.last, emit)


class WritesIntoTheRequest(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        sent = copy.deepcopy(request)
        if request.tools:
            cast("dict[str, Any]", request.tools[0].parameters)["additionalProperties"] = False
        return sent


class NeverCloses(Right):
    left: ClassVar[list[Any]] = []  # for the test to close

    async def aclose(self) -> None:
        self.left.append(self.inner)


# ------------------------------------------------------------------------------------------------- requests


class ForgetsImagesInHistories(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        def without(message: Any) -> Any:
            if isinstance(message, UserMessage) and not isinstance(message.content, str):
                kept = tuple(part for part in message.content if isinstance(part, TextPart))
                return replace(message, content=kept)
            return message

        return replace(request, messages=[without(each) for each in request.messages])


class ForgetsImagesOfTools(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        kept = [replace(each, parts=()) if isinstance(each, ToolMessage) else each for each in request.messages]
        return replace(request, messages=kept)


class ForgetsTheTemperature(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        return replace(request, settings=replace(request.settings, temperature=None))


class ForgetsTheToolChoice(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        return replace(request, settings=replace(request.settings, tool_choice=None))


class ForgetsDescriptions(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        return replace(request, tools=[replace(each, description="") for each in request.tools])


class ForgetsTheSchema(Right):
    def request(self, request: ModelRequest) -> ModelRequest:
        return replace(request, output_schema=None)


class DoesNotKnowThatSchemasAreRefused(Right):
    def error(self, error: Exception) -> ModelReply:
        if isinstance(error, NativeOutputUnsupported):
            raise ProviderRejected(str(error), status=error.status)
        raise error


class ForgetsThatSchemasAreRefused(Right):
    def native_output(self, schema: Any) -> NativeOutput:
        return "alone"


class ForgetsSignatures(Right):
    def reply(self, reply: ModelReply) -> ModelReply:
        return replace(reply, message=replace(reply.message, vendor_data=None))


class Edited(Right):
    """A provider whose client sends another body than it is given."""

    def __init__(self, url: str, edit: Callable[[dict[str, Any]], None]) -> None:
        async def send_other(request: httpx2.Request) -> None:
            body = orjson.loads(request.content)
            edit(body)
            other = httpx2.Request(request.method, request.url, json=body)
            request.stream = other.stream
            request.headers["content-length"] = other.headers["content-length"]

        http = httpx2.AsyncClient(event_hooks={"request": [send_other]})
        self.client = openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0, http_client=http)
        super().__init__(OpenAIProvider("stub", client=self.client, max_reply_bytes=LIMIT_BYTES))

    async def aclose(self) -> None:
        await self.client.close()


def sends_minted_ids_empty(body: dict[str, Any]) -> None:
    for message in body["messages"]:
        for each in [message, *message.get("tool_calls", ())]:
            for field in ("id", "tool_call_id"):
                if str(each.get(field, "")).startswith("req_"):
                    each[field] = ""


def sends_malformed_arguments_as_null(body: dict[str, Any]) -> None:
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            if "_malformed" in call["function"]["arguments"]:
                call["function"]["arguments"] = None


def right(url: str) -> Provider:
    return OpenAIProvider("stub", api_key=KEY, base_url=url, max_reply_bytes=LIMIT_BYTES)


def endless(url: str) -> Provider:
    return OpenAIProvider("stub", api_key=KEY, base_url=url, max_reply_bytes=2**40)


def responses(url: str) -> Provider:
    return OpenAIProvider("stub", api="responses", api_key=KEY, base_url=url, max_reply_bytes=LIMIT_BYTES)
