"""The bodies of requests over HTTP: what is read of them, and the words for what is wrong."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from toolbus.errors import (
    BusError,
    ConversationBusy,
    DecodeError,
    InboxFull,
    InvalidHistory,
    NotAuthorized,
    NotRunning,
    Overloaded,
    StoreUnavailable,
    UnknownRequest,
)
from toolbus.schemas import MAX_VALUES
from toolbus.testing import virtual_backends
from toolbus.web._bodies import Decision, Question, Steering, exception_handlers, read_json

anyio_backend = virtual_backends()


def request_of(body: bytes, kind: str = "application/json", *, then: str = "") -> Request:
    """A request whose body ends, or stands still, or whose client goes away after this piece of it."""
    pieces = [{"type": "http.request", "body": body, "more_body": bool(then)}]

    async def receive() -> dict[str, Any]:
        if pieces:
            return pieces.pop()
        if then == "silence":
            await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    headers = [(b"content-type", kind.encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_a_decision_is_remembered_only_if_it_says_so(kind: str) -> None:
    read = await read_json(request_of(b'{"id":"a","approved":true}', kind), Decision, 1_000)
    assert read == Decision(id="a", approved=True, reason="", arguments=None, remember=False)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "the body is not JSON: "),
        (b"[]", "the body must be an object, not list"),
        (b'{"id":"a"}', "approved: Field required"),
        (b'{"id":"a","approved":"true"}', "approved: Input should be a valid boolean"),
        (b'{"id":"a","approved":true,"more":1}', "more: Extra inputs are not permitted"),
        (b"[" + b"1," * MAX_VALUES + b"1]", f"the body has more than {MAX_VALUES} values"),
    ],
    ids=["cut off", "a list", "a field is missing", "a text for a truth value", "a field too many", "too many values"],
)
async def test_a_body_that_is_refused_is_refused_with_the_name_of_the_field(body: bytes, problem: str) -> None:
    with pytest.raises(DecodeError) as refused:
        await read_json(request_of(body), Decision, 2**20)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize("words", ["", " \n", "\x1c", "\x85\u2003"])
@pytest.mark.parametrize(("model", "field"), [(Question, "prompt"), (Steering, "text")])
async def test_a_text_that_the_runtime_takes_for_empty_is_refused(model: Any, field: str, words: str) -> None:
    with pytest.raises(DecodeError) as refused:
        await read_json(request_of(json.dumps({field: words}).encode()), model, 1_000)
    assert str(refused.value) == f"{field}: it is empty"


@pytest.mark.parametrize("then", ["silence", "disconnect"])
async def test_a_body_that_does_not_arrive_whole_is_not_read(then: str) -> None:
    with pytest.raises(HTTPException) as refused:
        await read_json(request_of(b'{"prompt":"Hi."}', then=then), Question, 1_000)
    assert refused.value.status_code == {"silence": 408, "disconnect": 400}[then]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [(b'{"prompt":"Hi."}', "text/plain", 415), (b'{"prompt":"' + b"a" * 1_000 + b'"}', "application/json", 413)],
)
async def test_a_form_and_a_body_that_is_too_large_are_refused_by_their_status(
    body: bytes, kind: str, status: int
) -> None:
    with pytest.raises(HTTPException) as refused:
        await read_json(request_of(body, kind), Question, 1_000)
    assert refused.value.status_code == status


@pytest.mark.parametrize(
    ("error", "status", "words", "retry"),
    [
        (Overloaded(0.5, 10, 10), 503, "the server is busy at the moment", "1"),
        (Overloaded(7.2, 10, 10), 503, "the server is busy at the moment", "8"),
        (NotRunning("at secret-host"), 503, "the server is starting or closing", "1"),
        (UnknownRequest("at secret-host"), 404, "there is no such request", None),
        (NotAuthorized("at secret-host"), 403, "you are not allowed to do this", None),
        (ConversationBusy("at secret-host"), 409, "the conversation is busy with its last question", None),
        (InboxFull("at secret-host"), 503, "too much waits for this request", None),
        (StoreUnavailable("at secret-host"), 503, "the store cannot be used at the moment", None),
        (BusError("at secret-host"), 409, "this call does not accept this answer", None),
        (DecodeError("prompt: it is empty"), 400, "prompt: it is empty", None),
        (InvalidHistory(1, "it has no role"), 400, "history[1]: it has no role", None),
        (HTTPException(403, "guests may only read", {"Retry-After": "5"}), 403, "guests may only read", "5"),
    ],
)
async def test_an_error_is_answered_with_its_status_in_words_that_tell_clients_enough(
    error: Exception, status: int, words: str, retry: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    handler = next(exception_handlers[kind] for kind in type(error).__mro__ if kind in exception_handlers)
    response = await handler(request_of(b""), error)
    assert (response.status_code, json.loads(bytes(response.body))) == (status, {"error": words})
    assert (response.headers.get("retry-after"), response.headers["cache-control"]) == (retry, "no-store")
    # What the answer does not say is in the log.
    expected = ["a request over HTTP was refused with 503: at secret-host"] if "secret" in str(error) else []
    assert caplog.messages == (expected if status == 503 else [])
