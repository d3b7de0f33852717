"""The parts that the adapters share: their options, their clients, and the reading of errors."""

from __future__ import annotations

import errno
import os
from typing import Any

import httpx2
import pytest

from toolbus.errors import ConfigurationError
from toolbus.providers import OllamaProvider
from toolbus.providers._shared.clients import Clients, make_client
from toolbus.providers._shared.errors import ErrorTranslator, read_body
from toolbus.providers._shared.options import check_limits, secrets_in
from toolbus.providers._shared.wire_text import Characters, WholeObject

ERRORS = ErrorTranslator(vendor="stub", where="http://stub/v1", hint="look")
SECRETS = {"Authorization": "Bearer a-key", "X-Api-Key": "another-key"}


@pytest.mark.parametrize(("sdk", "kind"), [("openai", "AsyncOpenAI"), ("anthropic", "AsyncAnthropic")])
async def test_a_client_waits_five_seconds_for_a_connection_and_retries_nothing(sdk: str, kind: str) -> None:
    client = make_client(sdk, kind, api_key="k", timeout_seconds=60)
    assert (client.timeout, client.max_retries) == (httpx2.Timeout(60, connect=5), 0)
    await client.close()


class Client:
    """A client that can be closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_provider_that_was_closed_before_its_first_request_has_a_new_client_for_it() -> None:
    clients = Clients(Client)
    await clients.aclose()
    assert not clients.get().closed


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
    body: Any = {"message": "no room", "code": "full"}
    for _ in range(3):
        body = {"error": body, "message": "an error"}
    found = read_body(body)
    assert (found.text, found.codes) == ("no room", ("full",))


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


def test_half_a_character_is_a_mark_only_as_long_as_its_other_half_is_missing() -> None:
    text = Characters()
    assert [text.add(each) for each in ("a\ud83d", "\ude00")] == ["a", "\U0001f600"]
    text.add("\ud83d")
    assert [text.whole(), text.whole()] == ["a\U0001f600\ufffd"] * 2
    text.add("\ude00")
    assert text.whole() == "a\U0001f600\U0001f600"
