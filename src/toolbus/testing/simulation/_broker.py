"""A NATS server in memory, as far as `toolbus.remote.nats` uses one, and its driver, whose connections are cut.

What is sent over a connection arrives in its order. What is on its way when the connection is cut is lost, and so is
what is sent until the client notices; what it sends then waits until the connection is back. The server may forget to
acknowledge what it has taken, and may lose all its data. The module knows the processes that have connections only by
name.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import orjson

from ._chance import Chance
from ._tools import PROCESS

if TYPE_CHECKING:
    from ._world import World

CONNECTING_SECONDS = 1.0
"""The first time of a connection, in which it is not cut and all is acknowledged: otherwise it cannot be made."""

_MADE = datetime.fromtimestamp(0, UTC)
_TICK = 1e-6  # seconds between two messages of a connection, so that they keep their order
_NEXT = "$JS.API.CONSUMER.MSG.NEXT."
_NOT_FIRST = b'{"error": {"err_code": 10077, "description": "maximum messages per subject exceeded"}}'
_NOBODY = {"Status": "503"}  # Nobody listens on the subject of the message.
_IS_SERVER: contextvars.ContextVar[bool] = contextvars.ContextVar("toolbus_simulated_server")
_Callback = Callable[["Message"], Awaitable[None]]


class NotFoundError(Exception):
    """The driver's error for a message that does not exist."""


class _Config(SimpleNamespace):
    def as_dict(self) -> dict[str, Any]:
        return vars(self)


@contextmanager
def driver_of(server: Server | None) -> Generator[None]:
    """Let `import nats` give the driver of a server, while the block is open."""
    module: Any = ModuleType("nats")
    words = SimpleNamespace(WORK_QUEUE="", NEW="", EXPLICIT="")
    module.NATS = lambda: Client(server)
    module.js = SimpleNamespace(
        errors=SimpleNamespace(APIError=NotFoundError, NotFoundError=NotFoundError),
        api=SimpleNamespace(
            StreamConfig=_Config, ConsumerConfig=_Config, RetentionPolicy=words, DiscardPolicy=words, AckPolicy=words
        ),
    )
    before = sys.modules.get("nats")
    if server is not None:
        sys.modules["nats"] = module
    try:
        yield
    finally:
        if before is not None:
            sys.modules["nats"] = before
        else:
            sys.modules.pop("nats", None)


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        del wanted[-1], given[len(wanted) :]
    return len(wanted) == len(given) and all(one in ("*", other) for one, other in zip(wanted, given, strict=True))


