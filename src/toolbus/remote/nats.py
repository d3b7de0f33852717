"""Tool calls over NATS JetStream: `NatsExecutor` beside the sessions, `ToolWorker` on the machines that run the tools.

Needs the extra `nats`, and a server with JetStream. nats-py works on asyncio only, and so does this module.

    stream <prefix>_calls    <prefix>.call.<pool>.<request>.<call>     a call, until it is answered (a work queue)
    stream <prefix>_answers  <prefix>.done.<pool>.<request>.<call>     its answer: the first message of a subject wins
                             <prefix>.begun.<pool>.<request>.<call>    a mark of the delivery that has begun it
    core                     <prefix>.node.<pool>.<node>               live answers and signals for a session's process
                             <prefix>.stop.<pool>                      the calls that were settled elsewhere

Ids are encoded in subjects, because `*`, `>` and `.` are legal in them. The broker's credentials are the boundary of
trust.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import orjson

from .._option_checks import POSITIVE, check, whole
from ..bus import EventBus
from ..errors import ConfigurationError, MissingExtra
from ..instrumentation import Instrumentation
from ..tools import Tool, ToolRegistry
from ._executor import RemoteExecutor
from ._transport import Begun, Key, Unavailable
from ._worker import Worker, WorkerStatistics

__all__ = ["NatsExecutor", "ToolWorker", "WorkerStatistics"]

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_FETCH_SECONDS = 1.0
"""The time for which an idle worker waits for calls before it asks again, and so the longest that it takes to drain."""
_GIVE_BACK_SECONDS = 1.0
_CANCELLATIONS = 5  # of an attempt to connect
_RECONNECT_SECONDS = 0.2
_KEPT_SECONDS = 7 * 24 * 3_600.0
"""The time for which answers are kept that no session has deleted. A second answer would count afterwards."""
_HEADERS_BYTES = 4_096  # the broker's bound covers headers too
_EXISTS_OTHERWISE = 10058
_NOT_FIRST = 10077
_VIOLATION = "permissions violation for "
_logger = logging.getLogger("toolbus.remote")


class NatsExecutor:
    """Runs the calls of the tools of one pool on workers, which are `ToolWorker`s of the same `pool` and `prefix`.

        Runtime(provider, tools=[render], executors=[NatsExecutor("nats://broker:4222", pool="gpu")])

    While the server is away, calls wait until it is back, or for their deadline. A call or an answer above the server's
    `max_payload` (1 MiB by default) fails with the reason `limit`; there is no object store for larger ones yet.
    Entering raises `ConfigurationError` if no server answers at `url`, if it refuses the credentials or has no
    JetStream, and on trio; making it raises `MissingExtra` without nats-py.
    """

    def __init__(self, url: str, *, pool: str, prefix: str = "toolbus") -> None:
        self._broker = _Broker(url, prefix, pool)
        self._pool = pool
        self.pools: Collection[str] = (pool,)

    def on(
        self, bus: EventBus, tools: ToolRegistry, on_cancelled: Callable[[], object]
    ) -> AbstractAsyncContextManager[RemoteExecutor]:
        """Return the executor for a runtime's bus: see `PoolExecutor`."""
        return RemoteExecutor(bus, tools, self._pool, self._link, on_cancelled)

    @asynccontextmanager
    async def _link(self) -> AsyncGenerator[_SessionLink]:
        async with self._broker.connected() as connection:
            yield await _SessionLink.open(self._broker, connection)


