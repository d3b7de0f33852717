"""Tool calls over NATS JetStream: `NatsExecutor` for the sessions' process, `ToolWorker` for machines that run tools.

Needs the extra `nats`, and a server with JetStream. nats-py works on asyncio only, and so does this module.

    stream <prefix>_calls    <prefix>.call.<pool>.<request>.<call>     a call, until it is answered (a work queue)
    stream <prefix>_answers  <prefix>.done.<pool>.<request>.<call>     its answer: the first message of a subject wins
                             <prefix>.begun.<pool>.<request>.<call>    a mark of the delivery that has begun it
    stream <prefix>_parts    <prefix>.part.<pool>...                   calls and answers above the bound of a message
    core                     <prefix>.relay.<process>                  events and wake-ups for a process (`NatsRelay`)
                             <prefix>.node.<pool>.<node>               live answers and signals for a session's process
                             <prefix>.stop.<pool>                      the calls that were settled elsewhere
                             <prefix>.worker.<pool>.<worker>           answers of a model to the questions of handlers

Ids are encoded in subjects, because `*`, `>` and `.` are legal in them. The broker's credentials are the boundary of
trust.

Example:
    from toolbus import Runtime, tool
    from toolbus.remote.nats import NatsExecutor, NatsRelay, ToolWorker, WorkerStatistics
    from toolbus.testing import ScriptedProvider

    @tool(pool="gpu", idempotent=True)
    async def draw(prompt: str) -> str:
        "Draw a picture."
        return "a picture"

    url = "nats://broker:4222"
    runtime = Runtime(ScriptedProvider([]), tools=[draw], executors=[NatsExecutor(url, pool="gpu")])
    worker = ToolWorker(url, [draw], pool="gpu")  # on the other machine: anyio.run(worker.run)
    relay = NatsRelay(url)  # Runtime(..., store=..., relay=relay): pages in other processes stream at once
    statistics: WorkerStatistics = worker.statistics()
    print(statistics.running, statistics.answered)  # 0 0
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import orjson

from .._option_checks import POSITIVE, check, whole
from ..bus import EventBus
from ..errors import ConfigurationError
from ..instrumentation import Instrumentation
from ..secrets import NamedSecret
from ..session import SessionOptions, check_options
from ..tools import Tool, ToolRegistry
from ._executor import RemoteExecutor
from ._nats_connection import Broker, Connection, decoded, encoded
from ._nats_parts import Parts
from ._nats_relay import NatsRelay
from ._transport import Begun, Key, Then, Unavailable
from ._worker import Worker, WorkerStatistics

__all__ = ["NatsExecutor", "NatsRelay", "ToolWorker", "WorkerStatistics"]

_FETCH_SECONDS = 1.0
"""The time for which a request for calls is pending at the server, and so the longest that a worker takes to drain."""
_TIMEOUT_SECONDS = 1.0
"""The time after which a request for calls is given up, because the server has not reported its end."""
_GIVE_BACK_SECONDS = 1.0
_SIGNAL_SECONDS = 0.005
"""The time for which signals wait for others to the same node, and for the answer of a call that ends at once."""
_BATCH_BYTES = 65_536
"""The most bytes of answers and signals in one message to a node, which reads a message without a pause."""
_MAX_NAME_CHARS = 64
_MAX_WAITING_BYTES = 4 * 1024 * 1024
_What = TypeVar("_What")
_logger = logging.getLogger("toolbus.remote")


class NatsExecutor:
    """Runs the calls of the tools of one pool on workers, which are `ToolWorker`s of the same `pool` and `prefix`.

        Runtime(provider, tools=[render], executors=[NatsExecutor("nats://broker:4222", pool="gpu")])

    While the server is away, calls wait until it is back, or for their deadline. A call or an answer may have 8 MiB;
    above the server's `max_payload` (1 MiB by default), it may have 100,000 values of JSON, and the server must have
    space for it. Otherwise the call fails with the reason `limit`.
    Entering raises `ConfigurationError` if no server answers at `url`, if it refuses the credentials or has no
    JetStream, and on trio; making it raises `MissingExtra` without nats-py.
    """

    def __init__(self, url: str, *, pool: str, prefix: str = "toolbus") -> None:
        self._broker = Broker(url, prefix, pool)
        self._pool = pool
        self.pools: Collection[str] = (pool,)

    def attach(
        self, bus: EventBus, tools: ToolRegistry, on_cancelled: Callable[[], object]
    ) -> AbstractAsyncContextManager[None]:
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
    tools run elsewhere, and all others end as `interrupted`. All workers of a pool have the same lease; for another one
    `run` raises `ConfigurationError`.

    `secrets` are values of this machine, each by itself or in a pair after a name, as for `Runtime(secrets=)`. They do
    not leave it: results, errors, progress, questions to the model and log lines have references instead. A secret
    parameter gets the worker's value of the name whose reference the model has sent. Raises `ConfigurationError` for
    tools with secret parameters if no secret has a name: the session's values stay in its process.
    """

    def __init__(
        self,
        url: str,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        pool: str,
        deps: Any = None,
        max_concurrency: int = 100,
        lease_seconds: float = 30.0,
        prefix: str = "toolbus",
        instrumentation: Iterable[Instrumentation] = (),
        secrets: Sequence[NamedSecret] = (),
    ) -> None:
        check_options({"secrets": secrets}, SessionOptions, "ToolWorker")
        check("max_concurrency", max_concurrency, whole(1))
        check("lease_seconds", lease_seconds, POSITIVE)
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        marked = [each.name for each in registry.specs.values() if each.pool == pool and each.name in registry.marked]
        if marked and not any(isinstance(each, tuple) for each in secrets):
            raise ConfigurationError(
                f"the tools {', '.join(marked)} take secrets, and those of a session do not leave its process; "
                "declare them without a pool, or give the worker its own: secrets=[(name, value)]"
            )
        self._broker = Broker(url, prefix, pool)
        self._lease_seconds = lease_seconds
        self._worker = Worker(
            registry,
            pool,
            self._link,
            deps=deps,
            max_concurrency=max_concurrency,
            instrumentation=tuple(instrumentation),
            secrets=tuple(secrets),
        )

    async def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Run calls until `drain` or cancellation. `ready` is called when the worker is connected.

        Raises `ConfigurationError` as entering a `NatsExecutor` does, and `NotRunning` while it runs already. A call
        that is cancelled here is not answered: it is delivered to another worker when its lease has ended.
        """
        await self._worker.run(ready)

    def drain(self) -> None:
        """Take no more calls; `run` returns when those that run are answered."""
        self._worker.drain()

    def statistics(self) -> WorkerStatistics:
        """Return what the worker does now, and what it has done since it was made."""
        worker = self._worker
        return WorkerStatistics(
            running=len(worker.running), answered=worker.answered, broker_unavailable=worker.broker_unavailable
        )

    async def check(self) -> None:
        """Connect, and try all that a worker does at the broker, without taking a call.

        Raises `ConfigurationError` as `run` does, and if the account lacks permissions: the error names all of them.
        """
        async with self._link() as link:
            await link.check()

    @asynccontextmanager
    async def _link(self) -> AsyncGenerator[_WorkerLink]:
        async with self._broker.connected(reports=False) as connection:  # The worker reports an outage by itself.
            link = await _WorkerLink.open(self._broker, connection, self._lease_seconds)
            try:
                yield link
            finally:
                await link.close()


class _SessionLink:
    """The end in the sessions' process: see `SessionLink`."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker, self._connection = broker, connection
        self._node = uuid4().hex
        self._heard: Callable[[bytes], None] = lambda _body: None
        self.payloads = Parts(broker, connection)

    @classmethod
    async def open(cls, broker: Broker, connection: Connection) -> _SessionLink:
        link = cls(broker, connection)

        async def on_message(message: Any) -> None:
            for body in message.data.split(b"\n"):
                link._heard(body)

        await connection.client.subscribe(broker.node(link._node), cb=on_message)
        await connection.client.flush()
        return link

    @property
    def max_bytes(self) -> int:
        return self._connection.max_bytes()

    def listen(self, heard: Callable[[bytes], None], reconnected: Callable[[], None]) -> None:
        self._heard, self._connection.reconnected = heard, reconnected

    def carries(self, key: Key) -> bool:
        return self._broker.carries(key)

    async def send(
        self, key: Key, body: bytes, remaining_seconds: float, then: Then, *, seconds: float, again: bool
    ) -> None:
        headers = {"Toolbus-Node": self._node, "Toolbus-Remaining-Seconds": repr(remaining_seconds)}
        if again:
            headers["Toolbus-Again"] = "1"
        await self._connection.post(self._broker.subject("call", key), body, headers, then, seconds)

    async def find(self, key: Key) -> bytes | None:
        return await self._connection.last(self._broker.answers, self._broker.subject("done", key))

    @property
    def known_since(self) -> float:
        return self._connection.kept_since

    async def kept_since(self) -> float:
        await self._connection.restore()
        return self._connection.kept_since

    async def tell(self, worker: str, body: bytes) -> None:
        await self._connection.tell(self._broker.worker(worker), body)

    async def stop(self, key: Key, *, never_again: bool) -> None:
        await self._connection.tell(self._broker.stops, orjson.dumps(key))
        if never_again:
            await self._connection.publish(self._broker.subject("begun", key), b"settled")
        await self._connection.purge(self._broker.calls, self._broker.subject("call", key))
        await self._connection.purge(self._broker.answers, self._broker.subject("done" if never_again else "*", key))

    async def forget(self, request_id: str, *, calls_too: bool, payloads_too: bool, never_again: bool) -> None:
        if calls_too:
            await self._connection.purge(self._broker.calls, self._broker.subjects("call", request_id))
        kind = "done" if never_again else "*"
        await self._connection.purge(self._broker.answers, self._broker.subjects(kind, request_id))
        if payloads_too:
            await self.payloads.drop_all(request_id)


