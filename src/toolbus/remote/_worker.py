"""The worker: a bus and a dispatcher of its own, and the bridge between them and a transport."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from ..bus import EventBus
from ..core.approval import definition_of
from ..dispatcher import ToolDispatcher
from ..errors import DecodeError, NotRunning
from ..events import Event, ToolCallCompleted, ToolCallFailed, ToolCallRequested, decode, encode
from ..instrumentation import Instrumentation, continued_from
from ..messages import Message
from ..protocols import CallView
from ..secrets import secrets_of
from ..tools import ToolRegistry
from ._executor import SIGNALS, too_large
from ._transport import Delivery, Key, Unavailable, WorkerLink

__all__ = ["Worker", "WorkerStatistics"]

_RETRY_SECONDS = 0.2
_RENEWALS = 3
"""A lease is renewed this often before it ends."""
_logger = logging.getLogger("toolbus.remote")


@dataclass(slots=True, frozen=True)
class WorkerStatistics:
    """The calls that run now, those that were answered since the worker was made, and whether the broker is away."""

    running: int
    answered: int
    is_away: bool


class _View:
    """The part of a request that handlers on a worker see (`RequestView`): the deps are those of the worker."""

    options: Mapping[str, Any] = {}
    interceptors: Sequence[Any] = ()
    messages: Sequence[Message] = ()
    calls: Mapping[str, CallView] = {}
    begun_with: Mapping[str, Any] | None = None
    stops = False
    is_left = False
    secrets = secrets_of(None)

    def __init__(
        self,
        requested: ToolCallRequested,
        deps: Any,
        tools: ToolRegistry,
        instrumentation: Sequence[Instrumentation],
    ) -> None:
        self.request_id = requested.request_id
        self.conversation_id = requested.conversation_id
        self.metadata = requested.metadata
        self.deps = deps
        self.tools = tools
        self.instrumentation = instrumentation

    def narrate(self, call_id: str, text: str) -> None:
        """Do nothing: the status line of a request is written where its session runs."""

    def child(self, call_id: str, prompt: Any, **_options: Any) -> Any:
        """Raise `NotRunning`: a request can only be made where there is a model."""
        raise NotRunning(
            f"call {call_id} runs on a worker, which has no model to ask {str(prompt)[:40]!r}; "
            "declare a tool that uses context.ask() without a pool"
        )


class _Running(msgspec.Struct, eq=False):
    """One call on this worker. `answer` stays None if the call was settled elsewhere."""

    delivery: Delivery
    over: anyio.Event
    answer: ToolCallCompleted | ToolCallFailed | None = None
    is_stopped: bool = False


class Worker:
    """The calls of one pool on this machine. `run` takes calls until it is cancelled, or `drain` was called."""

    def __init__(
        self,
        tools: ToolRegistry,
        pool: str,
        connect: Callable[[], AbstractAsyncContextManager[WorkerLink]],
        *,
        deps: Any = None,
        max_concurrency: int,
        instrumentation: Sequence[Instrumentation] = (),
    ) -> None:
        self.bus = EventBus()
        self.running: dict[Key, _Running] = {}
        self.answered = 0
        self._tools = tools
        self._pool = pool
        self._connect = connect
        self._deps = deps
        self._instrumentation = instrumentation
        self._most = max_concurrency
        self.is_away = False
        self._refused: set[str] = set()
        self._draining = False
        self._changed = anyio.Event()

    def drain(self) -> None:
        """Take no more calls, and let `run` return when those that run are answered."""
        self._draining = True
        self._change()

    async def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Run calls. `ready` is called when the worker is connected and takes calls."""
        self._draining = False
        async with (
            self._connect() as self._link,
            anyio.create_task_group() as self._group,
            ToolDispatcher(self.bus, self._tools, pools=[self._pool], max_concurrency=self._most),
        ):
            disconnects = [
                self.bus.connect((ToolCallCompleted, ToolCallFailed), self._on_ended),
                self.bus.connect(SIGNALS, self._on_signal),
            ]
            self._link.listen(self._on_stopped)
            self._group.start_soon(self._renew)
            try:
                ready()
                await self._take()
                while self.running:
                    await self._changed.wait()
            finally:
                for disconnect in disconnects:
                    disconnect()
                self._group.cancel_scope.cancel()

    async def _take(self) -> None:
        """Fetch as many calls as there are free slots: all others wait in the broker, for any worker."""
        while not self._draining:
            if len(self.running) >= self._most:
                await self._changed.wait()
                continue
            try:
                # A fetch is not cancelled: what the broker has sent already would wait for the end of its lease.
                deliveries = await self._link.fetch(self._most - len(self.running))
            except Unavailable as exc:
                if not self.is_away:
                    _logger.warning("the broker does not answer: %s", exc)
                self.is_away = True
                await anyio.sleep(_RETRY_SECONDS)
                continue
            if self.is_away:
                _logger.info("the broker answers again")
            self.is_away = False
            for delivery in deliveries:
                self._begin(delivery)

    def _begin(self, delivery: Delivery) -> None:
        known = self.running.get(delivery.key)
        if known is not None:
            # The lease has ended although the call still runs here.
            known.delivery = delivery
            return
        call = self.running[delivery.key] = _Running(delivery, anyio.Event())
        self._group.start_soon(self._work, delivery.key, call)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self._link.lease_seconds / _RENEWALS)
            for call in [*self.running.values()]:
                try:
                    await call.delivery.renew()
                except Unavailable as exc:
                    _logger.debug("the leases of the calls here were not renewed: %s", exc)
                    break

    # ------------------------------------------------------------------------------------------------ one call

    async def _work(self, key: Key, call: _Running) -> None:
        try:
            requested = self._read(call.delivery)
            if requested is None:
                await call.delivery.done()
            elif self._draining or not self._has(requested):
                await call.delivery.give_back()
            elif await self._run(key, call, requested):
                await self._report(key, call, requested)
        except Unavailable as exc:
            # Its lease ends, and the call is delivered again.
            _logger.warning("call %s was not begun: %s", key[1], exc)
        finally:
            del self.running[key]
            self._change()

    def _read(self, delivery: Delivery) -> ToolCallRequested | None:
        try:
            event = decode(delivery.body)
        except DecodeError as exc:
            _logger.warning("a call for the pool %r was not run: %s", self._pool, exc)
            return None
        if not isinstance(event, ToolCallRequested) or (event.request_id, event.call_id) != delivery.key:
            _logger.warning("a call for the pool %r was not run: it is %s of another call", self._pool, event.type)
            return None
        return event

    def _has(self, requested: ToolCallRequested) -> bool:
        """Return whether this worker has the tool, in the definition by which the call was checked."""
        tool = self._tools.get(requested.name)
        if tool is None or tool.spec.pool != self._pool:
            why = f"this worker has no tool of that name in the pool {self._pool!r}"
        elif requested.definition and definition_of(tool.spec) != requested.definition:
            why = "this worker has another definition of the tool"
        else:
            return True
        if requested.name not in self._refused:
            self._refused.add(requested.name)
            _logger.warning("calls of %s are given back to the broker: %s", requested.name, why)
        return False

    async def _run(self, key: Key, call: _Running, requested: ToolCallRequested) -> bool:
        """Run a call until it is answered or settled elsewhere. Returns whether there is an answer to report."""
        delivery = call.delivery
        if (delivery.is_again or requested.resumed) and (known := await self._link.find(key)) is not None:
            await self._link.tell(delivery.node, known)
            await delivery.done()
            return False
        tool = self._tools.get(requested.name)
        if tool is not None and not tool.spec.idempotent:
            begun = await delivery.begin()
            if begun == "settled":
                return False
            if begun == "taken":
                call.answer = requested.failed(
                    "The worker that ran the call was lost, and nobody knows whether the call had its effect.",
                    reason="interrupted",
                    outcome_unknown=True,
                )
                return True
        if call.is_stopped:
            return False
        view = _View(requested, self._deps, self._tools, self._instrumentation)
        seconds, attempt = delivery.seconds_left, delivery.attempt
        # The handler runs in the context in which its call is adopted.
        with continued_from(requested.metadata, self._instrumentation):
            runs = self.bus.arbitration.adopt(requested, seconds_left=seconds, attempt=attempt, view=view)
        if not runs:
            await delivery.give_back()
            return False
        await call.over.wait()
        return call.answer is not None

    async def _report(self, key: Key, call: _Running, requested: ToolCallRequested) -> None:
        """Keep the answer in the broker, however long the broker is away, and only then give the lease up."""
        assert call.answer is not None
        body = encode(call.answer)
        if len(body) > self._link.max_bytes:
            body = encode(too_large(requested, "The call ran, but its result is", self._link.max_bytes, ran=True))
        while not call.is_stopped:
            try:
                if await self._link.answer(key, body):
                    await self._link.tell(call.delivery.node, body)
                    self.answered += 1
                await call.delivery.done()
            except Unavailable as exc:
                _logger.debug("the answer of call %s was not taken yet: %s", key[1], exc)
                await anyio.sleep(_RETRY_SECONDS)
            else:
                return

    # ------------------------------------------------------------------------------------------------ receivers

    def _on_ended(self, event: ToolCallCompleted | ToolCallFailed) -> None:
        call = self.running.get((event.request_id, event.call_id))
        if call is not None and call.answer is None:
            call.answer = event
            call.over.set()

    def _on_stopped(self, key: Key) -> None:
        call = self.running.get(key)
        if call is not None:
            call.is_stopped = True
            self.bus.arbitration.claim(*key)
            call.over.set()

    def _on_signal(self, event: Event) -> None:
        call = self.running.get((event.request_id, getattr(event, "call_id", "")))
        if call is not None and not call.is_stopped:
            self._group.start_soon(self._tell, call.delivery.node, encode(event))

    async def _tell(self, node: str, body: bytes) -> None:
        if len(body) <= self._link.max_bytes:
            try:
                await self._link.tell(node, body)
            except Unavailable as exc:
                _logger.debug("a signal was not sent: %s", exc)
