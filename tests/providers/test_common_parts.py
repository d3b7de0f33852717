"""The parts that the adapters share: their options, their clients, and the reading of errors."""

from __future__ import annotations

import errno
import gc
import os
import ssl
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import anyio
import httpx2
import pytest
from anyio import wait_all_tasks_blocked

from toolbus.errors import ConfigurationError, ProviderRejected, ProviderUnavailable
from toolbus.messages import AssistantMessage, FilePart, Message, TextPart, UserMessage
from toolbus.messages.wire import data_url, split_data_url, storable
from toolbus.providers import OllamaProvider
from toolbus.providers._shared.clients import Clients, make_client
from toolbus.providers._shared.errors import ErrorTranslator, read_body
from toolbus.providers._shared.options import check_limits, secrets_in
from toolbus.providers._shared.reply_parts import ReplyParts
from toolbus.providers._shared.request_parts import named_file, with_extra
from toolbus.providers._shared.unreadable import UnreadableReasoning
from toolbus.providers._shared.wire_text import Characters, WholeObject, count_at

ERRORS = ErrorTranslator(vendor="stub", where="http://stub/v1", hint="look")
SECRETS = {"Authorization": "Bearer a-key", "X-Api-Key": "another-key"}


@pytest.mark.parametrize(("sdk", "kind"), [("openai", "AsyncOpenAI"), ("anthropic", "AsyncAnthropic")])
async def test_a_client_waits_five_seconds_for_a_connection_and_retries_nothing(sdk: str, kind: str) -> None:
    client = make_client(sdk, kind, api_key="k", timeout_seconds=60)
    assert (client.timeout, client.max_retries) == (httpx2.Timeout(60, connect=5), 0)
    await client.close()


async def test_ollama_gets_as_long_for_a_connection_as_other_servers() -> None:
    provider = OllamaProvider("m", timeout_seconds=60)
    client: Any = provider._clients.get()._client  # pyright: ignore[reportPrivateUsage]
    openai = make_client("openai", "AsyncOpenAI", api_key="k", timeout_seconds=60)
    assert client.timeout.as_dict() == openai.timeout.as_dict()
    await openai.close()
    await provider.aclose()