class _Calls:
    """The calls that the server sends to this worker on request. At most one request is pending at a time."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self._connection, self._subject = connection, subject
        self._came: deque[Any] = deque()
        self._asked = 0
        self._until: float  # the loop's time at which the request is lost, if the server has not ended it
        self._trouble = ""
        self._changed = asyncio.Event()

    async def open(self) -> None:
        self._inbox: str = self._connection.client.new_inbox()
        await self._connection.client.subscribe(self._inbox, cb=self._on_message)

    async def fetch(self, limit: int) -> list[Any]:
        """Ask for calls unless a request is pending. Return what has come, once something has or the request ends."""
        if not self._came:
            if not self._asked:
                await self._ask(limit)
            await self._wait()
        return [self._came.popleft() for _ in range(min(limit, len(self._came)))]

    async def rest(self) -> list[Any]:
        """Ask for nothing more, and return what has come when the pending request has ended."""
        while self._asked:
            await self._wait()
        found, self._came = [*self._came], deque()
        return found

    async def _ask(self, limit: int) -> None:
        body = orjson.dumps({"batch": limit, "expires": int(_FETCH_SECONDS * 1e9)})
        await self._connection.client.publish(self._subject, body, self._inbox)
        self._asked, self._until = limit, asyncio.get_running_loop().time() + _FETCH_SECONDS + _TIMEOUT_SECONDS

    async def _wait(self) -> None:
        self._changed.clear()
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._until, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        trouble, self._trouble = self._trouble, ""
        if loop.time() >= self._until:
            self._asked = 0
            if not self._connection.client.is_connected:
                trouble = "the connection is lost"
        if trouble:
            raise ConnectionError(trouble)

    async def _on_message(self, message: Any) -> None:
        if message.reply:
            self._came.append(message)
            self._asked = max(0, self._asked - 1)
        else:
            # The request has ended: nothing came in its time (408), or the server says why it cannot be served.
            headers: dict[str, str] = message.headers or {}
            self._asked = 0
            if headers.get("Status") not in {"404", "408"}:
                # nats-py appends the other headers to an empty description.
                said = headers.get("Description", "").partition("\n")[0].strip()
                self._trouble = said or "the server gives out no calls"
        self._changed.set()


class _Outbox:
    """The answers and signals for nodes, each node's in their order, with as many as possible in one message.

    A node reads a few hundred events of one message as fast as ten messages with one event each.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bodies: dict[str, list[bytes]] = {}
        self._bytes = 0
        self._some = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, subject: str, body: bytes, *, may_be_lost: bool) -> None:
        """Send a body with the next `flush`, or soon. If too much waits, one that may be lost is dropped."""
        if may_be_lost and self._bytes > _MAX_WAITING_BYTES:
            return
        self._bodies.setdefault(subject, []).append(body)
        self._bytes += len(body)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SIGNAL_SECONDS, self._some.set)

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            await self.flush()

    async def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._bodies:
            subject, bodies = next(iter(self._bodies.items()))
            limit = self._connection.client.max_payload
            count = _count_of(bodies, min(_BATCH_BYTES, limit))
            # The batch is removed first, because another `flush` may run while the driver writes its buffer.
            batch, bodies[:count] = bodies[:count], []
            if not bodies:
                del self._bodies[subject]
            self._bytes -= sum(map(len, batch))
            if len(batch[0]) > limit:
                # The server takes less than when this was written. An answer is kept, so its session will find it.
                _logger.warning("%s bytes were not sent to a node: the server takes %s at most", len(batch[0]), limit)
                continue
            try:
                await self._connection.client.publish(subject, b"\n".join(batch))
            except Exception as exc:
                # The driver's buffer is full, while it reconnects.
                _logger.debug("answers and signals wait for the server: %s", exc)
                self._bodies[subject] = batch + self._bodies.get(subject, [])
                self._bytes += sum(map(len, batch))
                self._timer = asyncio.get_running_loop().call_later(_GIVE_BACK_SECONDS, self._some.set)
                return