class ToolWorker:
    """Runs the calls of one pool on this machine, at most `max_concurrency` at once.

        await ToolWorker("nats://broker:4222", [render], pool="gpu", deps=gpu).run()

    `tools` are those tools that the sessions declare, with the same `pool`; others, and those with another definition
    than a call was checked by, are left to other workers. `deps` become `ToolContext.deps`. `instrumentation` surrounds
    each attempt of a tool here; a span of `OpenTelemetry` is the child of the request's span in the session's process,
    if that has one too. A worker that has not renewed its calls for `lease_seconds` is lost: its calls of `idempotent`
    tools run elsewhere, and all others end as `interrupted`. Raises `ConfigurationError` for tools with secret
    parameters, whose values stay with the session.
    """

    def __init__(
        self,
        url: str,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]],
        *,
        pool: str,
        deps: Any = None,
        max_concurrency: int = 100,
        lease_seconds: float = 30.0,
        prefix: str = "toolbus",
        instrumentation: Iterable[Instrumentation] = (),
    ) -> None:
        check("max_concurrency", max_concurrency, whole(1))
        check("lease_seconds", lease_seconds, POSITIVE)
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(list(tools))
        marked = [each.name for each in registry.specs.values() if each.pool == pool and each.name in registry.marked]
        if marked:
            raise ConfigurationError(
                f"the tools {', '.join(marked)} take secrets, which do not leave the session's process; "
                "declare them without a pool"
            )
        self._broker = _Broker(url, prefix, pool)
        self._lease_seconds = lease_seconds
        self._worker = Worker(
            registry,
            pool,
            self._link,
            deps=deps,
            max_concurrency=max_concurrency,
            instrumentation=tuple(instrumentation),
        )

    async def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Run calls until `drain` or cancellation. `ready` is called when the worker is connected.

        Raises `ConfigurationError` as entering a `NatsExecutor` does. A call that is cancelled here is not answered: it
        is delivered to another worker when its lease has ended.
        """
        await self._worker.run(ready)

    def drain(self) -> None:
        """Take no more calls; `run` returns when those that run are answered."""
        self._worker.drain()

    def statistics(self) -> WorkerStatistics:
        """Return what the worker does now, and what it has done since it was made."""
        worker = self._worker
        return WorkerStatistics(running=len(worker.running), answered=worker.answered, is_away=worker.is_away)

    async def check(self) -> None:
        """Connect, and try all that a worker does at the broker, without taking a call.

        Raises `ConfigurationError` as `run` does, and if the account lacks permissions: the error names all of them.
        """
        async with self._link() as link:
            await link.check()

    @asynccontextmanager
    async def _link(self) -> AsyncGenerator[_WorkerLink]:
        async with self._broker.connected() as connection:
            yield await _WorkerLink.open(self._broker, connection, self._lease_seconds)


class _Broker:
    """The address of a server, and the names of the streams and subjects of one pool."""

    def __init__(self, url: str, prefix: str, pool: str) -> None:
        try:
            import nats  # noqa: PLC0415 -- an optional dependency
        except ImportError as exc:
            raise MissingExtra("nats", "nats-py") from exc
        if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix):
            raise ConfigurationError(f"prefix is {prefix!r}; use letters, digits, '_' and '-'")
        self.nats: Any = nats
        self.url, self.prefix, self.pool = url, prefix, _encoded(pool)
        self.calls, self.answers = f"{prefix}_calls", f"{prefix}_answers"
        self.stops, self.consumer = f"{prefix}.stop.{self.pool}", f"pool_{self.pool}"
        try:
            parts = urlsplit(url)
            self.shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        except ValueError as exc:
            raise ConfigurationError(f"the URL of the NATS server cannot be read: {exc}") from exc

    def subject(self, kind: str, key: Key) -> str:
        return f"{self.prefix}.{kind}.{self.pool}.{_encoded(key[0])}.{_encoded(key[1])}"

    def subjects(self, kind: str, request_id: str) -> str:
        return f"{self.prefix}.{kind}.{self.pool}.{_encoded(request_id)}.*"

    def node(self, node: str) -> str:
        return f"{self.prefix}.node.{self.pool}.{node}"

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[_Connection]:
        """A connection with the streams in place, closed at the end even while the host is cancelled."""
        try:
            asyncio.get_running_loop()
        except RuntimeError as exc:
            raise ConfigurationError("toolbus.remote.nats needs asyncio: nats-py does not work on trio") from exc
        connection = _Connection(self)
        try:
            await connection.open()
            yield connection
        finally:
            with anyio.move_on_after(_ANSWER_SECONDS, shield=True):
                await connection.close()


class _Connection:
    """One connection to the server. `ask` translates the driver's errors."""

    def __init__(self, broker: _Broker) -> None:
        self.broker = broker
        self.trouble = ""
        self.refusal = ""  # the reason why the server refuses this client, which a reset connection may follow
        self.violations: list[str] = []
        self.reconnected: Callable[[], None] = lambda: None
        self.client: Any = None
        self.stream: Any = None

    async def open(self) -> None:
        async def on_error(exc: Exception) -> None:
            self.trouble = str(exc) or type(exc).__name__
            if "authorization" in self.trouble.lower():
                self.refusal = self.trouble
            _, found, violation = self.trouble.partition(_VIOLATION)
            if found and violation not in self.violations:
                self.violations.append(violation)
                _logger.warning("the account at %s has no permission for %s", broker.shown, violation)

        async def on_reconnected() -> None:
            self.reconnected()

        broker = self.broker
        self.client = broker.nats.NATS()
        try:
            connecting = self.client.connect(
                broker.url,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_SECONDS,
                connect_timeout=_CONNECT_SECONDS,
                error_cb=on_error,
                reconnected_cb=on_reconnected,
            )
            await _in_time(connecting)
            async with asyncio.timeout(_CONNECT_SECONDS):
                self.stream = self.client.jetstream(timeout=_ANSWER_SECONDS)
                await self._make_streams()
        except ConfigurationError:
            raise
        except Exception as exc:
            why = self.refusal or self.trouble or str(exc) or "no answer"
            if self.client.is_connected and not self.trouble:
                why += "; it must run with JetStream (nats-server -js)"
            raise ConfigurationError(f"the NATS server at {broker.shown} cannot be used: {why}") from exc

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
                max_age=_KEPT_SECONDS,
            ),
            api.StreamConfig(
                name=broker.answers,
                subjects=[f"{broker.prefix}.done.>", f"{broker.prefix}.begun.>"],
                max_msgs_per_subject=1,
                discard=api.DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_age=_KEPT_SECONDS,
            ),
        ):
            try:
                await self.stream.add_stream(config)
            except broker.nats.js.errors.APIError as exc:
                if exc.err_code != _EXISTS_OTHERWISE:
                    raise
                raise ConfigurationError(
                    f"the stream {config.name} at {broker.shown} has other settings than toolbus needs; "
                    "delete it, or give another prefix"
                ) from exc

    async def close(self) -> None:
        if self.client is not None:
            with suppress(Exception):
                await self.client.flush(1)
            with suppress(Exception):
                await self.client.close()

    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> bool:
        """Publish to a stream. Returns whether the message is the first one of its subject."""
        try:
            await self.stream.publish(subject, body, timeout=_ANSWER_SECONDS, headers=headers)
        except Exception as exc:
            if getattr(exc, "err_code", 0) == _NOT_FIRST:
                return False
            raise self.unavailable(exc) from exc
        return True

    async def last(self, stream: str, subject: str) -> bytes | None:
        try:
            found = await self.stream.get_last_msg(stream, subject)
        except self.broker.nats.js.errors.NotFoundError:
            return None
        except Exception as exc:
            raise self.unavailable(exc) from exc
        return found.data or b""

    async def purge(self, stream: str, subject: str) -> None:
        try:
            await self.stream.purge_stream(stream, subject=subject)
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


