"""One connection to a NATS server: its streams, its errors, and messages that it acknowledges. Needs asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import orjson

from ..errors import ConfigurationError, MissingExtra
from ._transport import Full, Key, NotTaken, Then, Unavailable

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_CANCELLATIONS = 5  # of an attempt to connect
_RECONNECT_SECONDS = 0.2
KEPT_SECONDS = 7 * 24 * 3_600.0
"""The time for which an answer is kept if no session deletes it. After that, a second answer would be accepted."""
_HEADERS_BYTES = 4_096  # the broker's bound covers headers too
_MAX_SUBJECT_CHARS = 3_000  # characters; a line has at most 4,096, with the subject of the acknowledgement
_EXISTS_OTHERWISE = 10058
_OTHER_CONSUMER = 10148
_NOT_STORED = 10077  # the code for several reasons, which only the text tells apart
_NOT_FIRST = "maximum messages per subject exceeded"
_FULL = frozenset({10023, 10047, _NOT_STORED})
_VIOLATION = "permissions violation for "
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_logger = logging.getLogger("toolbus.remote")


class Broker:
    """The address of a server, and the names of the streams and subjects of one pool."""

    def __init__(self, url: str, prefix: str, pool: str) -> None:
        try:
            import nats  # noqa: PLC0415 -- an optional dependency
        except ImportError as exc:
            raise MissingExtra("nats", "nats-py") from exc
        if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix):
            raise ConfigurationError(f"prefix is {prefix!r}; use letters, digits, '_' and '-'")
        self.nats: Any = nats
        self.url, self.prefix, self.pool = url, prefix, encoded(pool)
        self.calls, self.answers, self.parts = f"{prefix}_calls", f"{prefix}_answers", f"{prefix}_parts"
        self.stops, self.consumer = f"{prefix}.stop.{self.pool}", f"pool_{self.pool}"
        try:
            parts = urlsplit(url)
            self.shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        except ValueError as exc:
            raise ConfigurationError(f"the URL of the NATS server cannot be read: {exc}") from exc

    def subject(self, kind: str, key: Key) -> str:
        return f"{self.prefix}.{kind}.{self.pool}.{encoded(key[0])}.{encoded(key[1])}"

    def carries(self, key: Key) -> bool:
        """Return whether the ids of a call fit into subjects. The server ends a connection with a longer line."""
        return len(self.subject("begun", key)) <= _MAX_SUBJECT_CHARS

    def subjects(self, kind: str, request_id: str) -> str:
        return f"{self.prefix}.{kind}.{self.pool}.{encoded(request_id)}.*"

    def node(self, node: str) -> str:
        return f"{self.prefix}.node.{self.pool}.{node}"

    def worker(self, worker: str) -> str:
        return f"{self.prefix}.worker.{self.pool}.{encoded(worker)}"

    def relay(self, address: str) -> str:
        return f"{self.prefix}.relay.{encoded(address)}"

    @asynccontextmanager
    async def connected(self, *, with_streams: bool = True, reports: bool = True) -> AsyncGenerator[Connection]:
        """A connection, by default with the streams in place, closed at the end even while the host is cancelled.

        With `reports`, the log says when it is lost, and when it is back.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError as exc:
            raise ConfigurationError("toolbus.remote.nats needs asyncio: nats-py does not work on trio") from exc
        connection = Connection(self)
        try:
            await connection.open(with_streams=with_streams)
            connection.reports = reports
            yield connection
        finally:
            connection.reports = False
            with anyio.move_on_after(_CONNECT_SECONDS, shield=True):
                await connection.close()