class Client:
    """A client that can be closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_provider_that_was_closed_before_its_first_request_has_a_new_client_for_it() -> None:
    clients = Clients(Client)
    await clients.aclose()
    assert not clients.get().closed
    await clients.aclose()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_client_that_nobody_closes_is_closed_with_its_event_loop(backend: str) -> None:
    """A program may run an event loop for each request, with one provider: `Runtime.run_sync` does."""
    made = WeakSet[Client]()
    closed: list[int] = []

    class Counted(Client):
        def __init__(self) -> None:
            made.add(self)

        async def close(self) -> None:
            closed.append(len(made))

    clients = Clients(Counted)

    async def use() -> None:
        assert clients.get() is clients.get()

    for _ in range(5):
        anyio.run(use, backend=backend)
        gc.collect()
    assert len(closed) == 5
    assert len(made) == 1, "that of the last event loop"


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # trio's, since it was not closed
async def test_the_clients_of_a_provider_that_is_dropped_are_closed() -> None:
    """A program may make a provider for each of its users."""
    clients = Clients(Client)
    client: Client = clients.get()
    del clients
    await wait_all_tasks_blocked()
    assert client.closed


def test_bounds_of_one_are_accepted_and_none_of_zero() -> None:
    check_limits("m", 1, 1)
    assert OllamaProvider("m", context_tokens=1).model == "m"
    with pytest.raises(ConfigurationError, match="max_reply_bytes is 0; it must be a whole number of at least 1"):
        check_limits("m", 1, 0)


def test_only_the_headers_with_keys_and_the_password_in_a_url_are_secrets() -> None:
    headers = {"User-Agent": "an application", **SECRETS}
    assert [*secrets_in("https://user:the-password@host/v1", headers)] == [*SECRETS.values(), "the-password"]
    assert [*secrets_in("https://host/v1", None)] == []


@pytest.mark.parametrize("error", ["", True, 3, [1]])
def test_a_message_beside_an_error_without_words_is_the_servers_message(error: Any) -> None:
    assert read_body({"error": error, "message": "no room"}).text == "no room"


def test_the_message_is_found_in_an_error_within_errors() -> None:
    body: Any = {"message": "no room", "code": "full", "type": "", "details": {"error_code": ["x"]}}
    for _ in range(3):
        body = {"error": body, "message": "an error"}
    found = read_body(body)
    assert (found.text, found.codes) == ("no room", ("full",))


def test_the_message_is_found_in_the_event_of_a_stream_that_was_refused() -> None:
    found = read_body('data: {"error": {"message": "no room", "code": "500"}}\n\ndata: [DONE]\n\n')
    assert (found.text, found.codes) == ("no room", ("500",))


@pytest.mark.parametrize("in_message", [False, True])
def test_the_message_is_found_in_the_answer_of_another_server_that_an_error_quotes(in_message: bool) -> None:
    def named(said: str) -> Any:
        return {"message": said, "type": "an_error", "code": None} if in_message else said

    said = '{"error":{"code":400,"message":"request (5010 tokens) exceeds the window","type":"too_long","n_ctx":4096}}'
    found = read_body({"error": named(said)})  # Ollama's two forms, for an answer of its runner
    assert (found.text, found.codes) == ("request (5010 tokens) exceeds the window", ("400", "too_long"))
    assert found.fields["n_ctx"] == 4096
    for half in ('{"error":{"code":400,"mess', "{}", "{not JSON}"):
        assert read_body({"error": named(half)}).text == half


def test_a_message_is_one_line_without_controls_so_that_a_server_writes_no_lines_of_its_own_into_logs() -> None:
    said = "no room\r\n  WARNING all is well\x1b[2J\u202e\n"
    assert read_body({"error": {"message": said}}).text == "no room WARNING all is well"
    assert read_body("data: {half of an event\n\ndata: [DONE]").text == "data: {half of an event data: [DONE]"
    assert read_body(" " * 9_999 + "no room").text == "n"
    assert read_body("no " * 1_000).text == ("no " * 1_000)[:1_000]


def failed_attempts(*attempts: OSError) -> Exception:
    """The error of a connection that was tried several times, as trio reports it."""
    error = httpx2.ConnectError("all attempts failed")
    error.__cause__ = ExceptionGroup("attempts", attempts)
    return error


def test_a_server_that_cannot_be_reached_has_the_systems_reason_for_the_first_attempt() -> None:
    refused = OSError(errno.EPERM, "Connect call failed")
    for attempts in ((refused,), (refused, OSError(errno.ECONNREFUSED, "another"))):
        error = str(ERRORS.connection(failed_attempts(*attempts)))
        assert error == f"could not reach stub at http://stub/v1 ({os.strerror(errno.EPERM)}): look"


def test_a_certificate_that_is_not_trusted_is_named_and_not_the_systems_error_of_the_same_number() -> None:
    expired = ssl.SSLCertVerificationError(errno.EPERM, "certificate verify failed: certificate has expired")
    assert "(certificate verify failed: certificate has expired)" in str(ERRORS.connection(failed_attempts(expired)))


@pytest.mark.parametrize(
    ("words", "rejected"),
    [
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", True),
        ("image input is not supported by this server", True),
        ("Audio input is not supported - hint: provide the mmproj", True),
        ('Failed to parse messages: Unsupported content part type: "image_url"', True),
        ("this model is missing data required for image input", True),
        ("the image could not be loaded", False),
    ],
)
def test_a_kind_of_input_that_a_model_cannot_read_is_refused_at_once_although_the_status_is_that_of_a_fault(
    words: str, *, rejected: bool
) -> None:
    bodies = {"error": {"code": 500, "message": words, "type": "server_error"}}, {"error": words}
    for error in (*(ERRORS.status(500, {}, each) for each in bodies), *map(ERRORS.in_stream, bodies)):
        assert type(error) is (ProviderRejected if rejected else ProviderUnavailable)
        assert error.retryable is not rejected
        assert words in str(error)


def test_the_wait_that_a_server_asks_for_is_in_its_error_which_may_be_final_because_of_it() -> None:
    assert str(ERRORS.status(429, {"retry-after": "3600"}, {})).endswith("; it asks to wait 3600 s")
    assert "wait" not in str(ERRORS.status(429, {"retry-after": "0"}, {}))


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["{", "}"], [False, True]),
        (["{}", " ", "}"], [True, True, False]),
        (["{}", "x", " "], [True, False, False]),
        (["[", "]", "{}"], [False, False, False]),
        (['{"a', "}\\", '"', '"', ":1}"], [False, False, False, False, True]),
        (['{"a}\\', '""', ":1}"], [False, False, True]),
    ],
)
def test_pieces_are_an_object_until_more_than_space_follows(pieces: list[str], whole: list[bool]) -> None:
    test = WholeObject()
    assert [test.is_whole(pieces[: count + 1]) for count in range(len(pieces))] == whole
    assert WholeObject().is_whole(pieces) == whole[-1]


def test_half_a_character_is_a_mark_only_as_long_as_its_other_half_is_missing() -> None:
    text = Characters()
    assert [text.add(each) for each in ("a\ud83d", "\ude00")] == ["a", "\U0001f600"]
    text.add("\ud83d")
    assert [text.whole(), text.whole()] == ["a\U0001f600\ufffd"] * 2
    text.add("\ude00")
    assert text.whole() == "a\U0001f600\U0001f600"


@pytest.mark.parametrize(
    ("media_type", "name", "sent"),
    [
        ("application/pdf", "", "file.pdf"),
        ("text/csv; charset=utf-8", "", "file.csv"),
        ("application/x-unheard-of", "", "file"),
        ("application/pdf", "a.pdf", "a.pdf"),
        ("audio/wav", "", ""),
    ],
)
def test_a_file_in_a_message_has_a_name_unless_it_is_audio(media_type: str, name: str, sent: str) -> None:
    part = named_file(FilePart(url=data_url(media_type, "AA=="), media_type=media_type, name=name))
    assert isinstance(part, FilePart)
    assert part.name == sent
    elsewhere = FilePart(url="https://a/b.pdf", media_type="application/pdf")
    assert (named_file(elsewhere), named_file(TextPart(text="a"))) == (elsewhere, TextPart(text="a"))


def test_extra_fields_replace_those_of_the_body_and_one_of_them_may_be_merged() -> None:
    body = {"model": "m", "options": {"a": 1, "b": 2}}
    assert with_extra(body, None) == body
    extra = {"model": "n", "options": {"b": 3}}
    assert with_extra(body, extra) == extra
    assert with_extra(body, extra, "options") == {"model": "n", "options": {"a": 1, "b": 3}}
    assert with_extra(body, {"options": None}, "options") == {"model": "m", "options": None}
    assert with_extra({"model": "m"}, extra, "options") == extra


def thought(text: str) -> AssistantMessage:
    item = {"type": "reasoning", "encrypted_content": text}
    return AssistantMessage(text="Hi.", vendor_data={"openai": {"responses": [item]}, "other": {"a": 1}})


@pytest.mark.parametrize(
    ("data", "has_reasoning"),
    [
        ({"responses": [{"type": "reasoning", "id": "x"}]}, True),
        ({"responses": [{"type": "message", "id": "x"}]}, False),
        ({"content": [{"type": "thinking", "signature": "x"}]}, True),
        ({"content": [{"type": "redacted_thinking", "data": "x"}]}, True),
        ({"content": [{"type": "thinking", "thinking": "x"}]}, False),
        ({"content": [{"type": "text", "signature": "x", "data": "x"}]}, False),
    ],
)
def test_reasoning_is_known_in_the_form_of_each_vendor(data: dict[str, Any], has_reasoning: bool) -> None:
    error = ProviderRejected("Invalid `signature` in `thinking` block", vendor="v", status=400)
    refused, message = UnreadableReasoning("v"), AssistantMessage(text="Hi.", vendor_data={"v": data})
    assert refused.classified([message], error).retryable is has_reasoning
    assert (refused.left_out([message])[0] is message) is not has_reasoning


def test_reasoning_that_was_refused_is_left_out_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ProviderRejected("The encrypted content x could not be verified.", vendor="openai", status=400)
    refused, first, second, newer = UnreadableReasoning("openai"), thought("1"), thought("2"), thought("3")
    messages: list[Message] = [UserMessage(content="Hi?"), first, second]
    assert refused.left_out(messages) is messages
    assert refused.classified(messages[:1], error) is error, "there was no reasoning"
    other = ProviderRejected("no", vendor="openai", status=400)
    assert refused.classified(messages, other) is other
    again = refused.classified(messages[:2], error)
    assert isinstance(again, ProviderUnavailable)
    assert (again.retryable, again.status, "without that reasoning" in str(again)) == (True, 400, True)
    user, left, kept = refused.left_out(messages)
    assert (user, kept) == (messages[0], second)
    assert left == AssistantMessage(
        text="Hi.", vendor_data={"openai": {}, "other": {"a": 1}}, message_id=left.message_id
    )
    refused.classified(messages[2:], error)
    assert [each.vendor_data for each in refused.left_out([first, second]) if isinstance(each, AssistantMessage)] == [
        {"openai": {}, "other": {"a": 1}}
    ] * 2
    monkeypatch.setattr("toolbus.providers._shared.unreadable._MAX_HASHES", 1)
    refused.classified([newer], error)
    assert [each is before for each, before in zip(refused.left_out([first, newer]), [first, newer], strict=True)] == [
        True,
        False,
    ]


def test_integers_that_have_no_room_in_a_store_become_floats_and_no_others() -> None:
    given = {"n": [2**64, 2**64 - 1, -(2**63), -(2**63) - 1]}
    assert [type(each) for each in storable(0, given)["n"]] == [float, int, int, float]
    assert storable(0, given)["n"][1:3] == [2**64 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("given", "count"),
    [(1, 1), (0, 0), (-1, 0), (2**53 - 1, 2**53 - 1), (2**53, 0), (1.5, 0), (2.0, 0), (True, 0), (False, 0)],
)
def test_a_count_of_tokens_is_a_positive_integer_small_enough_that_a_store_has_room_for_a_sum_of_them(
    given: Any, count: int
) -> None:
    found = count_at({"tokens": given}, "tokens")
    assert (found, type(found)) == (count, int)
    assert count_at(given, "tokens") == 0


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("data:image/svg+xml,%3C", ("image/svg+xml", "PA==")),
        ("data:,a", ("text/plain", "YQ==")),
        ("data:;base64,YQ==", ("text/plain", "YQ==")),
        ("data:image/png;base64,YQ==", ("image/png", "YQ==")),
        ("https://a/b,c", None),
    ],
)
def test_a_data_url_is_split_into_its_type_and_base64(url: str, parts: Any) -> None:
    assert split_data_url(url) == parts


@pytest.mark.parametrize(("given", "named"), [("m-2026", "m-2026"), ("", "m"), (None, "m"), (7, "m"), ({"m": 1}, "m")])
def test_a_reply_names_its_model_only_by_a_text(given: object, named: str) -> None:
    parts: Any = SimpleNamespace(_model="m")
    ReplyParts._name_model(parts, {"model": given})  # pyright: ignore[reportPrivateUsage]
    ReplyParts._name_model(parts, {})  # pyright: ignore[reportPrivateUsage]
    assert parts._model == named