class _SessionLink:
    """The end beside the sessions: see `SessionLink`."""

    def __init__(self, broker: _Broker, connection: _Connection) -> None:
        self._broker, self._connection = broker, connection
        self._node = uuid4().hex
        self._heard: Callable[[bytes], None] = lambda _body: None

    @classmethod
    async def open(cls, broker: _Broker, connection: _Connection) -> _SessionLink:
        link = cls(broker, connection)

        async def on_message(message: Any) -> None:
            link._heard(message.data)

        await connection.client.subscribe(broker.node(link._node), cb=on_message)
        await connection.client.flush()
        return link

    @property
    def max_bytes(self) -> int:
        return self._connection.max_bytes()

    def listen(self, heard: Callable[[bytes], None], reconnected: Callable[[], None]) -> None:
        self._heard, self._connection.reconnected = heard, reconnected

    async def send(self, key: Key, body: bytes, seconds_left: float, *, again: bool) -> None:
        headers = {"Toolbus-Node": self._node, "Toolbus-Seconds-Left": repr(seconds_left)}
        if again:
            headers["Toolbus-Again"] = "1"
        await self._connection.publish(self._broker.subject("call", key), body, headers)

    async def find(self, key: Key) -> bytes | None:
        return await self._connection.last(self._broker.answers, self._broker.subject("done", key))

    async def stop(self, key: Key) -> None:
        await self._connection.tell(self._broker.stops, orjson.dumps(key))
        await self._connection.purge(self._broker.calls, self._broker.subject("call", key))
        await self._connection.purge(self._broker.answers, self._broker.subject("*", key))

    async def forget(self, request_id: str) -> None:
        await self._connection.purge(self._broker.calls, self._broker.subjects("call", request_id))
        await self._connection.purge(self._broker.answers, self._broker.subjects("*", request_id))


