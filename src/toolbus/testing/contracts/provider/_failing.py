"""Checks of a provider whose server fails: the right error, never a part of a reply, and no second request."""

from __future__ import annotations

import socket
import traceback
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from ....errors import (
    ContentFiltered,
    ContextOverflow,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    ReplyTooLarge,
)
from ...wire import HttpRequest, WireBreak, WireCall, WireFault, WirePage, WireReply, WireStep
from ._bench import CITY, Bench, Outcome, check, close, request_of

_SAID = "the stub's own words"
_FLOOD = 4  # factor on the limit and on the megabyte: events that repeat the whole reply may be longer than it
_WAYS: tuple[Literal["cut"], Literal["end"]] = ("cut", "end")
_SECRET = ("auth", "key", "token", "secret", "cookie")
_MIN_SECRET_CHARS = 8  # characters; shorter values are placeholders, and occur in any text

_CALLS = WireReply(
    reasoning="Hm.",
    text="One moment.",
    calls=(
        WireCall(name="get_time", call_id="a"),
        WireCall(name="get_weather", arguments=CITY, call_id="b"),
    ),
)


async def _refused(
    bench: Bench,
    fault: WireFault,
    kind: type[ProviderError],
    *,
    retryable: bool,
    says: str = _SAID,
) -> list[ProviderError]:
    """Let the server refuse in each of its wordings, and check the error."""
    found: list[ProviderError] = []
    for wording, answer in enumerate(bench.dialect.refusals(fault)):
        worded = WireFault(
            kind=fault.kind,
            message=fault.message,
            retry_after_seconds=fault.retry_after_seconds,
            wording=wording,
        )
        what = f"{fault.kind} (status {answer.status}, wording {wording})"
        error = await bench.failing(what, worded)
        if error is None:
            continue
        bench.expect(f"{what}: the error's class", kind.__name__, type(error).__name__)
        bench.expect(f"{what}: retryable", retryable, error.retryable)
        if answer.status != 200:
            bench.expect(f"{what}: status", answer.status, error.status)
        bench.expect(f"{what}: the error's vendor", bench.provider.vendor, error.vendor)
        bench.require(f"{what}: the error's text", f"with {says!r} in it", str(error), ok=says in str(error))
        found.append(error)
    return found


@check("rate-limit")
async def rate_limit(bench: Bench) -> None:
    """A 429 is retryable, and the error has the seconds that the server asks to wait."""
    fault = WireFault(kind="rate_limited", message=_SAID, retry_after_seconds=7)
    for error in await _refused(bench, fault, ProviderUnavailable, retryable=True):
        bench.expect("retry_after_seconds", 7.0, error.retry_after_seconds)
    for error in await _refused(
        bench, WireFault(kind="rate_limited", message=_SAID), ProviderUnavailable, retryable=True
    ):
        bench.expect("retry_after_seconds without the header", None, error.retry_after_seconds)


@check("server-error")
async def server_error(bench: Bench) -> None:
    """A 500, and a 503 while a model is loaded, are retryable."""
    await _refused(bench, WireFault(kind="server_error", message=_SAID), ProviderUnavailable, retryable=True)
    await _refused(bench, WireFault(kind="loading", message=_SAID), ProviderUnavailable, retryable=True)


@check("rejection")
async def rejection(bench: Bench) -> None:
    """A 400, 401 and 404 are faults of the caller, and not retryable."""
    for kind in ("bad_request", "unauthorised", "not_found"):
        await _refused(bench, WireFault(kind=kind, message=_SAID), ProviderRejected, retryable=False)


@check("context-overflow")
async def context_overflow(bench: Bench) -> None:
    """A history that is too long for the model is `ContextOverflow`, in each of the vendor's wordings."""
    await _refused(bench, WireFault(kind="context_overflow"), ContextOverflow, retryable=False, says="")


@check("web-page")
async def web_page(bench: Bench) -> None:
    """A web page is not a reply, whatever its status."""
    await bench.failing("a web page with status 200", WirePage())
    error = await bench.failing("a web page with status 502", WirePage(status=502))
    if error is not None:
        bench.expect("the error of a 502", (502, True), (error.status, error.retryable))


@check("unreachable")
async def unreachable(bench: Bench) -> None:
    """If no server listens, the error is `ProviderUnavailable`, retryable, without a status."""
    with socket.socket() as held:  # the port is taken, and nobody listens
        held.bind(("127.0.0.1", 0))
        provider = bench.make(bench.dialect.base_url(f"http://127.0.0.1:{held.getsockname()[1]}"))
        error: Exception | None = None
        try:
            await provider.respond(request_of(), lambda _: None)
        except Exception as exc:
            error = exc
        finally:
            await close(provider)
    got = (type(error).__name__, getattr(error, "retryable", None), getattr(error, "status", None))
    bench.expect("the error", (ProviderUnavailable.__name__, True, None), got)


@check("error-in-stream")
async def error_in_stream(bench: Bench) -> None:
    """An error inside a stream is raised with the server's words; a fault of the server is retryable."""
    for wording in range(len(bench.dialect.breaks(_SAID))):
        step = WireBreak(reply=_CALLS, how="error", after=3, message=_SAID, wording=wording)
        error = await bench.failing(f"an error inside a stream (wording {wording})", step, ProviderUnavailable)
        if error is not None:
            bench.require("the error's text", f"with {_SAID!r} in it", str(error), ok=_SAID in str(error))


