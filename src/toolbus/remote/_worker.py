"""The worker: a bus and its own dispatcher, and the bridge between them and a transport."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import anyio
import msgspec

from ..bus import EventBus
from ..core.approval import definition_of
from ..dispatcher import ToolDispatcher
from ..errors import DecodeError, NotRunning
from ..events import Event, TerminalEvent, ToolCallCompleted, ToolCallFailed, ToolCallRequested, encode
from ..instrumentation import Instrumentation, continued_from, observed_process
from ..messages import Message
from ..protocols import CallView, SecretHandling
from ..records import replace
from ..secrets import NO_SECRETS, GivenSecrets, NamedSecret
from ..tools import ToolRegistry
from ._bodies import Reference, read_call
from ._executor import SIGNALS, too_large
from ._payloads import LargeBodies, TooLarge
from ._questions import Asking
from ._transport import Damaged, Delivery, Key, Unavailable, WorkerLink

_RETRY_SECONDS = 0.2
_RENEWALS = 3
"""A lease is renewed this often before it ends."""
_MAX_STOPPED = 1_000
"""The number of remembered calls that were settled elsewhere: one of them may still be on its way to this worker."""
_logger = logging.getLogger("toolbus.remote")


@dataclass(slots=True, frozen=True)
class WorkerStatistics:
    """The calls that run now, those that were answered since the worker was made, and whether the broker is away."""

    running: int
    answered: int
    broker_unavailable: bool


class _View:
    """The part of a request that handlers on a worker see (`RequestView`): the deps are those of the worker."""

    options: Mapping[str, Any] = {}
    interceptors: Sequence[Any] = ()
    calls: Mapping[str, CallView] = {}
    original_metadata: Mapping[str, Any] | None = None
    is_stopping = False
    is_released = False

    def __init__(
        self,
        requested: ToolCallRequested,
        deps: Any,
        tools: ToolRegistry,
        instrumentation: Sequence[Instrumentation],
        messages: Sequence[Message],
        question: Callable[[Any, Mapping[str, Any]], Any],
        secrets: SecretHandling,
    ) -> None:
        self.messages = messages
        self.secrets = secrets
        self._question = question
        self.request_id = requested.request_id
        self.conversation_id = requested.conversation_id
        self.metadata = requested.metadata
        self.deps = deps
        self.tools = tools
        self.instrumentation = instrumentation

    def narrate(self, call_id: str, text: str) -> None:
        """Do nothing: the status line of a request is written where its session runs."""

    def child(self, call_id: str, prompt: Any, **options: Any) -> Any:  # noqa: ARG002 -- a view has one call here
        """Return a question to the model of the request, which the session's process answers."""
        return self._question(prompt, options)


class _Running(msgspec.Struct, eq=False):
    """One call on this worker, from its delivery until its lease is given up."""

    delivery: Delivery
    requested: ToolCallRequested | None = None
    messages: Sequence[Message] = ()  # the transcript, if the tool asks for it
    answer: TerminalEvent | None = None
    kept: Reference | None = None  # the answer as it is kept, if it does not fit into a message
    until: float = math.inf  # the time from which on its lease is not renewed, if it has not begun by then