class _WorkerLink:
    """The end on a worker: see `WorkerLink`."""

    def __init__(self, broker: _Broker, connection: _Connection, lease_seconds: float) -> None:
        self._broker, self.connection, self.lease_seconds = broker, connection, lease_seconds
        self._stopped: Callable[[Key], None] = lambda _key: None
        self._queue: Any = None

    @classmethod
    async def open(cls, broker: _Broker, connection: _Connection, lease_seconds: float) -> _WorkerLink:
        link = cls(broker, connection, lease_seconds)

        async def on_stop(message: Any) -> None:
            with suppress(ValueError, TypeError):
                request_id, call_id = orjson.loads(message.data)
                link._stopped((request_id, call_id))

        api = broker.nats.js.api
        try:
            await connection.stream.add_consumer(
                broker.calls,
                api.ConsumerConfig(
                    durable_name=broker.consumer,
                    filter_subject=f"{broker.prefix}.call.{broker.pool}.>",
                    ack_policy=api.AckPolicy.EXPLICIT,
                    ack_wait=lease_seconds,
                    max_ack_pending=100_000,
                ),
            )
            link._queue = await connection.stream.pull_subscribe_bind(consumer=broker.consumer, stream=broker.calls)
            await connection.client.subscribe(broker.stops, cb=on_stop)
            await connection.client.flush()
        except Exception as exc:
            why = f"no permission for {connection.violations[-1]}" if connection.violations else exc
            raise ConfigurationError(f"the pool at {broker.shown} cannot be served: {why}") from exc
        return link

    @property
    def max_bytes(self) -> int:
        return self.connection.max_bytes()

    def listen(self, stopped: Callable[[Key], None]) -> None:
        self._stopped = stopped

    async def fetch(self, most: int) -> Sequence[_Delivery]:
        try:
            found = await self._queue.fetch(most, timeout=_FETCH_SECONDS)
        except TimeoutError as exc:
            # While the driver reconnects, it reports only that nothing came.
            if not self.connection.client.is_connected:
                raise self.connection.unavailable(ConnectionError("the connection is lost")) from exc
            return ()
        except Exception as exc:
            raise self.connection.unavailable(exc) from exc
        return [_Delivery(self, self._broker, each) for each in found]

    async def find(self, key: Key) -> bytes | None:
        return await self.connection.last(self._broker.answers, self._broker.subject("done", key))

    async def answer(self, key: Key, body: bytes) -> bool:
        subject = self._broker.subject("done", key)
        # An answer that was kept, but not acknowledged in time, is this worker's own.
        return await self.connection.publish(subject, body) or await self.find(key) == body

    async def tell(self, node: str, body: bytes) -> None:
        await self.connection.tell(self._broker.node(node), body)

    async def check(self) -> None:
        """Do once all that a worker does at the broker, under a key that no call has. Raises `ConfigurationError`."""
        broker, connection, key = self._broker, self.connection, ("", uuid4().hex)
        # Without a subject for its answer, the server only looks whether the account may send the request.
        asked = (
            f"$JS.API.CONSUMER.MSG.NEXT.{broker.calls}.{broker.consumer}",
            f"$JS.API.STREAM.MSG.GET.{broker.calls}",
            f"$JS.API.STREAM.MSG.GET.{broker.answers}",
            f"$JS.ACK.{broker.calls}.{broker.consumer}.check",
            broker.node("check"),
        )
        trouble = ""
        for operation in (
            *(partial(connection.tell, subject, b"") for subject in asked),
            *(partial(connection.publish, broker.subject(kind, key), b"") for kind in ("done", "begun")),
            partial(connection.purge, broker.answers, broker.subject("*", key)),
        ):
            try:
                await operation()
            except Unavailable as exc:
                trouble = str(exc)
        if connection.violations:
            raise ConfigurationError(
                f"the account at {broker.shown} has no permission for {'; '.join(connection.violations)}"
            )
        if trouble:
            raise ConfigurationError(f"the NATS server does not do what a worker needs: {trouble}")