class Message:
    """A message, as the driver gives it to its receiver. One that `_Consumer` delivers can be acknowledged."""

    def __init__(self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        self.subject, self.data, self.reply, self.headers = subject, data, reply, headers
        self.seq = self.count = 0
        self.tell: Callable[..., None]

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(num_delivered=self.count, sequence=SimpleNamespace(stream=self.seq))

    async def ack(self) -> None:
        self.tell("acknowledge")

    async def nak(self, *, delay: float) -> None:
        self.tell("lease", delay)

    async def in_progress(self) -> None:
        self.tell("lease")


class _Pull(NamedTuple):
    client: Client
    inbox: str
    left: list[None]


class _Consumer:
    """The consumer of a work queue: it delivers each message on request, again and again until it is acknowledged."""

    def __init__(self, server: Server, config: dict[str, Any]) -> None:
        self._server = server
        self._pattern: str = config["filter_subject"]
        self._lease_seconds: float = config["ack_wait"]
        self._pulls: deque[_Pull] = deque()
        self._holders: dict[int, tuple[Client, asyncio.TimerHandle]] = {}  # by message
        self._counts: dict[int, int] = {}

    def end(self) -> None:
        """Forget all requests and leases."""
        self._pulls.clear()
        for _, timer in self._holders.values():
            timer.cancel()
        self._holders.clear()

    def pull(self, client: Client, inbox: str, limit: int, seconds: float) -> None:
        pull = _Pull(client, inbox, [None] * limit)
        self._pulls.append(pull)
        asyncio.get_running_loop().call_later(seconds, self._expire, pull)

    def _expire(self, pull: _Pull) -> None:
        if pull in self._pulls:
            self._pulls.remove(pull)
            self._server.deliver(Message(pull.inbox, b"", headers={"Status": "408"}))

    def serve(self) -> None:
        for each in self._server.matching(self._pattern):
            while self._pulls and (self._pulls[0].client.is_gone or not self._pulls[0].left):
                self._pulls.popleft()
            if self._pulls and each.seq not in self._holders:
                pull = self._pulls[0]
                pull.left.pop()
                self._hold(each.seq, pull.client, self._lease_seconds)
                message = Message(each.subject, each.data, "$JS.ACK", each.headers)
                message.seq, message.count = each.seq, self._counts.get(each.seq, 0) + 1
                self._counts[each.seq] = message.count
                message.tell = partial(self._tell, pull.client, each.seq)
                self._server.deliver(message, pull.inbox)

    def _tell(self, client: Client, seq: int, what: str, *arguments: float) -> None:
        client.send(partial(getattr(self, what), seq, *arguments))

    def _hold(self, seq: int, client: Client, seconds: float) -> None:
        self._holders[seq] = client, asyncio.get_running_loop().call_later(seconds, self._end, seq)

    def lease(self, seq: int, seconds: float | None = None) -> None:
        if seq in self._holders:
            client, timer = self._holders[seq]
            timer.cancel()
            self._hold(seq, client, seconds or self._lease_seconds)

    def _end(self, seq: int) -> None:
        client, _ = self._holders.pop(seq)
        for each in [each for each in self._server.kept.values() if each.seq == seq]:
            self._server.on_lease_ended(each.subject, client, self._lease_seconds)
        self.serve()

    def acknowledge(self, seq: int) -> None:
        if seq in self._holders:
            self._holders.pop(seq)[1].cancel()
        for each in [each for each in self._server.kept.values() if each.seq == seq]:
            del self._server.kept[each.subject]


class _Cut(NamedTuple):
    begins: float
    noticed: float  # when the client knows of it
    ends: float


def _cut(chance: Chance, begins: float, lengths: Sequence[float]) -> _Cut:
    return _Cut(begins, begins + chance.pick([0.0, 0.1, 1.0]), begins + 0.1 + chance.pick(lengths))


class Server:
    """The server. `kept` are the messages of its streams, by subject; `taken` the first ones ever, with their times."""

    def __init__(self, world: World) -> None:
        self.world = world
        chance = world.chance("broker")
        self.is_ill = chance.says(0.6)
        self.forgets = chance.pick([0.0, 0.2]) if self.is_ill else 0.0
        self.cuts = [_cut(chance, chance.pick([0.5, 2.0, 8.0]), [0.5, 3.0, 20.0])] if chance.says(0.3) else []
        self.has_lost = False
        self._failing = world.chance("broker's data")
        # The messages that it takes until it loses all its data; 0 if it does not.
        self._until_killed = self._failing.whole(1, 12) if self._failing.says(0.4) else 0
        self.max_payload = chance.pick([1_048_576, 7_000])
        self.kept: dict[str, Message] = {}
        self.taken: dict[str, tuple[float, bytes]] = {}
        self.on_sent: Callable[[Client, Message], None]
        self.on_heard: Callable[[Client, Message], None]
        self.on_lease_ended: Callable[[str, Client, float], None]
        self.context = contextvars.Context()  # of no process; an empty one would count as none
        self.context.run(_IS_SERVER.set, True)
        self.clients: list[Client] = []
        self.subscriptions: list[tuple[str, Client, asyncio.Queue[Message]]] = []
        self.epoch = 0.0
        self._made = _MADE
        self._patterns: list[str] = []  # of all streams
        self._consumers: dict[str, _Consumer] = {}
        self._seq = 0

    async def answers(self) -> None:
        """Wait until the server can be reached."""
        now = anyio.current_time()
        await anyio.sleep_until(max([now, *(each.ends for each in self.cuts if each.begins <= now)]))

    def publish(self, client: Client, message: Message) -> None:
        """Add a message of a client to a stream, if one has its subject, and send it to all that listen."""
        subject, inbox = message.subject, message.reply
        if subject.startswith(_NEXT):
            asked = orjson.loads(message.data)
            consumer = self._consumers.get(subject.rpartition(".")[2])
            if consumer is not None:
                consumer.pull(client, inbox, asked["batch"], asked["expires"] / 1e9)
            else:
                self.deliver(Message(inbox, b"", headers=_NOBODY))
        elif any(_matches(each, subject) for each in self._patterns):
            is_first = subject not in self.kept
            if is_first:
                self._seq += 1
                message.seq = self._seq
                self.kept[subject] = message
                self.taken.setdefault(subject, (asyncio.get_running_loop().time(), message.data))
            if not client.is_forgotten():
                self.deliver(Message(inbox, b"{}" if is_first else _NOT_FIRST))
            self._until_killed -= 1
            if not self._until_killed:
                self._lose()
        elif inbox:
            self.deliver(Message(inbox, b"", headers=_NOBODY))
        else:
            self.deliver(message)
        for consumer in self._consumers.values():
            consumer.serve()

    def _lose(self) -> None:
        """Lose all connections, and all streams, as a server without a disk does that is killed and started again."""
        loop = asyncio.get_running_loop()
        cut = _cut(self._failing, loop.time(), [0.5, 3.0, 20.0])
        self.cuts.append(cut)
        for each in self.clients:
            each.cut(cut)
        self.world.faults["broker: data lost"] += 1
        self.has_lost, self._made = True, datetime.fromtimestamp(self.epoch + cut.ends, UTC)
        self.kept.clear()
        self._patterns.clear()
        for each in self._consumers.values():
            each.end()
        self._consumers.clear()

    def deliver(self, message: Message, inbox: str = "") -> None:
        for subject, client, came in self.subscriptions:
            if _matches(subject, inbox or message.subject):
                client.receive(came.put_nowait, message)

    def matching(self, pattern: str) -> list[Message]:
        return [each for subject, each in self.kept.items() if _matches(pattern, subject)]

    # ------------------------------------------------------------------------------------- the API of JetStream

    def add_stream(self, config: Any) -> SimpleNamespace:
        self._patterns += [each for each in config.subjects if each not in self._patterns]
        return SimpleNamespace(created=self._made)

    def add_consumer(self, config: dict[str, Any]) -> Message:
        self._consumers.setdefault(config["durable_name"], _Consumer(self, config))
        return Message("", b"{}")

    def purge(self, pattern: str, *, of_calls: bool) -> None:
        for each in self.matching(pattern):
            if of_calls == (".call." in each.subject):
                del self.kept[each.subject]

    def get(self, wanted: Callable[[Message], bool]) -> Message | NotFoundError:
        return next(filter(wanted, self.kept.values()), NotFoundError())


class Client:
    """One connection of the driver: `nats.NATS`, and its context for JetStream."""

    def __init__(self, server: Server | None) -> None:
        assert server is not None
        self._server = server
        self.owner: Any = PROCESS.get()
        self._chance = server.world.chance(self.owner.named("connection"))
        self._context = contextvars.copy_context()
        self.max_payload = server.max_payload
        self.cuts: list[_Cut] = []
        server.clients.append(self)
        self._name = f"_INBOX.{len(server.clients)}"
        self._is_closed = False
        self._sent_until = self._received_until = 0.0
        self._steady_until = math.inf  # It is not connected yet.
        self._inboxes = 0
        self._tasks: list[asyncio.Future[None]] = []

    async def connect(self, _url: str, *, reconnected_cb: Callable[[], Awaitable[None]], **_options: Any) -> None:
        loop, chance, server = asyncio.get_running_loop(), self._chance, self._server
        self._steady_until = steady = loop.time() + CONNECTING_SECONDS
        own = range(chance.pick([0, 1, 2, 4]) if server.is_ill else 0)
        self.cuts += [_cut(chance, steady + chance.below(20.0), [0.1, 2.0, 8.0]) for _ in own]
        self._reconnected = reconnected_cb
        for each in self.cuts:
            loop.call_at(each.ends, self._reconnect)
        for each in server.cuts:
            self.cut(each)

    def cut(self, cut: _Cut) -> None:
        """Lose the connection with the server, but not while it is made."""
        if cut.ends > self._steady_until and not self.is_gone:
            self.cuts.append(_Cut(max(cut.begins, self._steady_until), *cut[1:]))
            asyncio.get_running_loop().call_at(cut.ends, self._reconnect, context=self._context)

    def _reconnect(self) -> None:
        if not self.is_gone:
            self._server.world.faults["connection lost"] += 1
            self._tasks.append(asyncio.ensure_future(self._reconnected()))

    @property
    def is_gone(self) -> bool:
        return self._is_closed or self.owner.is_dead

    @property
    def is_connected(self) -> bool:
        return not self.is_gone and self.cut_at(asyncio.get_running_loop().time()) is None

    def cut_at(self, moment: float, since: float | None = None) -> _Cut | None:
        """Return a cut of the connection at a moment, or in the time until then."""
        since = moment if since is None else since
        return next((each for each in self.cuts if each.begins <= moment and each.ends > since), None)

    def is_forgotten(self) -> bool:
        """Return whether the server does not answer this time."""
        is_steady = asyncio.get_running_loop().time() < self._steady_until
        forgotten = not is_steady and self._chance.says(self._server.forgets)
        self._server.world.faults["broker: not acknowledged"] += forgotten
        return forgotten

    def _delay(self) -> float:
        return self._chance.pick([0.0, 0.001, 0.02]) if self._chance.says(0.3) else 0.0

    def send(self, what: Callable[[], object]) -> None:
        """Let the server do something when this has arrived, if it does."""
        if self.is_gone:
            raise ConnectionError("the connection is closed")
        loop = asyncio.get_running_loop()
        now = loop.time()
        cut = self.cut_at(now)
        if cut is None or now >= cut.noticed:
            at = max(now + self._delay(), self._sent_until + _TICK, 0.0 if cut is None else cut.ends)
            self._sent_until = at
            loop.call_at(at, self._arrive, what, now, context=self._server.context)

    def _arrive(self, what: Callable[[], object], since: float) -> None:
        # What a client sends during a cut stays in its own memory until now, and is lost only with the client.
        is_lost = self.is_gone if self.cut_at(since) else self.cut_at(asyncio.get_running_loop().time(), since)
        if not is_lost:
            what()

    def receive(self, function: Callable[[Any], object], argument: object) -> None:
        """Call a function in the process of this client when this has arrived, if it does."""
        loop = asyncio.get_running_loop()
        at = self._received_until = max(loop.time() + self._delay(), self._received_until + _TICK)
        loop.call_at(at, self._hear, loop.time(), function, argument, context=self._context)

    def _hear(self, since: float, function: Callable[[Any], object], argument: object) -> None:
        if not self.is_gone and not self.cut_at(asyncio.get_running_loop().time(), since):
            function(argument)

    async def _ask(self, what: Callable[[], Any], seconds: float = 2.0) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(found: object) -> None:
            if not answer.done():
                answer.set_result(found)

        self.send(lambda: self.receive(settle, what()))
        async with asyncio.timeout(seconds):
            found = await answer
        if isinstance(found, Exception):
            raise found
        return found

    # ------------------------------------------------------------------------------------------------ the driver

    def jetstream(self, **_options: float) -> Client:
        return self

    def new_inbox(self) -> str:
        self._inboxes += 1
        return f"{self._name}.{self._inboxes}"

    async def subscribe(self, subject: str, *, cb: _Callback) -> None:
        came: asyncio.Queue[Message] = asyncio.Queue()
        self._server.subscriptions.append((subject, self, came))
        self._tasks.append(asyncio.ensure_future(self._listen(came, cb)))

    async def _listen(self, came: asyncio.Queue[Message], callback: _Callback) -> None:
        while True:
            message = await came.get()
            self._server.on_heard(self, message)
            await callback(message)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        message = Message(subject, payload, reply, headers)
        self._server.on_sent(self, message)
        self.send(partial(self._server.publish, self, message))

    async def request(self, _subject: str, payload: bytes, **_options: float) -> Message:
        return await self._ask(partial(self._server.add_consumer, orjson.loads(payload)["config"]))

    async def flush(self, seconds: float = 10.0) -> None:
        await self._ask(lambda: None, seconds)

    async def close(self) -> None:
        self._is_closed = True
        self._server.subscriptions = [each for each in self._server.subscriptions if each[1] is not self]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def add_stream(self, config: Any) -> SimpleNamespace:
        return await self._ask(partial(self._server.add_stream, config))

    async def purge_stream(self, name: str, *, subject: str) -> None:
        await self._ask(partial(self._server.purge, subject, of_calls=name.endswith("_calls")))

    async def get_last_msg(self, _stream: str, subject: str) -> Message:
        return await self._ask(partial(self._server.get, lambda each: each.subject == subject))

    async def get_msg(self, _stream: str, seq: int) -> Message:
        return await self._ask(partial(self._server.get, lambda each: each.seq == seq))