class Connection:
    """One connection to the server. `ask` translates the driver's errors."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.trouble = ""
        self.refusal = ""  # the reason why the server refuses this client, which a reset connection may follow
        self.violations: list[str] = []
        self.reconnected: Callable[[], None] = lambda: None
        self.reports = False
        self.client: Any = None
        self.stream: Any = None
        self.kept_since = -math.inf  # the time at which the younger of the two streams was made
        self._lacks_streams = False  # true if the server had no stream for a message
        self._acknowledgements = ""  # the prefix of the subjects on which the server acknowledges messages
        self._waits: dict[str, tuple[Then, asyncio.TimerHandle]] = {}
        self._restoring = asyncio.Lock()
        self._tasks: set[asyncio.Future[None]] = set()
        self._count = 0

    async def open(self, *, with_streams: bool) -> None:
        async def on_error(exc: Exception) -> None:
            self.trouble = str(exc) or type(exc).__name__
            if "authorization" in self.trouble.lower():
                self.refusal = self.trouble
            _, found, violation = self.trouble.partition(_VIOLATION)
            if found and violation not in self.violations:
                self.violations.append(violation)
                _logger.warning("the account at %s has no permission for %s", broker.shown, violation)

        broker = self.broker
        self.client = broker.nats.NATS()
        try:
            connecting = self.client.connect(
                broker.url,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_SECONDS,
                connect_timeout=_CONNECT_SECONDS,
                error_cb=on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
            )
            await _in_time(connecting)
            async with asyncio.timeout(_CONNECT_SECONDS):
                self.stream = self.client.jetstream(timeout=_CONNECT_SECONDS)
                if not with_streams:
                    return
                await self._make_streams()
                self._acknowledgements = f"{self.client.new_inbox()}."
                await self.client.subscribe(f"{self._acknowledgements}*", cb=self._on_acknowledged)
        except ConfigurationError:
            raise
        except Exception as exc:
            why = self.refusal or self.trouble or str(exc) or "no answer"
            if self.client.is_connected and not self.trouble:
                why += "; it must run with JetStream (nats-server -js)"
            raise ConfigurationError(f"the NATS server at {broker.shown} cannot be used: {why}") from exc

    async def _on_disconnected(self) -> None:
        if self.reports:
            text = "the connection to the broker at %s is lost: calls, answers and what it relays wait for it"
            _logger.warning(text, self.broker.shown)

    async def _on_reconnected(self) -> None:
        if self.reports:
            _logger.info("the connection to the broker at %s is back", self.broker.shown)
        self.reconnected()

    async def _make_streams(self) -> None:
        api, broker = self.broker.nats.js.api, self.broker
        for config in (
            api.StreamConfig(
                name=broker.calls,
                subjects=[f"{broker.prefix}.call.>"],
                retention=api.RetentionPolicy.WORK_QUEUE,
                max_msgs_per_subject=1,
                discard=api.DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_age=KEPT_SECONDS,
            ),
            api.StreamConfig(
                name=broker.answers,
                subjects=[f"{broker.prefix}.done.>", f"{broker.prefix}.begun.>"],
                max_msgs_per_subject=1,
                discard=api.DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_age=KEPT_SECONDS,
            ),
        ):
            try:
                made = await self.stream.add_stream(config)
                self.kept_since = max(self.kept_since, made.created.timestamp())
            except broker.nats.js.errors.APIError as exc:
                if exc.err_code != _EXISTS_OTHERWISE:
                    raise
                raise ConfigurationError(
                    f"the stream {config.name} at {broker.shown} has other settings than toolbus needs; "
                    "delete it, or pass another prefix"
                ) from exc

    async def restore(self) -> None:
        """Make the streams again that a server has lost, such as one without a disk. Raises `Unavailable`."""
        try:
            await self._make_streams()
        except Exception as exc:
            raise self.unavailable(exc) from exc
        self._lacks_streams = False

    async def close(self) -> None:
        if self.client is not None:
            with suppress(Exception):
                await self.client.flush(1)
            with suppress(Exception):
                await self.client.close()
        for _, timer in self._waits.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def post(
        self,
        subject: str,
        body: bytes,
        headers: dict[str, str] | None,
        then: Then,
        seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """Write a message to a stream. `then` learns whether it is the first one of its subject.

        The driver's own `publish` costs as much as all the rest of a call: it makes a task for each message.
        """
        self._count += 1
        token = str(self._count)
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, token)
        self._waits[token] = then, timer
        if self._lacks_streams:  # The messages after this one do not wait for the streams.
            self._start(self._restore_and_write(token, subject, body, headers, seconds))
        else:
            await self._write(token, subject, body, headers)

    async def _restore_and_write(
        self, token: str, subject: str, body: bytes, headers: dict[str, str] | None, seconds: float
    ) -> None:
        with suppress(Unavailable), anyio.move_on_after(seconds):
            async with self._restoring:
                if self._lacks_streams:
                    await self.restore()
        if token in self._waits:
            await self._write(token, subject, body, headers)

    async def _write(self, token: str, subject: str, body: bytes, headers: dict[str, str] | None) -> None:
        try:
            await self.client.publish(subject, body, self._acknowledgements + token, headers)
        except Exception as exc:
            self._settle(token, exc)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on_acknowledged(self, message: Any) -> None:
        token = message.subject[len(self._acknowledgements) :]
        if not message.data:
            self._lacks_streams = True
            self._settle(token, NotTaken(f"{self.broker.shown}: no stream takes the message"))
            return
        try:
            error = orjson.loads(message.data).get("error")
        except (ValueError, AttributeError) as exc:
            self._settle(token, exc)
            return
        if error is None or error.get("description") == _NOT_FIRST:
            self._settle(token, error is None)
        else:
            self._settle(token, self._refused(error.get("err_code"), error.get("description", "it was refused")))

    def _refused(self, code: object, why: str) -> Unavailable:
        kind = Full if code in _FULL else NotTaken
        return kind(f"{self.broker.shown}: {why}")

    def _expire(self, token: str) -> None:
        async def settle() -> None:
            self._settle(token, TimeoutError("the server did not acknowledge a message in time"))

        # `then` may start tasks, which anyio allows to tasks only.
        self._start(settle())

    def _settle(self, token: str, outcome: bool | Exception) -> None:  # noqa: FBT001 -- `Then`
        then, timer = self._waits.pop(token, (None, None))
        if then is not None and timer is not None:
            timer.cancel()
            if isinstance(outcome, Exception) and not isinstance(outcome, Unavailable):
                outcome = self.unavailable(outcome)
            then(outcome)

    async def publish(self, subject: str, body: bytes) -> bool:
        """Publish to a stream. Returns whether the message is the first one of its subject."""
        answer: asyncio.Future[bool | Unavailable] = asyncio.get_running_loop().create_future()

        def then(outcome: bool | Unavailable) -> None:  # noqa: FBT001 -- `Then`
            if not answer.done():
                answer.set_result(outcome)

        await self.post(subject, body, None, then)
        outcome = await answer
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome

    async def last(self, stream: str, subject: str) -> bytes | None:
        try:
            found = await self.stream.get_last_msg(stream, subject)
        except self.broker.nats.js.errors.NotFoundError:
            return None
        except Exception as exc:
            raise self.unavailable(exc) from exc
        return found.data or b""

    async def add_stream(self, config: Any) -> None:
        """Make a stream. One that exists may have other bounds. Raises `Unavailable`, or `Full`."""
        try:
            await self.stream.add_stream(config)
        except self.broker.nats.js.errors.APIError as exc:
            if exc.err_code != _EXISTS_OTHERWISE:
                raise self._refused(exc.err_code, exc.description or "the stream was refused") from exc
        except Exception as exc:
            raise self.unavailable(exc) from exc

    async def add_consumer(self, config: Any) -> None:
        """Make the consumer of a pool. Raises `ConfigurationError` if it exists with other settings.

        Otherwise the server would change the lease under the workers that have calls.
        """
        asked = {"stream_name": self.broker.calls, "config": config.as_dict(), "action": "create"}
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{self.broker.calls}.{self.broker.consumer}"
        answer = await self.client.request(subject, orjson.dumps(asked), timeout=_CONNECT_SECONDS)
        error: dict[str, Any] = orjson.loads(answer.data).get("error") or {}
        if error.get("err_code") == _OTHER_CONSUMER:
            raise ConfigurationError(
                f"the workers of this pool at {self.broker.shown} have another lease; pass the same one, or stop all "
                f"of them and delete the consumer {self.broker.consumer} of the stream {self.broker.calls}"
            )
        if error:
            raise ConnectionError(error.get("description", "the consumer was refused"))

    async def purge(self, stream: str, subject: str) -> None:
        try:
            await self.stream.purge_stream(stream, subject=subject)
        except self.broker.nats.js.errors.NotFoundError:
            return  # There is no such stream.
        except Exception as exc:
            raise self.unavailable(exc) from exc

    async def tell(self, subject: str, body: bytes) -> None:
        try:
            await self.client.publish(subject, body)
        except Exception as exc:
            raise self.unavailable(exc) from exc

    def max_bytes(self) -> int:
        return self.client.max_payload - _HEADERS_BYTES

    def unavailable(self, exc: Exception) -> Unavailable:
        return Unavailable(f"{self.broker.shown}: {str(exc) or type(exc).__name__}")


async def _in_time(connecting: Coroutine[Any, Any, None]) -> None:
    """Await a connection for `_CONNECT_SECONDS`, then raise `TimeoutError`, even if the driver ignores a cancellation.

    Its loop of attempts may swallow a cancellation, in `asyncio.wait_for` of Python 3.11, and would then never end.
    """
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.wait({task}, timeout=_CONNECT_SECONDS)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        for _ in range(_CANCELLATIONS):
            if task.done():
                break
            task.cancel()
            await asyncio.wait({task}, timeout=_RECONNECT_SECONDS)
        if task.done() and not task.cancelled():
            task.exception()  # Otherwise asyncio logs that nobody has looked at it.


def encoded(text: str) -> str:
    """Return one token of a subject for any text, by UTF-8 bytes; "=" for the empty one."""
    if _PLAIN.fullmatch(text):
        return text
    return (
        "".join(
            chr(each) if chr(each).isascii() and (chr(each).isalnum() or each in b"_-") else f"={each:02x}"
            for each in text.encode("utf-8", "surrogatepass")
        )
        or "="
    )


def decoded(token: str) -> str:
    """Return the text of which `token` was made."""
    if "=" not in token:
        return token
    if token == "=":  # noqa: S105 -- a subject's token
        return ""
    parts = re.sub(rb"=([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), token.encode())
    try:
        return parts.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return parts.decode("utf-8", "replace")
