"""The connection to a server that refuses, fails or does not answer, and its deliveries, over a driver that a test sets.

Over a real server: `test_nats`.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import anyio
import orjson
import pytest
from nats.js import errors

from toolbus.errors import ConfigurationError, MissingExtra
from toolbus.remote import nats as over_nats
from toolbus.remote._nats_connection import Broker, Connection, _in_time, decoded, encoded
from toolbus.remote._transport import Full, NotTaken, Unavailable
from toolbus.testing import advance, settle, virtual_backends

anyio_backend = virtual_backends("asyncio")  # nats-py works on asyncio only


def refused(code: int, words: str = "it was refused") -> Exception:
    return errors.APIError(code=400, err_code=code, description=words)


class Driver:
    """A client and its streams. Each call raises `trouble`; `answer` is the answer to a request."""

    is_connected = True
    max_payload = 1_000

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.answer: dict[str, Any] = {}
        self.data: bytes | None = b"kept"
        self.did: list[str] = []
        self.reply = ""
        self.body = b""
        self.heard: Callable[[Any], Any] | None = None
        self.get_msg: Any = None
        self.configs: list[Any] = []

    def _do(self, what: str) -> None:
        self.did.append(what)
        if self.trouble is not None:
            raise self.trouble

    async def connect(self, *_: Any, **options: Any) -> None:
        self.reports, self.came_back = options["error_cb"], options["reconnected_cb"]

    def jetstream(self, **_: Any) -> Driver:
        return self

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, subject: str, cb: Any) -> None:
        assert subject == "inbox.*"
        self.heard = cb

    async def add_stream(self, config: Any) -> SimpleNamespace:
        self.configs.append(config)
        self._do(f"stream {config.name}")
        return SimpleNamespace(created=datetime.fromtimestamp(0, UTC))

    async def publish(self, subject: str, body: bytes, reply: str = "", _headers: Any = None) -> None:
        self.body, self.reply = body, reply
        self._do(f"publish {subject}")

    async def request(self, _subject: str, _body: bytes, **_: Any) -> Any:
        self._do("request")
        return SimpleNamespace(data=orjson.dumps(self.answer))

    async def get_last_msg(self, _stream: str, _subject: str) -> Any:
        self._do("last")
        return SimpleNamespace(data=self.data)

    async def purge_stream(self, _stream: str, *, subject: str) -> None:
        self._do(f"purge {subject}")

    async def flush(self, _seconds: float) -> None:
        self._do("flush")

    async def close(self) -> None:
        self._do("close")

    async def acknowledge(self, data: bytes) -> None:
        """Let the server answer the last message."""
        assert self.heard is not None
        await self.heard(SimpleNamespace(subject=self.reply, data=data))


async def opened(driver: Driver) -> Connection:
    broker = Broker("nats://server:4222", "toolbus", "gpu")
    broker.nats = SimpleNamespace(NATS=lambda: driver, js=broker.nats.js)
    connection = Connection(broker)
    await connection.open(with_streams=True)
    return connection


def test_an_address_that_is_no_url_is_refused_and_what_is_shown_of_one_has_no_login() -> None:
    with pytest.raises(ConfigurationError, match=r"the URL of the NATS server cannot be read: .*'port'"):
        Broker("nats://server:port", "toolbus", "gpu")
    for url, shown in (("nats://ann:pass@server:4222", "nats://server:4222"), ("tls://server", "tls://server")):
        assert Broker(url, "toolbus", "gpu").shown == shown


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolbus\[nats\]'"):
        Broker("nats://server", "toolbus", "gpu")


@pytest.mark.parametrize("failing", ["tell", "publish", "purge", "keep", "drop"])
async def test_a_server_that_fails_at_what_a_worker_needs_is_refused_when_it_is_checked(failing: str) -> None:
    does = {name: AsyncMock() for name in ("tell", "publish", "purge", "keep", "drop")}
    connection = Mock(violations=[], **does)
    link = over_nats._WorkerLink(Broker("nats://server", "toolbus", "gpu"), connection, 60.0)
    link.payloads = connection
    await link.check()
    does[failing].side_effect = Unavailable("no space left")
    with pytest.raises(ConfigurationError, match="does not do what a worker needs: no space left"):
        await link.check()
    connection.violations.append("publish to x")
    with pytest.raises(ConfigurationError, match="the account at nats://server has no permission for publish to x"):
        await link.check()


async def test_a_server_that_cannot_be_used_is_refused_with_what_to_do() -> None:
    driver = Driver()
    for trouble, is_connected, words in (
        (refused(10058), True, "toolbus_calls at nats://server:4222 has other settings than toolbus needs"),
        (refused(1, "no space"), True, "no space.*; it must run with JetStream"),
        (refused(1, "no space"), False, "no space[^;]*$"),
    ):
        driver.trouble, driver.is_connected = trouble, is_connected  # type: ignore[misc]
        with pytest.raises(ConfigurationError, match=words):
            await opened(driver)


async def test_a_refusal_is_the_reason_although_the_connection_is_reset_after_it() -> None:
    class Refusing(Driver):
        is_connected = False

        async def connect(self, *_: Any, **options: Any) -> None:
            await options["error_cb"](ConnectionError("nats: 'Authorization Violation'"))
            await options["error_cb"](ConnectionResetError("reset by peer"))
            raise TimeoutError

    with pytest.raises(ConfigurationError, match="Authorization Violation"):
        await opened(Refusing())


async def test_an_attempt_to_connect_that_ignores_a_cancellation_is_ended_all_the_same() -> None:
    cancelled: list[bool] = []

    async def connect() -> None:
        while len(cancelled) < 3:
            try:
                await anyio.sleep_forever()
            except BaseException:
                cancelled.append(True)
        raise ConnectionError

    with pytest.raises(TimeoutError):
        await _in_time(connect())
    assert (len(cancelled), anyio.current_time()) == (3, pytest.approx(5 + 2 * 0.2))


async def test_streams_take_one_message_of_each_subject_for_a_week_and_calls_are_gone_once_they_are_done() -> None:
    driver = Driver()
    await opened(driver)
    for each in driver.configs:
        about = (each.max_msgs_per_subject, each.discard.value, each.discard_new_per_subject, each.max_age)
        assert about == (1, "new", True, 7 * 86_400)
    assert [each.retention for each in driver.configs] == ["workqueue", None]


async def test_a_message_is_answered_by_its_own_acknowledgement() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    for data in (
        b'{"stream":"s","seq":1}',
        b'{"error":{"description":"maximum messages per subject exceeded"}}',
        b'{"error":{"err_code":10023,"description":"insufficient resources"}}',
        b'{"error":{"err_code":7}}',
        b"no JSON",
        b"[]",
        b"",
    ):
        await connection.post("subject", b"body", None, outcomes.append)
        await driver.acknowledge(data)
        await driver.acknowledge(data)  # No message waits for the second one.
    assert outcomes[:2] == [True, False]
    assert [type(each) for each in outcomes[2:]] == [Full, NotTaken, Unavailable, Unavailable, NotTaken]
    assert "it was refused" in str(outcomes[3])
    assert "no stream takes the message" in str(outcomes[-1])


async def test_a_message_that_is_not_acknowledged_in_time_or_not_sent_is_reported_once() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    await connection.post("subject", b"body", None, outcomes.append)
    await advance(1.9)
    assert outcomes == []
    await advance(0.2)
    assert "did not acknowledge a message in time" in str(outcomes[0])
    await driver.acknowledge(b"{}")
    driver.trouble = ConnectionError("the buffer is full")
    await connection.post("subject", b"body", None, outcomes.append)
    assert "the buffer is full" in str(outcomes[1])
    await advance(5)
    assert len(outcomes) == 2


async def test_after_the_connection_is_closed_no_outcome_is_reported() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    await connection.post("subject", b"body", None, outcomes.append)
    driver.trouble = ConnectionError("it is gone")
    await connection.close()
    await advance(5)
    assert (outcomes, driver.did[-2:]) == ([], ["flush", "close"])


async def test_streams_that_the_server_has_lost_are_made_again_before_the_next_message() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    await connection.post("one", b"body", None, outcomes.append)
    await driver.acknowledge(b"")
    for number, trouble in enumerate((ConnectionError("away"), None, None)):
        driver.did.clear()
        driver.trouble = trouble
        await connection.post(f"{number}", b"body", None, outcomes.append)
        await settle()
        expected = {0: ["stream toolbus_calls"], 1: ["stream toolbus_calls", "stream toolbus_answers"], 2: []}[number]
        assert driver.did == [*expected, f"publish {number}"]
    driver.trouble = ConnectionError("away")
    with pytest.raises(Unavailable, match=r"nats://server:4222: away"):
        await connection.restore()


async def test_a_message_whose_time_is_over_before_the_streams_are_made_again_is_not_sent() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    await connection.post("one", b"body", None, outcomes.append)
    await driver.acknowledge(b"")
    driver.add_stream = hang  # type: ignore[method-assign]
    await connection.post("two", b"body", None, outcomes.append)
    await advance(2.1)
    assert "did not acknowledge a message in time" in str(outcomes[1])
    assert (len(outcomes), driver.did[-1]) == (2, "publish one")


async def test_messages_do_not_wait_for_one_that_waits_for_its_streams() -> None:
    driver = Driver()
    connection = await opened(driver)
    outcomes: list[Any] = []
    await connection.post("one", b"body", None, outcomes.append)
    await driver.acknowledge(b"")
    add_stream, driver.add_stream = driver.add_stream, hang  # type: ignore[method-assign]
    with anyio.fail_after(0.1):
        await connection.post("two", b"body", None, outcomes.append, 1.0)
        await connection.post("three", b"body", None, outcomes.append, 1.5)
    await advance(0.9)
    driver.add_stream = add_stream  # type: ignore[method-assign]
    await advance(0.2)
    assert (len(outcomes), driver.did[-1]) == (2, "publish three")
    await driver.acknowledge(b"{}")
    assert outcomes[-1] is True
    driver.add_stream = hang  # type: ignore[method-assign]
    await connection.post("four", b"body", None, outcomes.append)
    await driver.acknowledge(b"")
    tasks = len(asyncio.all_tasks())
    await connection.post("five", b"body", None, outcomes.append)
    await settle()
    assert len(asyncio.all_tasks()) == tasks + 1
    await connection.close()
    await settle()
    assert (len(outcomes), len(asyncio.all_tasks())) == (4, tasks)


async def hang(_config: Any) -> SimpleNamespace:
    await anyio.sleep_forever()
    raise AssertionError


async def test_an_error_of_the_driver_means_that_the_server_is_unavailable_full_or_has_nothing() -> None:
    driver = Driver()
    connection = await opened(driver)
    config = SimpleNamespace(name="parts", as_dict=dict)

    async def outcomes_of(connection: Connection) -> list[Any]:
        found: list[Any] = []
        for ask in (
            lambda: connection.last("s", "subject"),
            lambda: connection.purge("s", "subject"),
            lambda: connection.add_stream(config),
            lambda: connection.tell("subject", b"body"),
        ):
            try:
                found.append(await ask())  # type: ignore[func-returns-value]
            except Unavailable as exc:
                found.append(type(exc))
        return found

    assert await outcomes_of(connection) == [b"kept", None, None, None]
    driver.data = None
    assert await connection.last("s", "subject") == b""
    for trouble, expected in (
        (ConnectionError("away"), [Unavailable] * 4),
        (errors.NotFoundError(code=404, err_code=1), [None, None, NotTaken, Unavailable]),
        (refused(10058), [Unavailable, Unavailable, None, Unavailable]),
        (refused(10047), [Unavailable, Unavailable, Full, Unavailable]),
    ):
        driver.trouble = trouble
        assert await outcomes_of(connection) == expected


@pytest.mark.parametrize(("words", "shown"), [("no space", "no space"), ("", "the stream was refused")])
async def test_a_stream_that_is_refused_is_reported_with_the_servers_words_if_it_has_any(
    words: str, shown: str
) -> None:
    driver = Driver()
    connection = await opened(driver)
    driver.trouble = refused(1, words)
    with pytest.raises(NotTaken, match=f": {shown}$"):
        await connection.add_stream(SimpleNamespace(name="parts", as_dict=dict))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (None, None, ""),
        ({"err_code": 10148}, ConfigurationError, "have another lease; .* delete the consumer pool_gpu"),
        ({"err_code": 1, "description": "no such stream"}, ConnectionError, "no such stream"),
        ({"err_code": 1}, ConnectionError, "the consumer was refused"),
    ],
)
async def test_a_consumer_that_exists_with_another_lease_is_left_alone(
    error: Any, kind: type[Exception] | None, words: str
) -> None:
    driver = Driver()
    connection = await opened(driver)
    driver.answer = {} if error is None else {"error": error}
    config = SimpleNamespace(as_dict=dict)
    if kind is None:
        await connection.add_consumer(config)
        return
    with pytest.raises(kind, match=words):
        await connection.add_consumer(config)


async def test_a_lacking_permission_is_logged_once_and_a_refusal_is_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver()
    connection = await opened(driver)
    for words in ('permissions violation for publish to "x"', 'permissions violation for publish to "x"', "odd"):
        await driver.reports(ConnectionError(words))
    assert connection.violations == ['publish to "x"']
    assert len(caplog.records) == 1
    assert (connection.trouble, connection.refusal) == ("odd", "")
    await driver.reports(ConnectionError("Authorization Violation"))
    await driver.reports(ConnectionError())
    assert (connection.trouble, connection.refusal) == ("ConnectionError", "Authorization Violation")
    again: list[None] = []
    connection.reconnected = lambda: again.append(None)
    await driver.came_back()
    await settle()
    assert again == [None]


def message(headers: dict[str, str] | None = None, *, delivered: int = 1, key: str = "r.c") -> Any:
    async def asked(**_: Any) -> None:
        raise ConnectionError("away")

    metadata = SimpleNamespace(num_delivered=delivered, sequence=SimpleNamespace(stream=7))
    return SimpleNamespace(
        subject=f"toolbus.call.gpu.{key}",
        data=b"body",
        headers=headers,
        metadata=metadata,
        in_progress=asked,
        ack=asked,
        nak=asked,
    )


async def delivered(driver: Driver, given: Any) -> Any:
    connection = await opened(driver)
    return over_nats._Delivery(cast("Any", SimpleNamespace(connection=connection)), connection.broker, given)


async def test_a_delivery_has_what_its_message_says() -> None:
    plain = await delivered(Driver(), message())
    assert (plain.key, plain.body, plain.node, plain.remaining_seconds) == (("r", "c"), b"body", "=", 0.0)
    assert (plain.attempt, plain.is_again) == (1, False)
    headers = {"Toolbus-Node": "n" * 99, "Toolbus-Remaining-Seconds": "12.5", "Toolbus-Again": "1"}
    full = await delivered(Driver(), message(headers, key="=ff.a=20b.c"))
    assert (full.key[1], len(full.node), full.remaining_seconds, full.is_again) == ("a b.c", 64, 12.5, True)
    forged = await delivered(Driver(), message({"Toolbus-Remaining-Seconds": "soon"}, delivered=2))
    assert (forged.remaining_seconds, forged.attempt, forged.is_again) == (0.0, 2, True)


async def test_a_request_for_calls_stands_at_the_server_for_a_second() -> None:
    driver = Driver()
    calls = over_nats._Calls(await opened(driver), "next")
    calls._inbox = "inbox"
    await calls._ask(5)
    assert orjson.loads(driver.body) == {"batch": 5, "expires": 10**9}


async def test_a_worker_reports_what_becomes_of_a_delivery() -> None:
    reported = list[str]()

    async def report(what: str, **_options: float) -> None:
        reported.append(what)

    given = message()
    for each in ("in_progress", "ack", "nak"):
        setattr(given, each, partial(report, each))
    found = await delivered(Driver(), given)
    for each in (found.renew, found.done, found.give_back):
        await each()
    assert reported == ["in_progress", "ack", "nak"]


async def test_a_server_that_takes_nothing_about_a_delivery_is_unavailable() -> None:
    found = await delivered(Driver(), message())
    for ask in (found.renew, found.done, found.give_back):
        with pytest.raises(Unavailable, match="away"):
            await ask()


@pytest.mark.parametrize(
    ("is_first", "mark", "call", "expected"),
    [
        (True, b"", None, "mine"),
        (True, b"", errors.NotFoundError(code=404, err_code=1), "settled"),
        (True, b"", ConnectionError("away"), Unavailable),
        (False, None, None, "settled"),
        (False, b"another", None, "taken"),
        (False, b"own", None, "mine"),
    ],
)
async def test_a_call_is_begun_once(is_first: bool, mark: bytes | None, call: Exception | None, expected: Any) -> None:
    driver = Driver()
    found = await delivered(driver, message())
    connection = found._link.connection

    async def publish(_subject: str, body: bytes) -> bool:
        driver.data = body if mark == b"own" else mark
        return is_first

    async def last(_stream: str, _subject: str) -> bytes | None:
        return driver.data

    async def get_msg(_stream: str, sequence: int) -> None:
        assert sequence == 7
        if call is not None:
            raise call

    connection.publish, connection.last, driver.get_msg = publish, last, get_msg
    if isinstance(expected, str):
        assert await found.begin() == expected
    else:
        with pytest.raises(expected):
            await found.begin()
    assert ("purge toolbus.begun.gpu.r.c" in driver.did) == (is_first and expected == "settled")


@pytest.mark.parametrize(
    ("text", "token"),
    [("", "="), ("a_B-9", "a_B-9"), ("a.b c", "a=2eb=20c"), ("=", "=3d"), ("é", "=c3=a9"), ("\ud800", "=ed=a0=80")],
)
def test_a_subject_has_a_token_for_each_text(text: str, token: str) -> None:
    assert (encoded(text), decoded(token)) == (token, text)


def test_a_token_that_stands_for_no_text_is_read_with_marks() -> None:
    assert decoded("a=ff=e9") == "a\ufffd\ufffd"