class _Delivery:
    """One delivery: see `Delivery`."""

    def __init__(self, link: _WorkerLink, broker: _Broker, message: Any) -> None:
        self._link, self._broker, self._message = link, broker, message
        # Anybody with the right to publish here may have written the subject: a key that is wrong is refused later.
        request, _, call = message.subject.split(".", 3)[3].partition(".")
        self.key: Key = (_decoded(request), _decoded(call))
        self.body: bytes = message.data
        headers: dict[str, str] = message.headers or {}
        self.node = _encoded(headers.get("Toolbus-Node", ""))
        try:
            self.seconds_left = float(headers.get("Toolbus-Seconds-Left", "0"))
        except ValueError:
            self.seconds_left = 0.0
        self.attempt: int = message.metadata.num_delivered
        self.is_again = self.attempt > 1 or "Toolbus-Again" in headers
        self._sequence: int = message.metadata.sequence.stream

    async def renew(self) -> None:
        await self._asked(self._message.in_progress)

    async def done(self) -> None:
        await self._asked(self._message.ack)

    async def give_back(self) -> None:
        await self._asked(lambda: self._message.nak(delay=_GIVE_BACK_SECONDS))

    async def begin(self) -> Begun:
        connection, subject = self._link.connection, self._broker.subject("begun", self.key)
        mine = uuid4().hex.encode()
        if not await connection.publish(subject, mine):
            return "taken"
        # The session deletes the call before the marks: a call that is still there was not answered before this mark.
        try:
            await connection.stream.get_msg(self._broker.calls, self._sequence)
        except self._broker.nats.js.errors.NotFoundError:
            await connection.purge(self._broker.answers, subject)
            return "settled"
        except Exception as exc:
            raise connection.unavailable(exc) from exc
        return "mine"

    async def _asked(self, function: Callable[[], Any]) -> None:
        try:
            await function()
        except Exception as exc:
            raise self._link.connection.unavailable(exc) from exc


async def _in_time(connecting: Coroutine[Any, Any, None]) -> None:
    """Await a connection for `_CONNECT_SECONDS`, then raise `TimeoutError`, also if the driver ignores a cancellation.

    Its loop of attempts may lose one, in `asyncio.wait_for` of Python 3.11, and would then never end.
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


def _encoded(text: str) -> str:
    """Return one token of a subject for any text, by UTF-8 bytes; "=" for the empty one."""
    return (
        "".join(
            chr(each) if chr(each).isascii() and (chr(each).isalnum() or each in b"_-") else f"={each:02x}"
            for each in text.encode("utf-8", "surrogatepass")
        )
        or "="
    )


def _decoded(token: str) -> str:
    """Return the text of which `token` was made."""
    if token == "=":  # noqa: S105 -- a subject's token
        return ""
    parts = re.sub(rb"=([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), token.encode())
    try:
        return parts.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return parts.decode("utf-8", "replace")