def _count_of(bodies: list[bytes], limit: int) -> int:
    """Return how many of the first bodies have at most `limit` bytes together, but at least 1."""
    for count, body in enumerate(bodies):
        limit -= len(body) + 1
        if limit < 0:
            return max(1, count)
    return len(bodies)


class _WorkerLink:
    """The end on a worker: see `WorkerLink`."""

    def __init__(self, broker: Broker, connection: Connection, lease_seconds: float) -> None:
        self._broker, self.connection, self.lease_seconds = broker, connection, lease_seconds
        self.name = uuid4().hex
        self._stopped: Callable[[Key], None] = lambda _key: None
        self._heard: Callable[[bytes], None] = lambda _body: None
        self._sending: asyncio.Task[None]
        self._calls = _Calls(connection, f"$JS.API.CONSUMER.MSG.NEXT.{broker.calls}.{broker.consumer}")
        self._outbox = _Outbox(connection)
        self._is_lost = False
        self.payloads = Parts(broker, connection)

    @classmethod
    async def open(cls, broker: Broker, connection: Connection, lease_seconds: float) -> _WorkerLink:
        link = cls(broker, connection, lease_seconds)

        async def on_stop(message: Any) -> None:
            with suppress(ValueError, TypeError):
                request_id, call_id = orjson.loads(message.data)
                link._stopped((request_id, call_id))

        async def on_message(message: Any) -> None:
            link._heard(message.data)

        try:
            await link._add_consumer()
            await link._calls.open()
            await connection.client.subscribe(broker.stops, cb=on_stop)
            await connection.client.subscribe(broker.worker(link.name), cb=on_message)
            await connection.client.flush()
        except ConfigurationError:
            raise
        except Exception as exc:
            why = f"no permission for {connection.violations[-1]}" if connection.violations else exc
            raise ConfigurationError(f"the pool at {broker.shown} cannot be served: {why}") from exc
        link._sending = asyncio.create_task(link._outbox.run())
        return link

    async def _add_consumer(self) -> None:
        api, broker = self._broker.nats.js.api, self._broker
        await self.connection.add_consumer(
            api.ConsumerConfig(
                durable_name=broker.consumer,
                filter_subject=f"{broker.prefix}.call.{broker.pool}.>",
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self.lease_seconds,
                max_ack_pending=100_000,
            )
        )

    async def close(self) -> None:
        """Send the answers and signals that wait."""
        self._sending.cancel()
        await self._outbox.flush()

    @property
    def max_bytes(self) -> int:
        return self.connection.max_bytes()

    def listen(self, stopped: Callable[[Key], None], heard: Callable[[bytes], None]) -> None:
        self._stopped, self._heard = stopped, heard

    async def fetch(self, limit: int) -> Sequence[_Delivery]:
        try:
            if self._is_lost:
                # The server may have lost the streams, or somebody has deleted the consumer.
                await self.connection.restore()
                await self._translated(self._add_consumer())
            found = await self._deliveries(self._calls.fetch(limit))
        except Unavailable:
            self._is_lost = True
            raise
        self._is_lost = False
        return found

    async def rest(self) -> Sequence[_Delivery]:
        return await self._deliveries(self._calls.rest())

    async def _deliveries(self, coming: Coroutine[Any, Any, list[Any]]) -> list[_Delivery]:
        return [_Delivery(self, self._broker, each) for each in await self._translated(coming)]

    async def _translated(self, coming: Coroutine[Any, Any, _What]) -> _What:
        try:
            return await coming
        except Exception as exc:
            raise self.connection.unavailable(exc) from exc

    async def find(self, key: Key) -> bytes | None:
        return await self.connection.last(self._broker.answers, self._broker.subject("done", key))

    async def answer(self, key: Key, body: bytes, then: Then) -> None:
        await self.connection.post(self._broker.subject("done", key), body, None, then)

    def tell(self, node: str, body: bytes, *, may_be_lost: bool) -> None:
        self._outbox.put(self._broker.node(node), body, may_be_lost=may_be_lost)

    async def flush(self) -> None:
        await self._outbox.flush()

    async def check(self) -> None:
        """Do once all that a worker does at the broker, under a key that no call has. Raises `ConfigurationError`."""
        broker, connection, key = self._broker, self.connection, ("", uuid4().hex)
        # Without a subject for its answer, the server only looks whether the account may send the request.
        asked = (
            f"$JS.API.CONSUMER.MSG.NEXT.{broker.calls}.{broker.consumer}",
            f"$JS.API.STREAM.MSG.GET.{broker.calls}",
            f"$JS.API.STREAM.MSG.GET.{broker.answers}",
            f"$JS.API.STREAM.MSG.GET.{broker.parts}",
            f"$JS.ACK.{broker.calls}.{broker.consumer}.check",
            broker.node("check"),
        )
        trouble = ""
        for operation in (
            *(partial(connection.tell, subject, b"") for subject in asked),
            *(partial(connection.publish, broker.subject(kind, key), b"") for kind in ("done", "begun")),
            partial(connection.purge, broker.answers, broker.subject("*", key)),
            partial(self.payloads.keep, key, b"check"),
            partial(self.payloads.drop, key),
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

    def __init__(self, link: _WorkerLink, broker: Broker, message: Any) -> None:
        self._link, self._broker, self._message = link, broker, message
        # Every client that may publish here can write any subject: a wrong key is refused later.
        request, _, call = message.subject.split(".", 3)[3].partition(".")
        self.key: Key = (decoded(request), decoded(call))
        self.body: bytes = message.data
        headers: dict[str, str] = message.headers or {}
        self.node = encoded(headers.get("Toolbus-Node", "")[:_MAX_NAME_CHARS])
        # The time in the broker is not subtracted, because no clock of this machine shows it. Only retries depend on
        # the remaining time, and the session stops the call at its deadline.
        try:
            self.remaining_seconds = float(headers.get("Toolbus-Remaining-Seconds", "0"))
        except ValueError:
            self.remaining_seconds = 0.0
        self.attempt: int = message.metadata.num_delivered
        self.is_again = self.attempt > 1 or "Toolbus-Again" in headers
        self._sequence: int = message.metadata.sequence.stream
        self._mark = b""

    async def renew(self) -> None:
        await self._asked(self._message.in_progress)

    async def done(self) -> None:
        await self._asked(self._message.ack)

    async def give_back(self) -> None:
        await self._asked(lambda: self._message.nak(delay=_GIVE_BACK_SECONDS))

    async def begin(self) -> Begun:
        connection, subject = self._link.connection, self._broker.subject("begun", self.key)
        self._mark = self._mark or uuid4().hex.encode()
        if not await connection.publish(subject, self._mark):
            found = await connection.last(self._broker.answers, subject)
            if found is None:
                return "settled"
            if found != self._mark:
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