_Step: TypeAlias = Callable[[Key, _Running], Awaitable[None]]


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
        secrets: Sequence[NamedSecret] = (),
    ) -> None:
        self.bus = EventBus()
        self.running: dict[Key, _Running] = {}
        self.answered = 0
        self._tools = tools
        self._pool = pool
        self._connect = connect
        self._deps = deps
        self._instrumentation = instrumentation
        self._named = secrets
        self._secrets: WeakValueDictionary[str, GivenSecrets] = WeakValueDictionary()  # by request
        self._max_concurrency = max_concurrency
        self.broker_unavailable = False
        self._refused: set[str] = set()
        self._stopped: dict[Key, None] = {}  # the oldest first
        self._draining = self._is_running = False
        self._changed = anyio.Event()
        self._steps: list[tuple[_Step, Key, _Running]] = []
        self._some_steps = anyio.Event()

    def drain(self) -> None:
        """Take no more calls, and let `run` return once the running calls are answered; before `run`, at once."""
        self._draining = True
        self._changed.set()

    async def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Run calls. `ready` is called when the worker is connected and takes calls."""
        if self._is_running:
            raise NotRunning("the worker is running already; for more calls at once, raise max_concurrency")
        self._is_running = True
        try:
            await self._run(ready)
        finally:
            self._is_running = False
            self._draining = False

    async def _run(self, ready: Callable[[], object]) -> None:
        async with (
            self._connect() as self._link,
            anyio.create_task_group() as self._group,
            ToolDispatcher(self.bus, self._tools, pools=[self._pool], max_concurrency=self._max_concurrency),
        ):
            disconnects = [
                self.bus.connect((ToolCallCompleted, ToolCallFailed), self._on_ended),
                self.bus.connect(SIGNALS, self._on_signal),
            ]
            self._large = LargeBodies(self._link.payloads)
            self._asking = Asking(
                self._link.name, self._tell, self._large, lambda: self._link.max_bytes, self._instrumentation
            )
            self._link.listen(self._on_stopped, self._on_heard)
            self._group.start_soon(self._renew)
            self._group.start_soon(self._report)
            try:
                with observed_process(self._instrumentation, self.bus, None):
                    ready()
                    await self._take()
                    await self._take_rest()
                    while self.running:
                        await self._change()
            finally:
                for disconnect in disconnects:
                    disconnect()
                # The calls that were cancelled here are delivered again, and may run here, too. An acknowledgement that
                # fails while the connection is closed does not belong to any of them.
                self.running.clear()
                self._group.cancel_scope.cancel()

    async def _change(self) -> None:
        """Wait until fewer calls run, or the worker drains."""
        self._changed = anyio.Event()
        await self._changed.wait()

    async def _take(self) -> None:
        """Fetch as many calls as there are free slots: all others wait in the broker, for any worker."""
        while not self._draining:
            if len(self.running) >= self._max_concurrency:
                await self._change()
                continue
            try:
                # A fetch is not cancelled: what the broker has sent already would wait for the end of its lease.
                deliveries = await self._link.fetch(self._max_concurrency - len(self.running))
            except Unavailable as exc:
                if not self.broker_unavailable:
                    _logger.warning("the broker does not answer: %s", exc)
                self.broker_unavailable = True
                await anyio.sleep(_RETRY_SECONDS)
                continue
            if self.broker_unavailable:
                _logger.info("the broker answers again")
            self.broker_unavailable = False
            for delivery in deliveries:
                self._begin(delivery)

    async def _take_rest(self) -> None:
        """Give back the calls that the broker sent while the last request for calls was pending."""
        try:
            for delivery in await self._link.rest():
                self._begin(delivery)
        except Unavailable as exc:
            _logger.debug("calls that were on their way come again when their leases end: %s", exc)

    def _begin(self, delivery: Delivery) -> None:
        key = delivery.key
        known = self.running.get(key)
        if known is not None:
            # The lease has ended although the call still runs here.
            known.delivery = delivery
            return
        call = self.running[key] = _Running(delivery)
        requested, call.messages, payload = self._read(delivery.key, delivery.body)
        call.requested = requested
        if requested is None or key in self._stopped:
            self._leave(key, call, delivery.done)
        elif self._draining or not self._has(requested):
            self._leave(key, call, delivery.give_back)
        elif payload is None:
            self._admit(key, call, requested)
        else:
            self._group.start_soon(self._load, key, call, requested, payload)

    async def _load(self, key: Key, call: _Running, requested: ToolCallRequested, payload: Reference) -> None:
        """Read the payload of a call. A call that lacks it could run nowhere, so it ends."""
        whole = None
        error = "The call did not run: the broker does not have what its session has kept for it."
        failed = requested.failed(error, reason="lost")
        try:
            whole, call.messages, _ = await self._large.load(payload, partial(self._read, key))
        except TooLarge as exc:
            failed = too_large(requested, "The call is", str(exc))
        except Damaged as exc:
            _logger.warning("call %s was not run: its payload cannot be read: %s", key[1], exc)
        except Unavailable as exc:
            # Its lease ends, and the call is delivered again.
            _logger.warning("call %s was not begun: %s", key[1], exc)
            self._forget(key, call)
            return
        if self.running.get(key) is not call:
            return
        if whole is not None and replace(whole, arguments={}) == replace(requested, arguments={}):
            call.requested = whole
            self._admit(key, call, whole)
        else:
            self._answer(key, call, failed)

    def _admit(self, key: Key, call: _Running, requested: ToolCallRequested) -> None:
        """Run a call at once, or after asking the broker if the call may have run before, or must not run twice."""
        if self._may_run_twice(requested) and not (call.delivery.is_again or requested.resumed):
            self._adopt(key, call, requested)
        else:
            self._group.start_soon(self._ask_and_adopt, key, call, requested)

    def _leave(self, key: Key, call: _Running, leave: Callable[[], Awaitable[None]]) -> None:
        self._group.start_soon(self._quietly, key, call, leave)

    async def _quietly(self, key: Key, call: _Running, leave: Callable[[], Awaitable[object]]) -> None:
        """Give up the lease of a call, or let it end while the broker is away: then the call is delivered again."""
        try:
            await leave()
        except Unavailable as exc:
            _logger.warning("call %s was not begun: %s", key[1], exc)
        self._forget(key, call)

    def _forget(self, key: Key, call: _Running) -> None:
        if self.running.get(key) is call:
            del self.running[key]
            self._changed.set()

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self._link.lease_seconds / _RENEWALS)
            now = anyio.current_time()
            for call in [each for each in self.running.values() if now < each.until]:
                try:
                    await call.delivery.renew()
                except Unavailable as exc:
                    _logger.debug("the leases of the calls here were not renewed: %s", exc)
                    break

    # ------------------------------------------------------------------------------------------------ one call

    def _read(self, key: Key, body: bytes) -> tuple[ToolCallRequested | None, Sequence[Message], Reference | None]:
        """Return the call of a body, the transcript that came along, and its payload; no call if it may not run."""
        try:
            event, messages, payload = read_call(body)
        except DecodeError as exc:
            _logger.warning("a call for the pool %r was not run: %s", self._pool, exc)
            return None, (), None
        ids = (event.request_id, getattr(event, "call_id", ""))
        if not isinstance(event, ToolCallRequested) or ids != key or (payload is not None and payload.key != key):
            _logger.warning("a call for the pool %r was not run: it is %s of another call", self._pool, event.type)
            return None, (), None
        return event, messages, payload

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

    def _may_run_twice(self, requested: ToolCallRequested) -> bool:
        tool = self._tools.get(requested.name)
        return tool is not None and tool.spec.idempotent

    async def _ask_and_adopt(self, key: Key, call: _Running, requested: ToolCallRequested) -> None:
        """Run a call that may have run before, or must not run twice, if the broker says that it may.

        While the broker is away, it is asked again by the same delivery, which knows its own mark: so a mark whose
        acknowledgement was lost does not end a call that has not run. After the time of a lease, it is offered to
        others too: this worker may lack a permission.
        """
        delivery, is_first = call.delivery, True
        call.until = anyio.current_time() + self._link.lease_seconds
        while self.running.get(key) is call and (is_first or not self._draining):
            try:
                await self._ask(key, call, requested, delivery, is_first=is_first)
            except Unavailable as exc:
                level = logging.WARNING if is_first else logging.DEBUG
                _logger.log(level, "call %s was not begun yet: %s", key[1], exc)
                is_first = False
                await anyio.sleep(_RETRY_SECONDS)
            else:
                call.until = math.inf
                return
        # The lease ends, and the call is delivered again.
        self._forget(key, call)

    async def _ask(
        self, key: Key, call: _Running, requested: ToolCallRequested, delivery: Delivery, *, is_first: bool
    ) -> None:
        may_be_known = delivery.is_again or requested.resumed or not is_first
        if may_be_known and (known := await self._link.find(key)) is not None:
            await call.delivery.done()
            self._link.tell(delivery.node, known, may_be_lost=False)
            await self._link.flush()
            self._forget(key, call)
            return
        if not self._may_run_twice(requested):
            begun = await delivery.begin()
            # While the broker was away, the lease may have ended, and another worker may run the call now.
            if begun == "settled" or (begun == "taken" and not is_first):
                self._forget(key, call)
                return
            if begun == "taken":
                lost = requested.failed(
                    "The worker that ran the call was lost, and nobody knows whether the call had its effect.",
                    reason="interrupted",
                    outcome_unknown=True,
                )
                self._answer(key, call, lost)
                return
        if self.running.get(key) is call:
            self._adopt(key, call, requested)

    def _adopt(self, key: Key, call: _Running, requested: ToolCallRequested) -> None:
        delivery = call.delivery
        secrets = self._secrets_of(requested)
        question = partial(self._asking.question, requested, lambda: call.delivery.node, secrets.mask, self._deps)
        view = _View(requested, self._deps, self._tools, self._instrumentation, call.messages, question, secrets)
        seconds, attempt = delivery.remaining_seconds, delivery.attempt
        # The handler runs in the context in which its call is adopted.
        with continued_from(requested.metadata, self._instrumentation):
            runs = self.bus.arbitration.adopt(requested, remaining_seconds=seconds, attempt=attempt, view=view)
        if not runs:
            self._leave(key, call, delivery.give_back)
        elif secrets is not NO_SECRETS and (mailbox := self.bus.arbitration.mailboxes.get(key[0])) is not None:
            # Handlers run in tasks of their own, so they have published nothing yet.
            mailbox.masked = secrets.mask

    def _secrets_of(self, requested: ToolCallRequested) -> SecretHandling:
        if not self._named:
            return NO_SECRETS
        secrets = self._secrets.get(requested.request_id)
        if secrets is None:
            secrets = GivenSecrets(self._named, requested.request_id, requested.conversation_id)
            self._secrets[requested.request_id] = secrets
        return secrets

    def _answer(self, key: Key, call: _Running, answer: TerminalEvent) -> None:
        if self.running.get(key) is call:
            call.answer = answer
            self._put(self._write, key, call)

    def _put(self, step: _Step, key: Key, call: _Running) -> None:
        self._steps.append((step, key, call))
        self._some_steps.set()

    async def _report(self) -> None:
        """Write answers in their order, and wait for none of their acknowledgements."""
        while True:
            self._some_steps = anyio.Event()
            if not self._steps:
                await self._some_steps.wait()
            steps, self._steps = self._steps, []
            for step, key, call in steps:
                if self.running.get(key) is call:
                    await step(key, call)
            await self._link.flush()

    async def _write(self, key: Key, call: _Running) -> None:
        """Keep the answer in the broker, however long the broker is away, and only then give the lease up."""
        body = self._body(call)
        if len(body) <= self._link.max_bytes:
            await self._link.answer(key, body, partial(self._on_kept, key, call))
        else:
            # The answers after this one do not wait for it.
            self._group.start_soon(self._keep, key, call)

    async def _keep(self, key: Key, call: _Running) -> None:
        """Keep an answer as a payload, and then write its reference."""
        assert call.requested is not None
        try:
            call.kept = await self._large.keep(key, partial(self._body, call))
        except TooLarge as exc:
            call.answer = too_large(call.requested, "The call ran, but its result is", str(exc), ran=True)
        except Unavailable as exc:
            _logger.debug("the answer of call %s was not taken yet: %s", key[1], exc)
            await self._again(self._write, key, call)
            return
        if self.running.get(key) is call:
            self._put(self._write, key, call)
        elif call.kept is not None:
            await self._quietly(key, call, partial(self._link.payloads.drop, key, call.kept.digest))

    def _body(self, call: _Running) -> bytes:
        assert call.answer is not None
        return encode(call.answer) if call.kept is None else call.kept.line

    def _on_kept(self, key: Key, call: _Running, outcome: bool | Unavailable) -> None:  # noqa: FBT001 -- `Then`
        if self.running.get(key) is not call:
            return
        if isinstance(outcome, Unavailable):
            _logger.debug("the answer of call %s was not taken yet: %s", key[1], outcome)
            self._group.start_soon(self._again, self._write, key, call)
        elif outcome:
            self._put(self._finish, key, call)
        else:
            self._group.start_soon(self._compare, key, call)

    async def _again(self, step: _Step, key: Key, call: _Running) -> None:
        await anyio.sleep(_RETRY_SECONDS)
        self._put(step, key, call)

    async def _compare(self, key: Key, call: _Running) -> None:
        """Tell the node only an answer that counts. One that was kept, but not acknowledged, is this worker's own."""
        try:
            if await self._link.find(key) == self._body(call):
                self._put(self._finish, key, call)
            else:
                await call.delivery.done()
                if call.kept is not None:
                    await self._link.payloads.drop(key, call.kept.digest)
                self._forget(key, call)
        except Unavailable as exc:
            _logger.debug("the answer of call %s was not taken yet: %s", key[1], exc)
            await self._again(self._write, key, call)

    async def _finish(self, key: Key, call: _Running) -> None:
        try:
            await call.delivery.done()
        except Unavailable as exc:
            _logger.debug("the lease of call %s was not given up yet: %s", key[1], exc)
            self._group.start_soon(self._again, self._finish, key, call)
            return
        # The node that hears this knows that the broker has heard `done`, which was sent before.
        self._link.tell(call.delivery.node, self._body(call), may_be_lost=False)
        self.answered += 1
        self._forget(key, call)

    # ------------------------------------------------------------------------------------------------ receivers

    def _on_ended(self, event: TerminalEvent) -> None:
        key = (event.request_id, event.call_id)
        call = self.running.get(key)
        if call is not None and call.answer is None:
            self._answer(key, call, event)

    def _on_stopped(self, key: Key) -> None:
        call = self.running.get(key)
        if call is not None:
            self._forget(key, call)
            self.bus.arbitration.claim(*key)
        self._stopped[key] = None
        if len(self._stopped) > _MAX_STOPPED:
            del self._stopped[next(iter(self._stopped))]

    def _tell(self, node: str, line: bytes) -> None:
        self._link.tell(node, line, may_be_lost=False)

    def _on_heard(self, line: bytes) -> None:
        try:
            self._asking.hear(line)
        except DecodeError as exc:
            _logger.warning("a message to a worker of the pool %r was not accepted: %s", self._pool, exc)

    def _on_signal(self, event: Event) -> None:
        call = self.running.get((event.request_id, getattr(event, "call_id", "")))
        if call is not None and call.answer is None:
            body = encode(event)
            if len(body) <= self._link.max_bytes:
                self._link.tell(call.delivery.node, body, may_be_lost=True)