@check("garbage")
async def garbage(bench: Bench) -> None:
    """An answer that cannot be read is a `ProviderError`, and is not skipped."""
    for after in (0, 3):
        await bench.failing(f"garbage after {after} frames", WireBreak(reply=_CALLS, how="garbage", after=after))


@check("cut-stream")
async def cut_stream(bench: Bench) -> None:
    """A stream that is cut raises an error, wherever it is cut; a part of a reply is never returned."""
    stream = bench.dialect.render(_CALLS)
    last = stream.whole_from - 1
    for after in range(stream.whole_from):
        for how in _WAYS if after == last else (_WAYS[after % 2],):
            what = f"{how} after {after} of {len(stream.frames)} frames"
            await bench.failing(what, WireBreak(reply=_CALLS, how=how, after=after), ProviderUnavailable)


@check("cut-late")
async def cut_late(bench: Bench) -> None:
    """A stream that is cut after its last content is the whole reply, or an error."""
    stream = bench.dialect.render(_CALLS)
    for after in range(stream.whole_from, len(stream.frames)):
        outcome = await bench.attempt(WireBreak(reply=_CALLS, how="cut", after=after))
        if outcome.reply is None:
            bench.require("the error", "a ProviderError", outcome, ok=isinstance(outcome.error, ProviderError))
        else:
            names = [call.name for call in outcome.reply.message.tool_calls]
            bench.expect("the calls", ["get_time", "get_weather"], names)
            bench.expect("the text", "One moment.", outcome.reply.message.text)


@check("reset")
async def reset(bench: Bench) -> None:
    """A connection that is reset, or closed before a byte of the answer, is `ProviderUnavailable` and retryable."""
    for step in (
        WireBreak(reply=_CALLS, how="reset", after=3),
        WireBreak(reply=_CALLS, how="reset", after=None),
        WireBreak(reply=_CALLS, how="cut", after=None),
    ):
        what = f"{step.how} {f'after {step.after} frames' if step.after is not None else 'before the answer'}"
        await bench.failing(what, step, ProviderUnavailable)


@check("size-limit")
async def size_limit(bench: Bench) -> None:
    """Reading stops with `ReplyTooLarge` when a reply, or a line of it, exceeds the size limit."""
    piece = "x" * 65_536
    count = bench.max_reply_bytes // len(piece) + 2
    flood = _FLOOD * (bench.max_reply_bytes + 2**20)
    for what, step in (
        ("a text that is too long", WireReply(text=(piece,) * count)),
        ("a line without an end", WireBreak(reply=_CALLS, how="flood", after=1, size_bytes=flood)),
    ):
        await bench.failing(what, step, ReplyTooLarge, retryable=False)


@check("withheld", "content_filter")
async def withheld(bench: Bench) -> None:
    """A reply that was withheld as a whole is `ContentFiltered`, or an empty reply with "content_filter"."""
    outcome = await bench.attempt(WireReply(finish_reason="content_filter"))
    if outcome.reply is not None:
        bench.expect("the finish_reason", "content_filter", outcome.reply.finish_reason)
    else:
        bench.require("the error", "ContentFiltered", outcome, ok=isinstance(outcome.error, ContentFiltered))


@check("no-retries")
async def no_retries(bench: Bench) -> None:
    """Each `respond` asks the server once, whatever it answers: another layer decides whether to ask again."""
    steps: dict[str, WireStep] = {
        "a reply": WireReply(text="Sunny."),
        "a 429": WireFault(kind="rate_limited", retry_after_seconds=0),
        "a 500": WireFault(kind="server_error"),
        "a cut stream": WireBreak(reply=_CALLS, how="cut", after=3),
        "a connection closed at once": WireBreak(reply=_CALLS, how="cut", after=None),
        "an empty reply": WireReply(),
    }
    for what, step in steps.items():
        outcome = await bench.attempt(step)
        bench.expect(f"the requests that the server received for {what}", 1, len(outcome.requests))


@check("keys-stay-secret")
async def keys_stay_secret(bench: Bench) -> None:
    """A key is in no error's text, repr or traceback, even if the server quotes it; nor in the provider's repr."""
    _, asked = await bench.ask(WireReply(text="Sunny."))
    secrets = {each for request in asked.requests for each in _secrets(request)}
    for secret in secrets:
        if secret in repr(bench.provider):
            bench.fail("the provider's repr", "without the key", "it has the key")
        quoted = f"the key {secret} is wrong, as is Bearer {secret}"
        for what, step in (
            ("the error of a 401", WireFault(kind="unauthorised", message=quoted)),
            ("the error of a 500", WireFault(kind="server_error", message=quoted)),
            ("an error inside a stream", WireBreak(reply=_CALLS, how="error", after=1, message=quoted)),
        ):
            outcome = await bench.attempt(step)
            if secret in _all_of(outcome):
                bench.fail(what, "the key nowhere: not in text, repr, traceback or fields", "it has the key")


def _secrets(request: HttpRequest) -> list[str]:
    """Return the values in a request that look like keys, of a header or query field, without "Bearer"."""
    fields = [*request.headers.items(), *parse_qsl(urlsplit(request.path).query)]
    values = [value.rpartition(" ")[2] for name, value in fields if any(word in name.lower() for word in _SECRET)]
    return [value for value in values if len(value) >= _MIN_SECRET_CHARS]


def _all_of(outcome: Outcome) -> str:
    error = outcome.error
    if error is None:
        return repr(outcome.reply)
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
